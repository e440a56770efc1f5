"""Muon: momentum, orthogonalized (Kim & Oh 2026, Algorithms 1 and 2), and the recipes that go by its name."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT
from torch.utils.hooks import RemovableHandle

from muonlab import _checks
from muonlab.optim.base import MomentumOptimizer
from muonlab.optim.batches import batches, update, whole_gradients
from muonlab.optim.foreign import as_native, newton_schulz_of, refuse_foreign
from muonlab.optim.hooks import OrthogonalizeHook, OrthogonalizeHooks
from muonlab.optim.layout import Job, Layouts
from muonlab.optim.layout.plan import cost
from muonlab.optim.momentum import MOMENTUM_FORMS, MomentumForm
from muonlab.optim.options import COMMON, Check, one_of
from muonlab.optim.orthogonalizer import ExactPolar, NewtonSchulz, Orthogonalizer, to_plain
from muonlab.optim.part import Member, Part, named
from muonlab.optim.registry import register
from muonlab.optim.scaling import RENORMALIZE, SCALES, Renormalize, Scale
from muonlab.optim.views import MatrixView, check_fits, check_view
from muonlab.polynomials import preset, taylor

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Nonfinite = Literal["propagate", "raise", "skip"]

_DEFAULT_ORTHOGONALIZER = NewtonSchulz(accuracy="half")
_JORDAN = preset("jordan").polynomial.coefficients


class Muon(MomentumOptimizer):
    r"""Momentum orthogonalized by Newton-Schulz steps or exactly (Kim & Oh 2026, Algorithms 1 and 2).

    .. math:: M_t = \mu M_{t-1} + G_t, \quad O_t \approx \mathrm{polar}(M_t), \quad
              W_t = (1 - \eta\lambda) W_{t-1} - \eta\, s(m, n)\, O_t

    with the variations below. For hidden matrices of a network; :func:`muonlab.split_params` finds them, and
    :class:`muonlab.MuonWithAux` joins an optimizer for the rest. Every option may differ between parameter groups.

    Args:
        params: parameters of two or more dimensions, or groups of them.
        lr: step size η; a number or a tensor of one element.
        momentum: μ in [0, 1).
        orthogonalizer: a :class:`NewtonSchulz` or an :class:`ExactPolar`.
        momentum_form: ``"ema"`` (``M ← μM + (1-μ)G``, as torch.optim.Muon does) or ``"heavy_ball"`` (``μM + G``, the
            paper); the directions are the same while μ is constant and the prescale ignores scale.
        nesterov: orthogonalize ``G + μM`` (``(1-μ)G + μM``) instead of M; the paper does not.
        weight_decay: λ, decoupled, with the unscaled learning rate.
        scale: s(m, n), one of ``"none"``, ``"original"``, ``"match_rms_adamw"``, ``"spectral"``.
        renormalize: rescale each weight to norm √m once per step, ``"before"`` decay and update or ``"after"`` them.
        matrix_view: ``"flatten"`` (first dimension × the rest), ``"batch"`` (matrices in the last two dimensions), or
            row counts of blocks that are matrices of their own (a fused query, key and value).
        maximize: climb instead of descending.
        nonfinite: what a gradient does that has NaN or infinity, or would carry the momentum out of range:
            ``"propagate"`` into the weights, ``"raise"`` before anything changes (reads one number off each device), or
            ``"skip"`` its parameter, weight and state, for this step.
        process_group: processes that have copies of the parameters (DistributedDataParallel) and share the work on
            them; None has each work for itself. Parameters of fully_shard bring their own processes.
        comm_dtype: of the matrices that processes send each other; None sends them as they are, and N processes then
            give the bits of one for float32. ``torch.bfloat16`` halves the traffic.
        full_tensor: gather parameters whole on every process where more than one dimension of them is cut.

    Attributes:
        orthogonalized: matrices that the last step orthogonalized on this process.

    Example:
        >>> import torch
        >>> layer = torch.nn.Linear(3, 3, bias=False)
        >>> opt = Muon(layer.parameters(), lr=0.1)
        >>> layer(torch.eye(3)).square().sum().backward(); opt.step(); opt.orthogonalized
        1
    """

    checks: ClassVar[Mapping[str, Check]] = {
        **COMMON,
        "orthogonalizer": lambda _, value: to_plain(value),
        "momentum_form": one_of(MOMENTUM_FORMS),
        "scale": one_of(tuple(SCALES)),
        "renormalize": one_of(RENORMALIZE),
        "matrix_view": lambda _, value: check_view(value),
    }

    orthogonalized: int
    _orthogonalize_hooks: OrthogonalizeHooks

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.02,
        momentum: float = 0.95,
        *,
        orthogonalizer: Orthogonalizer = _DEFAULT_ORTHOGONALIZER,
        momentum_form: MomentumForm = "ema",
        nesterov: bool = True,
        weight_decay: float = 0.0,
        scale: Scale = "original",
        renormalize: Renormalize = None,
        matrix_view: MatrixView = "flatten",
        maximize: bool = False,
        nonfinite: Nonfinite = "propagate",
        process_group: ProcessGroup | None = None,
        comm_dtype: torch.dtype | None = None,
        full_tensor: bool = False,
    ) -> None:
        options: dict[str, Any] = {"lr": lr, "momentum": momentum, "orthogonalizer": orthogonalizer}
        options |= {"momentum_form": momentum_form, "nesterov": nesterov, "weight_decay": weight_decay, "scale": scale}
        options |= {
            "renormalize": renormalize,
            "matrix_view": matrix_view,
            "maximize": maximize,
            "nonfinite": nonfinite,
        }
        self.orthogonalized = 0
        self._orthogonalize_hooks = OrthogonalizeHooks()
        super().__init__(params, options, Layouts(process_group, comm_dtype, full_tensor))

    # ------------------------------------------------------------------------------------------------------- recipes

    @classmethod
    def paper(
        cls,
        params: ParamsT,
        lr: float | Tensor,
        momentum: float,
        *,
        q: int = 3,
        kappa: int = 2,
        variant: Literal["algorithm", "experiments"] = "algorithm",
        polar: Literal["newton_schulz", "svd"] = "newton_schulz",
        **options: Any,
    ) -> Muon:
        """Build Algorithms 1 and 2 (Kim & Oh 2026) to the letter (the second: ``polar="svd"``), or their experiments.

        Args:
            params: parameters or groups.
            lr: η.
            momentum: β.
            q: Newton-Schulz steps; 0 normalises only. Without effect on ``polar="svd"``, like ``kappa``.
            kappa: degree of the Taylor polynomial.
            variant: ``"algorithm"`` divides by ``max{1, ‖M‖_F}``; ``"experiments"`` by ``‖M‖_F``, and rescales each
                weight to norm √out before its update (the paper says once per step; airbench does it there).
            polar: how ``M`` is orthogonalized.
            options: further options of Muon.
        """
        _checks.one_of("variant", variant, ("algorithm", "experiments"))
        _checks.one_of("polar", polar, ("newton_schulz", "svd"))
        prescale: Literal["paper", "frobenius"] = "paper" if variant == "algorithm" else "frobenius"
        steps = NewtonSchulz(taylor(kappa), steps=q, prescale=prescale, compute_dtype=None)
        settings: dict[str, Any] = {
            "orthogonalizer": ExactPolar(method="svd") if polar == "svd" else steps,
            "momentum_form": "heavy_ball",
            "nesterov": False,
            "scale": "none",
            "renormalize": "before" if variant == "experiments" else None,
        }
        return cls(params, lr, momentum, **{**settings, **options})

    @classmethod
    def airbench(
        cls,
        params: ParamsT,
        lr: float | Tensor = 0.24,
        momentum: float = 0.6,
        *,
        nesterov: bool = True,
        ns_steps: int = 3,
        **options: Any,
    ) -> Muon:
        """Build the Muon of cifar10-airbench: heavy-ball, weights rescaled to norm √out before each update."""
        settings: dict[str, Any] = {
            "orthogonalizer": NewtonSchulz("jordan", steps=ns_steps),
            "momentum_form": "heavy_ball",
            "nesterov": nesterov,
            "scale": "none",
            "renormalize": "before",
        }
        return cls(params, lr, momentum, **{**settings, **options})

    @classmethod
    def keller_jordan(
        cls,
        params: ParamsT,
        lr: float | Tensor = 0.02,
        weight_decay: float = 0.0,
        momentum: float = 0.95,
        **options: Any,
    ) -> Muon:
        """Build the Muon of the muon-optimizer package, with the scale of filters read off out×rest."""
        return cls.torch(params, lr, weight_decay, momentum, **options)

    @classmethod
    def torch(
        cls,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: Sequence[float] = _JORDAN,
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: Literal["original", "match_rms_adamw"] | None = None,
        **options: Any,
    ) -> Muon:
        """Build torch.optim.Muon, same arguments; ``eps`` is accepted and has no effect: no input is too small here."""
        _checks.positive("eps", eps)
        settings: dict[str, Any] = {
            "orthogonalizer": newton_schulz_of(ns_coefficients, ns_steps),
            "momentum_form": "ema",
            "nesterov": nesterov,
            "weight_decay": weight_decay,
            "scale": "original" if adjust_lr_fn is None else adjust_lr_fn,
        }
        return cls(params, lr, momentum, **{**settings, **options})

    @classmethod
    def moonlight(
        cls,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        *,
        nesterov: bool = True,
        ns_steps: int = 5,
        **options: Any,
    ) -> Muon:
        """Build Moonlight's Muon: heavy-ball, updates of the size of AdamW's, so that its lr and decay carry over."""
        settings: dict[str, Any] = {
            "orthogonalizer": NewtonSchulz("jordan", steps=ns_steps),
            "momentum_form": "heavy_ball",
            "nesterov": nesterov,
            "weight_decay": weight_decay,
            "scale": "match_rms_adamw",
        }
        return cls(params, lr, momentum, **{**settings, **options})

    # ------------------------------------------------------------------------------------------------ hooks and state

    def register_orthogonalize_hook(self, hook: OrthogonalizeHook, *, gradients: bool = False) -> RemovableHandle:
        """Call ``hook(params, M, O)`` after each batch is orthogonalized and before its weights change.

        ``M[i]`` is the matrix of ``params[i]`` that was orthogonalized (with Nesterov, not the momentum alone) and
        ``O[i]`` the outcome, both of shape (b, m, n); the scale rule is not yet
        applied. They are copies: what a hook writes into them does not reach the optimizer. On several processes each
        matrix is shown whole, on the one that orthogonalized it; all of them must have the same hooks.

        Args:
            hook: to call.
            gradients: whether :meth:`whole_gradient` is to know the gradients of what is shown.

        Returns:
            A handle whose ``remove()`` takes the hook away.
        """
        return self._orthogonalize_hooks.add(hook, gradients=gradients)

    def whole_gradient(self, param: Tensor, block: int = 0) -> Tensor | None:
        """Return, within a hook that asked for it, the gradient of a block that is shown, whole."""
        return self._orthogonalize_hooks.gradients.get((param, block))

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take over unpickled or loaded state; hooks are not part of it."""
        if "_orthogonalize_hooks" not in self.__dict__:
            self._orthogonalize_hooks = OrthogonalizeHooks()
        super().__setstate__(state)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "orthogonalized": self.orthogonalized}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, checked like one given at construction; on an error the optimizer stays as it was."""
        refuse_foreign(param_group)
        super().add_param_group(param_group)

    def _restored(self, group: dict[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
        return super()._restored(as_native(group), defaults)

    def _check_group(self, group: Mapping[str, Any]) -> None:
        super()._check_group(group)
        for name, p in named(group):
            check_fits(group["matrix_view"], p.shape, name)

    # ------------------------------------------------------------------------------------------------------ the step

    def _update(self, parts: Sequence[Part]) -> None:
        self.orthogonalized = 0
        for layout in {part.layout: None for part in parts}:
            mine = [part for part in parts if part.layout is layout]
            if self._orthogonalize_hooks.want_gradients:
                self._orthogonalize_hooks.gradients.update(whole_gradients(mine, layout))
            for batch, results in layout.orthogonalize(batches(mine), self._done):
                update(batch, results, layout)
                del batch, results  # before the next batch is made
        self._orthogonalize_hooks.gradients.clear()

    def _decides(self, group: Mapping[str, Any]) -> tuple[Any, ...]:
        options = (group[name] for name in ("orthogonalizer", "matrix_view", "renormalize"))
        hooks = self._orthogonalize_hooks
        return (*super()._decides(group), *options, len(hooks), hooks.want_gradients)

    def _jobs(self, member: Member) -> Iterator[Job]:
        group, p = member.group, member.param
        says = repr((member.name, self._decides(group)))
        for i, block in enumerate(member.layout.blocks(p, group["matrix_view"])):
            yield Job(p, i, block, cost(group["orthogonalizer"], block.matrices, p.dtype, p.device), says)

    def _done(self, parts: Sequence[Part], matrices: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        self.orthogonalized += sum(math.prod(M.shape[:-2]) for M in matrices)
        self._orthogonalize_hooks.show(parts, matrices, results)


register("muon", Muon, source="K. Jordan et al. 2024, with the defaults of docs/adr/0007")
register("muon.paper", Muon.paper, source="Kim & Oh 2026, Algorithm 1")
register("muon.airbench", Muon.airbench, source="K. Jordan, cifar10-airbench, airbench94_muon")
register("muon.keller_jordan", Muon.keller_jordan, source="K. Jordan, the muon-optimizer package")
register("muon.torch", Muon.torch, source="torch.optim.Muon")
register("muon.moonlight", Muon.moonlight, source="J. Liu et al., Muon is Scalable for LLM Training, 2025")
