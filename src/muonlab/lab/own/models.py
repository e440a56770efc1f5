"""``model(...)``: a model for a spec, from a class or function of the user or from a registered name with options."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from muonlab.lab.own.part import OwnPart, Target

if TYPE_CHECKING:
    from torch import nn


def model(target: Target, **options: Any) -> OwnModel:
    """Return a model for ``Spec(model=…)``.

    Args:
        target: a class or function that returns a module when it is called with the options; or a name of
            ``muonlab list models``, which also gets the shape and the classes of the data.
        **options: its keyword arguments: numbers, text, or tuples of these. A sweep varies them as ``"model.NAME"``.

    A method ``fit(inputs)`` of the module is called with training inputs before the first update, and its
    attribute ``matrix_rules`` is passed to ``split_params(rules=…)``.

    Example:
        >>> from torch import nn
        >>> layer = model(nn.Linear, in_features=3, out_features=2)
        >>> layer.changed({"out_features": 5}).build()
        Linear(in_features=3, out_features=5, bias=True)
    """
    return OwnModel(target, options)


class OwnModel(OwnPart):
    """A model of a spec; its identity has the source, the names and shapes of the weights, and their initial values."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.target, str):
            from muonlab import _checks
            from muonlab.lab.models import models

            _checks.one_of("model", self.target, tuple(models()))
        elif not callable(self.target) or (hasattr(self.target, "parameters") and not isinstance(self.target, type)):
            raise TypeError(
                f"a model must be a class or a function, got {type(self.target).__name__}: pass the class, so that "
                f"every cell and seed has its own weights"
            )

    def build(self, shape: Sequence[int] | None = None, classes: int | None = None) -> nn.Module:
        """Return the module, with random weights from torch's global generator."""
        from torch import nn

        if isinstance(self.target, str):
            from muonlab.lab.models import build

            return build(self.target, shape=shape, classes=classes, **self.options)
        made = self.target(**self.options)
        if not isinstance(made, nn.Module):
            raise TypeError(f"a model must be a torch module, got {type(made).__name__} from {self.name}: return one")
        return made

    def _about(self) -> dict[str, Any]:
        about = super()._about()
        return about if isinstance(self.target, str) else {**about, **self._weights}

    @cached_property
    def parameters(self) -> int:
        """Number of parameters of the user's model."""
        return int(self._weights["parameters"])

    @cached_property
    def _weights(self) -> dict[str, Any]:
        import torch

        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                network = self.build()
        finally:
            torch.set_num_threads(threads)
        digest = hashlib.sha256()
        for name, tensor in network.state_dict().items():
            digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
            digest.update(memoryview(tensor.detach().contiguous().flatten().view(torch.uint8).numpy()))
        return {"parameters": sum(p.numel() for p in network.parameters()), "weights": digest.hexdigest()}
