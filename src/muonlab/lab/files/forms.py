"""The form of each JSON file of a run directory and of the data cache: keys, types, names that stay in their folder."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

Form = Any
"""A type, None, a pattern of the whole text, a list with the form of its items, a tuple of forms, or a dictionary.

The dictionary has forms by key, where a key that ends with ``?`` may be missing; or one form for all keys (a type or a
pattern) with one for all values.
"""

_NAME = re.compile(r"(?!\.{1,2}$)[^/\\\0]{1,255}")
_ROWS = {re.compile(r"[\w-]{1,200}"): {"lines": int, "sha256": str}}
_HISTORY = {"key": str, "jobs": int, "sessions": [int], "machines": [str], "cores": (int, None), "ranks": [int]}

FORMS: Mapping[str, Form] = {
    "study.json": {
        "format": int,
        "numerics": int,
        "study": str,
        "profile": str,
        "settings": {"threads": int, "device?": str},
        "data": {str: {"hash?": (str, None), "label": str, "words": str, "source?": str}},
    },
    "cells.json": {"cells": [_NAME], "earlier?": [_NAME]},
    "env.json": {
        "sessions": [
            {
                "gpus?": ([str], None),
                "libraries?": ({str: (str, None)}, None),
                "allocator?": ({str: str}, None),
                "title?": str,
                "differences?": str,
                "file?": str,
            }
        ]
    },
    "spec.json": {
        "label": str,
        "points": {str: str},
        "identity": {"spec": dict, "numerics": int, "data": (str, None)},
        "spec": {"seed": int},
    },
    "done.json": {"summary": dict, "rows": _ROWS, **_HISTORY},
    "failed.json": {"key": str, "error": str, "traceback": (str, None), "rows?": _ROWS},
    "history.json": _HISTORY,
    "checkpoint": {
        "step": int,
        "values": {"key": str, "rows": _ROWS},
        "sha256?": str,
        "folder?": _NAME,
        "files?": {_NAME: str},
    },
    "meta.json": {
        "hash": str,
        "arrays": {_NAME: {"dtype": str, "shape": [int], "sha256": str, "bytes": int, "header": str}},
        "facts": dict,
    },
}
"""By the name of the file; ``"checkpoint"`` is that of manifests. Keys that are not named here may have any value."""


def mismatch(value: Any, form: Form, where: str = "") -> str | None:
    """Return where a value has another form, and how; None if it has the form.

    Example:
        >>> mismatch({"cells": ["a", "../b"]}, FORMS["cells.json"])
        "cells[1] is '../b'"
    """
    if isinstance(form, tuple):
        problems = [mismatch(value, option, where) for option in form]
        return None if None in problems else problems[0]
    if isinstance(form, list):
        if not isinstance(value, list):
            return _is(where, value)
        return _first(mismatch(item, form[0], f"{where}[{i}]") for i, item in enumerate(value))
    if isinstance(form, Mapping):
        return _mismatch_of_object(value, form, where)
    fits = (
        value is None
        if form is None
        else isinstance(value, str) and form.fullmatch(value)
        if isinstance(form, re.Pattern)
        else isinstance(value, form) and (form is bool or not isinstance(value, bool))
    )
    return None if fits else _is(where, value)


def _mismatch_of_object(value: Any, form: Mapping[Any, Form], where: str) -> str | None:
    if not isinstance(value, dict):
        return _is(where, value)
    prefix = f"{where}." if where else ""
    if len(form) == 1 and not isinstance(next(iter(form)), str):  # one form for all keys
        ((key_form, item_form),) = form.items()
        names = _first(mismatch(key, key_form, f"a key of {where}") for key in value)
        return names or _first(mismatch(item, item_form, f"{prefix}{key}") for key, item in value.items())
    for name, item_form in form.items():
        key = name.removesuffix("?")
        if key not in value:
            if key == name:
                return f"{prefix}{key} is missing"
            continue
        if (problem := mismatch(value[key], item_form, f"{prefix}{key}")) is not None:
            return problem
    return None


def _first(problems: Any) -> str | None:
    return next((problem for problem in problems if problem is not None), None)


def _is(where: str, value: Any) -> str:
    shown = repr(value)
    return f"{where or 'the file'} is {shown if len(shown) <= 60 else f'{shown[:60]}…'}"
