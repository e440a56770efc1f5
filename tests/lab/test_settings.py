from __future__ import annotations

import dataclasses

import pytest

from muonlab.lab import Spec
from muonlab.lab.settings import read_words


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"lr": -1.0}, "lr must be a finite number in"),
        ({"lr": "0.1"}, "lr must be a number, got '0.1' of type str"),
        ({"lr": True}, "lr must be a number, got True of type bool"),
        ({"q": 2.0}, "q must be a whole number, got 2.0"),
        ({"q": -1}, "q must be at least 0, got -1"),
        ({"kappa": 0}, "kappa must be at least 1"),
        ({"kappa": 1000}, "kappa must be at most 64, got 1000"),
        ({"momentum": 1.0}, "momentum must be a finite number in [0, 1)"),
        ({"optimizer": "adam"}, "optimizer must be one of 'sgdm', 'muon', 'svd', got 'adam'"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"clip": 0.0}, "clip must be a finite number in (0, inf)"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"device": "tpu"}, "device must be cpu, cuda, cuda:N or mps, got 'tpu'"),
        ({"precision": "float16"}, "precision must be one of"),
        ({"threads": 0}, "threads must be at least 1"),
        ({"threads": 100_000}, "threads must be at most 1,024, got 100,000"),
    ],
)
def test_a_wrong_value_is_refused_with_its_name(settings, words):
    with pytest.raises((ValueError, TypeError)) as caught:
        Spec(**settings)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_field_has_a_line_in_the_docstring():
    documented = Spec.__doc__ + Spec.__mro__[1].__doc__
    for field in dataclasses.fields(Spec):
        assert f"        {field.name}: " in documented, field.name


def test_words_become_values_of_the_fields_types():
    words = ["lr=1e-3", "q=0", "clip=none", "epochs=3", "model=mlp", "optimizer=svd", "watch=none"]
    read = read_words(Spec, words)
    assert read == {
        "lr": 1e-3, "q": 0, "clip": None, "epochs": 3, "model": "mlp", "optimizer": "svd", "watch": None,
    }  # fmt: skip
    assert isinstance(read["lr"], float)


@dataclasses.dataclass(frozen=True)
class Flagged(Spec):
    """A spec with a flag."""

    flag: bool = False


@pytest.mark.parametrize(("word", "value"), [("flag=true", True), ("flag=false", False)])
def test_a_flag_is_true_or_false(word, value):
    assert read_words(Flagged, [word]) == {"flag": value}


@pytest.mark.parametrize("text", ["False", "True", "0", "1", "no", ""])
def test_a_flag_in_other_words_is_refused(text):
    with pytest.raises(TypeError, match="flag must be true or false"):
        read_words(Flagged, [f"flag={text}"])
    with pytest.raises(TypeError, match="flag must be true or false"):
        Flagged(flag=text)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["learning_rate=0.1"], "a setting must be a field of Spec, got 'learning_rate'"),
        (["momentun=0.1"], "did you mean momentum"),
        (["lr"], "a setting must be key=value, got 'lr'"),
        (["lr=fast"], "lr must be a number, got 'fast'"),
        (["q=2.5"], "q must be a whole number, got '2.5'"),
        (["lr=0.1", "lr=0.2"], "a setting must be given once, got 'lr' twice"),
    ],
)
def test_a_wrong_word_is_refused(words, message):
    with pytest.raises((ValueError, TypeError), match=message.replace("'", ".")):
        read_words(Spec, words)
