"""Finds the output layer of a network, with the reason."""

from __future__ import annotations

import difflib
import re
from collections import Counter

from torch import nn

HEAD_NAMES = re.compile(
    "(lm_|mlp_|cls_|dist_)?heads?|head_dist|(cls_|distillation_)?classifier|fc_out|embed_out|"
    "output(_layer|_projection)?|(to_)?logits|unembed"
)
"""Names of output layers for ``head="auto"``, outside numbered blocks and attention."""

TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, *TRANSPOSED)
_BLOCKS = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)


def find_heads(model: nn.Module, head: str | None) -> dict[nn.Module, str]:
    """Return the modules that are output layers, each with the reason."""
    if head is None:
        return {}
    if head == "auto":
        return _heads_by_name(model) or _head_by_order(model)
    modules = {path: at for path, at in model.named_modules(remove_duplicate=False) if _has_parameters(at)}
    if head not in modules:
        near = difflib.get_close_matches(str(head), modules)
        raise ValueError(
            f"head must be 'auto', None or the name of a module with parameters, got {head!r}: "
            f"did you mean {', '.join(map(repr, near)) or 'None'}?"
        )
    return dict.fromkeys(_output_layers(modules[head]), f"output layer: head={head!r}")


def _is_layer(module: nn.Module) -> bool:
    return isinstance(module, (nn.Linear, *CONVS))


def _has_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def _output_layers(module: nn.Module) -> list[nn.Module]:
    """Return the last layer of a container as a list, or everything in a module without layers of a known type.

    A ModuleList may hold several output layers: all of its layers that have as many outputs as the last.
    """
    last = list(filter(_is_layer, module.modules()))[-1:]
    if isinstance(module, nn.ModuleList) and last and last[0] in list(module):
        return [layer for layer in module if _outputs(layer) == _outputs(last[0])]
    return last or list(module.modules())


def _outputs(layer: nn.Module) -> object:
    return getattr(layer, "out_features", None) or getattr(layer, "out_channels", None)


def _heads_by_name(model: nn.Module) -> dict[nn.Module, str]:
    """Return the output layers by name: only those nearest to the root, since a head inside a block is none."""
    found: dict[int, dict[nn.Module, str]] = {}
    for path, module in model.named_modules():
        *above, last = path.split(".")
        in_block = any(part.isdigit() or re.search("attn|attention", part, re.IGNORECASE) for part in above)
        # A name without parameters is a placeholder: nn.Identity() where a backbone had its head.
        if HEAD_NAMES.fullmatch(last) and not in_block and _has_parameters(module):
            level = found.setdefault(len(above), {})
            level |= dict.fromkeys(_output_layers(module), f"output layer: named {path!r}")
    return found[min(found)] if found else {}


def _head_by_order(model: nn.Module) -> dict[nn.Module, str]:
    """Return the last linear layer outside blocks: a backbone may end in a block and have no output layer at all."""
    layers = {path: layer for path, layer in model.named_modules() if _is_layer(layer)}
    inside = {layer for block in model.modules() if isinstance(block, _BLOCKS) for layer in block.modules()}
    # The same layer below two parents that differ by a number: blocks.0.mlp.2 and blocks.1.mlp.2.
    twins = {path: (re.sub(r"(?<![^.])\d+(?=\.)", "#", path), at.extra_repr()) for path, at in layers.items()}
    repeats = Counter(twins.values())
    linear = [path for path, layer in layers.items() if isinstance(layer, nn.Linear)]
    for path in reversed(linear or list(layers)[-1:]):
        if layers[path] not in inside and repeats[twins[path]] == 1:
            kind = "Linear outside repeated blocks" if linear else "convolution, as there is no Linear"
            return {layers[path]: f"taken for the output layer: last {kind}"}
    return {}
