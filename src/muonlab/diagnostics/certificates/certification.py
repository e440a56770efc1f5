"""The certificate of a matrix, of several, of a model's gradients or of an optimizer's momenta."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, overload

from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from muonlab.diagnostics.certificates.certificate import Certificate
from muonlab.diagnostics.certificates.matrix import certify_matrix
from muonlab.diagnostics.certificates.network import NetworkCertificate
from muonlab.diagnostics.watch import members, muon_of, places, step_length
from muonlab.optim import MuonWithAux, NewtonSchulz, split_params
from muonlab.optim.base import BUFFER
from muonlab.optim.distributed.tensors import whole
from muonlab.optim.orthogonalizer import Orthogonalizer, from_plain, to_plain
from muonlab.orthogonalize.iteration import DEFAULT_POLYNOMIAL
from muonlab.orthogonalize.matrices import check_matrices
from muonlab.orthogonalize.prescale import Prescale
from muonlab.polynomials import Polynomial, Preset, Schedule


@overload
def certify(
    source: Tensor,
    polynomial: Polynomial | Schedule | Preset | str = ...,
    *,
    steps: int | None = ...,
    prescale: Prescale = ...,
    outcome: Tensor | None = ...,
) -> Certificate: ...
@overload
def certify(
    source: Mapping[str, Tensor] | Sequence[Tensor] | nn.Module | Optimizer,
    polynomial: Polynomial | Schedule | Preset | str = ...,
    *,
    steps: int | None = ...,
    prescale: Prescale = ...,
) -> NetworkCertificate: ...
def certify(
    source: Tensor | Mapping[str, Tensor] | Sequence[Tensor] | nn.Module | Optimizer,
    polynomial: Polynomial | Schedule | Preset | str = DEFAULT_POLYNOMIAL,
    *,
    steps: int | None = None,
    prescale: Prescale = "frobenius",
    outcome: Tensor | None = None,
) -> Certificate | NetworkCertificate:
    """Say what the convergence proof promises for these matrices (Kim & Oh 2026, Theorems 1, 2 and 4, and beyond).

    Args:
        source: a matrix (m, n); a mapping of names to matrices, or a sequence; a Muon or MuonWithAux, whose momenta are
            certified under the settings of their groups; or a model, the gradients of whose hidden matrices are.
        polynomial: a Polynomial, a Schedule, or a preset or its name. An optimizer brings its own.
        steps: number of steps; 5 for a single polynomial when None.
        prescale: how the matrix is brought into the unit ball.
        outcome: the direction that other code made of the matrix; it is judged in place of our own.

    Returns:
        A :class:`Certificate` for a matrix, else a :class:`NetworkCertificate`. Print it.

    Example:
        >>> import torch
        >>> c = certify(torch.diag(torch.tensor([3.0, 4.0])), steps=1)
        >>> c.status, round(c.delta_0, 2), round(c.alignment, 3)
        ('holds', 0.64, 0.957)
    """
    if isinstance(source, Optimizer):
        if polynomial is not DEFAULT_POLYNOMIAL or steps is not None or prescale != "frobenius" or outcome is not None:
            raise ValueError(
                "an optimizer is certified with the orthogonalizers of its groups, got other options as well: leave "
                "them out, or pass its momenta as {name: matrix}"
            )
        return _of_optimizer(source)
    how = NewtonSchulz(polynomial, steps=steps, prescale=prescale, compute_dtype=None)
    if isinstance(source, Tensor):
        return certify_matrix(_one_matrix(source), how, outcome=outcome)
    if outcome is not None:
        raise ValueError("an outcome belongs to one matrix, got several matrices: certify them one by one")
    if isinstance(source, nn.Module):
        return _of_gradients(source, how)
    if isinstance(source, Sequence) and not isinstance(source, str):
        source = {f"[{i}]": M for i, M in enumerate(source)}
    if not isinstance(source, Mapping):
        raise TypeError(
            f"certify takes a tensor, a mapping or sequence of tensors, a model or an optimizer, got "
            f"{type(source).__name__}: use torch.as_tensor for an array"
        )
    entries = [Entry(str(name), _one_matrix(M), how) for name, M in source.items()]
    return certify_entries(entries, what="matrices")


def _one_matrix(M: Tensor) -> Tensor:
    M = whole(M)
    if check_matrices(M).ndim != 2:
        raise ValueError(
            f"certify takes matrices (m, n), got shape {tuple(M.shape)}: pass M.unbind() for a batch of matrices, or "
            f"M.flatten(1) for filters"
        )
    return M


class Entry(NamedTuple):
    """A matrix to certify: its name, itself, how it is orthogonalized, and the length of a step along the result."""

    name: str
    matrix: Tensor
    orthogonalizer: Orthogonalizer
    step: float = 1.0
    not_covered: tuple[str, ...] = ()


def certify_entries(
    entries: Sequence[Entry],
    *,
    what: str,
    not_covered: tuple[str, ...] = (),
    progress: Callable[[int, int], object] | None = None,
) -> NetworkCertificate:
    """Certify named matrices, each under its own orthogonalizer, and the whole; progress is told (done, of all)."""
    if not entries:
        raise ValueError(f"there is nothing to certify, got no {what}: pass at least one matrix")
    entries = _distinct(entries)
    if not any(entry.step for entry in entries):  # learning rates of zero: at the end of a schedule, or of a warm-up
        entries = [entry._replace(step=float(entry.matrix.numel() > 0)) for entry in entries]
    longest = max(entry.step for entry in entries) or 1.0
    matrices = {}
    for done, e in enumerate(entries):
        if progress is not None:
            progress(done, len(entries))
        matrices[e.name] = certify_matrix(e.matrix, e.orthogonalizer, name=e.name, not_covered=e.not_covered)
    steps = {e.name: e.step / longest for e in entries}
    return NetworkCertificate(matrices, what, steps, not_covered)


def _distinct(entries: Sequence[Entry]) -> list[Entry]:
    """Number a name from its second use on: two groups may use one, and no matrix is to hide another."""
    found: dict[str, Entry] = {}
    counts: Counter[str] = Counter()
    for entry in entries:
        name = entry.name
        while name in found:
            counts[entry.name] += 1
            name = f"{entry.name} ({counts[entry.name] + 1})"
        found[name] = entry._replace(name=name)
    return list(found.values())


def entries_of(name: str, tensor: Tensor, group: Mapping[str, Any]) -> Iterator[Entry]:
    """Yield the matrices of a parameter's tensor as the options of its group see them."""
    how = from_plain(to_plain(group["orthogonalizer"]))
    for place, (m, n) in places(name, tensor.shape, group):
        length = step_length(group, m, n) if m and n else 0.0
        yield Entry(place.name, place.of(tensor), how, length, tuple(not_covered_by(group)))


def not_covered_by(group: Mapping[str, Any]) -> list[str]:
    """Return what a group of Muon does that the theorems do not speak of."""
    named_by = {
        "nesterov": "Nesterov's look-ahead",
        "weight_decay": "weight decay",
        "renormalize": "renormalised weights",
    }
    return [words for option, words in named_by.items() if group.get(option)]


def uncovered(optimizer: Optimizer) -> tuple[str, ...]:
    """Return what an optimizer does that the theorems do not speak of, each once."""
    words = [word for group in muon_of(optimizer).param_groups for word in not_covered_by(group)]
    if isinstance(optimizer, MuonWithAux):
        count = sum(len(group["params"]) for group in optimizer.aux.param_groups)
        words.append(f"{count} auxiliary parameters ({type(optimizer.aux).__name__})")
    return tuple(dict.fromkeys(words))


def _of_optimizer(optimizer: Optimizer) -> NetworkCertificate:
    muon = muon_of(optimizer)
    entries: list[Entry] = []
    for name, p, group in members(muon):
        entries += entries_of(name, whole(muon.state[p][BUFFER]), group)
    return certify_entries(entries, what="momentum buffers", not_covered=uncovered(optimizer))


def _of_gradients(model: nn.Module, how: NewtonSchulz) -> NetworkCertificate:
    """Certify gradients: the momentum of a first step."""
    entries: list[Entry] = []
    split, without = split_params(model), 0
    for group in split.matrices:
        options = {**group, "orthogonalizer": how, "lr": 1.0, "scale": "none"}
        for name, p in group["params"]:
            if p.grad is None:
                without += 1
            else:
                entries += entries_of(name, whole(p.grad), options)
    if not entries:
        raise ValueError(
            "a model is certified by the gradients of its hidden matrices, got none: call loss.backward() first, or "
            "pass the optimizer to certify its momenta"
        )
    others = sum(len(group["params"]) for group in split.rest)
    words = {
        f"{others} parameters that are no hidden matrices": others,
        f"{without} matrices without a gradient": without,
    }
    return certify_entries(entries, what="gradients", not_covered=tuple(w for w, count in words.items() if count))
