"""How parameters of transformers, timm and peft are read that are not one matrix, outputs × inputs, and why.

A table only; :mod:`muonlab.optim.lookup` searches it, and nothing is imported from these packages. The first row that
matches decides. Sizes in a view are numbers, sums and products of the names in ``SIZES``, of ``half``, ``third``
and ``twelfth`` (of the dimension that is cut), and of attributes of the module or of its ``config``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Role = Literal["embedding", "head", "vector", "other"]
"""What a parameter of the auxiliary optimizer is."""
ROLES = ("embedding", "head", "vector", "other")


@dataclass(frozen=True, eq=False)
class KnownParameter:
    """How a parameter of a known module is read.

    Args:
        module: class names, separated by ``" | "``; ``*`` stands for any letters, base classes count, and a name may
            begin with the name of its Python module.
        parameter: name of the parameter as seen from that module, for example ``"c_attn.weight"``.
        read_as: a matrix view with symbolic sizes, or a role for the auxiliary optimizer.
        why: the reason, as shown in the table.
        when: values that attributes of the module must have, or conditions of ``lookup.CONDITIONS``.
    """

    module: str
    parameter: str
    read_as: str
    why: str
    when: Mapping[str, object] = field(default_factory=dict)


SIZES: Mapping[str, tuple[str, ...]] = {
    "head_dim": (
        "head_dim",
        "head_size",
        "attention_head_size",
        "dim_head",
        "key_value_proj_dim",
        "d_kv",
        "width / heads",
    ),
    "heads": ("num_attention_heads", "num_heads", "n_heads", "n_head", "encoder_attention_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "kv_n_heads"),
    "width": ("hidden_size", "embed_dim", "all_head_size", "n_embd", "d_model", "dim"),
    "queries_per_key": ("heads / kv_heads",),
    "values_per_key": ("num_v_heads / num_k_heads",),
    "q": ("heads * head_dim",),
    "kv": ("kv_heads * head_dim",),
}
"""Names of sizes, each with the attributes or formulas that give it, the first that exists."""

_OUT_IN, _IN_OUT = {"stored": "outputs × inputs"}, {"stored": "inputs × outputs"}
_ALTERNATE = "gate and up interleaved, one at a time, in a stack of experts"
_ONE_AFTER_ANOTHER = "gate, then up, in a stack of experts"
_ROUTER = "router: its rows are scores of experts, read one by one"
_MLA = "*Attention | *MLA"

EXPERTS = (
    KnownParameter(
        "GptOssExperts",
        "gate_up_proj",
        "batch transposed interleaved_columns(2, 1)",
        f"{_ALTERNATE}, stored inputs × outputs",
        _IN_OUT,
    ),
    KnownParameter(
        "*Experts",
        "gate_up_proj",
        "batch transposed interleaved_columns(2, 1)",
        f"{_ALTERNATE}, stored inputs × outputs",
        {**_IN_OUT, "is_concatenated": False},
    ),
    KnownParameter(
        "*Experts",
        "gate_up_proj",
        "batch interleaved_rows(2, 1)",
        _ALTERNATE,
        {**_OUT_IN, "is_concatenated": False},
    ),
    # Llama4TextExperts, AriaExperts, OpenAIPrivacyFilterExperts
    KnownParameter(
        "*Experts",
        "gate_up_proj",
        "batch transposed columns(half, half)",
        f"{_ONE_AFTER_ANOTHER}, stored inputs × outputs",
        _IN_OUT,
    ),
    KnownParameter("*Experts", "down_proj", "batch transposed", "a stack of experts, stored inputs × outputs", _IN_OUT),
    # MixtralExperts, Qwen3MoeExperts, DeepseekV3Experts and about sixty others
    KnownParameter("*Experts", "gate_up_proj", "batch rows(half, half)", _ONE_AFTER_ANOTHER, _OUT_IN),
    KnownParameter("*Experts", "down_proj", "batch", "a stack of experts", _OUT_IN),
    KnownParameter(
        "InklingSharedExperts | NemotronHExperts", "gate_proj | up_proj | down_proj", "batch", "a stack of experts"
    ),
    KnownParameter("JetMoeMoE", "input_linear.weight", "batch rows(half, half)", _ONE_AFTER_ANOTHER),
    KnownParameter("JetMoeParallelExperts", "weight", "batch", "a stack of experts"),
    KnownParameter(
        "DbrxExpertGLU",
        "w1 | v1",
        "row_heads(ffn_hidden_size)",
        "experts one below the other, each outputs × inputs",
    ),
    KnownParameter(
        "DbrxExpertGLU",
        "w2",
        "transposed row_heads(ffn_hidden_size)",
        "experts one below the other, each inputs × outputs",
    ),
)

ROUTERS = (
    KnownParameter("*Router | *TopKGating | *MoEGate | *MoEV1Gate", "*", "other", _ROUTER),
    KnownParameter("Module", "gate.* | router.*", "other", _ROUTER, {"has_experts": True}),
)

_INTERLEAVED = "query, key and value interleaved, head by head"
_KEYS_INTERLEAVED = "key and value interleaved, head by head"
_THREE = "rows(third, third, third)"
_GROUPED = "query, then the fewer heads of key and value"
_KEY_VALUE = "key, then value"

FUSED_ATTENTION = (
    KnownParameter(
        "*Attention",
        "c_attn.weight",
        "transposed columns(half, half)",
        "key and value of cross-attention, stored inputs × outputs",
        {"holder": "Conv1D", "is_cross_attention": True},
    ),
    KnownParameter(
        "*Attention",
        "c_attn.weight",
        "transposed columns(third, third, third)",
        "query, key and value, stored inputs × outputs",
        {"holder": "Conv1D"},
    ),
    KnownParameter("Conv1D", "weight", "transposed", "Conv1D of transformers is stored inputs × outputs"),
    KnownParameter(
        "GPTBigCodeAttention",
        "c_attn.weight",
        "rows(embed_dim, kv_dim, kv_dim)",
        _GROUPED,
        {"multi_query": True, "is_cross_attention": False},
    ),
    KnownParameter(
        "GPTBigCodeAttention",
        "c_attn.weight",
        "interleaved_rows(3, head_dim)",
        _INTERLEAVED,
        {"multi_query": False, "is_cross_attention": False},
    ),
    KnownParameter("CausalSelfAttention", "c_attn.weight", _THREE, "query, key and value"),
    KnownParameter("Phi3Attention | Phi4MultimodalAttention", "qkv_proj.weight", "rows(q, kv, kv)", _GROUPED),
    KnownParameter("DbrxAttention", "Wqkv.weight", "rows(q, kv, kv)", _GROUPED),
    KnownParameter("ModernBertAttention | MptAttention", "Wqkv.weight", _THREE, "query, key and value"),
    KnownParameter(
        "GPTNeoXAttention | GPTNeoXJapaneseAttention | BloomAttention | PersimmonAttention",
        "query_key_value.weight",
        "interleaved_rows(3, head_dim)",
        _INTERLEAVED,
    ),
    KnownParameter("DisentangledSelfAttention", "in_proj.weight", "interleaved_rows(3, head_dim)", _INTERLEAVED),
    KnownParameter(
        "Qwen3NextAttention | Qwen3_5Attention | Qwen3_5MoeAttention | Qwen4ExpTextAttention",
        "q_proj.weight",
        "interleaved_rows(2, head_dim)",
        "query and the gate of the output interleaved, head by head",
    ),
    KnownParameter("MiniMaxLightningAttention", "qkv_proj.weight", "interleaved_rows(3, head_dim)", _INTERLEAVED),
    KnownParameter(
        "FalconAttention",
        "query_key_value.weight",
        "interleaved_rows(3, queries_per_key * head_dim, head_dim, head_dim)",
        "the queries of a group, its key and its value interleaved",
        {"new_decoder_architecture": True},
    ),
    KnownParameter(
        "FalconAttention",
        "query_key_value.weight",
        "rows(hidden_size, head_dim, head_dim)",
        "all queries, then the one key and the one value",
        {"multi_query": True},
    ),
    KnownParameter("FalconAttention", "query_key_value.weight", "interleaved_rows(3, head_dim)", _INTERLEAVED),
    KnownParameter("timm.models.tiny_vit.Attention", "qkv.weight", "interleaved_rows(3, key_dim)", _INTERLEAVED),
    KnownParameter(
        "timm.models.efficientformer.Attention | timm.models.levit.Attention",
        "qkv.weight | qkv.linear.weight",
        "interleaved_rows(3, key_dim, key_dim, val_dim)",
        _INTERLEAVED,
    ),
    KnownParameter(
        "timm.models.levit.AttentionDownsample",
        "kv.linear.weight",
        "interleaved_rows(2, key_dim, val_dim)",
        _KEYS_INTERLEAVED,
    ),
    KnownParameter(
        "LevitAttention",
        "queries_keys_values.linear.weight",
        "interleaved_rows(3, key_dim, key_dim, attention_ratio * key_dim)",
        _INTERLEAVED,
    ),
    KnownParameter(
        "LevitAttentionSubsample",
        "keys_values.linear.weight",
        "interleaved_rows(2, key_dim, attention_ratio * key_dim)",
        _KEYS_INTERLEAVED,
    ),
    KnownParameter(
        "CodeGenAttention",
        "qkv_proj.weight",
        "interleaved_rows(3, twelfth)",
        "query, value and key interleaved, a quarter of each at a time",
    ),
    # MaxViT, CoAtNet
    KnownParameter("AttentionCl", "qkv.weight", "interleaved_rows(3, head_dim)", _INTERLEAVED, {"head_first": True}),
    KnownParameter("Exaone4_5_VisionAttention", "qkv.weight", "rows(q_dim, kv_dim, kv_dim)", _GROUPED),
    KnownParameter(
        # transformers
        "BlipAttention | Blip2Attention | InstructBlip*Attention | *VisionAttention | Florence2Vision*Attention | "
        "HieraMaskUnitAttention | MgpstrAttention | SegGptAttention | TimesformerSelfAttention | VitDetAttention | "
        "Sam2MultiScaleAttention | "
        # timm
        "Attention | AttentionCl | AttentionRope | EvaAttention | WindowAttention | RelPosAttention | DiffAttention | "
        "ChannelAttention | ChannelAttentionV2 | CrossCovarianceAttn | FactorAttnConvRelPosEnc | LocallyGroupedAttn | "
        "MHSA | MaskUnitAttention | MultiScaleAttention | TalkingHeadAttn | WindowMultiHeadAttention | XCA",
        "qkv.weight",
        _THREE,
        "query, key and value",
    ),
    KnownParameter(
        "GraniteSpeech*Attention | EvollaSequenceCompressorAttention", "to_kv.weight", "rows(half, half)", _KEY_VALUE
    ),
    KnownParameter("JetMoeAttention", "kv_proj.weight", "rows(half, half)", _KEY_VALUE),
    KnownParameter(
        "timm.models.pvt_v2.Attention | GlobalSubSampleAttn | ClassAttention | AttentionPoolLatent",
        "kv.weight",
        "rows(half, half)",
        _KEY_VALUE,
    ),
    KnownParameter("timm.models.tnt.Attention | GPSA", "qk.weight", "rows(half, half)", "query, then key"),
    KnownParameter(
        _MLA,
        "kv_a_proj_with_mqa.weight",
        "rows(kv_lora_rank, qk_rope_head_dim)",
        "the compressed key and value, and the rotary key that all heads share",
    ),
    KnownParameter(
        _MLA,
        "kv_b_proj.weight",
        "interleaved_rows(2, qk_nope_head_dim, v_head_dim)",
        "key without rotation and value interleaved, head by head",
        {"has_kv_lora_rank": True},
    ),
)

FUSED_MLP = (
    KnownParameter(
        "Phi3MLP | Phi4Multimodal*MLP | GlmMLP | Glm4MLP | Glm4vTextMLP | GlmImageTextMLP | GlmOcrTextMLP | DiaMLP | "
        "MiniMaxM3VLDenseMLP | Dots3NoteAudioMLP | EsmFold2SwiGLU | Zamba2MLP",
        "gate_up_proj.weight",
        "rows(half, half)",
        "gate, then up",
    ),
    KnownParameter("ModernBert*MLP", "Wi.weight", "rows(half, half)", "input, then gate"),
    KnownParameter("GluMlp", "fc1.weight", "rows(half, half)", "two halves, one the gate of the other"),
    KnownParameter("Lfm*ShortConv", "in_proj.weight", _THREE, "two gates and the input of the convolution"),
)

STATE_SPACE = (
    KnownParameter("*Mixer | *MambaLayer", "A_log", "other", "logarithms of decay rates, one by one; not a linear map"),
    KnownParameter("*Mixer", "D", "other", "entrywise gains of the skip connection; not a linear map"),
    KnownParameter(
        "*Mixer",
        "dt_proj.weight | dt_proj_weight",
        "other",
        "sets step sizes behind a softplus; its initialization is scaled for that, and it has few columns",
    ),
    KnownParameter(
        "ZambaMambaMixer",
        "in_proj.weight",
        "interleaved_rows(2, 1)",
        "the sequence and its gate interleaved, one at a time",
    ),
    KnownParameter(
        "ZambaMambaMixer",
        "x_proj_weight",
        "batch rows(time_step_rank, ssm_state_size, ssm_state_size)",
        "step size, B and C, in a stack of heads",
    ),
    KnownParameter(
        "MambaMixer | FalconMambaMixer | JambaMambaMixer",
        "in_proj.weight",
        "rows(half, half)",
        "the sequence, then its gate",
    ),
    KnownParameter(
        "MambaMixer | FalconMambaMixer | JambaMambaMixer",
        "x_proj.weight",
        "rows(time_step_rank, ssm_state_size, ssm_state_size)",
        "step size, B and C",
    ),
    KnownParameter(
        "Mamba2Mixer | BambaMixer | FalconH1Mixer | NemotronHMamba2Mixer | Zamba2MambaMixer | "
        "GraniteMoeHybridMambaLayer",
        "in_proj.weight",
        "rows(intermediate_size, intermediate_size, n_groups * ssm_state_size, n_groups * ssm_state_size, num_heads)",
        "gate, sequence, B, C and step sizes",
    ),
)

DELTA_NET = (
    KnownParameter(
        "Qwen3_5GatedDeltaNet | Qwen3_5MoeGatedDeltaNet | Qwen4ExpTextGatedDeltaNet",
        "in_proj_qkv.weight",
        "rows(key_dim, key_dim, value_dim)",
        "query, key and value",
    ),
    KnownParameter(
        "Qwen3NextGatedDeltaNet",
        "in_proj_qkvz.weight",
        "interleaved_rows(4, head_k_dim, head_k_dim, values_per_key * head_v_dim, values_per_key * head_v_dim)",
        "query, key, value and gate interleaved, one head of the keys at a time",
    ),
    KnownParameter(
        "*GatedDeltaNet | *DeltaAttention",
        "in_proj_a.weight | in_proj_b.weight | in_proj_ba.weight | a_proj.weight | b_proj.weight",
        "other",
        "decay or step size of each head, behind a softplus or a sigmoid: its rows are read one by one",
    ),
)

STORED_INPUTS_FIRST = (
    KnownParameter(
        "Gemma3MultiModalProjector | T5Gemma2MultiModalProjector",
        "mm_input_projection_weight",
        "transposed",
        "from the images to the text, stored inputs × outputs",
    ),
    KnownParameter(
        "RecurrentGemmaRglru",
        "input_gate_weight | recurrent_gate_weight",
        "batch transposed",
        "a stack of blocks on a diagonal, stored inputs × outputs",
    ),
)

LORA = (
    KnownParameter("Module", "lora_A.*", "other", "LoRA: A stays near its random initialization; B carries the update"),
    KnownParameter(
        "ParamWrapper",
        "lora_B.*.weight",
        "interleaved_columns(num_experts, 1)",
        "LoRA: B carries the update; the columns of the experts are interleaved",
    ),
    KnownParameter("Module", "lora_B.*.weight", "flatten", "LoRA: B carries the update"),
    KnownParameter("Module", "lora_embedding_A.* | lora_embedding_B.*", "embedding", "LoRA of an embedding"),
    KnownParameter("Module", "lora_magnitude_vector.*", "vector", "DoRA: lengths of the columns or rows of a weight"),
)

KNOWN_PARAMETERS = (
    *LORA,
    *EXPERTS,
    *ROUTERS,
    *FUSED_ATTENTION,
    *FUSED_MLP,
    *STATE_SPACE,
    *DELTA_NET,
    *STORED_INPUTS_FIRST,
)
"""All rows; the first that matches decides."""

_ATTENTION = "*Attention* | *SelfAttn"

QUERIES = (
    KnownParameter(_MLA, "q_b_proj.weight", "row_heads(qk_head_dim)", "query by heads", {"has_kv_lora_rank": True}),
    KnownParameter(_MLA, "q_proj.weight", "row_heads(qk_head_dim)", "query by heads", {"has_kv_lora_rank": True}),
    KnownParameter(
        _ATTENTION,
        "q_proj.weight | query.weight | q.weight | q_lin.weight | wq.weight | q_proj_weight",
        "row_heads(head_dim)",
        "query by heads",
    ),
    KnownParameter(_ATTENTION, "q_attn.weight", "transposed column_heads(head_dim)", "query by heads"),
)
OUTPUT_PROJECTIONS = (
    KnownParameter(
        _MLA, "o_proj.weight", "column_heads(v_head_dim)", "output projection by heads", {"has_kv_lora_rank": True}
    ),
    KnownParameter(
        _ATTENTION,
        "c_proj.weight",
        "transposed row_heads(head_dim)",
        "output projection by heads",
        {"holder": "Conv1D"},
    ),
    KnownParameter(
        _ATTENTION,
        "o_proj.weight | out_proj.weight | o.weight | out_lin.weight | wo.weight | proj.weight | c_proj.weight | "
        "dense.weight",
        "column_heads(head_dim)",
        "output projection by heads",
    ),
    KnownParameter("*SelfOutput", "dense.weight", "column_heads(head_dim)", "output projection by heads"),
)
FUSED_BY_HEADS = (
    KnownParameter(
        "DisentangledSelfAttention", "in_proj.weight", "row_heads(head_dim)", "query, key and value by heads"
    ),
    KnownParameter(
        _ATTENTION,
        "c_attn.weight",
        "transposed column_heads(head_dim)",
        "query, key and value by heads",
        {"holder": "Conv1D"},
    ),
    KnownParameter(
        "timm.models.efficientformer.Attention",
        "qkv.weight",
        "row_heads(key_dim + key_dim + val_dim)",
        "by heads, the query, key and value of a head in one matrix, as their sizes differ",
    ),
    KnownParameter(
        _ATTENTION,
        "qkv.weight | qkv_proj.weight | query_key_value.weight | Wqkv.weight | c_attn.weight | in_proj_weight",
        "row_heads(head_dim)",
        "query, key and value by heads",
    ),
)
KEYS_VALUES = (
    KnownParameter(
        _MLA,
        "kv_b_proj.weight",
        "row_heads(v_head_dim)",
        "key without rotation and value by heads",
        {"has_kv_lora_rank": True, "key_as_long_as_value": True},
    ),
    KnownParameter(
        _MLA,
        "kv_b_proj.weight",
        "row_heads(qk_nope_head_dim + v_head_dim)",
        "by heads, the key and the value of a head in one matrix, as their sizes differ",
        {"has_kv_lora_rank": True},
    ),
    KnownParameter(
        _ATTENTION,
        "k_proj.weight | v_proj.weight | key.weight | value.weight | k.weight | v.weight | k_lin.weight | "
        "v_lin.weight | wk.weight | wv.weight | k_proj_weight | v_proj_weight",
        "row_heads(head_dim)",
        "key or value by heads",
    ),
)

BY_HEADS = (*OUTPUT_PROJECTIONS, *QUERIES, *FUSED_BY_HEADS, *KEYS_VALUES)
"""Projections of attention that ``split_params(heads=…)`` cuts; the first that exist tell the size of a head."""
