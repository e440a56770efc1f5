"""The lab: studies of the paper and of your own, with models, datasets and optimizers, and a runner that resumes them.

Names resolve on first use, so that listing studies does not load torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from muonlab.lab.cell_context import CellContext as CellContext
    from muonlab.lab.cell_context import Stopped as Stopped
    from muonlab.lab.own.datasets import dataset as dataset
    from muonlab.lab.own.models import model as model
    from muonlab.lab.own.optimizers import optimizer as optimizer
    from muonlab.lab.runner.results import Results as Results
    from muonlab.lab.runner.results import load_results as load_results
    from muonlab.lab.runner.row_stream import watch as watch
    from muonlab.lab.runner.run_study import run as run
    from muonlab.lab.selection import Best as Best
    from muonlab.lab.selection import best as best
    from muonlab.lab.settings import Settings as Settings
    from muonlab.lab.spec import Spec as Spec
    from muonlab.lab.study import Axis as Axis
    from muonlab.lab.study import Point as Point
    from muonlab.lab.study import Profile as Profile
    from muonlab.lab.study import Study as Study

_HOMES = {
    "Axis": "study",
    "Best": "selection",
    "CellContext": "cell_context",
    "Point": "study",
    "Profile": "study",
    "Results": "runner.results",
    "Settings": "settings",
    "Spec": "spec",
    "Stopped": "cell_context",
    "Study": "study",
    "best": "selection",
    "dataset": "own.datasets",
    "load_results": "runner.results",
    "model": "own.models",
    "optimizer": "own.optimizers",
    "run": "runner.run_study",
    "watch": "runner.row_stream",
}
__all__ = [
    "Axis",
    "Best",
    "CellContext",
    "Point",
    "Profile",
    "Results",
    "Settings",
    "Spec",
    "Stopped",
    "Study",
    "best",
    "dataset",
    "load_results",
    "model",
    "optimizer",
    "run",
    "watch",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'muonlab.lab' has no attribute {name!r}: public names are {', '.join(__all__)}")
    value = getattr(import_module(f"muonlab.lab.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
