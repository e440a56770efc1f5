"""``Certificate``: what the convergence proof says about one matrix, with residuals, alignment and verdicts."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal

from muonlab.diagnostics.certificates import text

CertificateStatus = Literal["holds", "violated", "not_applicable"]


@dataclass(frozen=True)
class Verdict:
    """Whether one statement holds for the matrix, and the reason."""

    statement: str
    status: CertificateStatus
    reason: str


@dataclass(frozen=True)
class Certificate:
    """What the proof says about one matrix and the direction that is computed from it.

    δ, ε and χ are those of exact arithmetic on the measured singular values; descent, gain and alignment are measured
    on the direction itself; ``rounding`` is the distance of the two. With an ``outcome`` of other code all are measured
    on it.

    Attributes:
        name: name of the parameter, or empty.
        shape: (m, n).
        method: the polynomial, its steps and the prescale, or "exact polar factor".
        rank: singular values that count as positive.
        effective_rank: exp of the entropy of the singular values.
        nuclear: ``‖M‖_*``.
        operator: ``‖M‖_op``.
        frobenius: ``‖M‖_F``.
        scale: the divisor α of the prescale.
        lambda_min: smallest positive eigenvalue of ``X Xᵀ`` for the scaled matrix X.
        deltas: residuals δ_0 … δ_q.
        delta_bound: ``δ_0^{(κ+1)^q}`` of Theorem 2, infinite where it does not apply (so are the two below).
        epsilon: polar error ε_q.
        epsilon_bound: bound of Theorem 2 on ε_q.
        chi: the paper's factor ``1/(1 - ε_q)``.
        chi_bound: bound of Theorem 2 on χ_q.
        descent: ρ = ⟨M, O⟩/‖M‖_*.
        op_norm: s = ‖O‖_op.
        alignment: ρ/s.
        largest_gain: largest ‖O‖_op that the method can give.
        alignment_floor: alignment that every matrix of this shape reaches, that of an exact polar factor up to its rank
            tolerance; None where none is guaranteed.
        descent_floor: descent that every matrix of this shape reaches; None where none is guaranteed.
        rounding: ``‖O - U F(Σ/α) Vᵀ‖_op``; None for an outcome of other code or the exact polar factor.
        rounding_allowed: the bound that the orthogonalizer guarantees for it.
        verdicts: one per statement.
        not_covered: what the optimizer does that the theorems do not cover.
        foreign: whether other code computed the direction.
    """

    name: str
    shape: tuple[int, int]
    method: str
    rank: int
    effective_rank: float
    nuclear: float
    operator: float
    frobenius: float
    scale: float
    lambda_min: float
    deltas: tuple[float, ...]
    delta_bound: float
    epsilon: float
    epsilon_bound: float
    chi: float
    chi_bound: float
    descent: float
    op_norm: float
    alignment: float
    largest_gain: float
    alignment_floor: float | None
    descent_floor: float | None
    rounding: float | None
    rounding_allowed: float | None
    verdicts: tuple[Verdict, ...]
    not_covered: tuple[str, ...] = ()
    foreign: bool = False

    @property
    def delta_0(self) -> float:
        """Residual of the scaled matrix before the first step."""
        return self.deltas[0]

    @property
    def delta(self) -> float:
        """Residual δ_q after the last step."""
        return self.deltas[-1]

    @property
    def factor(self) -> float:
        """``1/alignment``, the factor on the convergence bound of the exact polar factor; infinite for 0 or less."""
        return 1 / self.alignment if self.alignment > 0 else math.inf

    @property
    def status(self) -> CertificateStatus:
        """``"violated"`` if any statement is, "holds" if the alignment theorem does, else "not_applicable"."""
        if any(v.status == "violated" for v in self.verdicts):
            return "violated"
        return next(v.status for v in self.verdicts if v.statement == text.ALIGNMENT_THEOREM)

    @property
    def theorem(self) -> str:
        """The strongest statement that holds, "Theorem 4" for the exact polar factor, else the alignment theorem."""
        held = [v.statement for v in self.verdicts if v.status == "holds" and self.status == "holds"]
        return next((s for s in (text.THEOREM_4, text.ALIGNMENT_THEOREM) if s in held), "none")

    @property
    def reason(self) -> str:
        """The reason of the status, and why statements of the paper do not apply."""
        worst = [v for v in self.verdicts if v.status == "violated"]
        first = worst or [v for v in self.verdicts if v.statement == text.ALIGNMENT_THEOREM]
        other = [v for v in self.verdicts if v.status == "not_applicable" and v not in first]
        return "; ".join(f"{v.statement}: {v.status}: {v.reason}" for v in (*first, *other))

    @property
    def explanation(self) -> str:
        """The certificate as a paragraph for readers who do not know the paper."""
        return text.explain(self)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON can hold; numbers that are not finite become None."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        derived = ("delta_0", "delta", "factor", "status", "theorem", "reason", "explanation")
        fields |= {name: getattr(self, name) for name in derived}
        fields["verdicts"] = [dataclasses.asdict(v) for v in self.verdicts]
        plain: dict[str, Any] = text.plain(fields)
        return plain

    def __str__(self) -> str:
        return text.certificate(self)

    def _repr_html_(self) -> str:
        return text.as_html(str(self))
