"""CifarNet on CIFAR-10 as in Figure 1, with smaller profiles: the base of five studies that each vary one thing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muonlab.lab import Axis, Profile, Spec
from muonlab.lab.study import ProfileName

BASE = Spec(
    model="cifarnet",
    dataset="cifar10",
    q=3,
    kappa=2,
    lr=0.0860632,
    momentum=0.730778,
    aux_lr=1.4949e-3,
    head_lr=1.72446,
    aux_momentum=0.989703,
    smoothing=0.2,
    clip=1.0,
    batch_size=512,
    epochs=50,
    warmup=0.05,
)

_ON_CPU = {"batch_size": 256}  # the fallback that the paper gives
_SMOKE = {
    "model": "cifarnet-smoke",
    "train": 512,
    "test": 100,
    "batch_size": 32,
    "epochs": 2,
    "evaluate_every": 8,
}
_SMALL = {"model": "cifarnet-small", "train": 5_000, "test": 1_000, "batch_size": 32, "epochs": 10}
_NETWORKS = {
    "cifarnet-smoke": "a network of 16, 24 and 24 channels",
    "cifarnet-small": "a network of 32, 64 and 64 channels",
    "cifarnet": "the whole network",
}


def profiles(
    *,
    own_batch_size: bool = False,
    small: Mapping[str, Any] | None = None,
    small_axes: tuple[Axis, ...] = (),
    smoke_axes: tuple[Axis, ...] = (),
) -> dict[ProfileName, Profile]:
    """Return the three profiles of a study of CifarNet.

    Args:
        own_batch_size: whether the study varies the batch size, so that profiles do not set it.
        small: settings of the small profile that differ from those of q-ablation (see docs/adr/0020).
        small_axes: axes with other points in the small profile.
        smoke_axes: axes with fewer points in the smoke profile.
    """
    return {
        "smoke": _profile(1, _SMOKE, smoke_axes, own_batch_size),
        "small": _profile(3, {**_SMALL, **(small or {})}, small_axes, own_batch_size),
        "paper": Profile(5, on_cpu={} if own_batch_size else _ON_CPU),
    }


def _profile(seeds: int, settings: Mapping[str, Any], axes: tuple[Axis, ...], own_batch_size: bool) -> Profile:
    batches = "" if own_batch_size else f", batches of {settings['batch_size']}"
    differences = (
        f"{_NETWORKS[settings['model']]}, {settings['train']:,} training and {settings['test']:,} test images"
        f"{batches}, {settings['epochs']} epochs, {seeds} run{'s' if seeds > 1 else ''}"
    )
    kept = {name: value for name, value in settings.items() if not (own_batch_size and name == "batch_size")}
    return Profile(seeds, differences, kept, axes)
