"""Small faults in the source make tests fail (tests/mutants.py holds the table)."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.mutants import MUTANTS, ROOT, first_failure, stale


def test_every_mutation_applies_to_the_source_and_selects_tests_that_exist():
    assert stale(MUTANTS) == []
    assert max(Counter(m.name for m in MUTANTS).values()) == 1
    for mutant in MUTANTS:
        assert mutant.old != mutant.new
        paths = [name for name in mutant.select if name.startswith("tests/")]
        assert paths, mutant.name
        assert all((ROOT / path.partition("::")[0]).exists() for path in paths), mutant.name


def test_the_failing_test_is_read_off_the_output_of_pytest():
    output = "..F\nFAILED tests/a.py::test_b - assert 1 == 2\n1 failed"
    assert first_failure(output) == "tests/a.py::test_b"
    assert first_failure("killed") == "pytest did not finish"


@pytest.mark.slow
def test_no_mutant_survives():
    program = Path(__file__).with_name("mutants.py")
    done = subprocess.run([sys.executable, str(program), "--jobs", "2"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
