"""Momenta and weights in files of torch.save, looked through before torch reads them."""

from __future__ import annotations

import math
import pickletools
import re
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from muonlab.diagnostics.certificates.entries import ADAM, AGAIN, ALONE, FileError, Found, printable
from muonlab.optim.base import BUFFER
from muonlab.optim.foreign import as_native
from muonlab.optim.orthogonalizer import to_plain

DEPTH = 16
"""Levels of dictionaries and lists that are searched for an optimizer's state."""
_TUPLES = 100  # levels; to hash a tuple takes C stack for each of them
_LEAVES = 10**5  # values in a tuple, shared ones as often as they occur: to hash it visits all of them
_FETCHED = 10**7  # values in all tuples that a file uses again
_GLOBALS = re.compile(
    r"collections\.(OrderedDict|Counter)|torch\.(Size|device|Tensor|[A-Z]\w*Storage|storage\.UntypedStorage)"
    r"|torch\._utils\._rebuild_(tensor(_v[23])?|parameter(_with_state)?|qtensor|sparse_tensor|meta_tensor_no_storage)"
    r"|torch\._tensor\._rebuild_from_type_v2|torch\.serialization\._get_layout|torch\.nn\.parameter\.Parameter"
    r"|_codecs\.encode|(builtins|__builtin__)\.(set|complex)"
)
_CALLS = ("STACK_GLOBAL", "INST", "OBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4")
_LARGE = re.compile(r".*[eE]\D?\d{4}|.{400}", re.DOTALL)  # "1e999999999" is short, and as a fraction fills the memory


def look_through(stream: bytes | IO[bytes]) -> None:
    """Refuse a pickle that names what is no tensor or plain value, or tuples too deep or large to be hashed."""
    stack: list[tuple[int, int]] = []  # of every object the levels of tuples and the values in them, of a mark -1
    memo: dict[Any, tuple[int, int]] = {}
    fetched = 0
    for code, arg, _ in pickletools.genops(stream):
        name = str(arg).replace(" ", ".") if code.name == "GLOBAL" else code.name
        if code.name in _CALLS or (code.name == "GLOBAL" and not _harmless(name)):
            way = "gather it by get_optimizer_state_dict, full_state_dict=True" if "distributed" in name else ALONE
            raise FileError(f"must hold tensors and plain values only, got {printable(name)}, not loaded: {way}")
        taken = []
        if pickletools.stackslice in code.stack_before:
            while (part := stack.pop())[0] >= 0:
                taken.append(part)
        fixed = [kind for kind in code.stack_before if kind not in (pickletools.markobject, pickletools.stackslice)]
        taken += [stack.pop() for _ in fixed]
        made = memo[arg] if "GET" in code.name else (-1, 0) if code.name == "MARK" else (0, 1)
        if code.name.startswith("TUPLE"):
            made = 1 + max((levels for levels, _ in taken), default=0), 1 + sum(leaves for _, leaves in taken)
        fetched += made[1] if "GET" in code.name and made[0] else 0
        if made[0] > _TUPLES:
            raise FileError(f"must nest tuples at most {_TUPLES} deep, got more: {ALONE}")
        if made[1] > _LEAVES or fetched > _FETCHED:
            limits = f"{_LEAVES} values, and {_FETCHED} in those used again"
            raise FileError(f"must hold tuples of at most {limits}, got more: {ALONE}")
        stack += [made] * len(code.stack_after)
        if "PUT" in code.name:
            memo[arg] = stack[-1]


def _harmless(name: str) -> bool:
    value = getattr(torch, name.removeprefix("torch."), None) if name.startswith("torch.") else None
    return bool(_GLOBALS.fullmatch(name)) or isinstance(value, (torch.dtype, torch.layout, torch.qscheme))


def read_torch(file: Path, found: Found, *, mmap: bool) -> str:
    """Find optimizers' states and other tensors in a file that was looked through."""
    optimizers: dict[str, tuple[dict[Any, Any], list[Any]]] = {}
    seen: set[int] = set()

    def search(value: object, *path: str) -> None:
        where = ".".join(path)
        if isinstance(value, Tensor):
            found.sort(where, found.unfit(value), lambda: value)
        if not isinstance(value, (dict, list, tuple)) or id(value) in seen:
            return
        seen.add(id(value))
        if len(path) > DEPTH:
            found.skip(where, f"lies more than {DEPTH} levels deep")
            return
        # dict.get and dict.items, since a pickle can set attributes that hide the methods of an OrderedDict
        if isinstance(value, dict):
            state, groups = dict.get(value, "state"), dict.get(value, "param_groups")
            if isinstance(state, dict) and isinstance(groups, list):
                optimizers[where] = state, groups
                return
        for key, item in dict.items(value) if isinstance(value, dict) else enumerate(value):
            text = key if isinstance(key, str) else str(key) if isinstance(key, int) else type(key).__name__
            search(item, *path, printable(text))

    search(torch.load(str(file), map_location="cpu", weights_only=True, mmap=mmap))
    for where, (state, groups) in optimizers.items():
        _read_optimizer(f"{where}: " if len(optimizers) > 1 else "", state, groups, found)
    return "torch optimizer state" if list(optimizers) == [""] else "torch checkpoint"


def _read_optimizer(prefix: str, state: dict[Any, Any], groups: list[Any], found: Found) -> None:
    """Take the momentum of every parameter, by its name if the groups have names."""
    for g, group in enumerate(groups):
        params, names = dict.get(group, "params") or [], dict.get(group, "param_names") or []
        settings = MappingProxyType(_settings(group))
        for i, key in enumerate(params):
            given = names[i] if i < len(names) else key
            name = prefix + (given if isinstance(given, str) else f"group {g}, parameter {i}")
            entry = dict.get(state, key) or {}
            buffer = dict.get(entry, BUFFER)
            if isinstance(buffer, Tensor):
                found.add(name, "momentum", buffer, settings)
            elif ADAM in entry:
                found.skip(name, f"has {ADAM} of an Adam-like optimizer, no momentum buffer")
            else:
                found.skip(name, "has no momentum buffer: save after a step with momentum > 0")


def _settings(group: dict[Any, Any]) -> dict[str, Any]:
    """Return the plain values of a group; in our terms, with an orthogonalizer in plain form, if it is a Muon's."""
    plain: dict[str, Any] = {}
    for key, value in dict.items(group):
        number = value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
        if isinstance(key, str) and key not in ("params", "param_names") and _is_plain(number):
            plain[printable(key)] = number
    try:
        repeated = [plain.get("ns_coefficients", (1,))] * min(plain.get("ns_steps", 1), 100)
        given = plain["orthogonalizer"] if "orthogonalizer" in group else ("", "", repeated)
        if given[0] != "exact_polar" and not _stays_small(given[2]):
            # the exact test of it would compute without end
            raise ValueError("100 steps or more, or a schedule that diverges")
        native = as_native(plain)
        return {key: to_plain(value) if key == "orthogonalizer" else value for key, value in native.items()}
    except (ArithmeticError, ValueError, TypeError, LookupError) as error:
        if "orthogonalizer" not in group and "ns_coefficients" not in group:  # another optimizer's
            return plain
        got = printable(repr(error), 160)
        raise FileError(f"must hold an orthogonalizer as Muon takes it, got {got}: {AGAIN}") from None


def _stays_small(steps: list[Any]) -> bool:
    """Tell whether a schedule, given as it is in a group, keeps [0, 1] below 100."""
    top = 1.0 if len(steps) < 100 else math.inf  # as in torch.optim.Muon
    for coefficients in steps:
        if not top < 100 or len(coefficients) > 16:
            return False
        s = np.linspace(0, top, 999)
        top = float(np.abs(s * np.polyval([float(Fraction(c)) for c in reversed(coefficients)], s * s)).max())
    return top < 100


def _is_plain(value: object, levels: int = 4, left: Iterator[int] | None = None) -> bool:
    """Tell whether a value is plain, and cheap to read as numbers: of a few levels, with 10⁵ items at most in all."""
    left = iter(range(_LEAVES)) if left is None else left  # lists can hold one another many times over
    if isinstance(value, (tuple, list)):
        return levels > 0 and all(next(left, None) is not None and _is_plain(v, levels - 1, left) for v in value)
    if isinstance(value, str):
        return not _LARGE.match(value) and value.isprintable()
    return value is None or isinstance(value, (bool, float)) or (isinstance(value, int) and abs(value) < 2**63)
