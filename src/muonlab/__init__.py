"""Muon with Newton-Schulz: exact polynomials, the convergence proof as numbers, fast optimizers.

Public names resolve on first use, so that ``import muonlab`` loads neither torch nor numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from muonlab.optim import SGDM as SGDM
    from muonlab.optim import ExactPolar as ExactPolar
    from muonlab.optim import Muon as Muon
    from muonlab.optim import MuonWithAux as MuonWithAux
    from muonlab.optim import NewtonSchulz as NewtonSchulz
    from muonlab.optim import split_params as split_params
    from muonlab.orthogonalize.iteration import newton_schulz as newton_schulz
    from muonlab.orthogonalize.polar_factor import polar as polar

__version__ = "0.2.0"

_HOMES = {
    "Muon": "muonlab.optim",
    "SGDM": "muonlab.optim",
    "MuonWithAux": "muonlab.optim",
    "NewtonSchulz": "muonlab.optim",
    "ExactPolar": "muonlab.optim",
    "split_params": "muonlab.optim",
    "newton_schulz": "muonlab.orthogonalize",
    "polar": "muonlab.orthogonalize",
}
__all__ = [
    "SGDM",
    "ExactPolar",
    "Muon",
    "MuonWithAux",
    "NewtonSchulz",
    "__version__",
    "newton_schulz",
    "polar",
    "split_params",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'muonlab' has no attribute {name!r}: public names are {', '.join(__all__)}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
