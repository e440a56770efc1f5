"""Muon (Kim & Oh 2026, Algorithms 1 and 2): its options, and the recipes of other packages."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Never

import torch
from torch import Tensor, no_grad
from torch.optim.optimizer import ParamsT
from torch.utils.hooks import RemovableHandle

from muonlab import _checks
from muonlab.optim.base import MomentumOptimizer
from muonlab.optim.capture import refuse_capture
from muonlab.optim.distributed.tensors import local_part
from muonlab.optim.foreign import as_native, newton_schulz_of, refuse_foreign, refuse_unknown, scale_of
from muonlab.optim.hooks import OrthogonalizeHook, OrthogonalizeHooks
from muonlab.optim.layout import Layouts, LocalLayout, param_blocks
from muonlab.optim.options import COMMON, Check, named_params, one_of
from muonlab.optim.orthogonalizer import ExactPolar, NewtonSchulz, Orthogonalizer, to_plain
from muonlab.optim.registry import register
from muonlab.optim.scaling import RENORMALIZE, SCALES, Renormalize, Scale
from muonlab.optim.step import muon_step
from muonlab.optim.views import MatrixView, check_fits, check_view
from muonlab.orthogonalize.workspace import Workspaces
from muonlab.polynomials import preset, taylor
from muonlab.theory.momentum import MOMENTUM_FORMS, MomentumForm

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from muonlab.optim.distributed.grid import RankGrid

Nonfinite = Literal["propagate", "raise", "skip"]

_DEFAULT_ORTHOGONALIZER = NewtonSchulz(accuracy="half")
_JORDAN = preset("jordan").polynomial.coefficients


class Muon(MomentumOptimizer):
    r"""Momentum orthogonalized by Newton-Schulz steps or exactly (Kim & Oh 2026, Algorithms 1 and 2).

    With the default options, a step updates a weight :math:`W` of shape (m, n) with gradient :math:`G_t` by

    .. math::
        M_t &= \mu M_{t-1} + (1 - \mu) G_t \\
        Z_t &= \mu M_t + (1 - \mu) G_t \\
        O_t &\approx \mathrm{polar}(Z_t) \\
        W_t &= (1 - \eta\lambda) W_{t-1} - \eta \sqrt{\max(1, m/n)}\; O_t

    with five Newton-Schulz steps of Polar Express (safety factor 1.01, Frobenius prescale, ``accuracy="half"``), EMA
    momentum :math:`\mu = 0.95` with Nesterov, :math:`\eta = 0.02` and :math:`\lambda = 0`. A filter of shape
    (out, in, h, w) is the matrix (out, in·h·w). The options change one line each:

    ================================  ==============================================================================
    option                            changes
    ================================  ==============================================================================
    ``momentum_form="heavy_ball"``    :math:`M_t = \mu M_{t-1} + G_t` and :math:`Z_t = \mu M_t + G_t`
    ``nesterov=False``                :math:`Z_t = M_t`
    ``orthogonalizer=…``              which polynomials and how many steps, or the exact polar factor
    ``scale="original"``              factor :math:`\sqrt{\max(1, m/n)}` on :math:`O_t` (default)
    ``scale="match_rms_adamw"``       factor :math:`0.2 \sqrt{\max(m, n)}`: entries as large as an update of AdamW
    ``scale="spectral"``              factor :math:`\sqrt{m/n}`; torch calls it ``spectral_unclamped``
    ``scale="none"``                  factor 1
    ``renormalize="before"``          :math:`W_{t-1}` is first rescaled to the Frobenius norm :math:`\sqrt m`
    ``renormalize="after"``           :math:`W_t` is rescaled to the Frobenius norm :math:`\sqrt m`
    ``maximize=True``                 plus :math:`\eta` instead of minus
    ================================  ==============================================================================

    Algorithm 1 of the paper is :meth:`paper`: heavy-ball momentum without Nesterov and without scale. Muon is meant for
    the hidden matrices of a network: :func:`muonlab.split_params` finds them, and :class:`muonlab.MuonWithAux` combines
    Muon with an optimizer for the other parameters. Every option may differ between parameter groups.

    Args:
        params: parameters of two or more dimensions, or groups of them.
        lr: learning rate η; a number or a tensor of one element. All further arguments are keyword-only.
        momentum: μ in [0, 1).
        orthogonalizer: a :class:`muonlab.NewtonSchulz` or a :class:`muonlab.ExactPolar`.
        momentum_form: ``"ema"`` (as in torch.optim.Muon) or ``"heavy_ball"`` (as in the paper); the directions are the
            same while μ is constant and the prescale ignores scale.
        nesterov: whether to orthogonalize Nesterov's look-ahead :math:`Z_t` instead of the momentum.
        weight_decay: λ, decoupled, multiplied by the unscaled learning rate.
        scale: factor on the update by its shape: ``"none"``, ``"original"``, ``"match_rms_adamw"`` or ``"spectral"``.
        renormalize: None, ``"before"`` or ``"after"``: rescale each matrix to norm √outputs once per step.
        matrix_view: how a parameter is read as matrices: ``"flatten"`` (first dimension × the rest), ``"batch"``
            (matrices in the last two dimensions), ``"rows(768, 768, 768)"`` (a fused query, key and value), or other
            words of ``muonlab.optim.views``, such as ``"batch rows(512, 512)"`` or ``"transposed column_heads(64)"``.
        maximize: maximize the objective instead of minimizing it.
        nonfinite: how to handle gradients that are not finite, or that would make the momentum overflow:
            ``"propagate"`` them into the weights, ``"raise"`` before anything changes (reads one number from each
            device), or ``"skip"`` the parameter, its weight and state, in this step.
        capturable: whether steps can be captured in a CUDA graph, as in torch.optim.Adam: ``lr`` must then be a tensor
            on the device of the parameters, and the optimizer keeps the buffers of a step between steps.
        process_group: processes that hold replicas of the parameters (DistributedDataParallel) and share the work on
            them; None: every process orthogonalizes all of its matrices, and gradients are not compared between
            processes. Parameters of fully_shard need no group.
        comm_dtype: dtype of the matrices that processes send each other; None sends them unchanged, and N processes
            then give the same bits as one for float32. ``torch.bfloat16`` halves the traffic.

    Attributes:
        orthogonalized: number of matrices that the last step orthogonalized on this process.

    Raises:
        ValueError: an option is out of range, a group has no parameters, or a parameter is no matrix under its view.
        TypeError: an unknown argument (the message names the one of this class), or a parameter that is not real.

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
    _workspaces: Workspaces

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.02,
        *positional: Never,
        momentum: float = 0.95,
        orthogonalizer: Orthogonalizer = _DEFAULT_ORTHOGONALIZER,
        momentum_form: MomentumForm = "ema",
        nesterov: bool = True,
        weight_decay: float = 0.0,
        scale: Scale = "original",
        renormalize: Renormalize = None,
        matrix_view: MatrixView = "flatten",
        maximize: bool = False,
        nonfinite: Nonfinite = "propagate",
        capturable: bool = False,
        process_group: ProcessGroup | None = None,
        comm_dtype: torch.dtype | None = None,
        **unknown: Never,
    ) -> None:
        if positional:
            raise TypeError(
                f"Muon takes params and lr by position and everything else by name, got a third argument "
                f"{positional[0]!r}: write momentum={positional[0]!r} or weight_decay={positional[0]!r} (which is the "
                f"third argument of torch.optim.Muon and of Muon.torch)"
            )
        options: dict[str, Any] = {
            "lr": lr,
            "momentum": momentum,
            "orthogonalizer": orthogonalizer,
            "momentum_form": momentum_form,
            "nesterov": nesterov,
            "weight_decay": weight_decay,
            "scale": scale,
            "renormalize": renormalize,
            "matrix_view": matrix_view,
            "maximize": maximize,
            "nonfinite": nonfinite,
            "capturable": capturable,
        }
        refuse_unknown(unknown, (*options, "process_group", "comm_dtype"))
        self.orthogonalized = 0
        self._orthogonalize_hooks = OrthogonalizeHooks()
        self._workspaces = Workspaces()
        super().__init__(params, options, Layouts(tuple(self.checks), process_group, comm_dtype))

    @no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient; the others do not change, weight decay included.

        Args:
            closure: recomputes the loss and its gradients; called once, before the update.

        Returns:
            What the closure returned.
        """
        loss, params = self._begin_step(closure)
        self._workspaces.keep = any(group["capturable"] for group in self.param_groups)
        self.orthogonalized = muon_step(params, self._layouts, self._orthogonalize_hooks, self._workspaces)
        return loss

    # ------------------------------------------------------------------------------------------------------- recipes

    @classmethod
    def paper(
        cls,
        params: ParamsT,
        lr: float | Tensor,
        *,
        momentum: float,
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
        return cls(params, lr, momentum=momentum, **{**settings, **options})

    @classmethod
    def airbench(
        cls,
        params: ParamsT,
        lr: float | Tensor = 0.24,
        *,
        momentum: float = 0.6,
        nesterov: bool = True,
        ns_steps: int = 3,
        **options: Any,
    ) -> Muon:
        """Build the Muon of cifar10-airbench: heavy-ball, weights rescaled to norm √out before each update.

        Three steps of Jordan's polynomial, no scale rule; ``options`` are further options of Muon.
        """
        settings: dict[str, Any] = {
            "orthogonalizer": NewtonSchulz("jordan", steps=ns_steps),
            "momentum_form": "heavy_ball",
            "nesterov": nesterov,
            "scale": "none",
            "renormalize": "before",
        }
        return cls(params, lr, momentum=momentum, **{**settings, **options})

    @classmethod
    def keller_jordan(
        cls,
        params: ParamsT,
        lr: float | Tensor = 0.02,
        weight_decay: float = 0.0,
        momentum: float = 0.95,
        **options: Any,
    ) -> Muon:
        """Build the Muon of the muon-optimizer package, with the scale of filters read off out×rest.

        Five steps of Jordan's polynomial, EMA momentum with Nesterov; ``options`` are those of :meth:`torch`.
        """
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
        adjust_lr_fn: Literal["original", "match_rms_adamw", "spectral_unclamped"] | None = None,
        **options: Any,
    ) -> Muon:
        """Build torch.optim.Muon, same arguments; its state dictionaries load.

        Args:
            params: parameters or groups.
            lr: η.
            weight_decay: λ.
            momentum: μ, EMA.
            nesterov: whether to orthogonalize Nesterov's look-ahead.
            ns_coefficients: (a, b, c) of the polynomial ``a + bλ + cλ²``; Jordan's by default.
            eps: accepted, without effect: no input is too small here.
            ns_steps: number of Newton-Schulz steps.
            adjust_lr_fn: None or ``"original"``, ``"match_rms_adamw"``, or ``"spectral_unclamped"`` (of newer versions
                of torch, our ``scale="spectral"``).
            options: further options of Muon.

        Example:
            >>> W = torch.nn.Parameter(torch.eye(2))
            >>> Muon.torch([W], ns_steps=3, adjust_lr_fn="match_rms_adamw").param_groups[0]["scale"]
            'match_rms_adamw'
        """
        _checks.positive("eps", eps)
        settings: dict[str, Any] = {
            "orthogonalizer": newton_schulz_of(ns_coefficients, ns_steps),
            "momentum_form": "ema",
            "nesterov": nesterov,
            "weight_decay": weight_decay,
            "scale": scale_of(adjust_lr_fn),
        }
        return cls(params, lr, momentum=momentum, **{**settings, **options})

    @classmethod
    def moonlight(
        cls,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        *,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_steps: int = 5,
        **options: Any,
    ) -> Muon:
        """Build Moonlight's Muon: heavy-ball, updates of the size of AdamW's, so that its lr and decay carry over.

        Jordan's polynomial, ``scale="match_rms_adamw"``; ``options`` are further options of Muon.
        """
        settings: dict[str, Any] = {
            "orthogonalizer": NewtonSchulz("jordan", steps=ns_steps),
            "momentum_form": "heavy_ball",
            "nesterov": nesterov,
            "weight_decay": weight_decay,
            "scale": "match_rms_adamw",
        }
        return cls(params, lr, momentum=momentum, **{**settings, **options})

    # ------------------------------------------------------------------------------------------------ hooks and state

    def register_orthogonalize_hook(self, hook: OrthogonalizeHook, *, gradients: bool = False) -> RemovableHandle:
        """Call ``hook(params, M, O)`` after each batch is orthogonalized and before its weights change.

        ``M[i]`` is the matrix of ``params[i]`` that was orthogonalized (with Nesterov, not the momentum itself) and
        ``O[i]`` the result, both of shape (b, m, n), before the scale rule is applied. They are copies: changing them
        has no effect on the optimizer. On several processes each matrix is shown whole, on the process that
        orthogonalized it; all processes must have the same hooks.

        Args:
            hook: function to call.
            gradients: whether the hook calls :meth:`whole_gradient`.

        Returns:
            A handle; ``handle.remove()`` removes the hook.
        """
        return self._orthogonalize_hooks.add(hook, gradients=gradients)

    def whole_gradient(self, param: Tensor, block: int = 0) -> Tensor | None:
        """Return, inside a hook registered with ``gradients=True``, the whole gradient of a block it is shown."""
        return self._orthogonalize_hooks.gradients.get((param, block))

    def skipped(self, param: Tensor) -> bool:
        """Return, inside a hook, whether this step skips a parameter because of ``nonfinite="skip"``."""
        finite = self._orthogonalize_hooks.finite.get(param)
        return finite is not None and not bool(finite)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Set unpickled or loaded state; hooks and buffers are not part of it."""
        if "_orthogonalize_hooks" not in self.__dict__:
            self._orthogonalize_hooks = OrthogonalizeHooks()
            self._workspaces = Workspaces()
        super().__setstate__(state)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "orthogonalized": self.orthogonalized}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, checked like one given at construction; on an error the optimizer does not change."""
        refuse_foreign(param_group)
        super().add_param_group(param_group)

    def _check_capture(self) -> None:
        if self._orthogonalize_hooks:
            refuse_capture("hooks would run once, while the graph is captured", "remove them, or step without a graph")
        super()._check_capture()

    def _restored(self, group: dict[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
        return super()._restored(as_native(group), defaults)

    def _check_group(self, group: Mapping[str, Any]) -> None:
        super()._check_group(group)
        for name, p in named_params(group):
            check_fits(group["matrix_view"], p.shape, name)

    # -------------------------------------------------------------------------------------------- several processes

    @property
    def grids(self) -> list[RankGrid]:
        """The grids of ranks that share the work, each once; empty on one process."""
        layouts = (self._layouts.layout_of(p, name) for group in self.param_groups for name, p in named_params(group))
        grids = (layout.grid for layout in layouts if hasattr(layout, "grid"))
        return list({grid.group: grid for grid in grids}.values())

    def owned_matrices(self, param: Tensor, block: int = 0) -> range:
        """Return the indices of the matrices of a block that this process orthogonalizes, from its first step on."""
        group = next(group for group in self.param_groups if any(p is param for p in group["params"]))
        layout = self._layouts.layout_of(param, "a parameter")
        return layout.owned_matrices(param, param_blocks(param, group["matrix_view"], layout)[block], block)

    @property
    def rounds_messages(self) -> bool:
        """Whether processes send each other matrices in a narrower dtype than they have."""
        comm_dtype = self._layouts.comm_dtype
        dtypes = (p.dtype for group in self.param_groups for p in group["params"])
        return comm_dtype is not None and any(torch.finfo(comm_dtype).bits < torch.finfo(d).bits for d in dtypes)

    def momentum_squares(self) -> list[float]:
        """Return this process's share of the squared norm of each momentum; over all processes they sum to it."""
        ranks = math.prod(grid.size for grid in self.grids)
        shares = []
        for _, _, _, momentum, layout in self._grouped_params():
            replicas = ranks if isinstance(layout, LocalLayout) else layout.replicas
            shares.append(float(local_part(momentum).double().square().sum()) / replicas)
        return shares


register("muon", Muon, source="K. Jordan et al. 2024, with the defaults of docs/adr/0007")
register("muon.paper", Muon.paper, source="Kim & Oh 2026, Algorithm 1")
register("muon.airbench", Muon.airbench, source="K. Jordan, cifar10-airbench, airbench94_muon")
register("muon.keller_jordan", Muon.keller_jordan, source="K. Jordan, the muon-optimizer package")
register("muon.torch", Muon.torch, source="torch.optim.Muon")
register("muon.moonlight", Muon.moonlight, source="J. Liu et al., Muon is Scalable for LLM Training, 2025")
