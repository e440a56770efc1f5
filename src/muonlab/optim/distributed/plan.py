"""Who orthogonalizes what: longest processing time first on the cost model, the same on every rank."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor

from muonlab.optim.layout import GroupedParam, Layout, LocalLayout, param_blocks
from muonlab.optim.orthogonalizer import NewtonSchulz, Plain, from_plain
from muonlab.optim.views import MatrixBlock
from muonlab.orthogonalize.arithmetic import arithmetic_of
from muonlab.orthogonalize.segments import segment_flops, segments_for
from muonlab.theory.cost import flops

if TYPE_CHECKING:
    from muonlab.optim.distributed.layout import DistributedLayout


class PlannedBlock(NamedTuple):
    """A block that a step may orthogonalize, its cost, and a description that must be equal on all ranks."""

    param: Tensor
    block_index: int
    block: MatrixBlock
    cost: float
    description: str


def block_cost(orthogonalizer: Plain, matrices: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> float:
    """Return the operations that orthogonalizing a matrix (m, n), or a stack (b, m, n), takes by the cost model.

    Example:
        >>> jordan = NewtonSchulz("jordan", steps=5, method="standard").plain()
        >>> block_cost(jordan, (8, 8), torch.float32, torch.device("cpu"))
        12864.0
    """
    *stack, rows, columns = matrices
    m, n = sorted((rows, columns))
    value = from_plain(orthogonalizer)
    if isinstance(value, NewtonSchulz):
        dtype = value.dtype_for(torch.empty(0, dtype=dtype, device=device))
        arithmetic = arithmetic_of(dtype, device, m)
        segments = segments_for(value.schedule, m, n, arithmetic, value.method, value.accuracy)
        each = segment_flops(segments, m, n, (arithmetic.symmetric, arithmetic.commuting))
    else:
        each = float(flops(m, n, "svd_full"))
    # memory traffic counts too: without steps it is the only cost
    return (each + m * n) * (stack[0] if stack else 1)


def assign_owners(costs: Sequence[float], ranks: int) -> tuple[int, ...]:
    """Return an owner for each cost: the largest first, each to the rank with the least work so far.

    No rank then has more than 4/3 of the best possible maximum (Graham 1969); ties go to the lowest rank.

    Example:
        >>> assign_owners([5.0, 3.0, 3.0, 2.0, 2.0], 2)
        (0, 1, 1, 0, 1)
    """
    loads = [(0.0, rank) for rank in range(ranks)]
    owners = [0] * len(costs)
    for i in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        load, rank = loads[0]
        owners[i] = rank
        heapq.heapreplace(loads, (load + costs[i], rank))
    return tuple(owners)


class StepPlan:
    """What the ranks of an optimizer's layouts agree on before each step.

    Args:
        options: names of the options of a parameter group.
    """

    def __init__(self, options: Sequence[str]) -> None:
        self._options = options
        self._planned: list[Any] | None = None
        self._order = ""

    def agree(
        self, layouts: Sequence[Layout], params: Sequence[GroupedParam], hook_signature: Sequence[object]
    ) -> list[bool]:
        """Give every block an owner, and return for each parameter whether any rank has a gradient for it.

        Raises on every rank if parameters, their order, options, learning rates or hooks differ between ranks.
        """
        planned = [(id(p.param), p.name, p.param.shape, *_treatment(p.group)) for p in params]
        changed = planned != self._planned
        if changed:  # the order of the layouts is part of the plan: ranks must exchange messages in the same order
            self._order = repr([(p.name, tuple(p.param.shape), layouts.index(p.layout)) for p in params])
        groups = {id(p.group): p.group for p in params}.values()
        values = repr([[_comparable(group[name]) for name in self._options] for group in groups])
        options = f"{self._order} {tuple(hook_signature)} {values}"
        has_gradient: dict[Tensor, bool] = {}
        self._planned = None  # if a layout raises, the next step makes a new plan
        for layout in layouts:
            members = [p for p in params if p.layout is layout]
            flags: Sequence[bool] = [p.param.grad is not None for p in members]
            if not isinstance(layout, LocalLayout):
                blocks = [block for p in members for block in planned_blocks(p)] if changed else None
                distributed = cast("DistributedLayout", layout)
                distributed.plan(blocks, options)
                flags = distributed.agree(flags, [p.name for p in members])
            has_gradient.update(zip((p.param for p in members), flags, strict=True))
        self._planned = planned
        return [has_gradient[p.param] for p in params]


def planned_blocks(param: GroupedParam) -> list[PlannedBlock]:
    """Return the blocks of a parameter; one without cost where the optimizer acts entry by entry."""
    group, name, p, _, layout = param
    if "orthogonalizer" not in group:
        whole = MatrixBlock(tuple(p.shape), (), 0, ())
        return [PlannedBlock(p, 0, whole, 0.0, f"{name} {getattr(p, 'placements', None)}")]
    description = repr((name, _treatment(group)))
    try:
        blocks = param_blocks(p, group["matrix_view"], layout)
    except ValueError as error:  # shards that cut what the view keeps together
        raise ValueError(f"{error}, with split_params(model, rules={{{name!r}: 'flatten'}})") from None
    return [
        PlannedBlock(p, i, block, block_cost(group["orthogonalizer"], block.matrices, p.dtype, p.device), description)
        for i, block in enumerate(blocks)
    ]


def _treatment(group: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the options of a group that decide its blocks and their costs."""
    return group.get("orthogonalizer"), group.get("matrix_view")


def _comparable(option: Any) -> Any:
    """Return an option as ranks compare it; tensors on accelerators are not read, and their index is that of a rank."""
    if not isinstance(option, Tensor):
        return str(option)
    return float(option) if option.device.type == "cpu" else f"{option.dtype} on {option.device.type}"
