"""``NetworkCertificate``: what the proof says about all matrices of a network together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from muonlab.diagnostics.certificates import text
from muonlab.diagnostics.certificates.certificate import Certificate, CertificateStatus
from muonlab.theory import network_alignment


@dataclass(frozen=True)
class NetworkCertificate:
    """A certificate per matrix, and one for the network under the dual pair ``Σ_l c_l ‖·‖_*``, ``max_l ‖·‖_op / c_l``.

    ``c_l`` is the length of a step in layer l (scale rule and learning rate) relative to the longest; where all are
    equal this is the plain pair ``Σ_l ‖·‖_*`` and ``max_l ‖·‖_op``. The L of the theorem belongs to the same pair.

    Attributes:
        matrices: name → certificate.
        what: the kind of the matrices: momentum buffers, look-aheads, gradients, weights.
        steps: name → c_l; matrices of length zero do not count in the whole (if all are, with the lengths at learning
            rate 1).
        descent: ``Σ_l c_l ⟨M_l, O_l⟩ / Σ_l c_l ‖M_l‖_*``.
        op_norm: ``max_l ‖O_l‖_op``.
        alignment: ``descent/op_norm``.
        alignment_floor: alignment that every network of these shapes reaches; None if one of the matrices has no floor.
        rank: ``Σ_l min(m_l, n_l)``, the r of the theorem.
        not_covered: what the optimizer does that the theorems do not cover.
        assumed: what they assume that the optimizer does not show; empty if no optimizer was certified.
        pull: with weight decay, ``λ ‖W‖`` of the present weights in the norm of the network; else None.
        present_gap: with weight decay and gradients, ``ρ ‖G‖_* + λ ⟨G, W⟩`` of the present (minibatch) gradients and
            weights, which is λ times their Frank-Wolfe gap over ``‖W‖ ≤ ρ/λ``; outside of that ball it may be negative.
    """

    matrices: Mapping[str, Certificate]
    what: str
    steps: Mapping[str, float]
    not_covered: tuple[str, ...]
    assumed: tuple[str, ...] = ()
    pull: float | None = None
    present_gap: float | None = None
    descent: float = field(init=False)
    op_norm: float = field(init=False)
    alignment: float = field(init=False)
    alignment_floor: float | None = field(init=False)
    rank: int = field(init=False)

    def __post_init__(self) -> None:
        every = [(c, self.steps[name]) for name, c in self.matrices.items()]
        layers = [(c, step) for c, step in every if step > 0] or every  # the theorem is about matrices that move
        descent = op_norm = alignment = math.nan
        if layers and all(math.isfinite(c.nuclear) and math.isfinite(c.op_norm) for c, _ in layers):
            descent, op_norm, alignment = network_alignment(
                [c.descent * c.nuclear for c, _ in layers],
                [c.nuclear for c, _ in layers],
                [c.op_norm for c, _ in layers],
                [step for _, step in layers],
            )
        floors = [c.descent_floor for c, _ in layers if c.descent_floor is not None]
        floor = None
        if layers and len(floors) == len(layers):
            floor = min(floors) / max(c.largest_gain for c, _ in layers)
        values = {"descent": descent, "op_norm": op_norm, "alignment": alignment, "alignment_floor": floor}
        for name, value in {**values, "rank": sum(min(c.shape) for c, _ in layers)}.items():
            object.__setattr__(self, name, value)

    def __getitem__(self, name: str) -> Certificate:
        return self.matrices[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.matrices)

    def __len__(self) -> int:
        return len(self.matrices)

    @property
    def factor(self) -> float:
        """``1/alignment``, the factor on the convergence bound of exact orthogonalization; infinite for 0 or less."""
        return 1 / self.alignment if self.alignment > 0 else math.inf

    @property
    def reduced_descent(self) -> float:
        """Descent that weight decay leaves, ``ρ - λ‖W‖``, the ρ of Theorem B (docs/theory/theorem-b.md).

        Where it is not positive, only the Frank-Wolfe gap is bounded.
        """
        return self.descent - (self.pull or 0.0)

    @property
    def status(self) -> CertificateStatus:
        """``"violated"`` if any matrix is, "holds" if ``reduced_descent`` is positive, else "not_applicable"."""
        if any(c.status == "violated" for c in self.matrices.values()):
            return "violated"
        return "holds" if self.reduced_descent > 0 else "not_applicable"

    @property
    def reason(self) -> str:
        """The reason of the status, in one sentence."""
        wrong = [name for name, c in self.matrices.items() if c.status == "violated"]
        if wrong:
            return f"{len(wrong)} of {len(self)} matrices contradict a statement, the first {wrong[0]}"
        if not self.alignment > 0:
            unsound = [name for name, c in self.matrices.items() if not math.isfinite(c.alignment)]
            if unsound:
                return f"{len(unsound)} of {len(self)} matrices are not finite, the first {unsound[0]}"
            if all(not c.nuclear for c in self.matrices.values()):
                return "every matrix is zero: no step has been taken"
            return "the network as a whole does not descend"
        if not self.reduced_descent > 0:
            return text.only_the_gap(self)
        moving = sum(step > 0 for step in self.steps.values()) or len(self)
        return f"alignment theorem over {moving} {'matrix' if moving == 1 else 'matrices'}: factor {self.factor:.4g}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON can hold; numbers that are not finite become None."""
        names = ("what", "status", "reason", "descent", "op_norm", "alignment", "alignment_floor", "factor", "rank")
        decay = ("pull", "reduced_descent", "present_gap")
        whole = {name: getattr(self, name) for name in (*names, "not_covered", "assumed", *decay)}
        matrices = [c.to_dict() | {"name": name, "step": self.steps[name]} for name, c in self.matrices.items()]
        plain: dict[str, Any] = text.plain({**whole, "matrices": matrices})
        return plain

    def __str__(self) -> str:
        return text.network(self)

    def _repr_html_(self) -> str:
        return text.as_html(str(self))
