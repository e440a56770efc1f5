"""Muon with Newton-Schulz: exact polynomials, the convergence proof as numbers, fast orthogonalizers.

Public names resolve on first use, so that ``import muonlab`` loads neither torch nor numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from muonlab.orthogonalize import newton_schulz as newton_schulz
    from muonlab.orthogonalize import polar as polar

__version__ = "0.1.0"

_HOMES = {"newton_schulz": "muonlab.orthogonalize", "polar": "muonlab.orthogonalize"}
__all__ = ["__version__", "newton_schulz", "polar"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'muonlab' has no attribute {name!r}: public names are {', '.join(__all__)}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
