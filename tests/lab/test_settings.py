from __future__ import annotations

import dataclasses

import pytest

from muonlab.lab import Spec
from muonlab.lab.settings import parse_settings


def test_a_wrong_value_is_refused_with_its_name():
    for settings, message in (
        ({"lr": -1.0}, "lr must be a finite number in"),
        ({"lr": "0.1"}, "lr must be a number, got '0.1' of type str"),
        ({"lr": True}, "lr must be a number, got True of type bool"),
        ({"q": 2.0}, "q must be a whole number, got 2.0"),
        ({"q": -1}, "q must be at least 0, got -1"),
        ({"kappa": 0}, "kappa must be at least 1"),
        ({"kappa": 1000}, "kappa must be at most 64, got 1000"),
        ({"momentum": 1.0}, "momentum must be a finite number in [0, 1)"),
        (
            {"optimizer": "adma"},
            "an optimizer must be a name of muonlab list optimizers or a class of torch.optim, got",
        ),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"clip": 0.0}, "clip must be a finite number in (0, 1e+30]"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"device": "tpu"}, "device must be cpu, cuda, cuda:N or mps, got 'tpu'"),
        ({"precision": "float16"}, "precision must be one of"),
        ({"threads": 0}, "threads must be at least 1"),
        ({"threads": 100_000}, "threads must be at most 1,024, got 100,000"),
    ):
        with pytest.raises((ValueError, TypeError)) as caught:
            Spec(**settings)
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)


def test_every_field_has_a_line_in_the_docstring():
    documented = Spec.__doc__ + Spec.__mro__[1].__doc__
    for field in dataclasses.fields(Spec):
        assert f"        {field.name}: " in documented, field.name


@dataclasses.dataclass(frozen=True)
class Flagged(Spec):
    """A spec with a flag."""

    flag: bool = False


def test_arguments_become_values_of_the_fields_types():
    arguments = ["lr=1e-3", "q=0", "clip=none", "epochs=3", "model=mlp", "optimizer=svd", "watch=none", "flag=true"]
    settings = parse_settings(Flagged, arguments)
    assert settings == {
        "lr": 1e-3, "q": 0, "clip": None, "epochs": 3, "model": "mlp", "optimizer": "svd", "watch": None, "flag": True,
    }  # fmt: skip
    assert isinstance(settings["lr"], float)
    assert parse_settings(Flagged, ["flag=false"]) == {"flag": False}


def test_a_wrong_argument_is_refused():
    for arguments, message in (
        (["learning_rate=0.1"], "a setting must be a field of Flagged, got .learning_rate."),
        (["momentun=0.1"], "did you mean momentum"),
        (["lr"], "a setting must be key=value, got .lr."),
        (["lr=fast"], "lr must be a number, got .fast."),
        (["q=2.5"], r"q must be a whole number, got .2\.5."),
        (["lr=0.1", "lr=0.2"], "a setting must be given once, got .lr. twice"),
        (["flag=False"], "flag must be true or false"),
        (["flag=1"], "flag must be true or false"),
        (["flag="], "flag must be true or false"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            parse_settings(Flagged, arguments)
