"""Accelerators that are not there: CPU tensors that say they are on one, and counters of what a device would do."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class OnDevice(TorchFunctionMode):
    """Tensors on the CPU that say they are on a CUDA device, so that the code for devices runs, with numbers.

    The index of the device is that of no machine, so that nothing cached about it meets a real one, and tells its
    compute capability; by default one without tensor cores, so that steps are computed in float32.
    """

    def __init__(self, capability: int = 6) -> None:
        super().__init__()
        self.device = torch.device("cuda", 100 + capability)

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if function == torch.Tensor.device.__get__:
            return self.device
        if kwargs.get("device") == self.device:
            kwargs["device"] = "cpu"
        return function(*args, **kwargs)


class Reads(TorchDispatchMode):
    """Count the operations that make a host wait for a device."""

    waiting = frozenset(
        getattr(torch.ops.aten, name).default
        for name in ("_local_scalar_dense", "item", "is_nonzero", "nonzero", "equal", "masked_select")
    )
    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function in self.waiting
        return function(*args, **(kwargs or {}))


class Tracer(TorchDispatchMode):
    """Count launches and reads, and list allocations; views are none of them.

    Args:
        known: tensors that exist before.
    """

    def __init__(self, known=()) -> None:
        super().__init__()
        self.known = {t.untyped_storage()._cdata for t in known}
        self.kept: list[Tensor] = []  # so that no new storage gets the address of an old one
        self.launches = self.reads = 0
        self.allocated: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        given = [x for x in tree_leaves((args, kwargs or {})) if isinstance(x, Tensor)]
        self.known |= {t.untyped_storage()._cdata for t in given}
        out = function(*args, **(kwargs or {}))
        returns = function._schema.returns
        view = bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)
        self.launches += not view and not function.name().startswith(("aten::empty", "aten::new_empty"))
        self.reads += function in Reads.waiting
        for x in tree_leaves(out):
            if isinstance(x, Tensor) and x.untyped_storage()._cdata not in self.known:
                self.known.add(x.untyped_storage()._cdata)
                self.kept.append(x)
                self.allocated.append(f"{function} {tuple(x.shape)} {x.dtype}")
        return out


class OneDevice(TorchDispatchMode):
    """Raise where an operation on lists gets tensors of several devices, as on GPUs; count them by name."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.__name__
        if name.startswith("_foreach"):
            self.names.add(name)
            found = {tensor.device for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, Tensor)}
            if len(found) > 1:
                raise RuntimeError(f"{name} got tensors on {found}")
        return function(*args, **(kwargs or {}))
