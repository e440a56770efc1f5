"""The datasets of the lab: five from the hub and one embedded, decoded once, mapped from the cache, batched by index.

Names are imported on first use, so that the registry can be read without torch, numpy or ``datasets``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from muonlab.lab.data.batches import Examples as Examples
    from muonlab.lab.data.batches import augment as augment
    from muonlab.lab.data.batches import order as order
    from muonlab.lab.data.inventory import prepare as prepare
    from muonlab.lab.data.inventory import status as status
    from muonlab.lab.data.loading import Data as Data
    from muonlab.lab.data.loading import identify as identify
    from muonlab.lab.data.loading import load as load
    from muonlab.lab.data.registry import AUGMENTATIONS as AUGMENTATIONS
    from muonlab.lab.data.registry import datasets as datasets
    from muonlab.lab.data.registry import describe as describe

_HOMES = {
    "AUGMENTATIONS": "registry",
    "Data": "loading",
    "Examples": "batches",
    "augment": "batches",
    "datasets": "registry",
    "describe": "registry",
    "identify": "loading",
    "load": "loading",
    "order": "batches",
    "prepare": "inventory",
    "status": "inventory",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}: public names are {', '.join(_HOMES)}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
