"""What importing the package loads, its public names, and its argument checks."""

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import muonlab
from muonlab import _checks


def loaded_by(statement, modules):
    """Which of the modules a fresh interpreter has loaded after the statement."""
    code = f"import sys\n{statement}\nprint(*[m for m in {modules!r} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return run.stdout.split()


def test_the_package_loads_neither_torch_nor_numpy_and_the_mathematics_no_torch():
    assert loaded_by("import muonlab, muonlab.cli.app, muonlab.cli.console", ["torch", "numpy"]) == []
    mathematics = "import muonlab.polynomials.minimax, muonlab.theory.summary"
    assert loaded_by(mathematics, ["torch"]) == []


def test_the_integrations_load_no_trainer_until_their_module_is_imported():
    trainers = ["transformers", "lightning", "accelerate"]
    assert loaded_by("import muonlab.optim, muonlab.diagnostics, muonlab.integrations.common", trainers) == []


def test_every_public_name_resolves_to_the_object_of_its_module():
    from muonlab import orthogonalize

    for name in muonlab.__all__:
        assert getattr(muonlab, name) is not None
        assert name in dir(muonlab)
    assert muonlab.newton_schulz is orthogonalize.newton_schulz
    assert muonlab.polar is orthogonalize.polar


LISTS_ITS_PACKAGE = "lists what the package registers; the parent package does not import it"
SAME_NAME = {
    "lab/models": LISTS_ITS_PACKAGE,
    "lab/studies": LISTS_ITS_PACKAGE,
}
"""Modules with a name of their own name, and why (docs/adr/0021-packages-by-role.md)."""


def bound_names(file):
    """Names that a module defines as function or class, or imports from a module."""
    body = ast.parse(file.read_text(encoding="utf-8")).body
    defined = {node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    imports = (node.names for node in body if isinstance(node, ast.ImportFrom))
    return defined, {alias.asname or alias.name for names in imports for alias in names}


def test_no_module_has_the_name_of_a_function_or_class_that_an_import_would_hide():
    root, found = Path(muonlab.__file__).parent, set()
    for file in root.rglob("*.py"):
        path = file.parent if file.name == "__init__.py" else file
        defined, imported = bound_names(file)
        if path.stem in defined | (imported if path == file.parent else set()):
            found.add(path.relative_to(root).as_posix())
        if path == file.parent:
            hidden = imported & {module.stem for module in path.iterdir()}
            found |= {f"{path.relative_to(root).as_posix()} hides {name}" for name in hidden}
    assert found <= SAME_NAME.keys()


def names_of_types(file):
    """Names of the classes and type aliases of a module, those with a small letter after a capital one."""
    body = ast.parse(file.read_text(encoding="utf-8")).body
    targets = (node.targets[0] for node in body if isinstance(node, ast.Assign))
    aliases = [target.id for target in targets if isinstance(target, ast.Name) and re.match("[A-Z][a-z]", target.id)]
    return [*aliases, *(node.name for node in body if isinstance(node, ast.ClassDef))]


def test_every_class_and_type_has_a_name_of_its_own():
    counts = Counter(name for file in Path(muonlab.__file__).parent.rglob("*.py") for name in names_of_types(file))
    assert {name for name, count in counts.items() if count > 1} == {"RecorderCallback"}  # one for each trainer


def test_the_error_for_an_unknown_name_lists_the_public_names():
    with pytest.raises(AttributeError, match=r"module 'muonlab' has no attribute 'adam': public names are .*polar"):
        _ = muonlab.adam


def test_the_changelog_and_the_citation_name_the_version_and_its_date():
    root = Path(__file__).parents[1]
    found = re.search(r"^## (\d+\.\d+\.\d+) – (\d{4}-\d\d-\d\d)$", (root / "CHANGELOG.md").read_text(), flags=re.M)
    assert found
    version, date = found.groups()
    assert version == muonlab.__version__
    assert f"\nversion: {version}\ndate-released: {date}\n" in (root / "CITATION.cff").read_text()


def test_the_module_passes_its_exit_code_on():
    run = subprocess.run(
        [sys.executable, "-m", "muonlab", "rates", "--T", "0"], capture_output=True, text=True, check=False, timeout=60
    )
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr == "muonlab: T must be at least 1, got 0: pass 1 or more\n"


# --------------------------------------------------------------------------------------------- argument checks


def test_checks_return_the_checked_value():
    assert _checks.integer("n", 3, at_least=1) == 3
    assert _checks.real("x", 1, low=0.0) == 1.0
    assert type(_checks.real("x", 1)) is float
    assert _checks.positive("x", 0.5) == 0.5
    assert _checks.non_negative("x", 0) == 0.0
    assert _checks.one_of("x", "a", ("a", "b")) == "a"


def test_a_value_that_is_no_real_number_is_refused_by_name_value_and_type():
    for value in (True, "1", b"1", None, [1], 1j):
        with pytest.raises(TypeError, match=rf"x must be a real number, got .* of type {type(value).__name__}"):
            _checks.real("x", value)
    with pytest.raises(ValueError, match=r"x must be a finite number"):
        _checks.real("x", 10**400)


def test_intervals_are_kept_and_shown():
    for options, inside, outside, shown in (
        ({"low": 0.0, "high": 1.0}, (0.0, 0.5, 1.0), (-1e-9, 1.0000001), r"\[0, 1\]"),
        ({"low": 0.0, "high": 1.0, "low_open": True}, (1e-300, 1.0), (0.0,), r"\(0, 1\]"),
        ({"low": 0.0, "high": 1.0, "high_open": True}, (0.0, 0.999), (1.0,), r"\[0, 1\)"),
        ({"low": 0.0}, (0.0, 1e300), (-1.0, float("inf")), r"\[0, inf\)"),
        ({}, (-1e300, 1e300), (float("inf"), float("-inf"), float("nan")), r"\(-inf, inf\)"),
    ):
        for value in inside:
            assert _checks.real("x", value, **options) == value
        for value in outside:
            with pytest.raises(ValueError, match=rf"x must be a finite number in {shown}, got .*: choose a value"):
                _checks.real("x", value, **options)


def test_integers_and_options_are_checked():
    for value, error, message in (
        (0, ValueError, r"n must be at least 1, got 0: pass 1 or more"),
        (True, TypeError, r"n must be an integer, got True: pass 1 if that is meant"),
        (1.0, TypeError, r"n must be an integer, got 1\.0 of type float: pass a whole number"),
        ("1", TypeError, r"n must be an integer, got '1' of type str: pass a whole number"),
        (None, TypeError, r"n must be an integer, got None of type NoneType: pass a whole number"),
    ):
        with pytest.raises(error, match=message):
            _checks.integer("n", value, at_least=1)
    with pytest.raises(ValueError, match=r"x must be one of 'a', 'b', got 'c': pick one of these"):
        _checks.one_of("x", "c", ("a", "b"))
