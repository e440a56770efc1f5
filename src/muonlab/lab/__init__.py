"""The lab: models, datasets and studies of the paper, and a runner that resumes them.

Names resolve on first use, so that listing studies does not load torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from muonlab.lab.runner.results import Results as Results
    from muonlab.lab.runner.results import load_results as load_results
    from muonlab.lab.runner.run_study import run as run
    from muonlab.lab.spec import Spec as Spec
    from muonlab.lab.study import Study as Study

_HOMES = {
    "Spec": "spec",
    "Study": "study",
    "run": "runner.run_study",
    "load_results": "runner.results",
    "Results": "runner.results",
}
__all__ = ["Results", "Spec", "Study", "load_results", "run"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'muonlab.lab' has no attribute {name!r}: public names are {', '.join(__all__)}")
    value = getattr(import_module(f"muonlab.lab.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
