from __future__ import annotations

import math

import pytest
import torch

import muonlab
from muonlab.lab.models import build, models


@pytest.fixture
def network():
    torch.manual_seed(0)
    return build("gpt-smoke", shape=(12,), classes=50)


@pytest.mark.parametrize(
    ("name", "layers", "width"),
    [("gpt-124m", 12, 768), ("gpt-1.3b", 24, 2048), ("gpt-small", 4, 128), ("gpt-smoke", 2, 32)],
)
def test_the_declared_count_is_that_of_the_description(name, layers, width):
    attention = 3 * width * width + 3 * width + width * width + width
    wide = 4 * width * width + 4 * width + 4 * width * width + width
    blocks = layers * (attention + wide + 2 * 2 * width)
    assert models()[name].parameters == (50_257 + 1024) * width + blocks + 2 * width


def test_a_token_changes_no_logits_before_it(network):
    tokens = torch.randint(50, (3, 12))
    for t in (0, 5, 11):
        other = tokens.clone()
        other[:, t] = (other[:, t] + 1) % 50
        before, after = network(tokens), network(other)
        assert torch.allclose(before[:, :t], after[:, :t], atol=1e-6, rtol=0)
        assert ((before - after).abs().amax(dim=(0, 2))[t:] > 1e-4).all()


def test_attention_is_softmax_over_the_tokens_so_far(network):
    layer, x = network.blocks[0].attention, torch.randn(2, 7, 32)
    q, k, v = (x @ layer.qkv.weight.T + layer.qkv.bias).split(32, dim=-1)
    gathered = torch.zeros(2, 7, 32)
    for head in (slice(0, 16), slice(16, 32)):
        for t in range(7):
            scores = (k[:, : t + 1, head] @ q[:, t, head, None])[..., 0] / math.sqrt(16)
            gathered[:, t, head] = (scores.softmax(dim=-1)[..., None] * v[:, : t + 1, head]).sum(dim=1)
    expected = gathered @ layer.project.weight.T + layer.project.bias
    assert torch.allclose(layer(x), expected, atol=1e-6, rtol=1e-5)


def test_a_block_adds_attention_and_then_a_wide_layer_with_the_gelu_of_gpt_2(network):
    block, x = network.blocks[0], torch.randn(2, 7, 32)

    def normed(y):
        return (y - y.mean(-1, keepdim=True)) / (y.var(-1, keepdim=True, correction=0) + 1e-5).sqrt()

    middle = x + block.attention(normed(x))
    wide = 100 * normed(middle) @ block.expand.weight.T
    gelu = 0.5 * wide * (1 + torch.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)))
    with torch.no_grad():
        block.norm2.weight.fill_(100)  # larger than at the start, where both forms of GELU agree
    assert torch.allclose(block(x), middle + gelu @ block.contract.weight.T, atol=1e-5, rtol=1e-5)


def test_the_head_is_the_token_embedding(network):
    tokens = torch.zeros(1, 4, dtype=torch.long)
    before = network(tokens)
    with torch.no_grad():
        network.token_embedding.weight[7] = 0  # a token that is not among the inputs
    after = network(tokens)
    assert torch.equal(after[..., 7], torch.zeros(1, 4))
    assert torch.equal(after[..., :7], before[..., :7])


def test_weights_start_as_in_gpt_2():
    torch.manual_seed(0)
    for name, parameter in build("gpt-small").named_parameters():
        if name.endswith("bias"):
            assert not parameter.any(), name
        elif "norm" in name:
            assert torch.equal(parameter, torch.ones_like(parameter)), name
        else:
            adds = name.endswith(("project.weight", "contract.weight"))
            assert parameter.std().item() == pytest.approx(0.02 / math.sqrt(8) if adds else 0.02, rel=0.03), name


@pytest.mark.parametrize("layers", [1, 2])
def test_muon_gets_query_key_and_value_as_three_matrices_and_no_embedding(layers):
    network = build("gpt-smoke", layers=layers)
    rows = {row.name: row for row in muonlab.split_params(network, rules=network.matrix_rules).table}
    for block in range(layers):
        views = {
            "attention.qkv": "rows(32, 32, 32)",
            "attention.project": "flatten",
            "expand": "flatten",
            "contract": "flatten",
        }
        for name, view in views.items():
            assert rows.pop(f"blocks.{block}.{name}.weight").matrix_view == view
    assert {row.goes_to for row in rows.values()} == {"auxiliary"}
    assert rows["token_embedding.weight"].role == rows["position_embedding.weight"].role == "embedding"


def test_bad_options_and_sequences_are_refused_in_one_line(network):
    with pytest.raises(ValueError, match=r"^heads must divide width 32, got 5: pass a divisor of 32$"):
        build("gpt-smoke", heads=5)
    with pytest.raises(ValueError, match=r"^layers must be at least 1, got 0: pass 1 or more$"):
        build("gpt-smoke", layers=0)
    with pytest.raises(ValueError, match=r"^a sequence must have at most 12 tokens, got 13: cut it, or build"):
        network(torch.zeros(1, 13, dtype=torch.long))
