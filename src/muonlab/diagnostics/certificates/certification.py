"""``certify``: the certificate of a matrix, of several, of a model's gradients or of an optimizer's momenta."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, overload

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from muonlab.diagnostics.certificates.certificate import Certificate
from muonlab.diagnostics.certificates.coverage import ASSUMED, not_covered_by, uncovered_options
from muonlab.diagnostics.certificates.matrix_certification import certify_matrix
from muonlab.diagnostics.certificates.network_certificate import NetworkCertificate
from muonlab.diagnostics.optimizer_matrices import matrix_slices, muon_of, parameters_of, present_gradient, step_length
from muonlab.diagnostics.weight_decay import decay_pull, frank_wolfe_gap
from muonlab.optim import NewtonSchulz, split_params
from muonlab.optim.distributed.tensors import whole
from muonlab.optim.orthogonalizer import Orthogonalizer, from_plain, to_plain
from muonlab.optim.saved_state import BUFFER
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
    """Return what the convergence proof guarantees for these matrices (Kim & Oh 2026, Theorems 1, 2 and 4, and beyond).

    Args:
        source: a matrix (m, n); a mapping of names to matrices, or a sequence of matrices; a Muon or MuonWithAux, whose
            momenta are certified under the settings of their groups; or a model, the gradients of whose hidden
            matrices are certified. With Nesterov's look-ahead, call it after ``step()`` and before ``zero_grad()``:
            then the look-aheads of the present gradients and momenta are what the step orthogonalized. After the next
            ``backward()`` they are not; without gradients (None or zero) the momenta are certified. ``what`` says
            which.
        polynomial: a Polynomial, a Schedule, or a preset or its name; not for an optimizer, whose groups have one.
        steps: number of steps; None takes 5 for a single polynomial.
        prescale: how the matrix is brought into the unit ball.
        outcome: a direction that other code computed from the matrix; it is certified instead of our own.

    Returns:
        A :class:`Certificate` for a matrix, else a :class:`NetworkCertificate`. Both can be printed.

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
        return _certify_momenta(source)
    orthogonalizer = NewtonSchulz(polynomial, steps=steps, prescale=prescale, compute_dtype=None)
    if isinstance(source, Tensor):
        return certify_matrix(_checked_matrix(source), orthogonalizer, outcome=outcome)
    if outcome is not None:
        raise ValueError("an outcome belongs to one matrix, got several matrices: certify them one by one")
    if isinstance(source, nn.Module):
        return _certify_gradients(source, orthogonalizer)
    if isinstance(source, Sequence) and not isinstance(source, str):
        source = {f"[{i}]": M for i, M in enumerate(source)}
    if not isinstance(source, Mapping):
        raise TypeError(
            f"certify takes a tensor, a mapping or sequence of tensors, a model or an optimizer, got "
            f"{type(source).__name__}: use torch.as_tensor for an array"
        )
    matrices = [MatrixToCertify(str(name), _checked_matrix(M), orthogonalizer) for name, M in source.items()]
    return certify_matrices(matrices, what="matrices")


def _checked_matrix(M: Tensor) -> Tensor:
    M = whole(M)
    if isinstance(M, Tensor) and M.is_meta:
        raise ValueError("certify needs the entries of a matrix, got one on the meta device: load its values first")
    if check_matrices(M).ndim != 2:
        raise ValueError(
            f"certify takes matrices (m, n), got shape {tuple(M.shape)}: pass M.unbind() for a batch of matrices, or "
            f"M.flatten(1) for filters"
        )
    return M


class MatrixToCertify(NamedTuple):
    """A named matrix, its orthogonalizer, and the length of a step along the orthogonalized direction.

    ``unit_step`` is that length at learning rate 1, which counts if the learning rates of all matrices are zero.
    """

    name: str
    matrix: Tensor
    orthogonalizer: Orthogonalizer
    step: float = 1.0
    unit_step: float = 1.0
    not_covered: tuple[str, ...] = ()


def certify_matrices(
    matrices: Sequence[MatrixToCertify],
    *,
    what: str,
    not_covered: tuple[str, ...] = (),
    progress: Callable[[int, int], object] | None = None,
) -> NetworkCertificate:
    """Certify each matrix under its own orthogonalizer, and the network; call ``progress(done, total)`` in between."""
    if not matrices:
        raise ValueError(f"there is nothing to certify, got no {what}: pass at least one matrix")
    matrices = _with_distinct_names(matrices)
    if not any(entry.step for entry in matrices):  # learning rates of zero: at the end of a schedule, or of a warm-up
        matrices = [entry._replace(step=entry.unit_step) for entry in matrices]
    longest = max(entry.step for entry in matrices) or 1.0
    certificates = {}
    for done, entry in enumerate(matrices):
        if progress is not None:
            progress(done, len(matrices))
        certificates[entry.name] = certify_matrix(
            entry.matrix, entry.orthogonalizer, name=entry.name, not_covered=entry.not_covered
        )
    steps = {entry.name: entry.step / longest for entry in matrices}
    return NetworkCertificate(certificates, what, steps, not_covered)


def _with_distinct_names(matrices: Sequence[MatrixToCertify]) -> list[MatrixToCertify]:
    """Number a name from its second use on: two groups may use the same one."""
    by_name: dict[str, MatrixToCertify] = {}
    counts: Counter[str] = Counter()
    for entry in matrices:
        name = entry.name
        while name in by_name:
            counts[entry.name] += 1
            name = f"{entry.name} ({counts[entry.name] + 1})"
        by_name[name] = entry._replace(name=name)
    return list(by_name.values())


def _certify_momenta(optimizer: Optimizer) -> NetworkCertificate:
    muon = muon_of(optimizer)
    matrices: list[MatrixToCertify] = []
    kinds: Counter[str] = Counter()
    for name, p, group in parameters_of(muon):
        M = whole(muon.state[p][BUFFER])
        G = present_gradient(p)
        if group["nesterov"] and G is not None:
            kinds["look-aheads of the present gradients and momenta"] += 1
            M = _look_ahead(M, G, group)
        else:
            kinds["momentum buffers without gradients" if group["nesterov"] else "momentum buffers"] += 1
        matrices += _matrices_of(name, M, group)
    what = next(iter(kinds)) if len(kinds) == 1 else ", ".join(f"{kind}: {n}" for kind, n in kinds.items())
    network = certify_matrices(matrices, what=what, not_covered=not_covered_by(optimizer))
    pull = decay_pull(muon)
    gap = None if pull is None else frank_wolfe_gap(muon, network.descent)
    return replace(network, assumed=ASSUMED, pull=pull, present_gap=gap)


def _look_ahead(M: Tensor, G: Tensor, group: Mapping[str, Any]) -> Tensor:
    """Return what a step with this gradient orthogonalizes, once it has updated the momentum to M."""
    beta, G = float(group["momentum"]), G.to(M.dtype)
    return torch.lerp(G, M, beta) if group["momentum_form"] == "ema" else G + beta * M


def _certify_gradients(model: nn.Module, orthogonalizer: NewtonSchulz) -> NetworkCertificate:
    """Certify gradients: they are the momenta of a first step."""
    matrices: list[MatrixToCertify] = []
    split, without = split_params(model), 0
    for group in split.matrices:
        options = {**group, "orthogonalizer": orthogonalizer, "lr": 1.0, "scale": "none"}
        for name, p in group["params"]:
            if p.grad is None:
                without += 1
            else:
                matrices += _matrices_of(name, whole(p.grad), options)
    if not matrices:
        raise ValueError(
            "a model is certified by the gradients of its hidden matrices, got none: call loss.backward() first, or "
            "pass the optimizer to certify its momenta"
        )
    others = sum(len(group["params"]) for group in split.rest)
    counts = {"parameters that are not hidden matrices": others, "matrices without a gradient": without}
    not_covered = tuple(f"{count} {kind}" for kind, count in counts.items() if count)
    return certify_matrices(matrices, what="gradients", not_covered=not_covered)


def _matrices_of(name: str, tensor: Tensor, group: Mapping[str, Any]) -> Iterator[MatrixToCertify]:
    """Yield the matrices of a parameter's tensor under the options of its group."""
    orthogonalizer = from_plain(to_plain(group["orthogonalizer"]))
    for part, (m, n) in matrix_slices(name, tensor.shape, group):
        step, unit = (step_length({**group, "lr": lr}, m, n) if m and n else 0.0 for lr in (group["lr"], 1.0))
        uncovered = tuple(uncovered_options(group))
        yield MatrixToCertify(part.name, part.select(tensor), orthogonalizer, step, unit, uncovered)
