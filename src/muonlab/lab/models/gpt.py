"""GPT-2 at the paper's two sizes and at small ones (Kim & Oh 2026, Appendix G)."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from muonlab import _checks
from muonlab.lab.models.registry import Model, register
from muonlab.optim.split import SplitRule

VOCABULARY = 50_257
BLOCK = 1024


class GPT(nn.Module):
    """The transformer of GPT-2 (Radford et al. 2019), its head tied to the token embedding (Kim & Oh 2026, Appendix G).

    The paper gives 124.2M and 1313.63M parameters; what it lists has 124,439,808 and 1,313,626,112, biases included.
    Left open there: no dropout is used, GELU is the tanh form of GPT-2, and the weights start as in GPT-2.

    Args:
        block: the longest sequence.
        vocabulary: number of tokens.
        layers: transformer blocks.
        heads: attention heads of each block; they divide ``width``.
        width: dimension of the token vectors.
    """

    def __init__(
        self,
        block: int = BLOCK,
        vocabulary: int = VOCABULARY,
        *,
        layers: int = 12,
        heads: int = 12,
        width: int = 768,
    ) -> None:
        super().__init__()
        layers = _checks.integer("layers", layers, at_least=1)
        width = _checks.integer("width", width, at_least=1)
        if width % _checks.integer("heads", heads, at_least=1):
            raise ValueError(f"heads must divide width {width}, got {heads}: pass a divisor of {width}")
        self.block, self.width = block, width
        self.token_embedding = nn.Embedding(vocabulary, width)
        self.position_embedding = nn.Embedding(block, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.ndim == 2:
                # 2·layers projections add to the residual stream; scaled so, its variance does not grow with depth.
                adds = name.endswith(("attention.project.weight", "contract.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * layers) if adds else 0.02)

    @property
    def matrix_rules(self) -> dict[str, SplitRule]:
        """Rules for ``split_params(rules=…)``: the query, key and value matrices are one parameter."""
        # The second rule: in a model with a single block, its last linear layer would be taken for a head.
        return {"blocks.*.attention.qkv.weight": (self.width,) * 3, "blocks.*.contract.weight": "flatten"}

    def forward(self, tokens: Tensor) -> Tensor:  # (b, t) int64 → (b, t, vocabulary)
        """Return, at every position, the logits of the token that follows."""
        if tokens.shape[-1] > self.block:
            raise ValueError(
                f"a sequence must have at most {self.block} tokens, got {tokens.shape[-1]}: cut it, or build with a "
                f"longer shape"
            )
        positions = torch.arange(tokens.shape[-1], device=tokens.device)
        x = self.token_embedding(tokens) + self.position_embedding(positions)
        for block in self.blocks:
            x = block(x)
        return functional.linear(self.norm(x), self.token_embedding.weight)


class Block(nn.Module):
    """LayerNorm and attention, then LayerNorm and a four times wider layer with GELU, each added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = CausalAttention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:  # (b, t, width) → (b, t, width)
        """Return the block's vectors."""
        x = x + self.attention(self.norm1(x))
        added: Tensor = self.contract(functional.gelu(self.expand(self.norm2(x)), approximate="tanh"))
        return x + added


class CausalAttention(nn.Module):
    """Attention over the tokens so far; the rows of ``qkv`` are those of the query, key and value matrices."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:  # (b, t, width) → (b, t, width)
        """Return the attention output for each token."""
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        gathered = functional.scaled_dot_product_attention(q, k, v, is_causal=True)  # (b, heads, t, width / heads)
        projected: Tensor = self.project(gathered.transpose(1, 2).flatten(2))
        return projected


def _build(shape: tuple[int, ...], classes: int, *, layers: int = 12, heads: int = 12, width: int = 768) -> nn.Module:
    return GPT(shape[0], classes, layers=layers, heads=heads, width=width)


register(Model(
    "gpt-124m", _build, shape=(BLOCK,), classes=VOCABULARY, parameters=124_439_808,
    source="Kim & Oh 2026, Appendix G; Radford et al. 2019",
))  # fmt: skip
register(Model(
    "gpt-1.3b", partial(_build, layers=24, heads=16, width=2048), shape=(BLOCK,), classes=VOCABULARY,
    parameters=1_313_626_112, source="Kim & Oh 2026, Appendix G; Radford et al. 2019",
))  # fmt: skip
register(Model(
    "gpt-small", partial(_build, layers=4, heads=4, width=128), shape=(BLOCK,), classes=VOCABULARY,
    parameters=7_357_312, source="muonlab: GPT-2 with 4 blocks of width 128",
))  # fmt: skip
register(Model(
    "gpt-smoke", partial(_build, layers=2, heads=2, width=32), shape=(BLOCK,), classes=VOCABULARY, parameters=1_666_464,
    source="muonlab: GPT-2 with 2 blocks of width 32",
))  # fmt: skip
