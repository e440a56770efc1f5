"""The studies of the paper, one file each; a file with a ``STUDY`` is found by itself."""

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
    found: dict[str, Study] = {}
    for module in pkgutil.iter_modules(__path__):
        study = getattr(import_module(f"{__name__}.{module.name}"), "STUDY", None)
        if study is None:
            continue
        if study.name in found:
            raise ValueError(f"a study named {study.name!r} is there already: choose another name in {module.name}.py")
        found[study.name] = study
    return MappingProxyType(dict(sorted(found.items(), key=lambda item: item[1].number)))


def find(name: str) -> Study:
    """Return a study by name."""
    known = studies()
    if name not in known:
        near = difflib.get_close_matches(name, known) or list(known)
        raise ValueError(f"a study must be one of those listed, got {name!r}: {', '.join(near)} (muonlab list studies)")
    return known[name]


def describe() -> dict[str, Any]:
    """Return name, title, claims and size of each study, for people and programs."""
    return {
        "studies": [
            {
                "number": study.number,
                "name": study.name,
                "title": study.title,
                "items": list(study.items),
                "claims": list(study.claims),
                "cells": {profile: len(study.cells(profile)) for profile in study.profiles},
                "profiles": {name: profile.words for name, profile in study.profiles.items()},
            }
            for study in studies().values()
        ]
    }
