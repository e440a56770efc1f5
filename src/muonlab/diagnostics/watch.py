"""Watching a Muon from outside: which matrices it orthogonalized at a step, by name, and which it did not."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torch.optim.optimizer import Optimizer
from torch.utils.hooks import RemovableHandle

from muonlab import _checks
from muonlab.diagnostics.across_ranks import gathered
from muonlab.optim import Muon, MuonWithAux
from muonlab.optim.options import named_params
from muonlab.optim.scaling import SCALES
from muonlab.optim.views import as_matrices, block_shapes, blocks, matrices_shape


class Seen(NamedTuple):
    """A matrix at the moment of its step.

    ``M`` was orthogonalized to ``O``; ``gradient`` is the same part of ``p.grad``, as the optimizer got it; ``length``
    is the learning rate times the scale rule, by which O will be multiplied, and 0 where the parameter is ``skipped``
    because of ``nonfinite="skip"``: neither its weight nor its momentum changes then.
    """

    name: str
    group: Mapping[str, Any]
    M: Tensor
    O: Tensor
    gradient: Tensor | None
    length: float
    skipped: bool = False


def muon_of(optimizer: Optimizer) -> Muon:
    """Return the Muon in an optimizer."""
    muon = optimizer.muon if isinstance(optimizer, MuonWithAux) else optimizer
    if not isinstance(muon, Muon):
        given = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
        raise TypeError(
            f"the optimizer must be a muonlab Muon or MuonWithAux, got {given}: Muon.torch replaces torch's own"
        )
    return muon


def members(muon: Muon) -> Iterator[tuple[str, Tensor, dict[str, Any]]]:
    """Yield the parameters of a Muon with their names, or with their places where they have none."""
    for g, group in enumerate(muon.param_groups):
        for i, (name, p) in enumerate(named_params(group)):
            yield name if group.get("param_names") else f"group {g}, parameter {i}", p, group


class Place(NamedTuple):
    """Where in a parameter a matrix lies: which block of rows, and which member of a batch."""

    name: str
    group: Mapping[str, Any]
    block: int
    member: int | None

    def of(self, tensor: Tensor) -> Tensor:
        """Return the matrix in a tensor of the parameter's shape."""
        view = self.group["matrix_view"]
        matrices = as_matrices(blocks(tensor, view)[self.block], view)
        return matrices if self.member is None else matrices[self.member]


def places(name: str, shape: Sequence[int], group: Mapping[str, Any]) -> Iterator[tuple[Place, tuple[int, int]]]:
    """Yield the matrices of a parameter with their shapes; blocks and members of a batch are numbered."""
    view = group["matrix_view"]
    found = block_shapes(shape, view)
    for b, block in enumerate(found):
        inside = f"{name}[{b}]" if len(found) > 1 else name
        *batch, m, n = matrices_shape(block, view)
        if not batch:
            yield Place(inside, group, b, None), (m, n)
        for i in range(batch[0] if batch else 0):
            yield Place(f"{inside}[{i}]", group, b, i), (m, n)


def step_length(group: Mapping[str, Any], rows: int, columns: int) -> float:
    """Return what a direction of this shape is multiplied by."""
    return float(group["lr"]) * SCALES[group["scale"]](rows, columns)


def checked_state(state: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    """Return a saved state that has these keys."""
    missing = [key for key in keys if key not in state]
    if missing:
        raise ValueError(f"a saved state must have {', '.join(keys)}, got none of {', '.join(missing)}: save it again")
    return state


class Watch:
    """Shows every ``every``-th step of a Muon, the first included, to ``see`` matrix by matrix, then calls ``after``.

    Between those steps the optimizer has no hook on its matrices and pays nothing.

    Args:
        optimizer: a Muon, or a MuonWithAux whose Muon is watched.
        every: distance of the steps that are shown.
        see: called with each matrix of such a step, before the weights change.
        after: called when the step is done, with its number and the names of matrices that no process orthogonalized.
        before: called when such a step begins, also the one after a step that failed.
        gradients: whether ``see`` is to know the gradients.

    Attributes:
        step: steps that were taken since watching began.
        passed_over: of the matrices that the last step shown did not orthogonalize, those that had a gradient.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        every: int,
        see: Callable[[Seen], None],
        after: Callable[[int, list[str]], None],
        before: Callable[[], None] | None = None,
        *,
        gradients: bool = True,
    ) -> None:
        self.muon = muon_of(optimizer)
        self.every = _checks.integer("every", every, at_least=1)
        self.step = 0
        self.passed_over: list[str] = []
        self._see, self._after, self._before = see, after, before
        self._closed = self._inside = False
        self._hook: RemovableHandle | None = None
        self._gradients = gradients
        self._expected: dict[tuple[Tensor, tuple[int, int]], deque[Place]] | None = None
        self._handles = [
            self.muon.register_step_pre_hook(self._before_step),
            self.muon.register_step_post_hook(self._after_step),
        ]

    def close(self) -> None:
        """Take every hook off the optimizer; within a step they stay until the next call, and do nothing."""
        self._closed = True
        self._unhook()
        while self._handles and not self._inside:
            self._handles.pop().remove()

    @property
    def closed(self) -> bool:
        """Whether the hooks are off."""
        return self._closed

    def _unhook(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _before_step(self, *_: Any) -> None:
        self._unhook()  # a step that failed half-way left it
        if self._closed or self.step % self.every:
            return
        if self._before is not None:
            self._before()
        self._expected = None
        self._hook = self.muon.register_orthogonalize_hook(self._show, gradients=self._gradients)

    def _to_come(self) -> dict[tuple[Tensor, tuple[int, int]], deque[Place]]:
        """Return the matrices that this process has yet to show, now that the step has shared them out."""
        if self._expected is None:
            self._expected = defaultdict(deque)
            for name, p, group in members(self.muon):
                for place, shape in places(name, p.shape, group) if p.numel() else ():
                    if (place.member or 0) in self.muon.owned_matrices(p, place.block):
                        self._expected[p, shape].append(place)
        return self._expected

    def _show(self, params: tuple[Tensor, ...], M: Tensor, O: Tensor) -> None:
        shape = (M.shape[-2], M.shape[-1])
        for p, A, B in zip(params, M, O, strict=True):
            place = self._to_come()[p, shape].popleft()
            gradient = self._gradient(p, place)
            skipped = self.muon.skipped(p)
            length = 0.0 if skipped else step_length(place.group, *shape)
            self._see(Seen(place.name, place.group, A, B, gradient, length, skipped))

    def _gradient(self, p: Tensor, place: Place) -> Tensor | None:
        """Return the gradient of a matrix that is being shown."""
        block = self.muon.whole_gradient(p, place.block) if self._gradients else None
        if block is None:
            return None
        matrices = as_matrices(block, place.group["matrix_view"])
        return (
            matrices
            if place.member is None
            else matrices[place.member - self.muon.owned_matrices(p, place.block).start]
        )

    def _after_step(self, *_: Any) -> None:
        if self._closed:
            return
        self.step += 1
        if self._hook is None:
            return
        self._unhook()
        missing = [(p.grad is not None, place.name) for (p, _), queue in self._to_come().items() for place in queue]
        missing = [(bool(had), str(name)) for had, name in gathered(self.muon, missing)]
        self.passed_over = list(dict.fromkeys(name for had, name in missing if had))
        self._inside = True
        try:
            self._after(self.step, list(dict.fromkeys(name for _, name in missing)))
        finally:
            self._inside = False
