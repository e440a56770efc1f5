"""The studies of the package are written with what a user of :mod:`muonlab.lab` has."""

from __future__ import annotations

import ast
from pathlib import Path

import muonlab.lab
from muonlab.lab import studies
from muonlab.lab.settings import Settings

FOLDER = Path(studies.__file__).parent


def test_they_import_the_public_names_types_of_specs_and_each_other_only():
    files = [path for path in FOLDER.glob("*.py") if path.name != "__init__.py"]
    assert len(files) > len(studies.studies())
    for path in files:
        for statement in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            assert not isinstance(statement, ast.Import) or "muonlab" not in ast.unparse(statement), path
            if not isinstance(statement, ast.ImportFrom) or not str(statement.module).startswith("muonlab"):
                continue
            module, names = str(statement.module), [alias.name for alias in statement.names]
            if module == "muonlab.lab":
                assert set(names) <= set(muonlab.lab.__all__), path
            elif not module.startswith(f"{studies.__name__}._"):
                found = [getattr(__import__(module, fromlist=names), name) for name in names]
                kinds = [value for value in found if isinstance(value, type)]
                assert all(issubclass(kind, Settings) for kind in kinds), path
                assert {name for name, value in zip(names, found, strict=True) if value not in kinds} <= {
                    "ProfileName",
                    "MethodName",
                }, path
