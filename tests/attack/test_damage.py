"""Bit flips and truncations of every file of run directories and data caches: each is detected, none is a traceback.

``make test`` runs a sample, ``make soak`` the full counts: 1,000 flips and 200 truncations of a run directory, as many
of a data cache, and every single bit of the files that identify a run and of the headers of cached arrays.
"""

# ruff: noqa: F811  # the run directory is a fixture of another module

from __future__ import annotations

import json
import random
import shutil

import pytest

from muonlab.lab import load_results
from muonlab.lab.data import cache
from muonlab.lab.data.loading import load
from muonlab.lab.files.hashed_json import hashed_bytes, read_json
from muonlab.lab.runner.results import read_cell
from muonlab.lab.runner.store import read_head
from muonlab.report.gather import gather_run
from tests.lab.runner.test_damaged_files import copied, flip, read_everything, run_directory  # noqa: F401

COUNTS = [(60, 20), pytest.param(1_000, 200, marks=pytest.mark.slow)]
"""Flips and truncations."""
DETECTED = (ValueError, AssertionError, UserWarning)
"""What reading may raise: a message of one line, a failed check of the test, a warning about a damaged checkpoint."""


def damages(files, flips, truncations):
    """Damage one file at a time and restore it; yield the file and what was done."""
    choose = random.Random(flips)
    for number in range(flips + truncations):
        path = choose.choice(files)
        content = path.read_bytes()
        if number < flips:
            position = choose.randrange(8 * len(content))
            flip(path, position)
        else:
            position = choose.randrange(len(content))
            path.write_bytes(content[:position])
        yield path, ("flip" if number < flips else "cut", position)
        path.write_bytes(content)


@pytest.mark.parametrize(("flips", "truncations"), COUNTS)
def test_damage_to_any_file_of_a_run_directory_is_detected(copied, flips, truncations):
    read_everything(copied)
    files = sorted(path for path in copied.rglob("*") if path.is_file() and path.stat().st_size)
    kinds = {path.name if path.parent.name != "checkpoints" else path.suffix for path in files}
    assert kinds >= {
        "study.json", "cells.json", "env.json", "spec.json", "done.json", "failed.json", "history.json",
        "metrics.jsonl", "certificates.jsonl", "weights.safetensors", ".json", ".safetensors",
    }  # fmt: skip
    silent = []
    for path, damage in damages(files, flips, truncations):
        try:
            read_everything(copied)
        except DETECTED:
            pass
        else:
            silent.append((path.relative_to(copied), damage))
    assert silent == []
    read_everything(copied)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["study.json", "cells.json", "spec.json"])
def test_every_bit_flip_of_what_identifies_a_run_is_detected(copied, name):
    path = next(copied.rglob(name))
    read = {"study.json": lambda: read_head(copied), "spec.json": lambda: read_cell(path.parent)}
    content = path.read_bytes()
    for bit in range(8 * len(content)):
        flip(path, bit)
        with pytest.raises(ValueError, match=r"damaged|format|named after"):
            read.get(name, lambda: read_json(path))()
        path.write_bytes(content)


# --------------------------------------------------------------------------------------------------------- data caches


def is_intact(directory):
    cached = cache.read(directory)
    if cached is None:
        return False
    try:
        cached.open_arrays()
    except cache._DamagedError:
        return False
    return True


@pytest.fixture(scope="module")
def decoded(tmp_path_factory):
    home = tmp_path_factory.mktemp("cache")
    load("digits", cache=home)
    (meta,) = home.rglob("meta.json")
    return meta.parent


@pytest.mark.parametrize(("flips", "truncations"), COUNTS)
def test_damage_to_any_file_of_a_data_cache_is_detected(decoded, flips, truncations):
    files = sorted(decoded.iterdir())
    assert {path.suffix for path in files} == {".json", ".npy"}
    assert is_intact(decoded)
    assert [found for found in damages(files, flips, truncations) if is_intact(decoded)] == []
    assert is_intact(decoded)


@pytest.mark.slow
def test_every_bit_flip_of_metadata_and_of_headers_of_a_data_cache_is_detected(decoded):
    for path in sorted(decoded.iterdir()):
        content = path.read_bytes()
        length = len(content) if path.suffix == ".json" else content.index(b"\n") + 1
        for bit in range(8 * length):
            flip(path, bit)
            assert not is_intact(decoded), (path.name, bit)
            path.write_bytes(content)


# ------------------------------------------------------------------------------------------- damage with a right hash

JUNK = (None, True, 0, -1, 10**30, 1.5, "", "x", "../../etc", "a\0b", [], {}, [None], {"x": {}}, "é" * 300)


def places(value, path=()):
    """Yield the place of every value in JSON."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


@pytest.mark.parametrize("count", [60, pytest.param(1_000, marks=pytest.mark.slow)])
def test_a_changed_value_with_a_right_hash_is_an_error_in_one_line_or_read_as_it_is(copied, count):
    """What a hostile sender can do: the hash is not a signature, so that only a traceback would be wrong."""
    choose = random.Random(count)
    files = sorted(copied.rglob("*.json"))
    for _ in range(count):
        path, junk = choose.choice(files), choose.choice(JUNK)
        content = path.read_bytes()
        value = read_json(path, any_form=True)
        place = choose.choice([place for place in places(value) if place])
        parent = value
        for key in place[:-1]:
            parent = parent[key]
        if choose.random() < 0.2:
            del parent[place[-1]]
        else:
            parent[place[-1]] = json.loads(json.dumps(junk))
        path.write_bytes(hashed_bytes(value))
        for read in (load_results, read_everything, gather_run):
            try:
                read(copied)
            except DETECTED:
                pass
            except Exception as error:
                raise AssertionError(f"{path.relative_to(copied)}, {place} = {junk!r}") from error
        path.write_bytes(content)


def test_a_directory_of_files_of_another_kind_is_an_error_in_one_line(copied, tmp_path):
    for name in ("study.json", "cells.json", "env.json"):
        folder = shutil.copytree(copied, tmp_path / name)
        (folder / name).unlink()
        (folder / name).mkdir()
        with pytest.raises(ValueError, match=r"a file must be a regular one, got .*, which is a directory"):
            load_results(folder)
