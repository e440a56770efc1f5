from __future__ import annotations

import random
from collections import OrderedDict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from muonlab.optim import Muon
from muonlab.optim.split import split_params
from muonlab.optim.views import matrix_blocks

pytestmark = pytest.mark.filterwarnings("ignore:split_params does not know how to read:UserWarning")


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.fc1 = nn.Linear(width, 2 * width)
        self.fc2 = nn.Linear(2 * width, width)


class GPT(nn.Module):
    def __init__(self, *, tied=True, last="lm_head"):
        super().__init__()
        self.wte = nn.Embedding(12, 4)
        self.wpe = nn.Embedding(6, 4)
        self.blocks = nn.ModuleList(Block(4) for _ in range(2))
        setattr(self, last, nn.Linear(4, 12, bias=False))
        if tied:
            getattr(self, last).weight = self.wte.weight


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(4)
        self.layer1 = nn.Sequential(nn.Sequential(nn.Conv2d(4, 4, 3)), nn.Sequential(nn.Conv2d(4, 4, 3)))
        self.fc = nn.Linear(4, 5)


class ViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, 4))
        self.pos_embed = nn.Parameter(torch.zeros(1, 5, 4))
        self.patch_embed = nn.Conv2d(3, 4, 2, stride=2)
        self.blocks = nn.ModuleList(Block(4) for _ in range(2))
        self.head = nn.Linear(4, 3)


class Bert(nn.Module):
    def __init__(self):
        super().__init__()
        self.embeddings = nn.ModuleDict({"word_embeddings": nn.Embedding(9, 4), "LayerNorm": nn.LayerNorm(4)})
        self.layer = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8), 2, enable_nested_tensor=False)
        self.pooler = nn.Linear(4, 4)
        self.classifier = nn.Linear(4, 2)


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(4, 3)
        self.up = nn.Parameter(torch.zeros(3, 8, 4))
        self.down = nn.Parameter(torch.zeros(3, 4, 8))
        self.out = nn.Linear(4, 4)


class Holder(nn.Module):
    """A module of no known type that holds parameters of given shapes."""

    def __init__(self, **shapes):
        super().__init__()
        for name, shape in shapes.items():
            setattr(self, name, nn.Parameter(torch.zeros(shape)))


def convs():
    return nn.Sequential(
        OrderedDict(
            plain=nn.Conv1d(3, 4, 3),
            grouped=nn.Conv2d(4, 6, 3, groups=2),
            depthwise=nn.Conv2d(6, 6, 3, groups=6),
            volume=nn.Conv3d(6, 4, 2),
            up=nn.ConvTranspose2d(4, 3, 2),
            up_grouped=nn.ConvTranspose2d(4, 6, 2, groups=2),
            last=nn.Conv2d(6, 2, 1),
        )
    )


def recurrent():
    return nn.ModuleDict(
        {
            "lstm": nn.LSTM(3, 4, bidirectional=True, proj_size=2),
            "gru": nn.GRU(3, 4, num_layers=2),
            "rnn": nn.RNN(3, 4),
            "lstm_cell": nn.LSTMCell(3, 4),
            "gru_cell": nn.GRUCell(3, 4),
            "rnn_cell": nn.RNNCell(3, 4),
        }
    )


def mlp():
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))


def parametrised():
    return nn.Sequential(
        OrderedDict(
            norm=parametrizations.weight_norm(nn.Linear(3, 4)),
            conv=parametrizations.weight_norm(nn.Conv1d(3, 4, 2)),
            spectral=parametrizations.spectral_norm(nn.Linear(4, 5)),
            orthogonal=parametrizations.orthogonal(nn.Linear(4, 4)),
            lstm=parametrizations.weight_norm(nn.LSTM(3, 4), "weight_hh_l0"),
            last=parametrizations.weight_norm(nn.Linear(4, 2)),
        )
    )


MODELS = {
    "gpt tied": GPT,
    "gpt untied": lambda: GPT(tied=False),
    "resnet": ResNet,
    "vit": ViT,
    "bert": Bert,
    "experts": Experts,
    "convs": convs,
    "recurrent": recurrent,
    "mlp": mlp,
    "parametrised": parametrised,
    "encoder layer": lambda: nn.TransformerEncoderLayer(4, 2, 8),
    "transformer": lambda: nn.Transformer(4, 2, 1, 1, 8, batch_first=True),
    "attention": lambda: nn.MultiheadAttention(4, 2, kdim=3, vdim=5, add_bias_kv=True),
    "one linear": lambda: nn.Linear(4, 3),
}


def rows_of(model, **options):
    return {row.name: row for row in split_params(model, **options).table}


def places(model, **options):
    return {name: row.matrix_view or row.role or "none" for name, row in rows_of(model, **options).items()}


def heads(model, **options):
    return [name for name, place in places(model, **options).items() if place == "head"]


def members(groups):
    return [parameter for group in groups for _, parameter in group["params"]]


def register_in_order(model, names):
    children = {name: model._modules.pop(name) for name in names}
    model._modules.update(children)


# Coverage


def assert_covers(model, split):
    placed = [id(p) for p in members(split.matrices) + members(split.rest)]
    assert len(placed) == len(set(placed))
    assert set(placed) == {id(p) for p in model.parameters() if p.requires_grad}


def test_every_trainable_parameter_is_placed_exactly_once():
    for make in MODELS.values():
        model = make()
        assert_covers(model, split_params(model))
        frozen = next(model.parameters())
        frozen.requires_grad_(False)
        assert_covers(model, split_params(model))


def test_every_name_stands_in_the_table_in_the_order_of_the_model():
    for make in MODELS.values():
        model = make()
        table = split_params(model).table
        assert [row.name for row in table] == [name for name, _ in model.named_parameters()]
        everything = {name for name, _ in model.named_parameters(remove_duplicate=False)}
        assert {name for row in table for name in (row.name, *row.aliases)} == everything
        assert len(table) == len(list(model.parameters()))


def test_muon_only_gets_views_that_make_matrices():
    for make in MODELS.values():
        for group in split_params(make()).matrices:
            for _, parameter in group["params"]:
                assert all(min(b.matrices[-2:]) > 1 for b in matrix_blocks(parameter.shape, group["matrix_view"]))


@given(st.randoms(use_true_random=False), st.sampled_from([GPT, ResNet, ViT, Bert, Experts, convs, recurrent]))
def test_registration_in_any_order_keeps_coverage_and_known_places(rng: random.Random, make):
    model = make()
    before = places(model, head=None)
    register_in_order(model, rng.sample(list(model._modules), len(model._modules)))
    assert_covers(model, split_params(model))
    after = places(model, head=None)
    # A tied weight may now carry its other name, nothing else may move.
    assert sorted(map(str, before.values())) == sorted(map(str, after.values()))
    assert all(after[name] == place for name, place in before.items() if name in after)


# What each kind of network becomes


def test_a_tied_embedding_is_one_embedding_with_all_its_names():
    model = GPT()
    split = split_params(model)
    (row,) = [row for row in split.table if row.name == "wte.weight"]
    assert (row.role, row.aliases) == ("embedding", ("lm_head.weight",))
    assert "tied" in row.why
    assert not any(p is model.wte.weight for p in members(split.matrices))
    assert heads(model) == []


def test_a_tied_embedding_stays_one_when_the_head_is_registered_first():
    for last in ["lm_head", "anything"]:
        model = GPT(last=last)
        register_in_order(model, [last, "wte", "wpe", "blocks"])
        (row,) = [row for row in split_params(model).table if row.aliases]
        assert (row.name, row.aliases, row.role) == (f"{last}.weight", ("wte.weight",), "embedding")


def test_an_embedding_tied_as_a_bare_parameter_never_reaches_muon():
    model = Holder(tok_emb=(12, 4))
    model.project = nn.Linear(4, 12, bias=False)
    model.project.weight = model.tok_emb
    model.later = nn.Linear(4, 4)
    assert places(model)["tok_emb"] == "embedding"
    assert places(model, head="project")["tok_emb"] == "head"


def test_a_gpt_with_an_untied_head_sends_blocks_to_muon():
    assert places(GPT(tied=False)) == {
        "wte.weight": "embedding",
        "wpe.weight": "embedding",
        **{
            f"blocks.{i}.{name}": place
            for i in range(2)
            for name, place in {
                "norm.weight": "vector",
                "norm.bias": "vector",
                "qkv.weight": "flatten",
                "fc1.weight": "flatten",
                "fc1.bias": "vector",
                "fc2.weight": "flatten",
                "fc2.bias": "vector",
            }.items()
        },
        "lm_head.weight": "head",
    }


class Stacked(nn.Linear):
    def __init__(self):
        super().__init__(4, 4, bias=False)
        self.weight = nn.Parameter(torch.zeros(3, 4, 4))


class Waves(Holder):
    def __init__(self):
        super().__init__(plain=(3, 4))
        self.waves = nn.Parameter(torch.zeros(3, 4, dtype=torch.complex64))


UNKNOWN_MODULE = {
    **{"mixing": "flatten", "repose": "flatten", "pos_table": "embedding", "posEmbed": "embedding"},
    **{"token_bias": "vector", "position": "embedding", "up": "other"},
}
GATES = {
    **{
        "lstm.weight_ih_l0": "rows(4, 4, 4, 4)",
        "lstm.weight_hh_l0_reverse": "rows(4, 4, 4, 4)",
        "lstm.weight_hr_l0": "flatten",
    },
    **{"gru.weight_hh_l1": "rows(4, 4, 4)", "rnn.weight_ih_l0": "flatten", "lstm_cell.weight_ih": "rows(4, 4, 4, 4)"},
    **{"gru_cell.weight_hh": "rows(4, 4, 4)", "rnn_cell.weight_hh": "flatten"},
}
PLACES = [
    (recurrent, GATES),
    (MODELS["attention"], dict.fromkeys(("q_proj_weight", "k_proj_weight", "v_proj_weight"), "flatten")),
    (MODELS["attention"], {"bias_k": "vector", "bias_v": "vector"}),
    (lambda: nn.Sequential(nn.LayerNorm([3, 4]), nn.RMSNorm([3, 4])), {"0.weight": "vector", "1.weight": "vector"}),
    (lambda: nn.Sequential(Stacked()), {"0.weight": "other"}),
    (lambda: nn.Sequential(nn.Linear(1, 8), nn.Linear(8, 1)), {"0.weight": "vector", "1.weight": "vector"}),
    (lambda: Holder(row=(1, 4), stack=(1, 1, 4), empty=(0, 4)), dict.fromkeys(("row", "stack", "empty"), "vector")),
    (Waves, {"plain": "flatten", "waves": "other"}),
    (
        lambda: nn.ModuleDict({"embed": nn.ModuleDict({"mixer": Holder(kernel=(4, 5))})}),
        {"embed.mixer.kernel": "flatten"},
    ),
    (lambda: nn.ModuleDict({"embed": Holder(kernel=(4, 5))}), {"embed.kernel": "embedding"}),
    (
        lambda: Holder(**{name: (2, 3, 4) if name in ("position", "up") else (4, 5) for name in UNKNOWN_MODULE}),
        UNKNOWN_MODULE,
    ),
]


def test_parameters_go_by_the_module_that_holds_them_then_by_name_and_dimension():
    for make, expected in PLACES:
        found = places(make(), head=None)
        assert {name: found[name] for name in expected} == expected


def test_convolutions_are_flattened_and_groups_are_separate_matrices():
    found = rows_of(convs())
    expected = {
        "plain": "flatten",
        "grouped": "rows(3, 3)",
        "depthwise": None,
        "volume": "flatten",
        "up": "flatten",
        "up_grouped": "rows(2, 2)",
        "last": None,
    }
    assert {name: found[f"{name}.weight"].matrix_view for name in expected} == expected
    assert found["depthwise.weight"].role == "other"
    assert "nothing to orthogonalize" in found["depthwise.weight"].why
    assert "rows are input channels" in found["up.weight"].why


def test_fused_queries_keys_and_values_are_three_matrices():
    found = places(nn.TransformerEncoderLayer(4, 2, 8))
    assert found["self_attn.in_proj_weight"] == "rows(4, 4, 4)"
    assert found["self_attn.out_proj.weight"] == found["linear1.weight"] == found["linear2.weight"] == "flatten"


def test_experts_are_ambiguous_until_a_rule_says_batch():
    row = rows_of(Experts())["up"]
    assert (row.goes_to, row.role) == ("auxiliary", "other")
    assert row.why == "ambiguous: 3-D parameter of Experts; give a rule, e.g. rules={'up': 'batch'}"
    split = split_params(Experts(), rules={"up": "batch", "down": "batch"})
    (group,) = [group for group in split.matrices if group["matrix_view"] == "batch"]
    assert [name for name, _ in group["params"]] == ["up", "down"]


def test_parametrised_weights_are_matrices_only_where_the_matrix_is_stored():
    found = rows_of(parametrised())
    place = {name: row.matrix_view or row.role for name, row in found.items() if "parametrizations" in name}
    assert place == {
        "norm.parametrizations.weight.original0": "vector",
        "norm.parametrizations.weight.original1": "flatten",
        "conv.parametrizations.weight.original0": "vector",
        "conv.parametrizations.weight.original1": "flatten",
        "spectral.parametrizations.weight.original": "flatten",
        "orthogonal.parametrizations.weight.original": "other",
        "lstm.parametrizations.weight_hh_l0.original0": "vector",
        "lstm.parametrizations.weight_hh_l0.original1": "rows(4, 4, 4, 4)",
        "last.parametrizations.weight.original0": "vector",
        "last.parametrizations.weight.original1": "head",
    }
    assert "weight_norm" in found["norm.parametrizations.weight.original0"].why
    assert found["norm.parametrizations.weight.original1"].why == "weight of Linear"
    assert "computed from it" in found["orthogonal.parametrizations.weight.original"].why


def test_a_parametrised_root_and_an_own_parametrisation_are_understood():
    class Symmetric(nn.Module):
        def forward(self, X):
            return X + X.T

    root = nn.Linear(4, 4)
    parametrize.register_parametrization(root, "weight", Symmetric())
    assert places(root, head=None)["parametrizations.weight.original"] == "other"
    assert places(root)["parametrizations.weight.original"] == "head"


# Frozen, lazy, empty


def test_frozen_parameters_go_nowhere():
    model = ResNet()
    model.conv1.weight.requires_grad_(False)
    row = rows_of(model)["conv1.weight"]
    assert (row.goes_to, row.role, row.matrix_view) == ("none", None, None)
    assert "frozen" in row.why


def test_lazy_parameters_are_refused_until_they_have_a_shape():
    model = nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 2))
    with pytest.raises(ValueError, match=r"got '0\.weight' uninitialized: run one forward pass"):
        split_params(model)
    model(torch.zeros(1, 3))
    assert places(model)["0.weight"] == "flatten"


# The output layer


def test_the_output_layer_is_found():
    for model, expected in [
        (GPT(tied=False), ["lm_head.weight"]),
        (GPT(tied=False, last="project"), ["project.weight"]),
        (ResNet(), ["fc.weight"]),
        (ViT(), ["head.weight"]),
        (Bert(), ["classifier.weight"]),
        (mlp(), ["4.weight"]),
        (nn.Linear(4, 3), ["weight"]),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 1)), ["1.weight"]),
        (nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Sequential(nn.Linear(4, 2))), ["1.0.weight"]),
        (nn.ModuleDict({"module": ViT()}), ["module.head.weight"]),
        (nn.ModuleDict({"fc": nn.Linear(4, 4), "head": nn.Identity()}), ["fc.weight"]),
        (nn.ModuleDict({"head": nn.Conv2d(4, 2, 1), "norm": nn.Linear(4, 4)}), ["head.weight"]),
        (nn.ModuleDict({"classifier": mlp(), "extra": nn.Linear(4, 4)}), ["classifier.4.weight"]),
        (
            nn.ModuleDict({"lm_head": nn.Linear(4, 2), "cls_head": nn.Linear(4, 2)}),
            ["lm_head.weight", "cls_head.weight"],
        ),
        (nn.ModuleDict({"head": Holder(kernel=(4, 5)), "extra": nn.Linear(4, 4)}), ["head.kernel"]),
        (nn.ModuleDict({"net": nn.ModuleDict({"head": nn.Linear(4, 4)}), "head": nn.Linear(4, 2)}), ["head.weight"]),
    ]:
        assert heads(model) == expected


def test_an_output_layer_registered_before_the_blocks_is_found():
    model = GPT(tied=False, last="project")
    register_in_order(model, ["project", "wte", "wpe", "blocks"])
    assert heads(model) == ["project.weight"]


def test_a_backbone_that_ends_in_a_block_has_no_output_layer():
    for model in [
        nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8), 2, enable_nested_tensor=False),
        nn.TransformerEncoderLayer(4, 2, 8),
        nn.MultiheadAttention(4, 2),
        nn.Sequential(Block(4), Block(4)),
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential(nn.Conv2d(4, 4, 3)), nn.Sequential(nn.Conv2d(4, 4, 3))),
        nn.ModuleDict({"blocks": nn.Sequential(Block(4), Block(4)), "head": nn.Identity()}),
    ]:
        assert heads(model) == []


def test_a_head_inside_attention_or_a_numbered_block_is_hidden():
    attention = nn.ModuleDict({"head": nn.Linear(4, 4)})
    model = nn.ModuleDict(
        {"attn": attention, "blocks": nn.ModuleList([nn.ModuleDict({"head": nn.Linear(4, 4)})]), "fc": nn.Linear(4, 2)}
    )
    assert heads(model) == ["fc.weight"]
    assert places(model)["attn.head.weight"] == places(model)["blocks.0.head.weight"] == "flatten"


def test_several_output_layers_beside_each_other_are_found():
    for names in (("head", "head_dist"), ("head", "dist_head"), ("cls_classifier", "distillation_classifier")):
        model = nn.ModuleDict({"blocks": nn.Sequential(Block(4)), **{name: nn.Linear(4, 3) for name in names}})
        assert heads(model) == [f"{name}.weight" for name in names]
    for name in ("head", "heads", "lm_heads"):
        model = nn.ModuleDict({name: nn.ModuleList([nn.Linear(4, 3), nn.Linear(5, 3)]), "last": nn.Linear(4, 4)})
        assert heads(model) == [f"{name}.0.weight", f"{name}.1.weight"]
    hidden = nn.ModuleDict({"head": nn.ModuleList([nn.Linear(4, 5), nn.Linear(5, 3)])})
    assert heads(hidden) == ["head.1.weight"]


def test_the_reason_says_how_the_output_layer_was_found():
    assert rows_of(ViT())["head.weight"].why == "output layer: named 'head'"
    assert "last Linear" in rows_of(ResNet())["fc.weight"].why
    assert "no Linear" in rows_of(convs())["last.weight"].why
    assert rows_of(ResNet(), head="conv1")["conv1.weight"].why == "output layer: head='conv1'"


def test_a_named_head_replaces_the_search_and_none_ends_it():
    assert heads(ViT(), head="patch_embed") == ["patch_embed.weight"]
    assert heads(ViT(), head="blocks") == ["blocks.1.fc2.weight"]
    assert heads(ViT(), head=None) == []
    assert places(ViT(), head=None)["head.weight"] == "flatten"


# Rules


def test_rules_win_over_everything_and_over_the_freeze():
    model = ViT()
    model.patch_embed.weight.requires_grad_(False)
    rules = {
        "head.weight": "flatten",
        "patch*weight": "other",
        "blocks.*.qkv.weight": (4, 4, 4),
        "pos_embed": "skip",
        "*.fc1.weight": "vector",
    }
    rows = rows_of(model, rules=rules)
    assert rows["head.weight"].matrix_view == "flatten"
    assert rows["patch_embed.weight"].role == "other"
    assert rows["blocks.1.qkv.weight"].matrix_view == "rows(4, 4, 4)"
    assert rows["pos_embed"].goes_to == "none"
    assert rows["blocks.0.fc1.weight"].role == "vector"
    assert rows["blocks.0.fc1.weight"].why == "rules['*.fc1.weight']"


def test_the_first_matching_pattern_wins():
    model = mlp()
    assert places(model, rules={"0.weight": "skip", "*.weight": "other"})["0.weight"] == "none"
    assert places(model, rules={"*.weight": "other", "0.weight": "skip"})["0.weight"] == "other"


def test_a_rule_finds_a_tied_parameter_by_any_name():
    assert places(GPT(), rules={"lm_head.*": "head"})["wte.weight"] == "head"


def test_a_rule_cannot_send_a_vector_to_muon():
    message = (
        r"two or more dimensions, got '0.bias' of shape \(4,\) by rules\['0\.\*'\]: narrow .* '0.bias': 'vector' before"
    )
    with pytest.raises(ValueError, match=message):
        split_params(mlp(), rules={"0.*": "flatten"})
    assert places(mlp(), rules={"0.bias": "vector", "0.*": "flatten"})["0.bias"] == "vector"


UNKNOWN = r"must be one of 'embedding', 'head', 'vector', 'other', 'skip' or a matrix_view, got "
REFUSED = [
    (lambda: list(mlp().parameters()), {}, TypeError, "model must be a torch.nn.Module, got list: pass the network it"),
    (nn.ReLU, {}, ValueError, r"must have a trainable parameter, got 0 parameters, .*requires_grad_\(\)"),
    (lambda: mlp().requires_grad_(False), {}, ValueError, r"must have a trainable parameter, got 6 parameters"),
    (ViT, {"rules": {"norm": "vector"}}, ValueError, r"got 'norm' that matches none: did you mean '[^']*norm"),
    (ViT, {"head": "haed"}, ValueError, r"name of a module with parameters, got 'haed': did you mean 'head'\?"),
    (mlp, {"head": "1"}, ValueError, r"name of a module with parameters, got '1'"),
    (
        GPT,
        {"rules": {"lm_haed.weight": "head"}},
        ValueError,
        r"got 'lm_haed.weight' that matches none: did you mean 'lm",
    ),
    (GPT, {"rules": {"LM_HEAD.*": "head"}}, ValueError, r"got 'LM_HEAD\.\*' that matches none"),
    (
        mlp,
        {"rules": {"0.weight": (2, 3)}},
        ValueError,
        r"add up to the first dimension, got \(2, 3\), sum 5, for '0.weight' by rules\['0.weight'\]",
    ),
    (mlp, {"rules": {"0.weight": (0, 4)}}, ValueError, r"rules\['0.weight'\] must be one of .* or a matrix_view"),
    (mlp, {"rules": {"0.weight": (2.0, 2)}}, TypeError, r"rules\['0.weight'\] must be one of .* or a matrix_view"),
    (mlp, {"rules": {"0.weight": "adam"}}, ValueError, UNKNOWN),
    *((mlp, {"rules": {"0.weight": rule}}, TypeError, UNKNOWN) for rule in (None, 3)),
    (mlp, {"rules": ["0.weight"]}, TypeError, r"rules must map patterns to rules, got list"),
    (mlp, {"rules": {0: "skip"}}, TypeError, r"patterns of type str, got 0"),
]


def test_what_cannot_be_split_is_refused_with_the_rule_and_the_way_out():
    for make, options, error, message in REFUSED:
        with pytest.raises(error, match=message):
            split_params(make(), **options)


# The table and the optimizers


def test_the_table_is_aligned_and_names_everything():
    split = split_params(nn.ModuleDict({"gpt": GPT(), "encoder": nn.TransformerEncoderLayer(4, 2, 8)}))
    header, *lines = str(split.table).splitlines()
    assert len(lines) == len(split.table)
    starts = [header.index(title) for title in ("shape", "goes to", "as", "why")]
    for line, row in zip(lines, split.table, strict=True):
        assert all(line[start - 2 : start] == "  " and line[start] != " " for start in starts)
        assert line.startswith(row.name)
        assert all(alias in line for alias in row.aliases)
        assert line[starts[0] :].startswith(str(row.shape))
        assert line[starts[1] :].startswith(row.goes_to)
        assert line.endswith(row.why)
        assert row.why
    assert "gpt.wte.weight = gpt.lm_head.weight" in str(split.table)
    assert "  rows(4, 4, 4)  " in str(split.table)
    assert repr(split.table) == str(split.table)


def test_one_split_serves_two_sets_of_optimizers():
    model = nn.ModuleDict({"layer": nn.TransformerEncoderLayer(4, 2, 8), "head": nn.Linear(4, 2)})
    split = split_params(model)
    before = str(split.matrices), str(split.rest)
    for lr in (0.1, 0.2):
        muon, adamw = Muon(split.matrices, lr=lr), torch.optim.AdamW(split.rest, lr=lr)
        assert [group["matrix_view"] for group in muon.param_groups] == ["rows(4, 4, 4)", "flatten"]
        assert [group["role"] for group in adamw.param_groups] == ["vector", "head"]
        assert {group["lr"] for group in muon.param_groups + adamw.param_groups} == {lr}
        assert muon.param_groups[0]["param_names"] == ["layer.self_attn.in_proj_weight"]
    assert (str(split.matrices), str(split.rest)) == before


def test_a_split_given_whole_says_which_part_to_pass():
    split = split_params(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)))
    with pytest.raises(TypeError, match=r"pass split\.matrices to Muon and split\.rest to the auxiliary optimizer"):
        torch.optim.AdamW(split)


def test_a_network_without_hidden_matrices_is_answered_with_the_way_out():
    split = split_params(nn.Linear(3, 4))
    with pytest.raises(ValueError, match=r"needs parameters, got none: .*output layer unless head=None"):
        Muon(split.matrices)
    assert Muon(split_params(nn.Linear(3, 4), head=None).matrices).param_groups[0]["param_names"] == ["weight"]
