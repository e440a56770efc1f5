"""A study from a file of the user: plain Python with a ``STUDY``."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

from muonlab.lab.study import Study


def load_study(path: str) -> Study:
    """Return the ``STUDY`` of a Python file; worker processes import the file again by its name.

    Raises:
        ValueError: if there is no such file, it has no ``STUDY``, or another module has its name.
    """
    file = Path(path)
    if not file.is_file():
        raise ValueError(f"a study file must exist, got {path}: write one, see docs/guides/own-study.md")
    return replace(_load(file.resolve(), file.stat().st_mtime_ns, file.stat().st_size), file=path)


def write_template(path: str) -> Path:
    """Write a study that runs as it is to a new file ending in ``.py``; return its path."""
    file = Path(path)
    if file.suffix != ".py" or not file.stem.isidentifier():
        raise ValueError(f"a study file must have a name such as my_study.py, got {path}: choose one")
    if file.exists():
        raise ValueError(f"a new study must not overwrite a file, got {path}, which exists: choose another name")
    template = Path(__file__).with_name("template.py").read_text(encoding="utf-8")
    file.write_text(template.replace("THIS_FILE", file.name), encoding="utf-8")
    return file


@cache
def _load(file: Path, _: int, __: int) -> Study:
    name, folder = file.stem, str(file.parent)
    other = sys.modules.get(name) or importlib.util.find_spec(name.partition(".")[0])
    origin = getattr(other, "__file__", None) or getattr(other, "origin", None)
    if "." in name or (other is not None and (origin is None or Path(origin).resolve() != file)):
        raise ValueError(
            f"a study file must have a name that no other module has, got {file.name}"
            f"{f', which is also {origin}' if origin else ''}: rename it"
        )
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    study = getattr(module, "STUDY", None)
    if not isinstance(study, Study):
        raise ValueError(
            f"a study file must define STUDY = Study(…), got {file.name} with {type(study).__name__}: add it"
        )
    return study
