"""Splits the parameters of a network into hidden matrices for Muon and the rest, with a reason for each."""

from __future__ import annotations

import difflib
import fnmatch
import json
import math
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from muonlab import _checks
from muonlab._columns import aligned
from muonlab.optim.architectures import ROLES, Role
from muonlab.optim.heads import CONVS, TRANSPOSED, find_heads
from muonlab.optim.lookup import Heads, by_heads, known_default
from muonlab.optim.owners import NamedParameter, Owner, named_parameters
from muonlab.optim.views import MatrixView, check_fits, check_view, matrix_blocks

SplitRule = MatrixView | Role | Literal["skip"]

EMBEDDING_WORDS = re.compile("embed(s|ding|dings)?|emb|pos|position(s|al)?|tokens?|cls|wte|wpe")
"""Words that mark a parameter of an unknown module as an embedding."""

_FUSED = re.compile(r"(qkv|c_attn|in_proj|query_key_value)\w*\.weight$", re.IGNORECASE)
"""Names of projections that often hold query, key and value in one; only the forward of the model can tell."""

_GATES = {nn.LSTM: 4, nn.LSTMCell: 4, nn.GRU: 3, nn.GRUCell: 3, nn.RNN: 1, nn.RNNCell: 1}


@dataclass(frozen=True)
class SplitRow:
    """The decision about one parameter; ``aliases`` are its other names if it is tied."""

    name: str
    aliases: tuple[str, ...]
    shape: tuple[int, ...]
    goes_to: Literal["Muon", "auxiliary", "none"]
    role: Role | None
    matrix_view: str | None
    why: str

    def cells(self) -> tuple[str, ...]:
        """Return the row as text, cell by cell."""
        used = self.matrix_view or self.role or "-"
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

    def to_dict(self) -> dict[str, Any]:
        """Return the rows as plain values."""
        return {"rows": [{**asdict(row), "aliases": list(row.aliases), "shape": list(row.shape)} for row in self.rows]}

    def to_json(self, indent: int | None = 2) -> str:
        """Return the rows as JSON."""
        return json.dumps(self.to_dict(), indent=indent)


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
                apart = matrix_blocks(row.shape, view)[0].matrices if view and self.by == "shape" else ()
                members.setdefault((getattr(row, key), *apart), []).append((row.name, parameter))
        return [{"params": named, key: value} for (value, *_), named in members.items()]


def split_params(
    model: nn.Module,
    *,
    rules: Mapping[str, SplitRule] | None = None,
    head: str | None = "auto",
    heads: Heads = None,
    by: Literal["view", "shape"] = "view",
) -> Split:
    """Split a network's parameters into hidden matrices for Muon and the rest, with a reason for each.

    The decision depends on the type of the modules that hold a parameter. Frozen parameters are left out. Vectors,
    embeddings (also those tied to an output layer), norms and the output layer go to the auxiliary optimizer; linear,
    convolution, attention and recurrent weights go to Muon; the fused ones of ``nn.MultiheadAttention`` and of
    recurrent layers as row blocks. A fused projection of your own module is one matrix unless a rule cuts it. Layers of
    transformers, timm and peft are recognized by their class names: experts, fused and transposed projections, routers,
    LoRA (``muonlab.optim.architectures``). Print ``.table`` to see every decision.

    Args:
        model: the network, after its lazy modules have seen data.
        rules: decisions for parameters whose full name (any of its names, if tied) matches a pattern such as
            ``"*.experts"``; the first matching pattern decides, also for frozen parameters. A matrix view such as
            ``"flatten"``, ``"batch"`` or a tuple of row-block sizes sends to Muon; ``"embedding"``, ``"head"``,
            ``"vector"`` or ``"other"`` to the auxiliary optimizer in that role; ``"skip"`` to neither.
        head: the name of the output layer (in a container, its last linear or convolution layer; in a ModuleList of
            layers, those with as many outputs as the last), or None if there is none. ``"auto"`` looks for
            ``heads.HEAD_NAMES``, nearest to the root; failing these it takes the last ``nn.Linear`` outside repeated
            blocks or, without any ``nn.Linear``, the last convolution.
        heads: ``"auto"`` cuts the query, key, value and output projections of attention by heads, with the size of a
            head from the module or from ``config``; an int is the number of query heads; None leaves them whole.
        by: ``"shape"`` makes a group of ``matrices`` for every shape, not only for every view.

    Returns:
        A :class:`Split`: ``Muon(split.matrices, lr=…)``, ``AdamW(split.rest, lr=…)``.

    Warns:
        UserWarning: a parameter of three or more dimensions of an unknown module went to the auxiliary optimizer.

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
    model = getattr(model, "_orig_mod", model)  # of torch.compile: names without its prefix
    model = model.module if isinstance(model, DistributedDataParallel) else model
    parameters = named_parameters(model)
    if not any(entry.parameter.requires_grad for entry in parameters):
        raise ValueError(
            f"model must have a trainable parameter, got {len(parameters)} parameters, all frozen: "
            f"call model.requires_grad_() on what is to be trained"
        )
    _checks.one_of("by", by, ("view", "shape"))
    checked = _checked_rules({} if rules is None else rules, parameters)
    outputs, heads = find_heads(model, head), _checked_heads(heads)
    rows = [_row(entry, *(_by_rule(entry, checked) or next(_defaults(entry, outputs, heads)))) for entry in parameters]
    if heads is not None and not any("heads(" in (row.matrix_view or "") for row in rows):
        raise ValueError(
            f"heads must find projections of attention, got heads={heads!r} and none in {type(model).__name__}: pass "
            f"heads=None, and name them by rules, e.g. rules={{'*.query.weight': 'row_heads(64)'}}"
        )
    _warn_about_ambiguous(rows)
    return Split(SplitTable(tuple(rows)), tuple(entry.parameter for entry in parameters), by)


def _checked_heads(heads: object) -> Heads:
    if heads is None or heads == "auto":
        return heads
    if isinstance(heads, str):
        raise ValueError(f"heads must be 'auto', None or the number of query heads, got {heads!r}: pass 'auto'")
    return _checks.integer("heads", heads, at_least=1)


def _warn_about_ambiguous(rows: list[SplitRow]) -> None:
    names = list(
        dict.fromkeys(re.sub(r"(?<![^.])\d+(?![^.])", "*", row.name) for row in rows if row.why.startswith("ambiguous"))
    )
    if names:
        warnings.warn(
            f"split_params does not know how to read {', '.join(names)} as matrices and sends them to the auxiliary "
            f"optimizer: give a rule, e.g. rules={{{names[0]!r}: 'batch'}} for a stack of matrices, outputs × inputs, "
            f"or 'other' to keep them there",
            stacklevel=3,
        )


def _checked_rules(rules: Mapping[str, SplitRule], parameters: list[NamedParameter]) -> Mapping[str, SplitRule]:
    if not isinstance(rules, Mapping):
        raise TypeError(f"rules must map patterns to rules, got {type(rules).__name__}: pass {{'*.name': 'flatten'}}")
    names = [name for entry in parameters for name in entry.names]
    rules = {pattern: tuple(rule) if isinstance(rule, list) else rule for pattern, rule in rules.items()}
    for pattern, rule in rules.items():
        if not isinstance(pattern, str):
            raise TypeError(f"rules must have patterns of type str, got {pattern!r}: pass a parameter's name")
        if rule not in (*ROLES, "skip"):
            try:
                check_view(rule)
            except (TypeError, ValueError) as error:
                raise type(error)(
                    f"rules[{pattern!r}] must be one of {', '.join(map(repr, (*ROLES, 'skip')))} or a matrix_view, got "
                    f"{rule!r}: {error}"
                ) from None
        if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
            near = [name for name in names if pattern.strip("*") in name][:3]
            near = near or difflib.get_close_matches(pattern, names) or names[:3]
            raise ValueError(
                f"each pattern in rules must match a parameter, got {pattern!r} that matches none: "
                f"did you mean {', '.join(map(repr, near))}?"
            )
    return rules


def _by_rule(entry: NamedParameter, rules: Mapping[str, SplitRule]) -> tuple[SplitRule, str] | None:
    for pattern, rule in rules.items():
        if any(fnmatch.fnmatchcase(name, pattern) for name in entry.names):
            name, shape = entry.names[0], tuple(entry.parameter.shape)
            if rule in (*ROLES, "skip"):
                return rule, f"rules[{pattern!r}]"
            if len(shape) < 2:
                raise ValueError(
                    f"Muon takes parameters of two or more dimensions, got {name!r} of shape {shape} by "
                    f"rules[{pattern!r}]: narrow the pattern, or put {name!r}: 'vector' before it"
                )
            check_fits(rule, shape, f"{name!r} by rules[{pattern!r}]")
            return check_view(rule), f"rules[{pattern!r}]"
    return None


def _defaults(entry: NamedParameter, outputs: Mapping[nn.Module, str], heads: Heads) -> Iterator[tuple[SplitRule, str]]:
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
        if module in outputs:
            yield "head", outputs[module]
    if entry.parameter.is_complex():
        yield "other", "complex, and Muon takes real matrices"
    if "coordinates" in parts:
        yield "other", f"a weight of {_kind(modules[0])} is computed from it: not the matrix itself"
    yield from _defaults_by_architecture(entry, heads)
    yield from _defaults_by_words(entry)
    yield from _defaults_by_module(entry)
    if sum(size > 1 for size in entry.parameter.shape) < 2:
        yield "vector", "a single row or column"
    if entry.parameter.ndim == 2:
        yield "flatten", f"two-dimensional parameter of {_kind(modules[0])}"
    guess = f"ambiguous: {entry.parameter.ndim}-D parameter of {_kind(modules[0])}"
    yield "other", f"{guess}; give a rule, e.g. rules={{{entry.names[0]!r}: 'batch'}}"


def _defaults_by_architecture(entry: NamedParameter, heads: Heads) -> Iterator[tuple[SplitRule, str]]:
    """Yield defaults by the table of known layers."""
    shape = entry.parameter.shape
    for name, owner in zip(entry.names, entry.owners, strict=True):
        known = by_heads(owner.sites, shape, heads, name) or known_default(owner.sites, shape)
        if known:
            yield known


def _defaults_by_words(entry: NamedParameter) -> Iterator[tuple[SplitRule, str]]:
    """Yield defaults by words in the name, for modules of an unknown type."""
    for name, owner in zip(entry.names, entry.owners, strict=True):
        if _matrices_in(owner, entry.parameter) == 0:
            words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+", ".".join(name.split(".")[-2:]))
            if "bias" in owner.attribute.lower():
                yield "vector", "a bias by its name"
            for word in map(str.lower, words):
                if EMBEDDING_WORDS.fullmatch(word):
                    yield "embedding", f"{word!r} in its name"


def _defaults_by_module(entry: NamedParameter) -> Iterator[tuple[SplitRule, str]]:
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
            name = entry.names[0]
            if count == 1 and rows == 3 * columns and _FUSED.search(name):
                what += f"; if fused: rules={{{name!r}: {(columns,) * 3}}}"
            yield ("flatten", what) if count == 1 else (check_view((rows,) * count), f"{what}: {count} matrices in one")


def _matrices_in(owner: Owner, parameter: nn.Parameter) -> int:
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


def _row(entry: NamedParameter, rule: SplitRule, why: str) -> SplitRow:
    name, *aliases = entry.names
    where: dict[str, Any] = {"goes_to": "none", "role": None, "matrix_view": None}
    if rule in ROLES:
        where |= {"goes_to": "auxiliary", "role": rule}
    elif rule != "skip":
        where |= {"goes_to": "Muon", "matrix_view": rule}
    return SplitRow(name, tuple(aliases), tuple(entry.parameter.shape), why=why, **where)
