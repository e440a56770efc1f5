"""Orthogonalizers: frozen values that map matrices to (near-)orthogonal ones, and their plain form.

A parameter group keeps an orthogonalizer as a tuple of plain values, so that checkpoints load with
``torch.load(weights_only=True)``; :func:`from_plain` rebuilds it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import KW_ONLY, InitVar, dataclass, field
from functools import lru_cache, partial
from typing import Any, ClassVar, Literal, Protocol, cast

import torch
from torch import Tensor

from muonlab import _checks
from muonlab.orthogonalize import ACCURACIES, METHODS, POLAR_METHODS, PRESCALES, as_schedule, newton_schulz, polar
from muonlab.orthogonalize.hardware import multiplies_in_hardware
from muonlab.orthogonalize.iteration import newton_schulz_into
from muonlab.orthogonalize.matrices import FLOATING, compute_dtype_for
from muonlab.orthogonalize.polar_factor import PolarMethod
from muonlab.orthogonalize.prescale import Prescale
from muonlab.orthogonalize.segments import Accuracy, Method
from muonlab.orthogonalize.workspace import Workspaces
from muonlab.polynomials import Polynomial, Preset, Schedule, preset

Plain = tuple[Any, ...]
"""Strings, numbers, None and tuples of these."""

DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in FLOATING}
ComputeDtype = torch.dtype | Literal["auto"] | None

DEFAULT_SCHEDULE = preset("polar_express").schedule(5, safety=preset("polar_express").safety)


class Orthogonalizer(Protocol):
    """Maps matrices to (near-)orthogonal ones; a parameter group holds it as a tuple of plain values."""

    kind: ClassVar[str]

    def __call__(self, M: Tensor) -> Tensor:
        """Return the orthogonalized matrices in new memory."""
        ...

    def into(self, M: Tensor, out: Tensor, workspaces: Workspaces) -> None:
        """Write the orthogonalized stack M, on an accelerator, into ``out``, with buffers from the workspaces."""
        ...

    def plain(self) -> Plain:
        """Return the value as a tuple of plain values, ``kind`` first."""
        ...


@dataclass(frozen=True, repr=False)
class NewtonSchulz:
    """Newton-Schulz steps of any schedule (Kim & Oh 2026, Algorithm 1, lines 5-9); see :func:`muonlab.newton_schulz`.

    Args:
        polynomial: a Polynomial (repeated ``steps`` times), a Schedule, or a preset or its name; five steps of Polar
            Express with their safety factor by default.
        steps: number of steps q; None for the schedule's own, or 5.
        prescale: how the matrix is scaled into the unit ball (``"spectral"`` forces a host-device synchronization).
        compute_dtype: None keeps float32 and float64 and computes half precision in float32. ``"auto"`` uses float16
            on a CUDA device whose tensor cores multiply it, if the schedule stays bounded there (docs/adr/0024); for
            float64 and on other devices it is the same as None (a CPU emulates half precision, 50 to 500 times slower
            than float32).
        method: ``"standard"``, ``"gram"`` or ``"auto"``.
        accuracy: ``"full"``, or ``"half"``, which is faster and allows rounding errors as large as bfloat16's.

    Raises:
        ValueError: an unknown name, ``steps`` beside a Schedule of another number, or a schedule that diverges.

    Example:
        >>> from muonlab.polynomials import taylor
        >>> NewtonSchulz(taylor(2), steps=3).schedule.steps
        3
    """

    kind: ClassVar[str] = "newton_schulz"

    polynomial: InitVar[Polynomial | Schedule | Preset | str] = DEFAULT_SCHEDULE
    _: KW_ONLY
    steps: InitVar[int | None] = None
    prescale: Prescale = "frobenius"
    compute_dtype: ComputeDtype = "auto"
    method: Method = "auto"
    accuracy: Accuracy = "full"
    schedule: Schedule = field(init=False)

    def __post_init__(self, polynomial: Polynomial | Schedule | Preset | str, steps: int | None) -> None:
        _checks.one_of("prescale", self.prescale, PRESCALES)
        _checks.one_of("method", self.method, METHODS)
        _checks.one_of("accuracy", self.accuracy, ACCURACIES)
        _checks.one_of("compute_dtype", self.compute_dtype, (*FLOATING, "auto", None))
        dtype = self.compute_dtype if isinstance(self.compute_dtype, torch.dtype) else torch.float32
        object.__setattr__(self, "schedule", as_schedule(polynomial, steps, dtype))

    def __repr__(self) -> str:
        defaults = {"prescale": "frobenius", "compute_dtype": "auto", "method": "auto", "accuracy": "full"}
        given = {name: getattr(self, name) for name in defaults if getattr(self, name) != defaults[name]}
        return f"NewtonSchulz({', '.join([str(self.schedule), *(f'{k}={v!r}' for k, v in given.items())])})"

    def __call__(self, M: Tensor) -> Tensor:
        """Return the orthogonalized matrices, shape (…, m, n), in new memory."""
        options: dict[str, Any] = {"prescale": self.prescale, "method": self.method, "accuracy": self.accuracy}
        return newton_schulz(M, self.schedule, compute_dtype=self.dtype_for(M), **options)

    def into(self, M: Tensor, out: Tensor, workspaces: Workspaces) -> None:
        """Write the orthogonalized stack M, on an accelerator, into ``out``, with buffers from the workspaces."""
        newton_schulz_into(
            M,
            out,
            workspaces,
            self.schedule,
            prescale=self.prescale,
            compute_dtype=self.dtype_for(M),
            method=self.method,
            accuracy=self.accuracy,
        )

    def dtype_for(self, M: Tensor) -> torch.dtype:
        """Return the dtype in which these matrices are computed."""
        dtype = self.compute_dtype
        if dtype == "auto":
            dtype = None
            if M.dtype != torch.float64 and M.device.type == "cuda":
                narrow_sums = bool(torch.backends.cuda.matmul.allow_fp16_accumulation)
                dtype = _tensor_core_dtype(self.schedule, M.device, torch.bfloat16 if narrow_sums else torch.float16)
        return compute_dtype_for(M, dtype)

    def plain(self) -> Plain:
        """Return ``(kind, name, exact coefficients by step, prescale, compute_dtype, method, accuracy)``."""
        coefficients = tuple(tuple(map(str, p.exact)) for p in self.schedule)
        dtype = str(self.compute_dtype).removeprefix("torch.") if self.compute_dtype else None
        return (self.kind, str(self.schedule), coefficients, self.prescale, dtype, self.method, self.accuracy)

    @classmethod
    def from_plain(
        cls, name: str, coefficients: Plain, prescale: Any, compute_dtype: Any, method: Any, accuracy: Any
    ) -> NewtonSchulz:
        """Rebuild the value."""
        schedule = Schedule(tuple(Polynomial(tuple(c)) for c in coefficients), name=name)
        dtype = DTYPES.get(compute_dtype, compute_dtype)
        return cls(schedule, prescale=prescale, compute_dtype=dtype, method=method, accuracy=accuracy)


@lru_cache(maxsize=256)
def _tensor_core_dtype(schedule: Schedule, device: torch.device, half: torch.dtype) -> torch.dtype | None:
    """Return the half precision where tensor cores multiply it and the schedule stays bounded in it, else None.

    float16 has three more binary digits than bfloat16 at the same rate, and its smaller range does no harm, because
    matrices are scaled to norm 1. bfloat16 is for those who let torch add up float16 in float16.
    """
    if not multiplies_in_hardware(half, device):
        return None
    try:
        as_schedule(schedule, dtype=half)
    except ValueError:
        return None
    return half


@dataclass(frozen=True)
class ExactPolar:
    """The exact polar factor (Kim & Oh 2026, Algorithm 2, line 5); see :func:`muonlab.polar`.

    It forces a host-device synchronization.

    Args:
        method: ``"svd"``, ``"gram"`` or ``"auto"``.
        rank_tol: singular values up to this count as zero; None for ``max(m, n)·eps·σ_max``.

    Example:
        >>> ExactPolar()(torch.diag(torch.tensor([3.0, 4.0])))
        tensor([[1., 0.],
                [0., 1.]])
    """

    kind: ClassVar[str] = "exact_polar"

    method: PolarMethod = "auto"
    rank_tol: float | None = None

    def __post_init__(self) -> None:
        _checks.one_of("method", self.method, POLAR_METHODS)
        if self.rank_tol is not None:
            object.__setattr__(self, "rank_tol", _checks.non_negative("rank_tol", self.rank_tol))

    def __call__(self, M: Tensor) -> Tensor:
        """Return the polar factors, shape (…, m, n), in new memory."""
        return polar(M, method=self.method, rank_tol=self.rank_tol)

    def into(self, M: Tensor, out: Tensor, workspaces: Workspaces) -> None:  # noqa: ARG002
        """Write the polar factors of the stack M into ``out``; the decomposition allocates its own memory."""
        out.copy_(self(M))

    def plain(self) -> Plain:
        """Return ``(kind, method, rank_tol)``."""
        return (self.kind, self.method, self.rank_tol)

    @classmethod
    def from_plain(cls, method: Any, rank_tol: Any) -> ExactPolar:
        """Rebuild the value."""
        return cls(method, rank_tol)


_KINDS: dict[str, type[NewtonSchulz] | type[ExactPolar]] = {cls.kind: cls for cls in (NewtonSchulz, ExactPolar)}


def to_plain(orthogonalizer: Orthogonalizer | Plain) -> Plain:
    """Return the plain form of an orthogonalizer, given as a value or in plain form; raise if it is neither."""
    if isinstance(orthogonalizer, tuple(_KINDS.values())):
        return cast(Orthogonalizer, orthogonalizer).plain()
    if isinstance(orthogonalizer, (tuple, list)) and orthogonalizer and orthogonalizer[0] in _KINDS:
        return _canonical(_tuples(orthogonalizer))
    raise TypeError(
        f"orthogonalizer must be a NewtonSchulz or an ExactPolar, got {orthogonalizer!r}: "
        f"for example NewtonSchulz(taylor(2), steps=5)"
    )


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, (tuple, list)) else value


@lru_cache(maxsize=256)
def _canonical(plain: Plain) -> Plain:
    return from_plain(plain).plain()


@lru_cache(maxsize=256)
def from_plain(plain: Plain) -> Orthogonalizer:
    """Rebuild an orthogonalizer from what a parameter group holds."""
    kind, *fields = plain
    return _KINDS[kind].from_plain(*fields)


def step_function(plain: Plain) -> Callable[[Tensor], Tensor]:
    """Return what a step calls: the orthogonalizer, or one opaque operation of the graph where the step is compiled.

    The compiler has nothing to gain inside: all time is spent in library products on reused buffers.
    """
    return partial(_orthogonalize_op, plain=repr(plain)) if torch.compiler.is_compiling() else from_plain(plain)


@torch.library.custom_op("muonlab::orthogonalize", mutates_args=())
def _orthogonalize_op(M: Tensor, plain: str) -> Tensor:
    return from_plain(ast.literal_eval(plain))(M)


@_orthogonalize_op.register_fake
def _fake_orthogonalize(M: Tensor, plain: str) -> Tensor:  # noqa: ARG001
    return torch.empty(M.shape, dtype=M.dtype, device=M.device)
