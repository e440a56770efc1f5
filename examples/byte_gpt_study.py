"""A byte-level GPT on web text with AdamW, SGD-M and two Muons, learning rates from one grid: a study of your own."""
# muonlab run examples/byte_gpt_study.py --data DIR, with a folder DIR/web-text; see docs/guides/own-study.md

import torch
from pyarrow import parquet
from torch import nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from muonlab import Muon
from muonlab.lab import Spec, Study, dataset, model, optimizer


class Block(nn.Module):
    """Attention and two layers, each after a norm and with a residual."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.out(scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """A small GPT on bytes, its output layer tied to the embedding."""

    def __init__(self, layers=4, width=128, heads=4, block=64):
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, width), nn.Embedding(block, width)
        self.blocks, self.norm = nn.Sequential(*(Block(width, heads) for _ in range(layers))), nn.LayerNorm(width)
        self.matrix_rules = {"blocks.*.qkv.weight": (width,) * 3}  # queries, keys and values are three matrices
        for table in (self.tokens, self.places):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, x):
        h = self.tokens(x) + self.places(torch.arange(x.shape[1], device=x.device))
        return self.norm(self.blocks(h)) @ self.tokens.weight.T


def web_bytes(folder):
    texts = parquet.read_table(folder / "web-text", columns=["text"])["text"].to_pylist()
    parts = texts[: len(texts) * 9 // 10], texts[len(texts) * 9 // 10 :]  # the last tenth is for testing
    return tuple(torch.frombuffer(bytearray("\n".join(part).encode()), dtype=torch.uint8) for part in parts)


rest = optimizer("AdamW", lr=0.003)  # of embeddings and norms, under each Muon
MUONS = {"Muon": optimizer(Muon, rest=rest), "Muon.moonlight": optimizer(Muon.moonlight, rest=rest)}
STUDY = Study(
    "byte-gpt",
    Spec(model=model(GPT), dataset=dataset(web_bytes), block=64, batch_size=16, steps=1_500, evaluate_every=500,
         validation=50_000, test=50_000),
    {"optimizer": {"AdamW": "AdamW", "SGD-M": optimizer("SGD", momentum=0.95, nesterov=True), **MUONS},
     "lr": (0.0005, 0.002, 0.008, 0.032, 0.128, 0.512)},
    seeds=3, title="A byte-level GPT on web text",
)  # fmt: skip
