"""The key of a cell sees every file of the user that a part of it uses."""

from __future__ import annotations

import importlib
import itertools
import os
import sys

import pytest
import torch

import muonlab
from muonlab.lab.own.source import check_hashable, name_of, source_hash

FILES = {
    "their_values.py": "SCALE = 1.0\nTABLE = {}\nTABLE['scale'] = 2.0\n",
    "their_lib/__init__.py": "from .act import act\n",
    "their_lib/act.py": "def act(x):\n    return x.relu()\n",
    "their_lib/blocks.py": "from .act import act\n\n\ndef block(x):\n    return act(x)\n",
    "their_helper.py": "from their_lib.act import act\n\n\ndef helped(x):\n    return act(x)\n",
    "their_pack/__init__.py": "from . import inner\n",
    "their_pack/inner.py": "def act(x):\n    return x.relu()\n",
    "their_stars.py": "from their_other_stars import *\n\n\ndef one(x):\n    return two(x)\n",
    "their_other_stars.py": "from their_stars import *\n\n\ndef two(x):\n    return x.relu()\n",
    "their_folder/part.py": "def part(x):\n    return x.relu()\n",
    "their_unused.py": "def act(x):\n    return x.relu()\n",
}
_TIMES = itertools.count(1)


@pytest.fixture
def key(tmp_path, monkeypatch):
    """Return the hash of ``used`` of a study file, with the text of one other file edited."""
    monkeypatch.syspath_prepend(tmp_path)

    def key_of(study: str, edited: str = "", old: str = "", new: str = "") -> str | None:
        for name in [name for name in sys.modules if name.startswith("their_")]:
            del sys.modules[name]
        for name, text in {**FILES, "their_study.py": study}.items():
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True)
            assert name != edited or old in text
            path.write_text(text.replace(old, new) if name == edited else text, encoding="utf-8")
            os.utime(path, (moment := 1_000_000_000 + next(_TIMES), moment))
        importlib.invalidate_caches()
        return source_hash(importlib.import_module("their_study").used)

    return key_of


def test_an_edit_of_what_is_used_is_seen_however_it_is_imported(key):
    act, value = ("their_lib/act.py", "relu", "tanh"), ("their_values.py", "1.0", "3.0")
    for top, body, edit in (
        ("from their_values import SCALE", "SCALE * x", value),
        ("from their_values import *", "SCALE * x", value),
        ("from their_values import TABLE as t", "t['scale'] * x", ("their_values.py", "2.0", "3.0")),
        ("import their_values as v", "v.SCALE * x", value),
        ("import their_lib.blocks", "their_lib.blocks.block(x)", ("their_lib/blocks.py", "(x)\n", "(-x)\n")),
        ("import their_lib.blocks as b", "b.block(x)", act),
        ("from their_lib import act", "act(x)", act),  # the package imports it from its file
        ("from their_lib import blocks", "blocks.block(x)", act),
        ("import their_helper", "their_helper.helped(x)", act),
        ("from their_pack import inner", "inner.act(x)", ("their_pack/inner.py", "relu", "tanh")),
        ("import their_pack", "their_pack.inner.act(x)", ("their_pack/inner.py", "relu", "tanh")),
        ("from their_stars import one", "one(x)", ("their_other_stars.py", "relu", "tanh")),
        ("from their_helper import helped as h", "h(x)", act),
        ("from their_folder import part", "part.part(x)", ("their_folder/part.py", "relu", "tanh")),
        ("if True:\n    from their_lib.act import act", "act(x)", act),
        ("", "from their_lib.act import act; return act(x)", act),  # inside the function
    ):
        study = f"{top}\n\n\ndef used(x):\n    {body if 'import' in body else 'return ' + body}\n"
        assert key(study) != key(study, *edit), study
        assert key(study) == key(study, "their_unused.py", "relu", "tanh"), study


def test_a_value_that_is_changed_after_its_definition_is_seen(key):
    study = (
        "import torch\nT = {{'a': {{'b': 1}}}}\nL = []\n{}\n\n\n"
        "def used(x):\n    return T, L, Net, torch\n\n\nclass Net:\n    pass\n"
    )
    first = key(study.format(""))
    for statement in ("T['a'] = 1", "T['a']['b'] += 1", "L.append(3)", "torch.set_default_dtype(torch.float32)"):
        assert key(study.format(statement)) != first, statement
    unrelated = "print(3)\nother = {}\nother['a'] = 2"
    assert key(study.format(unrelated)) == first
    patched = study.format("") + "\n\nNet.width = 3\n"
    assert key(patched) not in (first, key(patched.replace("= 3", "= 4")))


class Scaled:
    def __init__(self, factor):
        self.factor = factor

    def loss(self, outputs, targets):
        return self.factor * (outputs - targets).square().mean()


class Mine(muonlab.Muon):
    """A Muon of the user."""


def test_a_method_of_an_object_is_refused_and_a_recipe_is_that_of_its_class():
    with pytest.raises(ValueError, match=r"got Scaled\.loss, a method of an object whose values are not in its source"):
        check_hashable(Scaled(3).loss)
    assert name_of(Mine.moonlight) == "Mine.moonlight"
    assert source_hash(Mine.moonlight) == source_hash(Mine)
    assert source_hash(muonlab.Muon.moonlight) is source_hash(torch.relu) is source_hash(torch.nn.Linear) is None
    assert name_of(muonlab.Muon.moonlight).endswith(".Muon.moonlight")
