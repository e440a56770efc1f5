"""Newton-Schulz orthogonalization by any schedule of polynomials (Kim & Oh 2026, Algorithm 1, lines 5-9)."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from muonlab import _checks
from muonlab.orthogonalize.arithmetic import Arithmetic, arithmetic_of
from muonlab.orthogonalize.matrices import (
    Write,
    check_matrices,
    compute_dtype_for,
    map_matrices,
    map_stack,
    require_finite,
)
from muonlab.orthogonalize.prescale import GRAM_PRESCALES, PRESCALES, Prescale, gram_scale, unit_scale
from muonlab.orthogonalize.products import (
    Product,
    add_identity,
    commuting_product,
    gram,
    multiply,
    symmetric_product,
    without_constant,
)
from muonlab.orthogonalize.segments import ACCURACIES, METHODS, Accuracy, Method, Segment, segments_for
from muonlab.orthogonalize.workspace import Workspace, Workspaces
from muonlab.polynomials import Polynomial, Preset, Schedule, preset, taylor
from muonlab.theory import schedule_error

DEFAULT_POLYNOMIAL = taylor(2)
DEFAULT_STEPS = 5
_LARGEST_GAIN = 2.0


def newton_schulz(
    M: Tensor,
    polynomial: Polynomial | Schedule | Preset | str = DEFAULT_POLYNOMIAL,
    *,
    steps: int | None = None,
    prescale: Prescale = "frobenius",
    compute_dtype: torch.dtype | None = None,
    method: Method = "auto",
    accuracy: Accuracy = "full",
    check_finite: bool = False,
) -> Tensor:
    r"""Apply ``X ← p(X Xᵀ) X`` q times to the scaled matrix (Kim & Oh 2026, Algorithm 1, lines 5-9).

    The result has the singular vectors of ``M`` (Lemmas 9 and 10) and the singular values ``F_q(σ_i/α)``. It is new
    memory, detached from any graph; ``M`` is not changed. Leading dimensions are a batch; on a CPU each matrix of a
    batch gets the bits that it gets alone.

    Args:
        M: real matrix or batch of matrices, shape (…, m, n), tall or wide.
        polynomial: a Polynomial (repeated ``steps`` times), a Schedule (brings its own steps), or a preset or its name.
        steps: number of steps q; 5 for a single polynomial when None. 0 returns the scaled matrix.
        prescale: ``"frobenius"``, ``"paper"`` (``max{1, ‖M‖_F}``), ``"schatten4"``, ``"schatten8"``, ``"spectral"`` (an
            upper bound of the operator norm), or ``"none"`` (the caller guarantees ``‖M‖_op ≤ 1``).
        compute_dtype: None keeps float32 and float64 and computes half precision in float32.
        method: ``"standard"`` (on X), ``"gram"`` (on ``X Xᵀ``, restarted where digits would be lost), ``"auto"``.
        accuracy: ``"full"`` keeps the rounding of the standard iteration; ``"half"`` lets it reach 2⁻⁸, the spacing of
            bfloat16, where Gram space then needs fewer restarts (steep schedules: Jordan's, Polar Express).
        check_finite: raise on NaN and infinity instead of passing NaN on.

    Returns:
        The orthogonalized matrices, of the shape and dtype of ``M``.

    Example:
        >>> O = newton_schulz(torch.diag(torch.tensor([3.0, 4.0])), steps=8)
        >>> torch.allclose(O, torch.eye(2), atol=1e-6)
        True
    """
    check_matrices(M)
    dtype = compute_dtype_for(M, compute_dtype)
    write = _writer(M, polynomial, steps, dtype, prescale, method, accuracy)
    if _checks.boolean("check_finite", check_finite):
        require_finite(M)
    return map_matrices(M.detach(), dtype, write)


def newton_schulz_into(
    M: Tensor,
    out: Tensor,
    workspaces: Workspaces,
    schedule: Schedule,
    *,
    prescale: Prescale,
    compute_dtype: torch.dtype,
    method: Method,
    accuracy: Accuracy,
) -> None:
    """Write what :func:`newton_schulz` returns for a stack on an accelerator into ``out``, of M's shape and dtype."""
    write = _writer(M, schedule, None, compute_dtype, prescale, method, accuracy)
    map_stack(M, compute_dtype, write, out, workspaces)


def _writer(
    M: Tensor,
    polynomial: Polynomial | Schedule | Preset | str,
    steps: int | None,
    dtype: torch.dtype,
    prescale: Prescale,
    method: Method,
    accuracy: Accuracy,
) -> Write:
    """Return the function that orthogonalizes matrices of M's shape."""
    rows, columns = M.shape[-2:]
    shape, products = (min(rows, columns), max(rows, columns)), arithmetic_of(dtype, M.device, min(rows, columns))
    options = (_known(polynomial), steps, *shape, dtype, products, prescale, method, accuracy)
    try:
        segments = _prepared(*options)
    except TypeError as error:
        if "unhashable" not in str(error):
            raise
        segments = _prepared.__wrapped__(*options)  # uncached, so that the check of that option raises its message

    def write(A: Tensor, out: Tensor, workspace: Workspace) -> None:
        iterate(A, out, workspace, segments, prescale)

    return write


@lru_cache(maxsize=4096, typed=True)
def _prepared(
    polynomial: Polynomial | Schedule | Preset | str,
    steps: int | None,
    m: int,
    n: int,
    dtype: torch.dtype,
    arithmetic: Arithmetic,
    prescale: Prescale,
    method: Method,
    accuracy: Accuracy,
) -> tuple[Segment, ...]:
    """Check the options and group the steps, once for every combination of them."""
    schedule = as_schedule(polynomial, steps, dtype)
    if arithmetic.unit_roundoff > torch.finfo(dtype).eps:  # TF32 is on
        _check_bounded(schedule, 2 * arithmetic.unit_roundoff, "TF32")
    _checks.one_of("prescale", prescale, PRESCALES)
    _checks.one_of("method", method, METHODS)
    _checks.one_of("accuracy", accuracy, ACCURACIES)
    return segments_for(schedule, m, n, arithmetic, method, accuracy)


def as_schedule(
    polynomial: Polynomial | Schedule | Preset | str,
    steps: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> Schedule:
    """Return the schedule for a polynomial, a schedule, a preset or the name of a preset.

    Raises ValueError for a schedule that diverges on [0, 1], or just above 1, where rounding in ``dtype`` may put a
    singular value.

    Example:
        >>> as_schedule("jordan", 3).steps
        3
    """
    _known(polynomial)
    if steps is not None:
        steps = _checks.integer("steps", steps, at_least=0, at_most=_checks.LARGEST_STEPS)
    if isinstance(polynomial, str):
        polynomial = preset(polynomial)
    if isinstance(polynomial, Polynomial):
        schedule = Schedule.repeat(polynomial, DEFAULT_STEPS if steps is None else steps)
    elif isinstance(polynomial, Preset):
        schedule = polynomial.schedule(steps)
    else:
        schedule = polynomial
        if steps is not None and steps != schedule.steps:
            raise ValueError(
                f"a Schedule brings its own number of steps: got steps = {steps} with a schedule of "
                f"{schedule.steps}: leave steps out, or pass a Polynomial or a preset, such as 'polar_express'"
            )
    _check_bounded(schedule, torch.finfo(dtype).eps, str(dtype))
    return schedule


def _known(polynomial: Polynomial | Schedule | Preset | str) -> Polynomial | Schedule | Preset | str:
    if not isinstance(polynomial, (Polynomial, Schedule, Preset, str)):
        raise TypeError(
            f"polynomial must be a Polynomial, a Schedule, a Preset or a preset's name, got {polynomial!r} of type "
            f"{type(polynomial).__name__}: for example taylor(2) or 'polar_express'"
        )
    return polynomial


@lru_cache(maxsize=256)  # returns nothing: equal schedules may have different names
def _check_bounded(schedule: Schedule, rounding: float, name: str) -> None:
    for top, where in ((1.0, "[0, 1]"), (1 + rounding, f"[0, 1 + {rounding:.2g}], where {name} rounds")):
        gain = schedule_error(schedule, 0.0, top).s_max
        if gain > _LARGEST_GAIN:
            way_out = (
                "other polynomials or fewer steps" if top == 1 else "a safety factor, Schedule.with_safety('1.01')"
            )
            raise ValueError(
                f"the schedule {schedule} diverges on {where}: its largest value there is {gain:.4g}, and beyond "
                f"{_LARGEST_GAIN:g} the zero matrix would be nearer to the polar factor: use {way_out}"
            )


def iterate(M: Tensor, out: Tensor, workspace: Workspace, segments: tuple[Segment, ...], prescale: Prescale) -> None:
    """Write the orthogonalized ``M`` (a matrix or a stack) into ``out``, whose memory also serves as a buffer.

    The iterate is ``c·X``: the scale c of line 5 is applied inside the first products instead of in a pass over X.
    """
    tall = M.shape[-2] > M.shape[-1]
    A = M.mT if tall else M  # m ≤ n, so that X Xᵀ is the smaller Gram matrix
    S, c = unit_scale(A, out.dtype, prescale, workspace)  # X_0 = c·S = M/α (line 5)
    X = S
    R: Tensor | None = None
    square: Tensor | None = None
    if segments or prescale in GRAM_PRESCALES:
        R = gram(X, scale=c * c, out=workspace.take(torch.Size((*X.shape[:-1], X.shape[-2]))))  # R = X_0 X_0ᵀ
    if R is not None and prescale in GRAM_PRESCALES:
        d, square = gram_scale(X, c, R, prescale, workspace)  # 1/α of a Schatten norm, read off R; maybe R²
        R.mul_(d**2)  # (d X_0)(d X_0)ᵀ = d² R
        square = None if square is None else square.mul_(d**4)  # (d² R)² = d⁴ R²
        c = c * d
    if segments and R is not None:
        spare = workspace.take(X.shape) if len(segments) > 1 else out
        for left in range(len(segments) - 1, 0, -1):
            Q = segment_product(segments[-1 - left], R, square, workspace)  # Q = Π_j p_j(X_j X_jᵀ)
            X = multiply(Q, X, scale=c, out=spare if left % 2 else out.view(X.shape))  # X ← Q X; the last not in `out`
            gram(X, out=R)  # R = X Xᵀ afresh, with the digits that Gram space has lost
            workspace.give(Q)
            square, c = None, 1.0
        Q = segment_product(segments[-1], R, square, workspace)
        multiply(*((X.mT, Q) if tall else (Q, X)), scale=c, out=out)  # O = Q X, or Oᵀ = Xᵀ Q since Q is symmetric
        workspace.give(Q, *(() if spare is out else (spare,)))
        square = None
    else:
        torch.mul(X.mT if tall else X, c, out=out)  # no steps: O = X_0
    workspace.give(*(buffer for buffer in (R, square) if buffer is not None), *(() if S is A else (S,)))


def segment_product(segment: Segment, R: Tensor, square: Tensor | None, workspace: Workspace) -> Tensor:
    """Return ``Q = Π_j P_j`` with ``P_j = p_j(R_j)`` and ``R_{j+1} = P_j R_j P_j``; all are symmetric and commute.

    Each ``P_j = c I + Z_j`` is used as ``c·A + A Z_j``, so that the constant term is never rounded into ``Z_j``. With
    rounding the matrices commute only nearly. ``R²`` and ``P R P`` are symmetric all the same; ``P R`` and ``Q P`` are
    not, and on a CPU they are computed whole: mirroring would turn an antisymmetric error, which moves no eigenvalue,
    into one that does.

    Args:
        segment: the polynomials p_j, at least one.
        R: ``X Xᵀ``; overwritten.
        square: ``R²`` where it is known already; its buffer is used up.
        workspace: pool of buffers.
    """
    product = symmetric_product(R)
    Q = workspace.take(R.shape)
    c = _polynomial_of(segment[0], R, square, product, workspace, out=Q)  # Q = Z_0, P_0 = c I + Z_0
    if len(segment) == 1:
        return add_identity(Q, c)  # Q = P_0
    nearly = commuting_product(R)
    spare = workspace.take(R.shape)
    nearly(R, Q, R, beta=c, out=spare)  # P_0 R_0 = c R_0 + Z_0 R_0
    product(spare, spare, Q, beta=c, out=R)  # R_1 = P_0 R_0 P_0 = c (P_0 R_0) + (P_0 R_0) Z_0
    add_identity(Q, c)  # Q = P_0
    Z = spare
    for left, p in zip(range(len(segment) - 2, -1, -1), segment[1:], strict=True):
        c = _polynomial_of(p, R, None, product, workspace, out=Z)  # P_j = c I + Z_j
        spare = workspace.take(R.shape)
        if left:  # a further step needs R_{j+1}
            nearly(R, Z, R, beta=c, out=spare)  # P_j R_j
            product(spare, spare, Z, beta=c, out=R)  # R_{j+1} = P_j R_j P_j
        nearly(Q, Q, Z, beta=c, out=spare)  # Q ← Q P_j = c Q + Q Z_j
        workspace.give(Q)
        Q = spare
    workspace.give(Z)
    return Q


def _polynomial_of(
    p: Polynomial, R: Tensor, square: Tensor | None, product: Product, workspace: Workspace, *, out: Tensor
) -> float:
    """Write Z into ``out`` and return c with ``p(R) = c I + Z``.

    In powers of R up to κ = 2, beyond that of ``I - R``, where the coefficients do not cancel.
    """
    if p.kappa == 2 and square is None:  # one fused product; R² is never stored
        c, b, a = p.coefficients
        product(R, R, R, beta=b, alpha=a, out=out)  # Z = b R + a R²
        return c
    if p.kappa <= 2:
        without_constant(p.coefficients, R, product, workspace, out=out, square=square)
        return p.coefficients[0]
    U = add_identity(torch.neg(R, out=workspace.take(R.shape)))  # U = I - R
    if square is not None:
        add_identity(square.add_(U, alpha=2.0), -1.0)  # (I - R)² = R² + 2(I - R) - I
    without_constant(p.coefficients_u, U, product, workspace, out=out, square=square, consume=True)
    workspace.give(U)
    return p.coefficients_u[0]
