"""``dataset(...)``: the user's own data for a spec, identified by their content."""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from muonlab import _checks
from muonlab.lab.own.part import OwnPart
from muonlab.lab.own.source import name_of

if TYPE_CHECKING:
    from torch import Tensor

    Arrays = tuple[Tensor, ...]

_SHAPES = (
    "a pair (x, y) of tensors or arrays of one length, a torch Dataset of such pairs, or tokens: whole numbers in one "
    "dimension, or the path of a .npy file of them or of a .bin file of uint16"
)


def dataset(
    train: Any, test: Any = None, *, name: str | None = None, classes: int | None = None, **options: Any
) -> OwnDataset:
    """Return your own data for ``Spec(dataset=…)``.

    Args:
        train: the training data: a pair ``(x, y)`` of tensors or arrays, a torch Dataset of such pairs, or tokens
            (whole numbers in one dimension, or the path of a ``.npy`` file of them or a ``.bin`` file of uint16). Or a
            function that returns ``(train, test)``; if it has a parameter ``folder``, it gets the directory of
            ``--data`` or ``MUONLAB_DATA`` as a Path.
        test: the held-out data, in the same form; None for a function.
        name: in results; None is the name of the function, else ``own-data``.
        classes: number of classes, or size of the vocabulary; None is the largest label or token plus 1.
        **options: keyword arguments of the function.

    Floating-point numbers are trained with as float32, whole numbers as int64. All data are held in memory.

    Example:
        >>> import numpy as np
        >>> x, y = np.eye(4), np.arange(4) % 2
        >>> data = dataset((x, y), (x, y), name="corners")
        >>> [list(array.shape) for array in data.splits()["train"]]
        [[4, 4], [4]]
    """
    if isinstance(train, str):
        train = Path(train)
    is_function = callable(train) and not hasattr(train, "__getitem__")
    if is_function == (test is not None):
        raise TypeError(
            f"dataset takes training and test data, or one function that returns both, got {type(train).__name__} and "
            f"{type(test).__name__}: pass dataset(train, test) or dataset(function)"
        )
    if options and not is_function:
        raise TypeError(f"options are for a function that returns the data, got {', '.join(options)}: drop them")
    if classes is not None:
        _checks.integer("classes", classes, at_least=1)
    source = train if is_function else (train, test)
    target = cast("Callable[..., Any]", source)
    return OwnDataset(target, options, name or (name_of(train) if is_function else "own-data"), classes)


@dataclass(frozen=True, eq=False)
class OwnDataset(OwnPart):
    """Data of a spec: see :func:`dataset`. ``target`` is the function, or the pair of training and test data."""

    title: str = "own-data"
    classes: int | None = None

    @property
    def name(self) -> str:
        """Its name in results."""
        return self.title

    def _about(self) -> dict[str, Any]:
        return {"name": self.title, "options": dict(self.options)}  # the hash of the content is a part of every key

    def check_hashable(self) -> None:
        """Data are identified by their content, so that any function will do."""

    def splits(self, root: str | os.PathLike[str] | None = None) -> dict[str, Arrays]:
        """Return training and test data as ``(x, y)`` or ``(tokens,)``; they are read once in a process."""
        place = str(root or os.environ.get("MUONLAB_DATA") or "")
        if place not in self._read:
            pair = self._call(Path(place)) if callable(self.target) else self.target
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                raise TypeError(f"a function of data must return (train, test), got {_kind(pair)} from {self.title}")
            splits = {name: _arrays(part, f"{name} of {self.title}") for name, part in zip(_SPLITS, pair, strict=True)}
            if len(splits["train"]) != len(splits["test"]):
                raise TypeError(f"training and test data must have one form, got two in {self.title}: use {_SHAPES}")
            self._read[place] = splits
        return self._read[place]

    def any_splits(self) -> dict[str, Arrays]:
        """Return the data that were read last, or those of the usual directory."""
        return next(reversed(self._read.values())) if self._read else self.splits()

    @cached_property
    def _read(self) -> dict[str, dict[str, Arrays]]:
        return {}

    @property
    def reads_folder(self) -> bool:
        """Whether the data are made by a function that gets the directory of the data."""
        if not callable(self.target) or "folder" in self.options:
            return False
        return "folder" in inspect.signature(self.target).parameters

    def _call(self, folder: Path) -> Any:
        assert callable(self.target)
        if self.reads_folder and not folder.name:
            raise ValueError(f"{self.title} reads from a directory of data, got none: pass --data or set MUONLAB_DATA")
        return self.target(**self.options, **({"folder": folder} if self.reads_folder else {}))


_SPLITS = ("train", "test")


def content_hash(splits: Mapping[str, Arrays]) -> str:
    """Return the sha256 of dtypes, shapes and values of all arrays."""
    import torch

    digest = hashlib.sha256()
    for name, arrays in splits.items():
        for array in arrays:
            digest.update(f"{name} {array.dtype} {list(array.shape)}\n".encode())
            values = array.contiguous().flatten().view(torch.uint8).numpy()
            digest.update(values.data)
    return digest.hexdigest()


def _arrays(part: Any, what: str) -> Arrays:
    """Return a split as ``(x, y)`` or ``(tokens,)`` of CPU tensors."""
    import numpy as np
    import torch

    if isinstance(part, (str, Path)):
        part = _from_file(Path(part))
    if isinstance(part, torch.utils.data.Dataset):
        part = _from_dataset(part, what)
    if isinstance(part, (tuple, list)) and len(part) == 2:
        x, y = (each.detach().cpu() if isinstance(each, torch.Tensor) else _tensor(np.asarray(each)) for each in part)
        if not x.ndim or not y.ndim or len(x) != len(y) or not len(x):
            shapes = f"{list(x.shape)} and {list(y.shape)}"
            raise ValueError(f"x and y must have one length, at least 1, got {shapes} as {what}: pass an entry of each")
        return x, y
    tokens = part.detach().cpu() if isinstance(part, torch.Tensor) else _tensor(np.asarray(part))
    if tokens.ndim != 1 or tokens.is_floating_point() or len(tokens) < 2:
        raise TypeError(f"own data must be {_SHAPES}; got {_kind(part)} as {what}: convert them")
    return (tokens,)


def _tensor(array: Any) -> Tensor:
    """Return an array as a tensor; torch supports few operations on unsigned numbers of more than a byte."""
    import numpy as np
    import torch

    if array.dtype.kind not in "biuf":
        raise TypeError(f"own data must be numbers, got an array of {array.dtype}: convert them")
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int32 if array.dtype.itemsize == 2 else np.int64)
    return torch.from_numpy(np.ascontiguousarray(array))


def _from_file(path: Path) -> Any:
    import numpy as np

    if path.suffix not in (".npy", ".bin"):
        raise ValueError(f"a file of tokens must be .npy or .bin (uint16), got {path.name}: convert it, or pass arrays")
    return np.load(path, allow_pickle=False) if path.suffix == ".npy" else np.fromfile(path, dtype="<u2")


def _from_dataset(data: Any, what: str) -> tuple[Any, Any]:
    import torch

    if not hasattr(data, "__len__"):
        raise TypeError(
            f"a torch Dataset must have a length, got {type(data).__name__} as {what}: read it into tensors"
        )

    pairs = [data[index] for index in range(len(data))]
    x, y = (torch.stack([torch.as_tensor(pair[column]) for pair in pairs]) for column in (0, 1))
    return x, y


def _kind(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return type(value).__name__ if shape is None else f"{type(value).__name__} of shape {list(shape)}"


def own_dataset(value: Callable[..., Any] | OwnDataset) -> OwnDataset:
    """Return a function of data as a dataset."""
    return value if isinstance(value, OwnDataset) else dataset(value)
