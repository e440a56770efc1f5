from __future__ import annotations

import json

import pytest
from torch import nn

from muonlab.lab.models import Model, build, describe, models, registry


@pytest.fixture
def register(monkeypatch):
    monkeypatch.setattr(registry, "_REGISTRY", {})

    def call(name="tiny", source="a test"):
        def make(shape, classes, *, bias=True):
            return nn.Linear(shape[0], classes, bias=bias)

        return registry.register(Model(name, make, shape=(4,), classes=3, parameters=15, source=source))

    return call


def test_a_newcomer_is_found_built_and_described(register):
    model = register()
    assert isinstance(model, Model)
    assert models()["tiny"] is model
    assert model.options == {"bias": True}
    assert build("tiny", shape=[5], classes=2, bias=False).weight.shape == (2, 5)
    assert describe() == {
        "models": [{"name": "tiny", "parameters": 15, "shape": [4], "classes": 3, "source": "a test"}]
    }


def test_a_taken_name_and_a_missing_source_are_refused(register):
    register()
    with pytest.raises(ValueError, match=r"^a model named 'tiny' is registered already: choose another name$"):
        register()
    with pytest.raises(ValueError, match=r"^model 'other' needs a source: say who described it$"):
        register("other", source="")


def test_the_description_is_json_and_names_the_papers_models():
    rows = {row["name"]: row["parameters"] for row in json.loads(json.dumps(describe()))["models"]}
    paper = {
        "mlp": 535_818, "cifarnet": 1_972_792, "resnet18": 11_227_812, "wrn-28-10": 36_600_984,
        "gpt-124m": 124_439_808, "gpt-1.3b": 1_313_626_112,
    }  # fmt: skip
    assert rows.items() >= paper.items()
    assert all("Kim & Oh 2026" in models()[name].source for name in paper)


def test_a_name_that_is_nearly_right_is_recognised():
    with pytest.raises(
        ValueError, match=r"^name must be a registered model, got 'resnet-18': did you mean .*"
    ) as caught:
        build("resnet-18")
    assert "'resnet18'" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_name_like_no_other_gets_the_whole_list():
    with pytest.raises(ValueError, match="got 'zzz'") as caught:
        build("zzz")
    assert all(repr(name) in str(caught.value) for name in models())


def test_bad_shapes_and_classes_are_refused_in_one_line():
    cases = [
        (
            ValueError,
            {"shape": (28, 28)},
            "shape must be 3 integers such as (1, 28, 28), got (28, 28): pass that many",
        ),
        (TypeError, {"shape": 784}, "shape must be 3 integers such as (1, 28, 28), got 784: pass a tuple"),
        (TypeError, {"shape": "abc"}, "shape must be 3 integers such as (1, 28, 28), got 'abc': pass a tuple"),
        (ValueError, {"shape": (0, 8, 8)}, "each entry of shape must be at least 1, got 0: pass 1 or more"),
        (ValueError, {"classes": 1}, "classes must be at least 2, got 1: pass 2 or more"),
        (
            ValueError,
            {"widths": ()},
            "widths must be one or more integers such as (512, 256), got (): pass that many",
        ),
    ]
    for kind, options, message in cases:
        with pytest.raises(kind) as caught:
            build("mlp", **options)
        assert str(caught.value) == message
