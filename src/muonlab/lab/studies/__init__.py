"""The studies of the paper, one module each; every module with a ``STUDY`` is registered."""

from __future__ import annotations

import difflib
import pkgutil
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import Any

from muonlab.lab.study import Study


@cache
def studies() -> Mapping[str, Study]:
    """Return every study by name, in the order of the paper.

    Example:
        >>> "quickstart" in studies()
        True
    """
    by_name: dict[str, Study] = {}
    for module in pkgutil.iter_modules(__path__):
        study = getattr(import_module(f"{__name__}.{module.name}"), "STUDY", None)
        if study is not None:
            by_name[study.name] = study
    return MappingProxyType(dict(sorted(by_name.items(), key=lambda item: item[1].number)))


def find(name: str) -> Study:
    """Return a study by name, or that of a file ``….py``; raise ValueError with similar names if there is none."""
    if name.endswith(".py"):
        from muonlab.lab.own.study_file import load_study

        return load_study(name)
    known = studies()
    if name not in known:
        near = difflib.get_close_matches(name, known) or list(known)
        raise ValueError(
            f"a study must be one of those listed, got {name!r}: {', '.join(near)} (muonlab list studies), "
            f"or the path of a file ending in .py"
        )
    return known[name]


def describe(*files: str) -> dict[str, Any]:
    """Return name, title, claims and size of each study, or of those in files, for ``muonlab list studies``."""
    return {
        "studies": [
            {
                "number": study.number,
                "name": study.name,
                "title": study.title,
                "file": study.file,
                "items": list(study.items),
                "claims": list(study.claims),
                "cells": {profile: len(study.cells(profile)) for profile in study.profiles},
                "profiles": {name: profile.differences for name, profile in study.profiles.items()},
            }
            for study in (map(find, files) if files else studies().values())
        ]
    }
