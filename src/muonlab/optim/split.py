"""Splits the parameters of a network into hidden matrices for Muon and the rest, with a reason for each."""

from __future__ import annotations

import difflib
import fnmatch
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import ParametrizationList

from muonlab import _checks
from muonlab._columns import aligned
from muonlab.optim.heads import CONVS, TRANSPOSED, find_heads
from muonlab.optim.views import VIEWS, MatrixView, matrices_shape

Role = Literal["embedding", "head", "vector", "other"]
Rule = MatrixView | Role | Literal["skip"]

ROLES = ("embedding", "head", "vector", "other")
EMBEDDING_WORDS = re.compile("embed(s|ding|dings)?|emb|pos|position(s|al)?|tokens?|cls|wte|wpe")
"""Words that mark a parameter of an unknown module as an embedding."""

_GATES = {nn.LSTM: 4, nn.LSTMCell: 4, nn.GRU: 3, nn.GRUCell: 3, nn.RNN: 1, nn.RNNCell: 1}


@dataclass(frozen=True)
class SplitRow:
    """The decision about one parameter; ``aliases`` are its other names if it is tied."""

    name: str
    aliases: tuple[str, ...]
    shape: tuple[int, ...]
    goes_to: Literal["Muon", "auxiliary", "none"]
    role: Role | None
    matrix_view: MatrixView | None
    why: str

    def cells(self) -> tuple[str, ...]:
        """Return the row as text, cell by cell."""
        used, view = str(self.matrix_view or self.role or "-"), self.matrix_view
        if isinstance(view, tuple):
            equal = len(set(view)) == 1
            used = f"{len(view)} blocks of {view[0]}" if equal else f"blocks of {', '.join(map(str, view))}"
        return " = ".join((self.name, *self.aliases)), str(self.shape), self.goes_to, used, self.why


@dataclass(frozen=True, repr=False)
class SplitTable:
    """The decisions: iterate over the rows, or print the table."""

    rows: tuple[SplitRow, ...]

    def __iter__(self) -> Iterator[SplitRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        lines = [("parameter", "shape", "goes to", "as", "why"), *(row.cells() for row in self.rows)]
        return "\n".join(aligned(lines))

    __repr__ = __str__


@dataclass(frozen=True, eq=False)
class Split:
    """The parameters of a network in two parts: ``matrices`` for Muon, ``rest`` for an auxiliary optimizer."""

    table: SplitTable
    parameters: tuple[nn.Parameter, ...] = field(repr=False)
    by: Literal["view", "shape"] = "view"

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("a Split has two parts: pass split.matrices to Muon and split.rest to the auxiliary optimizer")

    @property
    def matrices(self) -> list[dict[str, Any]]:
        """Parameter groups for Muon, one per matrix view, or per view and shape."""
        return self._groups("matrix_view")

    @property
    def rest(self) -> list[dict[str, Any]]:
        """Parameter groups for the auxiliary optimizer, one per role."""
        return self._groups("role")

    def _groups(self, key: str) -> list[dict[str, Any]]:
        # New dicts at every call: an optimizer writes its options into the dicts that it is given.
        members: dict[tuple[Any, ...], list[tuple[str, nn.Parameter]]] = {}
        for row, parameter in zip(self.table, self.parameters, strict=True):
            view = row.matrix_view
            if getattr(row, key) is not None:
                apart = matrices_shape(row.shape, view) if view and self.by == "shape" else ()
                members.setdefault((getattr(row, key), *apart), []).append((row.name, parameter))
        return [{"params": named, key: value} for (value, *_), named in members.items()]


class _Owner(NamedTuple):
    """A module that holds a parameter; for a parametrized weight, the module that uses it, and the parameter's part."""

    module: nn.Module
    attribute: str
    part: Literal["weight", "magnitude", "coordinates"] = "weight"


@dataclass(frozen=True)
class _NamedParameter:
    parameter: nn.Parameter
    names: list[str] = field(default_factory=list)
    owners: list[_Owner] = field(default_factory=list)


def split_params(
    model: nn.Module,
    *,
    rules: Mapping[str, Rule] | None = None,
    head: str | None = "auto",
    by: Literal["view", "shape"] = "view",
) -> Split:
    """Split a network's parameters into hidden matrices for Muon and the rest, with a reason for each.

    The decision depends on the type of the modules that hold a parameter. Frozen parameters are left out. Vectors,
    embeddings (also those tied to an output layer), norms and the output layer go to the auxiliary optimizer; linear,
    convolution, attention and recurrent weights go to Muon, fused ones as row blocks. Print ``.table`` to see every
    decision.

    Args:
        model: the network, after its lazy modules have seen data.
        rules: decisions for parameters whose full name (any of its names, if tied) matches a pattern such as
            ``"*.experts"``; the first matching pattern decides, also for frozen parameters. ``"flatten"``,
            ``"batch"`` or a tuple of row-block sizes send to Muon with that view; ``"embedding"``, ``"head"``,
            ``"vector"`` or ``"other"`` to the auxiliary optimizer in that role; ``"skip"`` to neither.
        head: the name of the output layer (in a container, its last linear or convolution layer), or None if there is
            none. ``"auto"`` looks for ``heads.HEAD_NAMES``, nearest to the root; failing these it takes the last
            ``nn.Linear`` outside repeated blocks or, without any ``nn.Linear``, the last convolution.
        by: ``"shape"`` makes a group of ``matrices`` for every shape, not only for every view.

    Returns:
        A :class:`Split`: ``Muon(split.matrices, lr=…)``, ``AdamW(split.rest, lr=…)``.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(32, 10))
        >>> print(split_params(net).table)
        parameter  shape         goes to    as       why
        0.weight   (8, 3, 3, 3)  Muon       flatten  weight of Conv2d
        0.bias     (8,)          auxiliary  vector   fewer than two dimensions
        2.weight   (10, 32)      auxiliary  head     taken for the output layer: last Linear outside repeated blocks
        2.bias     (10,)         auxiliary  vector   fewer than two dimensions
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}: pass the network itself")
    parameters = _named_parameters(model)
    if not any(entry.parameter.requires_grad for entry in parameters):
        raise ValueError(
            f"model must have a trainable parameter, got {len(parameters)} parameters, all frozen: "
            f"call model.requires_grad_() on what is to be trained"
        )
    _checks.one_of("by", by, ("view", "shape"))
    checked = _checked_rules({} if rules is None else rules, parameters)
    heads = find_heads(model, head)
    rows = [_row(entry, *(_by_rule(entry, checked) or next(_defaults(entry, heads)))) for entry in parameters]
    return Split(SplitTable(tuple(rows)), tuple(entry.parameter for entry in parameters), by)


def _named_parameters(model: nn.Module) -> list[_NamedParameter]:
    """Return every parameter once, in the order of the model, with all its names and owners."""
    found: dict[int, _NamedParameter] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        for attribute, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            name = f"{path}.{attribute}" if path else attribute
            if is_lazy(parameter):
                raise ValueError(
                    f"parameters must have a shape, got {name!r} uninitialized: run one forward pass of the model first"
                )
            entry = found.setdefault(id(parameter), _NamedParameter(parameter))
            entry.names.append(name)
            entry.owners.append(_owner(model, module, path, attribute))
    return list(found.values())


def _owner(model: nn.Module, module: nn.Module, path: str, attribute: str) -> _Owner:
    if not isinstance(module, ParametrizationList):
        return _Owner(module, attribute)
    base, _, tensor = f".{path}".rpartition(".parametrizations.")
    kinds = [type(parametrization).__name__.strip("_") for parametrization in module]
    user = model.get_submodule(base.lstrip("."))
    if kinds == ["WeightNorm"] and attribute == "original0":
        return _Owner(user, tensor, "magnitude")
    # Both rescale the matrix that is stored; any other parametrization may store something else than the matrix.
    return _Owner(user, tensor, "weight" if kinds in (["WeightNorm"], ["SpectralNorm"]) else "coordinates")


def _checked_rules(rules: Mapping[str, Rule], parameters: list[_NamedParameter]) -> Mapping[str, Rule]:
    if not isinstance(rules, Mapping):
        raise TypeError(f"rules must map patterns to rules, got {type(rules).__name__}: pass {{'*.name': 'flatten'}}")
    names = [name for entry in parameters for name in entry.names]
    for pattern, rule in rules.items():
        if not isinstance(pattern, str):
            raise TypeError(f"rules must have patterns of type str, got {pattern!r}: pass a parameter's name")
        if isinstance(rule, tuple):
            for size in rule:
                _checks.integer(f"each row-block size in rules[{pattern!r}]", size, at_least=1)
        elif not isinstance(rule, str) or rule not in (*VIEWS, *ROLES, "skip"):
            raise ValueError(
                f"rules[{pattern!r}] must be one of {', '.join(map(repr, (*VIEWS, *ROLES, 'skip')))} or a tuple of "
                f"row-block sizes, got {rule!r}: pick one of these"
            )
        if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
            near = difflib.get_close_matches(pattern, names) or names[:3]
            raise ValueError(
                f"each pattern in rules must match a parameter, got {pattern!r} that matches none: "
                f"did you mean {', '.join(map(repr, near))}?"
            )
    return rules


def _by_rule(entry: _NamedParameter, rules: Mapping[str, Rule]) -> tuple[Rule, str] | None:
    for pattern, rule in rules.items():
        if any(fnmatch.fnmatchcase(name, pattern) for name in entry.names):
            name, shape = entry.names[0], tuple(entry.parameter.shape)
            if len(shape) < 2 and (isinstance(rule, tuple) or rule in VIEWS):
                raise ValueError(
                    f"Muon takes parameters of two or more dimensions, got {name!r} of shape {shape} by "
                    f"rules[{pattern!r}]: narrow the pattern, or put {name!r}: 'vector' before it"
                )
            if isinstance(rule, tuple) and sum(rule) != shape[0]:
                raise ValueError(
                    f"rules[{pattern!r}] must sum to the rows of {name!r}, {shape[0]}, got {rule} with the sum "
                    f"{sum(rule)}: give sizes for all rows"
                )
            return rule, f"rules[{pattern!r}]"
    return None


def _defaults(entry: _NamedParameter, heads: Mapping[nn.Module, str]) -> Iterator[tuple[Rule, str]]:
    """Yield every default that applies, the strongest first; for a tied parameter, those of all its owners."""
    modules = [owner.module for owner in entry.owners]
    parts = {owner.part for owner in entry.owners}
    if not entry.parameter.requires_grad:
        yield "skip", "frozen: requires_grad is False"
    if entry.parameter.ndim < 2:
        yield "vector", "fewer than two dimensions"
    if "magnitude" in parts:
        yield "vector", "the lengths that weight_norm takes out of a weight"
    for module in modules:
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
            yield "embedding", f"weight of {_kind(module)}" + (", tied, kept in one place" if len(modules) > 1 else "")
    for module in modules:
        if isinstance(module, (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)):
            yield "vector", f"entrywise gain or shift of {_kind(module)}"
        if module in heads:
            yield "head", heads[module]
    if entry.parameter.is_complex():
        yield "other", "complex, and Muon takes real matrices"
    if "coordinates" in parts:
        yield "other", f"a weight of {_kind(modules[0])} is computed from it: not the matrix itself"
    yield from _defaults_by_words(entry)
    yield from _defaults_by_module(entry)
    if sum(size > 1 for size in entry.parameter.shape) < 2:
        yield "vector", "a single row or column"
    if entry.parameter.ndim == 2:
        yield "flatten", f"two-dimensional parameter of {_kind(modules[0])}"
    guess = f"ambiguous: {entry.parameter.ndim}-D parameter of {_kind(modules[0])}"
    yield "other", f"{guess}; give a rule, e.g. rules={{{entry.names[0]!r}: 'batch'}}"


def _defaults_by_words(entry: _NamedParameter) -> Iterator[tuple[Rule, str]]:
    """Yield defaults by words in the name, for modules of an unknown type."""
    for name, owner in zip(entry.names, entry.owners, strict=True):
        if _matrices_in(owner, entry.parameter) == 0:
            words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+", ".".join(name.split(".")[-2:]))
            if "bias" in owner.attribute.lower():
                yield "vector", "a bias by its name"
            for word in map(str.lower, words):
                if EMBEDDING_WORDS.fullmatch(word):
                    yield "embedding", f"{word!r} in its name"


def _defaults_by_module(entry: _NamedParameter) -> Iterator[tuple[Rule, str]]:
    for owner in entry.owners:
        count = _matrices_in(owner, entry.parameter)
        if count == 0:
            continue
        rows, columns = entry.parameter.shape[0] // count, math.prod(entry.parameter.shape[1:])
        what = f"{owner.attribute} of {_kind(owner.module)}"
        if isinstance(owner.module, TRANSPOSED):
            what += ", rows are input channels"
        if count > 1 and rows == 1:
            yield "other", f"{what}: one row a group, nothing to orthogonalize"
        elif min(rows, columns) <= 1:
            yield "vector", f"{what}: a single row or column"
        else:
            yield ("flatten", what) if count == 1 else ((rows,) * count, f"{what}: {count} matrices in one")


def _matrices_in(owner: _Owner, parameter: nn.Parameter) -> int:
    """Return how many matrices are stacked along the rows of a weight; 0 if the type of the module is unknown."""
    module, attribute = owner.module, owner.attribute
    if isinstance(module, nn.MultiheadAttention) and attribute.endswith("proj_weight"):
        return 3 if attribute == "in_proj_weight" else 1
    if not attribute.startswith("weight"):
        return 0
    if isinstance(module, CONVS):
        return module.groups
    if isinstance(module, nn.Linear) and parameter.ndim > 2:
        return 0  # a subclass with a stack of experts
    if isinstance(module, (nn.Linear, nn.Bilinear)) or attribute.startswith("weight_hr"):
        return 1
    return next((gates for kind, gates in _GATES.items() if isinstance(module, kind)), 0)


def _kind(module: nn.Module) -> str:
    return type(module).__name__.removeprefix("FSDP").removeprefix("Parametrized")


def _row(entry: _NamedParameter, rule: Rule, why: str) -> SplitRow:
    name, *aliases = entry.names
    where: dict[str, Any] = {"goes_to": "none", "role": None, "matrix_view": None}
    if isinstance(rule, tuple) or rule in VIEWS:
        where |= {"goes_to": "Muon", "matrix_view": rule}
    elif rule in ROLES:
        where |= {"goes_to": "auxiliary", "role": rule}
    return SplitRow(name, tuple(aliases), tuple(entry.parameter.shape), why=why, **where)
