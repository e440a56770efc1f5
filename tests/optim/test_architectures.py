"""Known layers in real models of transformers, timm and peft: golden tables, and comparisons with the real forward.

``python -m tests.optim.test_architectures`` writes the golden tables again and keeps their first line, which says what
was checked by reading the forward of the model.
"""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from unittest.mock import MagicMock, patch

import pytest
import torch
from torch import nn
from torch.nn import functional

from muonlab._columns import aligned
from muonlab.optim import split_params
from muonlab.optim.views import matrix_blocks, split_tensor

GOLDEN = Path(__file__).parent / "golden"
UNREVIEWED = "# not reviewed"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.trainers("transformers", "timm", "peft"),
    # Deprecations inside these packages are not ours to fix.
    pytest.mark.filterwarnings("default::DeprecationWarning", "default::FutureWarning"),
]

SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
TEXT = {**SMALL, "vocab_size": 1000, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GROUPED = {**TEXT, "num_key_value_heads": 2, "head_dim": 16}
LATENT = {
    **TEXT,
    **{"num_key_value_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16},
    **{"v_head_dim": 16, "moe_intermediate_size": 48, "n_routed_experts": 8, "n_group": 2, "topk_group": 1},
    **{"num_experts_per_tok": 2, "first_k_dense_replace": 1},
}
DELTA = {
    **{**GROUPED, "layer_types": ["linear_attention", "full_attention"], "linear_num_value_heads": 4},
    **{"linear_key_head_dim": 8, "linear_value_head_dim": 12, "linear_num_key_heads": 2},
}
TOKENS = {"vocab_size": 1000, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
TRANSFORMERS = {
    "llama": ("LlamaForCausalLM", GROUPED),
    "qwen3_moe": ("Qwen3MoeForCausalLM", {**GROUPED, "num_experts": 4, "moe_intermediate_size": 48}),
    "mixtral": ("MixtralForCausalLM", {**GROUPED, "num_local_experts": 4}),
    "deepseek_v3": ("DeepseekV3ForCausalLM", LATENT),
    "gpt_oss": ("GptOssForCausalLM", {**GROUPED, "num_local_experts": 4}),
    "gpt2": ("GPT2LMHeadModel", {**TOKENS, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 32}),
    "gpt_neox": ("GPTNeoXForCausalLM", TEXT),
    "phi3": ("Phi3ForCausalLM", {**TEXT, "num_key_value_heads": 2}),
    "bert": ("BertForMaskedLM", TEXT),
    "t5": (
        "T5ForConditionalGeneration",
        {"vocab_size": 1000, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4},
    ),
    "vit": ("ViTForImageClassification", {**SMALL, "image_size": 32, "patch_size": 8}),
    "convnext": ("ConvNextForImageClassification", {"hidden_sizes": [16, 32, 64, 128], "depths": [1, 1, 2, 1]}),
    "whisper": (
        "WhisperForConditionalGeneration",
        {
            **TOKENS,
            **{"d_model": 64, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4},
            **{"decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128},
            "decoder_start_token_id": 1,
        },
    ),
    "mamba": ("MambaForCausalLM", {**TOKENS, "hidden_size": 64, "num_hidden_layers": 2, "state_size": 8}),
    "qwen3": ("Qwen3ForCausalLM", GROUPED),
    "gemma3": ("Gemma3ForCausalLM", GROUPED),
    "olmoe": ("OlmoeForCausalLM", {**TEXT, "num_key_value_heads": 2, "num_experts": 4}),
    "falcon": ("FalconForCausalLM", {**TOKENS, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}),
    "bloom": ("BloomForCausalLM", {**TOKENS, "hidden_size": 64, "n_layer": 2, "n_head": 4}),
    "qwen3_5": ("Qwen3_5ForCausalLM", DELTA),
}
TIMM = {
    "timm_vit": "vit_tiny_patch16_224",
    "timm_resnet18": "resnet18",
    "timm_convnext": "convnext_atto",
    "timm_eva02": "eva02_tiny_patch14_224",
}


def build(name, device="meta", **changes):
    """Return a small model of transformers, or a model of timm."""
    with torch.device(device):
        if name in TIMM:
            return timm().create_model(TIMM[name])
        import transformers

        class_name, options = TRANSFORMERS[name]
        kind = getattr(transformers, class_name)
        torch.manual_seed(0)
        return kind(kind.config_class(**options | changes)).eval()


def timm():
    """Import timm without torchvision, which it needs for images and not for networks."""
    if "timm" not in sys.modules:
        names = ("", ".ops", ".ops.misc", ".datasets", ".transforms", ".transforms.functional")
        stubs = {f"torchvision{name}": MagicMock() for name in names}
        stubs["torchvision.ops.misc"].FrozenBatchNorm2d = type("FrozenBatchNorm2d", (nn.Module,), {})
        with patch.dict(sys.modules, stubs):
            importlib.import_module("timm")
            imported = {name: module for name, module in sys.modules.items() if name not in stubs}
        sys.modules.update(imported)  # patch.dict forgets what was imported inside
    return sys.modules["timm"]


# Golden tables


def table_text(model):
    """Return the table of a model, with one line for the same parameter of all layers."""
    lines = {}
    for row in split_params(model).table:
        name, *cells = row.cells()
        lines[re.sub(r"(?<![^.])\d+(?![^.])", "*", name), *cells] = None
    return "\n".join(line.rstrip() for line in aligned([("parameter", "shape", "goes to", "as", "why"), *lines])) + "\n"


@pytest.mark.parametrize("name", [*TRANSFORMERS, *TIMM])
def test_the_table_of_a_model_is_the_reviewed_one(name):
    comment, _, expected = (GOLDEN / f"{name}.txt").read_text(encoding="utf-8").partition("\n")
    assert comment.startswith("# ")
    assert comment != UNREVIEWED
    assert table_text(build(name)) == expected


# Comparisons with the real forward: the blocks of a view are the matrices that the model applies


def views(model):
    return {row.name: row.matrix_view for row in split_params(model, head=None).table}


def matrices(weight, view):
    """Return the matrices of a parameter, each outputs × inputs; with a leading dimension if the view is a batch."""
    blocks = matrix_blocks(tuple(weight.shape), view)
    read = [block.read(piece) for block, piece in zip(blocks, split_tensor(weight, view, blocks), strict=True)]
    return [matrix.mT if block.transposed else matrix for block, matrix in zip(blocks, read, strict=True)]


def inputs(width):
    return torch.randn(2, 5, width, generator=torch.Generator().manual_seed(1))


def randomize(module):
    """Give every matrix of a module random entries and every bias zeros."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            random = parameter.ndim > 1 and "bias" not in name
            parameter.copy_(torch.randn(parameter.shape, generator=generator) if random else 0 * parameter)
    return module


def recorded_attention(module, *arguments, **keywords):
    """Run an attention module and return query, key and value as it passes them on, heads side by side."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    seen = []

    def record(_module, query, key, value, *_args, **_options):
        seen.extend(part.transpose(1, 2).flatten(2) for part in (query, key, value))
        return query.transpose(1, 2), None

    with patch.dict(ALL_ATTENTION_FUNCTIONS._global_mapping, {"sdpa": record}):
        module.config._attn_implementation = "sdpa"
        module(*arguments, **keywords)
    return seen


def agree(found, expected):
    return len(found) == len(expected) and all(
        a.shape == b.shape and torch.allclose(a, b, rtol=1e-4, atol=1e-4) for a, b in zip(found, expected, strict=True)
    )


NO_ROTATION = (torch.ones(1, 5, 16), torch.zeros(1, 5, 16))
ATTENTION = {
    "gpt2": ("transformer.h.0.attn", "c_attn.weight", {}, "transposed interleaved_columns(3, 16)"),
    "gpt_neox": (
        "gpt_neox.layers.0.attention",
        "query_key_value.weight",
        {"attention_mask": None, "position_embeddings": tuple(part[..., :4] for part in NO_ROTATION)},
        "rows(64, 64, 64)",
    ),
    "phi3": (
        "model.layers.0.self_attn",
        "qkv_proj.weight",
        {"attention_mask": None, "position_embeddings": NO_ROTATION},
        "rows(32, 64, 32)",
    ),
}


@pytest.mark.parametrize("name", ATTENTION)
def test_the_blocks_of_fused_attention_make_query_key_and_value(name):
    path, parameter, keywords, wrong = ATTENTION[name]
    model = build(name, "cpu")
    module, view = randomize(model.get_submodule(path)), views(model)[f"{path}.{parameter}"]
    x, weight = inputs(64), module.get_parameter(parameter)
    found = recorded_attention(module, x, **keywords)
    assert agree([x @ W.T for W in matrices(weight, view)], found)
    assert not agree([x @ W.T for W in matrices(weight, wrong)], found)


@pytest.mark.parametrize(
    "options",
    [
        {"new_decoder_architecture": False, "multi_query": False},
        {"new_decoder_architecture": False, "multi_query": True},
        {"new_decoder_architecture": True, "num_kv_heads": 2},
        None,
    ],
)
def test_falcon_and_bloom_take_turns_by_heads(options):
    import transformers

    if options is None:
        model = transformers.BloomModel(transformers.BloomConfig(vocab_size=50, hidden_size=64, n_layer=1, n_head=4))
    else:
        model = transformers.FalconModel(
            transformers.FalconConfig(
                **options, vocab_size=50, hidden_size=64, num_hidden_layers=1, num_attention_heads=4
            )
        )
    module = randomize(model.h[0].self_attention)
    x, weight = inputs(64), module.query_key_value.weight
    split = getattr(module, "_split_heads" if options else "_reshape")
    parts = split(module.query_key_value(x))
    if options and options["new_decoder_architecture"]:  # key and value are repeated for the two queries of a group
        parts = (parts[0], parts[1][:, :, ::2], parts[2][:, :, ::2])
    found = [(part if options else part.transpose(1, 2)).flatten(2) for part in parts]
    view = views(model)["h.0.self_attention.query_key_value.weight"]
    assert agree([x @ W.T for W in matrices(weight, view)], found)


@pytest.mark.parametrize("value_size", [16, 12])
def test_the_blocks_of_latent_attention_make_key_and_value(value_size):
    model = build("deepseek_v3", "cpu", v_head_dim=value_size)
    path = "model.layers.0.self_attn"
    module = randomize(model.get_submodule(path))
    latent = inputs(16)
    key, value = module.expand_kv(latent[:, None], torch.zeros(2, 1, 5, 8))
    found = [part.transpose(1, 2).flatten(2) for part in (key[..., :16], value)]
    weight, view = module.kv_b_proj.weight, views(model)[f"{path}.kv_b_proj.weight"]
    assert agree([latent @ W.T for W in matrices(weight, view)], found)
    assert not agree([latent @ W.T for W in matrices(weight, f"rows(64, {4 * value_size})")], found)


def gpt_oss_gate(module, gate, up):
    gate, up = gate.clamp(max=module.limit), up.clamp(-module.limit, module.limit)
    return (up + 1) * gate * torch.sigmoid(module.alpha * gate)


@pytest.mark.parametrize(
    ("name", "path", "gated", "wrong"),
    [
        ("mixtral", "model.layers.0.mlp.experts", None, "batch interleaved_rows(2, 1)"),
        ("qwen3_moe", "model.layers.0.mlp.experts", None, "batch interleaved_rows(2, 1)"),
        ("deepseek_v3", "model.layers.1.mlp.experts", None, "batch interleaved_rows(2, 1)"),
        ("olmoe", "model.layers.0.mlp.experts", None, "batch interleaved_rows(2, 1)"),
        ("gpt_oss", "model.layers.0.mlp.experts", gpt_oss_gate, "batch transposed columns(128, 128)"),
    ],
)
def test_the_blocks_of_experts_are_gate_and_up(name, path, gated, wrong):
    model = build(name, "cpu")
    module, found_views = randomize(model.get_submodule(path)), views(model)
    x = inputs(64).flatten(0, 1)
    chosen = torch.zeros(len(x), 1, dtype=torch.long) + 2  # every token goes to expert 2
    found = module(x, chosen, torch.ones(len(x), 1))

    def expected(view):
        gate, up = (x @ W[2].T for W in matrices(module.gate_up_proj, view))
        [down] = matrices(module.down_proj, found_views[f"{path}.down_proj"])
        inner = gated(module, gate, up) if gated else functional.silu(gate) * up
        return [inner @ down[2].T]

    with torch.no_grad():
        assert agree([found], expected(found_views[f"{path}.gate_up_proj"]))
        assert not agree([found], expected(wrong))


def test_the_blocks_of_a_stack_stored_inputs_first_are_gate_and_up():
    from transformers.models.llama4.modeling_llama4 import Llama4TextConfig, Llama4TextExperts

    module = randomize(
        Llama4TextExperts(Llama4TextConfig(hidden_size=8, intermediate_size=6, num_local_experts=3, pad_token_id=0))
    )
    found, x = views(module), torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(1))
    gate, up = matrices(module.gate_up_proj, found["gate_up_proj"])
    [down] = matrices(module.down_proj, found["down_proj"])
    expected = (functional.silu(x @ gate.mT) * (x @ up.mT)) @ down.mT
    assert agree([module(x.flatten(0, 1))], [expected.flatten(0, 1)])


def test_the_blocks_of_a_fused_mlp_are_gate_and_up():
    model = build("phi3", "cpu")
    module, x = randomize(model.model.layers[0].mlp), inputs(64)
    gate, up = matrices(module.gate_up_proj.weight, views(model)["model.layers.0.mlp.gate_up_proj.weight"])
    assert agree([module(x)], [(functional.silu(x @ gate.T) * (x @ up.T)) @ module.down_proj.weight.T])


def test_the_blocks_of_a_state_space_make_the_gate_and_b_and_c():
    from transformers.models.mamba import modeling_mamba

    model = build("mamba", "cpu")
    path, x, seen = "backbone.layers.0.mixer", inputs(64), {}
    module, found = randomize(model.get_submodule(path)), views(model)

    def record(sequence, step, _A, B, C, z, **_options):
        seen.update(sequence=sequence.mT, step=step.mT, B=B.mT, C=C.mT, gate=z.mT)
        return sequence

    with patch.object(modeling_mamba, "mamba_selective_scan", record), torch.no_grad():
        module(x)
    _, gate = matrices(module.in_proj.weight, found[f"{path}.in_proj.weight"])
    step, B, C = matrices(module.x_proj.weight, found[f"{path}.x_proj.weight"])
    made = [seen["sequence"] @ W.T for W in (module.dt_proj.weight @ step, B, C)]
    assert agree([x @ gate.T, *made], [seen[name] for name in ("gate", "step", "B", "C")])


def test_the_blocks_of_a_gated_mlp_of_timm_are_value_and_gate():
    model = build("timm_eva02", "cpu").eval()
    module, x = randomize(model.blocks[0].mlp), inputs(192)
    first, second = matrices(module.fc1.weight, views(model)["blocks.0.mlp.fc1.weight"])
    halves = (x @ first.T, x @ second.T)
    gated = (module.act(halves[0]) * halves[1]) if not module.gate_last else halves[0] * module.act(halves[1])
    assert agree([module(x)], [gated @ module.fc2.weight.T])


def test_the_blocks_of_timm_attention_make_query_key_and_value():
    for name in ("timm_vit", "timm_eva02"):
        model = build(name, "cpu").eval()
        module, x, seen = randomize(model.blocks[0].attn), inputs(192), []

        def record(q, k, v, seen=seen, **_options):
            seen.extend(part.transpose(1, 2).flatten(2) for part in (q, k, v))
            return q

        with patch.object(functional, "scaled_dot_product_attention", record), torch.no_grad():
            module(x)
        view = views(model)["blocks.0.attn.qkv.weight"]
        assert agree([x @ W.T for W in matrices(module.qkv.weight, view)], seen)
        assert not agree([x @ W.T for W in matrices(module.qkv.weight, "interleaved_rows(3, 64)")], seen)


def test_the_blocks_of_a_gated_delta_net_make_query_key_and_value():
    from transformers.models.qwen3_5 import modeling_qwen3_5

    model = build("qwen3_5", "cpu")
    path, x, seen = "model.layers.0.linear_attn", inputs(64), []
    module, view = randomize(model.get_submodule(path)), views(model)["model.layers.0.linear_attn.in_proj_qkv.weight"]
    assert view == "rows(16, 16, 48)"

    def record(projected, *_args, **_options):
        seen.append(projected.mT)
        raise StopIteration

    with patch.object(modeling_qwen3_5, "causal_conv1d_fn", record), pytest.raises(StopIteration):
        module(x)
    [together] = seen
    # the convolution acts on each channel alone; after it the module cuts the channels in these sizes
    assert (module.key_dim, module.value_dim) == (16, 48)
    found = together.split([module.key_dim, module.key_dim, module.value_dim], dim=-1)
    assert agree([x @ W.T for W in matrices(module.in_proj_qkv.weight, view)], list(found))


def test_the_blocks_of_the_delta_net_of_qwen3_next_make_query_key_value_and_gate():
    import transformers

    changes = {"num_experts": 4, "moe_intermediate_size": 8, "shared_expert_intermediate_size": 8}
    model = transformers.Qwen3NextModel(transformers.Qwen3NextConfig(**DELTA, **changes))
    path = "layers.0.linear_attn"
    module, x = randomize(model.get_submodule(path)), inputs(64)
    found = module.fix_query_key_value_ordering(module.in_proj_qkvz(x), module.in_proj_ba(x))[:4]
    weight, view = module.in_proj_qkvz.weight, views(model)[f"{path}.in_proj_qkvz.weight"]
    assert view == "interleaved_rows(4, 8, 8, 24, 24)"
    assert agree([x @ W.T for W in matrices(weight, view)], [part.flatten(2) for part in found])


def test_the_blocks_of_codegen_make_query_value_and_key():
    import transformers

    config = transformers.CodeGenConfig(vocab_size=50, n_embd=64, n_layer=1, n_head=8, rotary_dim=8)
    model = transformers.CodeGenModel(config).eval()
    path, seen = "h.0.attn", []
    module, x = randomize(model.get_submodule(path)), inputs(64)

    def record(part, *_arguments, **_options):
        seen.append(part.flatten(2))
        if len(seen) == 3:
            raise StopIteration
        return part

    with patch.object(module, "_split_heads", record), pytest.raises(StopIteration):
        module(x)
    query, key, value = seen
    weight, view = module.qkv_proj.weight, views(model)[f"{path}.qkv_proj.weight"]
    assert view == "interleaved_rows(3, 16)"
    assert agree([x @ W.T for W in matrices(weight, view)], [query, value, key])
    assert not agree([x @ W.T for W in matrices(weight, "rows(64, 64, 64)")], [query, value, key])


TAKE_VALUES = {
    "cait_xxs24_224": "TalkingHeadAttn",
    "coat_tiny": "FactorAttnConvRelPosEnc",
    "convit_tiny": "MHSA",
    "davit_tiny": "ChannelAttention",
    "edgenext_xx_small": "CrossCovarianceAttn",
    "efficientformer_l1": "Attention",
    "hiera_tiny_224": "MaskUnitAttention",
    "hieradet_small": "MultiScaleAttention",
    "maxvit_nano_rw_256": "AttentionCl",
    "maxvit_tiny_tf_224": "AttentionCl",
    "pvt_v2_b0": "Attention",
    "swin_tiny_patch4_window7_224": "WindowAttention",
    "swinv2_cr_tiny_224": "WindowMultiHeadAttention",
    "twins_pcpvt_small": "GlobalSubSampleAttn",
    "twins_svt_small": "LocallyGroupedAttn",
    "volo_d1_224": "ClassAttention",
    "xcit_nano_12_p8_224": "XCA",
}


def doubles_with(block, module, arguments, parameter, view) -> bool:
    """Whether the output of attention doubles with a block of a parameter, as it does with that of the values."""
    with torch.no_grad():
        before = module(*arguments)
        saved = parameter.detach().clone()
        split_tensor(parameter, view, matrix_blocks(tuple(parameter.shape), view))[block].mul_(2)
        after = module(*arguments)
        parameter.copy_(saved)
    return bool((after - 2 * before).norm() < 1e-3 * before.norm())


def test_the_last_block_of_fused_attention_of_timm_makes_the_values():
    for name, kind in TAKE_VALUES.items():
        torch.manual_seed(0)
        model = timm().create_model(name).eval()
        [path, *_] = [path for path, module in model.named_modules() if type(module).__name__ == kind]
        module, calls = model.get_submodule(path), []
        hook = module.register_forward_pre_hook(lambda _, arguments, calls=calls: calls.append(arguments))
        side = 256 if name.endswith("256") else 224
        with torch.no_grad():
            model(torch.randn(1, 3, side, side, generator=torch.Generator().manual_seed(1)))
        hook.remove()
        [below] = {"qkv.weight", "kv.weight"} & {below for below, _ in module.named_parameters()}
        for inside, bias in module.named_parameters():
            if inside.endswith("bias"):
                bias.data.zero_()
        parameter, view = module.get_parameter(below), views(model)[f"{path}.{below}"]
        count = below.index("v.") + 1  # 3 in qkv, 2 in kv
        wrong = ", ".join([str(len(parameter) // count)] * count)
        wrong = f"rows({wrong})" if "interleaved" in view else f"interleaved_rows({count}, 1)"
        values = 0 if kind == "ChannelAttention" else -1  # its softmax is over keys and values, and applied to queries
        assert doubles_with(values, module, calls[0], parameter, view), (name, view)
        assert not doubles_with(values, module, calls[0], parameter, wrong), (name, wrong)


def test_the_blocks_of_levit_make_query_key_and_longer_values():
    import transformers

    config = transformers.LevitConfig(hidden_sizes=[16, 24, 32], num_attention_heads=[2, 3, 4], depths=[1, 1, 1])
    model = transformers.LevitModel(config)
    for network in (model, timm().create_model("levit_128s", device="meta")):
        found = {view for name, view in views(network).items() if re.search(r"(kv|values)\.linear\.weight$", name)}
        assert found == {"interleaved_rows(3, 16, 16, 32)", "interleaved_rows(2, 16, 64)"}


# By heads


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llama", {"q_proj": "row_heads(16)", "k_proj": "row_heads(16)", "o_proj": "column_heads(16)"}),
        ("deepseek_v3", {"q_b_proj": "row_heads(24)", "kv_b_proj": "row_heads(16)", "o_proj": "column_heads(16)"}),
        ("gpt2", {"c_attn": "transposed column_heads(16)"}),
        ("gpt_neox", {"query_key_value": "row_heads(16)", "attention.dense": "column_heads(16)"}),
        ("phi3", {"qkv_proj": "row_heads(16)", "o_proj": "column_heads(16)"}),
        (
            "bert",
            {"query": "row_heads(16)", "attention.output.dense": "column_heads(16)", "intermediate.dense": "flatten"},
        ),
        (
            "t5",
            {
                "SelfAttention.k": "row_heads(16)",
                "EncDecAttention.o": "column_heads(16)",
                "DenseReluDense.wo": "flatten",
            },
        ),
        ("vit", {"v_proj": "row_heads(16)", "o_proj": "column_heads(16)", "fc1": "flatten"}),
        ("whisper", {"k_proj": "row_heads(16)", "out_proj": "column_heads(16)", "fc2": "flatten"}),
        ("timm_vit", {"attn.qkv": "row_heads(64)", "attn.proj": "column_heads(64)"}),
        ("timm_eva02", {"attn.qkv": "row_heads(64)", "attn.proj": "column_heads(64)"}),
    ],
)
def test_heads_are_read_from_real_configs_and_agree_with_their_number(name, expected):
    model = build(name)
    count = 3 if name in TIMM else 4
    for heads in ("auto", count):
        table = split_params(model, heads=heads).table
        for ending, view in expected.items():
            found = {row.matrix_view for row in table if row.name.endswith(f"{ending}.weight")}
            assert found == {view}, (name, heads, ending)


# LoRA


def test_lora_of_peft_trains_b_by_muon():
    import peft

    for name, targets in (("llama", ["q_proj", "embed_tokens"]), ("gpt2", ["c_attn"])):
        config = peft.LoraConfig(r=4, target_modules=targets, use_dora=True, fan_in_fan_out=name == "gpt2")
        rows = [
            row for row in split_params(peft.get_peft_model(build(name, "cpu"), config)).table if row.goes_to != "none"
        ]
        found = {re.search(r"lora_\w+", row.name)[0]: row.matrix_view or row.role for row in rows}
        assert found["lora_A"] == "other"
        assert found["lora_B"] == "flatten"
        assert found["lora_magnitude_vector"] == "vector"
        if "embed_tokens" in targets:
            assert found["lora_embedding_A"] == found["lora_embedding_B"] == "embedding"


def test_lora_of_experts_is_cut_into_experts():
    import peft

    config = peft.LoraConfig(r=4, target_modules=[], target_parameters=["mlp.experts.down_proj"])
    model = peft.get_peft_model(build("mixtral", "cpu"), config)
    [(name, view), *_] = [(n, v) for n, v in views(model).items() if "lora_B" in n]
    assert view == "interleaved_columns(4, 1)"
    wrapper = model.get_submodule(name.partition(".lora_B")[0])
    weight = randomize(wrapper.lora_B)["default"].weight
    with torch.no_grad():
        before = wrapper.get_delta_weight("default")
        split_tensor(weight, view, matrix_blocks(tuple(weight.shape), view))[2].zero_()
        after = wrapper.get_delta_weight("default")
    assert [bool((a == b).all()) for a, b in zip(after, before, strict=True)] == [True, True, False, True]
    assert not after[2].any()


if __name__ == "__main__":
    for name in (*TRANSFORMERS, *TIMM):
        path = GOLDEN / f"{name}.txt"
        comment = path.read_text(encoding="utf-8").partition("\n")[0] if path.exists() else UNREVIEWED
        path.write_text(f"{comment}\n{table_text(build(name))}", encoding="utf-8")
