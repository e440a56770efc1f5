"""Known layers, recognized by class and attribute names: small modules named as in transformers, timm and peft."""

from __future__ import annotations

import json
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from muonlab.optim import Muon, split_params
from muonlab.optim.architectures import BY_HEADS, KNOWN_PARAMETERS, ROLES
from muonlab.optim.lookup import CONDITIONS
from muonlab.optim.views import CUTS


def named(name, *bases, **members):
    """Return a module of a class with this name; members are modules, shapes of parameters, or plain values."""
    module = type(name, bases or (nn.Module,), {})()
    for key, value in members.items():
        setattr(module, key, nn.Parameter(torch.zeros(value)) if isinstance(value, torch.Size) else value)
    return module


def shape(*sizes):
    return torch.Size(sizes)


def conv1d(inputs, outputs):
    return named("Conv1D", weight=shape(inputs, outputs), bias=shape(outputs))


def linear(inputs, outputs):
    return nn.Linear(inputs, outputs, bias=False)


def places(model, **options):
    table = split_params(model, head=None, **options).table
    return {row.name: row.matrix_view or row.role or "none" for row in table}


def reason(model, name, **options):
    return next(row.why for row in split_params(model, head=None, **options).table if row.name == name)


# The table


def test_every_row_has_a_reason_and_reads_by_words_of_the_language_or_a_role():
    words = {"flatten", "batch", "transposed", *CUTS}
    for row in (*KNOWN_PARAMETERS, *BY_HEADS):
        assert row.why
        assert row.read_as in ROLES or set(row.read_as.partition("(")[0].split()) <= words
        assert all(name.isidentifier() for name in row.when)
    assert {name for row in KNOWN_PARAMETERS for name in row.when} & set(CONDITIONS)


# Experts


def experts(name, gate_up, down, **members):
    return named(name, gate_up_proj=shape(*gate_up), down_proj=shape(*down), **members)


@pytest.mark.parametrize(
    ("model", "gate_up", "down"),
    [
        (experts("MixtralExperts", (3, 12, 4), (3, 4, 6)), "batch rows(6, 6)", "batch"),
        (experts("NobodyKnowsExperts", (3, 12, 4), (3, 4, 6)), "batch rows(6, 6)", "batch"),
        (experts("MixtralExperts", (3, 8, 8), (3, 8, 4)), "batch rows(4, 4)", "batch"),
        (experts("Llama4TextExperts", (3, 4, 12), (3, 6, 4)), "batch transposed columns(6, 6)", "batch transposed"),
        (
            experts("GptOssExperts", (3, 4, 12), (3, 6, 4)),
            "batch transposed interleaved_columns(2, 1)",
            "batch transposed",
        ),
        (
            experts("NewExperts", (3, 4, 12), (3, 6, 4), is_concatenated=False),
            "batch transposed interleaved_columns(2, 1)",
            "batch transposed",
        ),
        (experts("NewExperts", (3, 12, 4), (3, 4, 6), is_concatenated=False), "batch interleaved_rows(2, 1)", "batch"),
    ],
)
def test_experts_are_read_by_their_class_and_by_the_shapes_of_both_parameters(model, gate_up, down):
    assert places(model) == {"gate_up_proj": gate_up, "down_proj": down}
    Muon(split_params(model, head=None).matrices)


def test_experts_whose_shapes_do_not_belong_together_stay_ambiguous():
    model = experts("MixtralExperts", (3, 12, 4), (3, 4, 5))
    with pytest.warns(UserWarning, match="gate_up_proj, down_proj"):
        assert places(model) == {"gate_up_proj": "other", "down_proj": "other"}


def test_a_subclass_of_a_known_class_is_known():
    base = type("MixtralExperts", (nn.Module,), {})
    model = named("Own", base, gate_up_proj=shape(3, 12, 4), down_proj=shape(3, 4, 6))
    assert places(model) == {"gate_up_proj": "batch rows(6, 6)", "down_proj": "batch"}


def test_experts_one_below_the_other_are_cut_into_experts():
    model = named("DbrxExpertGLU", w1=shape(12, 4), v1=shape(12, 4), w2=shape(12, 4), ffn_hidden_size=6)
    assert places(model) == {"w1": "row_heads(6)", "v1": "row_heads(6)", "w2": "transposed row_heads(6)"}


# Ambiguous parameters


def test_one_warning_names_the_ambiguous_parameters_and_a_rule_that_works():
    model = nn.ModuleList(named("Stack", up=shape(3, 4, 5), down=shape(3, 5, 4)) for _ in range(3))
    with pytest.warns(UserWarning, match=r"read \*\.up, \*\.down as matrices .* rules=\{'\*\.up': 'batch'\}") as caught:
        split_params(model, head=None)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert places(model, rules={"*.up": "batch", "*.down": "other"})["1.up"] == "batch"


# Conv1D


def gpt2(cross=False):
    attention = {"c_attn": conv1d(8, 16 if cross else 24), "c_proj": conv1d(8, 8), "is_cross_attention": cross}
    if cross:
        attention["q_attn"] = conv1d(8, 8)
    attention = named("GPT2Attention", head_dim=4, **attention)
    return named("GPT2Block", attn=attention, mlp=named("GPT2MLP", c_fc=conv1d(8, 32), c_proj=conv1d(32, 8)))


def test_conv1d_is_transposed_and_its_fused_projections_are_columns():
    assert places(gpt2()) == {
        "attn.c_attn.weight": "transposed columns(8, 8, 8)",
        "attn.c_attn.bias": "vector",
        "attn.c_proj.weight": "transposed",
        "attn.c_proj.bias": "vector",
        "mlp.c_fc.weight": "transposed",
        "mlp.c_fc.bias": "vector",
        "mlp.c_proj.weight": "transposed",
        "mlp.c_proj.bias": "vector",
    }
    cross = places(gpt2(cross=True))
    assert cross["attn.c_attn.weight"] == "transposed columns(8, 8)"
    assert cross["attn.q_attn.weight"] == "transposed"


def test_a_linear_of_the_same_name_is_not_transposed():
    attention = named("CausalSelfAttention", c_attn=linear(8, 24), c_proj=linear(8, 8))
    assert places(attention) == {"c_attn.weight": "rows(8, 8, 8)", "c_proj.weight": "flatten"}


def test_wrappers_and_weight_norm_do_not_hide_a_layer():
    model = gpt2()
    model.attn.c_attn = named("Linear", base_layer=model.attn.c_attn)
    assert places(model)["attn.c_attn.base_layer.weight"] == "transposed columns(8, 8, 8)"
    model = named("Phi3MLP", gate_up_proj=parametrizations.weight_norm(linear(4, 12)))
    assert places(model)["gate_up_proj.parametrizations.weight.original1"] == "rows(6, 6)"


# Fused projections


def fused(name, attribute, inputs, outputs, **members):
    return named(name, **{attribute: linear(inputs, outputs)}, **members)


CONFIG = SimpleNamespace(hidden_size=8, num_attention_heads=4, num_key_value_heads=2, head_dim=None)


@pytest.mark.parametrize(
    ("model", "view"),
    [
        (fused("Phi3Attention", "qkv_proj", 8, 16, config=CONFIG), "rows(8, 4, 4)"),
        (fused("GPTNeoXAttention", "query_key_value", 8, 24, head_size=2), "interleaved_rows(3, 2)"),
        (fused("BloomAttention", "query_key_value", 8, 24, head_dim=2), "interleaved_rows(3, 2)"),
        (fused("FalconAttention", "query_key_value", 8, 24, head_dim=2, multi_query=False), "interleaved_rows(3, 2)"),
        (
            fused("FalconAttention", "query_key_value", 8, 12, head_dim=2, hidden_size=8, multi_query=True),
            "rows(8, 2, 2)",
        ),
        (
            fused(
                *("FalconAttention", "query_key_value", 8, 20),
                **{"new_decoder_architecture": True, "multi_query": True},
                **{"num_heads": 6, "num_kv_heads": 2, "head_dim": 2},
            ),
            "interleaved_rows(3, 6, 2, 2)",
        ),
        (
            fused("GPTBigCodeAttention", "c_attn", 8, 24, multi_query=False, is_cross_attention=False, head_dim=2),
            "interleaved_rows(3, 2)",
        ),
        (
            fused(
                *("GPTBigCodeAttention", "c_attn", 8, 12),
                **{"multi_query": True, "is_cross_attention": False, "embed_dim": 8, "kv_dim": 2},
            ),
            "rows(8, 2, 2)",
        ),
        (fused("Qwen3NextAttention", "q_proj", 8, 16, head_dim=4), "interleaved_rows(2, 4)"),
        (fused("DisentangledSelfAttention", "in_proj", 8, 24, attention_head_size=4), "interleaved_rows(3, 4)"),
        (fused("Attention", "qkv", 8, 24), "rows(8, 8, 8)"),
        (fused("EvaAttention", "qkv", 8, 24), "rows(8, 8, 8)"),
        (fused("AttentionCl", "qkv", 8, 24, dim_head=4, head_first=True), "interleaved_rows(3, 4)"),
        (fused("AttentionCl", "qkv", 8, 24, dim_head=4, head_first=False), "rows(8, 8, 8)"),
        (fused("JetMoeAttention", "kv_proj", 8, 12), "rows(6, 6)"),
        (fused("GraniteSpeechConformerAttention", "to_kv", 8, 12), "rows(6, 6)"),
        (fused("GPSA", "qk", 8, 16), "rows(8, 8)"),
        (fused("Qwen3_5GatedDeltaNet", "in_proj_qkv", 8, 20, key_dim=4, value_dim=12), "rows(4, 4, 12)"),
        (fused("Qwen3NextGatedDeltaNet", "in_proj_ba", 8, 4), "other"),
        (fused("KimiLinearDeltaAttention", "b_proj", 8, 4), "other"),
        (fused("ZambaMambaMixer", "in_proj", 8, 32), "interleaved_rows(2, 1)"),
        (fused("Block", "qkv", 8, 24), "flatten"),
        (fused("Attention", "qkv", 8, 25), "flatten"),
        (fused("Phi3Attention", "qkv_proj", 8, 16), "flatten"),
        (fused("GluMlp", "fc1", 8, 24), "rows(12, 12)"),
        (
            fused("DeepseekV3Attention", "kv_a_proj_with_mqa", 8, 6, kv_lora_rank=4, qk_rope_head_dim=2),
            "rows(4, 2)",
        ),
        (
            fused("DeepseekV3Attention", "kv_b_proj", 4, 24, kv_lora_rank=4, qk_nope_head_dim=4, v_head_dim=4),
            "interleaved_rows(2, 4)",
        ),
        (
            fused("DeepseekV3Attention", "kv_b_proj", 4, 20, kv_lora_rank=4, qk_nope_head_dim=6, v_head_dim=4),
            "interleaved_rows(2, 6, 4)",
        ),
        (
            fused(
                *("Qwen3NextGatedDeltaNet", "in_proj_qkvz", 8, 40),
                **{"num_v_heads": 4, "num_k_heads": 2, "head_k_dim": 4, "head_v_dim": 3},
            ),
            "interleaved_rows(4, 4, 4, 6, 6)",
        ),
        (fused("CodeGenAttention", "qkv_proj", 8, 24), "interleaved_rows(3, 2)"),
        (fused("MambaMixer", "in_proj", 8, 32), "rows(16, 16)"),
        (fused("MambaMixer", "x_proj", 16, 10, time_step_rank=2, ssm_state_size=4), "rows(2, 4, 4)"),
        (fused("MambaMixer", "dt_proj", 2, 16), "other"),
        (
            fused("Mamba2Mixer", "in_proj", 8, 44, intermediate_size=16, n_groups=1, ssm_state_size=4, num_heads=4),
            "rows(16, 16, 4, 4, 4)",
        ),
    ],
)
def test_fused_projections_are_cut_where_the_sizes_are_known_and_fit(model, view):
    assert list(places(model).values()) == [view]


def test_the_parameters_of_a_state_space_are_not_matrices():
    assert places(named("MambaMixer", A_log=shape(8, 4), D=shape(8), out_proj=linear(8, 4))) == {
        "A_log": "other",
        "D": "vector",
        "out_proj.weight": "flatten",
    }
    heads = {
        "A_log": shape(2, 4, 3),
        "D": shape(2, 4),
        "dt_proj_weight": shape(2, 4, 5),
        "x_proj_weight": shape(2, 11, 4),
    }
    assert places(named("ZambaMambaMixer", **heads, time_step_rank=5, ssm_state_size=3)) == {
        "A_log": "other",
        "D": "other",
        "dt_proj_weight": "other",
        "x_proj_weight": "batch rows(5, 3, 3)",
    }


def test_parameters_without_a_layer_that_are_stored_inputs_first_are_transposed():
    projector = named("Gemma3MultiModalProjector", mm_input_projection_weight=shape(6, 8))
    assert places(projector) == {"mm_input_projection_weight": "transposed"}
    assert places(named("RecurrentGemmaRglru", input_gate_weight=shape(2, 4, 4))) == {
        "input_gate_weight": "batch transposed"
    }


# Routers


def test_routers_go_to_the_auxiliary_optimizer():
    stack = experts("MixtralExperts", (3, 12, 4), (3, 4, 6))
    for model, name in [
        (named("Block", gate=named("MixtralTopKRouter", weight=shape(3, 4)), experts=stack), "gate.weight"),
        (named("Block", gate=linear(4, 3), experts=nn.ModuleList([linear(4, 4)])), "gate.weight"),
        (named("Block", router=linear(4, 3), experts=stack), "router.weight"),
        (named("Block", gate=named("Gate", wg=linear(4, 3)), experts=stack), "gate.wg.weight"),
        (named("DbrxRouter", layer=linear(4, 3)), "layer.weight"),
    ]:
        assert places(model)[name] == "other"
        assert reason(model, name).startswith("router: ")
    assert places(named("MLP", gate=linear(4, 3), up=linear(4, 3)))["gate.weight"] == "flatten"
    assert places(named("ForgetGate", down=linear(4, 3)))["down.weight"] == "flatten"


# LoRA


def lora(rank=2):
    layer = named(
        "Linear",
        base_layer=linear(6, 4).requires_grad_(False),
        lora_A=nn.ModuleDict({"default": linear(6, rank)}),
        lora_B=nn.ModuleDict({"default": linear(rank, 4)}),
        lora_embedding_A=nn.ParameterDict({"default": torch.zeros(rank, 6)}),
        lora_magnitude_vector=nn.ModuleDict({"default": named("DoraConv2dLayer", weight=shape(1, 4, 1, 1))}),
    )
    return named("LoraModel", model=layer)


def test_lora_trains_b_by_muon_and_a_by_the_auxiliary_optimizer():
    assert places(lora()) == {
        "model.base_layer.weight": "none",
        "model.lora_A.default.weight": "other",
        "model.lora_B.default.weight": "flatten",
        "model.lora_embedding_A.default": "embedding",
        "model.lora_magnitude_vector.default.weight": "vector",
    }
    assert reason(lora(), "model.lora_A.default.weight").startswith("LoRA: A stays near its random initialization")
    assert places(lora(rank=1))["model.lora_B.default.weight"] == "vector"
    assert places(lora(), rules={"*lora_A*": "flatten"})["model.lora_A.default.weight"] == "flatten"


def test_lora_of_a_stack_of_experts_is_cut_into_experts():
    wrapper = named("ParamWrapper", lora_B=nn.ModuleDict({"default": linear(6, 4)}), num_experts=3)
    assert places(wrapper) == {"lora_B.default.weight": "interleaved_columns(3, 1)"}


# Strength


def test_rules_and_stronger_defaults_win():
    model = gpt2()
    model.mlp.c_fc.weight.requires_grad_(False)
    found = places(model, rules={"attn.c_attn.weight": "transposed"})
    assert found["attn.c_attn.weight"] == "transposed"
    assert found["mlp.c_fc.weight"] == "none"
    whole = {row.name: row.role for row in split_params(model, head="mlp.c_proj").table}
    assert whole["mlp.c_proj.weight"] == "head"


# Heads


def llama(**members):
    return named(
        "LlamaAttention",
        q_proj=linear(8, 16),
        k_proj=linear(8, 8),
        v_proj=linear(8, 8),
        o_proj=linear(16, 8),
        **members,
    )


def test_heads_cut_projections_by_the_config_or_by_the_number_of_heads():
    by_head = {
        "attn.q_proj.weight": "row_heads(4)",
        "attn.k_proj.weight": "row_heads(4)",
        "attn.v_proj.weight": "row_heads(4)",
        "attn.o_proj.weight": "column_heads(4)",
        "mlp.weight": "flatten",
    }
    whole = dict.fromkeys(by_head, "flatten")
    for config in (SimpleNamespace(head_dim=4), SimpleNamespace(head_dim=None, hidden_size=16, num_attention_heads=4)):
        inside = named("Model", attn=llama(config=config), mlp=linear(8, 8))
        above = named("Model", attn=llama(), mlp=linear(8, 8), config=config)
        for model in (inside, above):
            assert places(model, heads="auto") == by_head
            assert places(model) == whole
    assert places(named("Model", attn=llama(), mlp=linear(8, 8)), heads=4) == by_head
    rules = {"attn.q_proj.weight": "flatten"}
    assert places(above, heads="auto", rules=rules) == by_head | {"attn.q_proj.weight": "flatten"}


def test_heads_cut_conv1d_and_fused_projections():
    for heads in ("auto", 2):
        found = places(gpt2(), heads=heads)
        assert found["attn.c_attn.weight"] == "transposed column_heads(4)"
        assert found["attn.c_proj.weight"] == "transposed row_heads(4)"
        assert found["mlp.c_proj.weight"] == "transposed"
    assert places(gpt2(cross=True), heads=2)["attn.q_attn.weight"] == "transposed column_heads(4)"
    fused = named("Phi3Attention", qkv_proj=linear(8, 16), o_proj=linear(8, 8))
    assert places(fused, heads=4) == {"qkv_proj.weight": "row_heads(2)", "o_proj.weight": "column_heads(2)"}
    assert places(named("Attention", qkv=linear(8, 24)), heads=4) == {"qkv.weight": "row_heads(2)"}
    gated = named("Qwen3NextAttention", q_proj=linear(8, 16), k_proj=linear(8, 4), o_proj=linear(8, 8))
    assert places(gated, heads=4) == {
        "q_proj.weight": "row_heads(2)",
        "k_proj.weight": "row_heads(2)",
        "o_proj.weight": "column_heads(2)",
    }
    found = places(nn.MultiheadAttention(8, 2), heads="auto")
    assert (found["in_proj_weight"], found["out_proj.weight"]) == ("row_heads(4)", "column_heads(4)")


def test_heads_of_bert_are_found_in_two_modules():
    model = named(
        "BertAttention",
        self=named("BertSelfAttention", query=linear(8, 8), key=linear(8, 8), value=linear(8, 8)),
        output=named("BertSelfOutput", dense=linear(8, 8)),
        intermediate=named("BertIntermediate", dense=linear(8, 8)),
    )
    for options in ({"heads": 2}, {"heads": "auto"}):
        model.config = SimpleNamespace(hidden_size=8, num_attention_heads=2)
        found = places(model, **options)
        assert found["self.query.weight"] == found["self.value.weight"] == "row_heads(4)"
        assert found["output.dense.weight"] == "column_heads(4)"
        assert found["intermediate.dense.weight"] == "flatten"


def test_latent_attention_has_heads_of_several_sizes():
    model = named(
        "DeepseekV3Attention",
        q_b_proj=linear(4, 12),
        kv_b_proj=linear(4, 16),
        o_proj=linear(6, 8),
        kv_a_proj_with_mqa=linear(8, 6),
        **{"kv_lora_rank": 4, "qk_rope_head_dim": 2, "qk_head_dim": 6, "qk_nope_head_dim": 5, "v_head_dim": 3},
    )
    assert places(model, heads="auto") == {
        "q_b_proj.weight": "row_heads(6)",
        "kv_b_proj.weight": "row_heads(8)",
        "o_proj.weight": "column_heads(3)",
        "kv_a_proj_with_mqa.weight": "rows(4, 2)",
    }
    model.v_head_dim, model.qk_nope_head_dim = 4, 4
    found = places(model, heads="auto", rules={"o_proj.weight": "flatten"})
    assert found["kv_b_proj.weight"] == "row_heads(4)"  # the key and the value of a head are two matrices


@pytest.mark.parametrize(
    ("model", "heads", "error", "message"),
    [
        (
            llama(),
            "auto",
            ValueError,
            r"got no head_dim or number of heads .* for 'q_proj.weight'.* pass heads=12 .*rules",
        ),
        (llama(), 3, ValueError, r"got heads=3 for 'q_proj.weight' of shape \(16, 8\)"),
        (llama(), 16, ValueError, r"two or more rows and columns, got 'row_heads\(1\)' for 'q_proj.weight'"),
        (llama(head_dim=5), "auto", ValueError, r"got 'row_heads\(5\)' for 'q_proj.weight'"),
        (llama(), 0, ValueError, "heads must be"),
        (llama(), 2.0, TypeError, "heads must be"),
        (llama(), "all", ValueError, "heads must be 'auto', None or the number of query heads, got 'all'"),
        (
            linear(4, 4),
            "auto",
            ValueError,
            r"heads must find projections of attention, got heads='auto' and none in Linear",
        ),
    ],
)
def test_heads_that_are_not_known_are_refused_with_the_way_out(model, heads, error, message):
    with pytest.raises(error, match=message):
        split_params(model, head=None, heads=heads)


# The table as plain values


def test_the_table_is_available_as_json():
    table = split_params(gpt2(), head=None).table
    rows = json.loads(table.to_json())["rows"]
    assert rows == table.to_dict()["rows"]
    assert rows[0] == {
        "name": "attn.c_attn.weight",
        "aliases": [],
        "shape": [8, 24],
        "goes_to": "Muon",
        "role": None,
        "matrix_view": "transposed columns(8, 8, 8)",
        "why": "query, key and value, stored inputs × outputs",
    }
    assert len(rows) == len(table)
