"""Checks before a step is captured in a CUDA graph, which repeats its launches without the code of the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Never

from torch import Tensor

from muonlab.optim.layout import Layouts, LocalLayout
from muonlab.optim.options import named_params
from muonlab.optim.orthogonalizer import ExactPolar, from_plain


def check_capture(groups: Sequence[Mapping[str, Any]], layouts: Layouts) -> None:
    """Raise if a CUDA graph would not repeat the step of these parameter groups, whose options are checked."""
    for i, group in enumerate(groups):
        of_group = f"group {i} has"
        if not group["capturable"]:
            refuse_capture(f"{of_group} capturable=False", "pass capturable=True")
        if group["nonfinite"] == "raise":
            refuse_capture(f"{of_group} nonfinite='raise', which reads from the device", "pass nonfinite='skip'")
        reads = _reads(group)
        if reads:
            refuse_capture(f"{of_group} {reads}, which reads from the device", "use NewtonSchulz with another prescale")
        for name, p in named_params(group):
            if not isinstance(layouts.layout_of(p, name), LocalLayout):
                refuse_capture(f"{name} is shared by processes, which agree on every step", "step without a graph")
            lr = group["lr"]
            if not isinstance(lr, Tensor) or lr.device != p.device:
                got = f"lr on {lr.device}" if isinstance(lr, Tensor) else f"lr={lr}"
                refuse_capture(
                    f"{of_group} {got}, which the graph would keep as a constant",
                    f"pass lr=torch.tensor(0.02, device='{p.device}') and change it with lr.fill_()",
                )


def _reads(group: Mapping[str, Any]) -> str:
    """Return which part of the orthogonalization of a group reads from the device, or nothing."""
    if "orthogonalizer" not in group:
        return ""
    orthogonalizer = from_plain(group["orthogonalizer"])
    if isinstance(orthogonalizer, ExactPolar):
        return "orthogonalizer=ExactPolar()"
    return "prescale='spectral'" if getattr(orthogonalizer, "prescale", "") == "spectral" else ""


def refuse_capture(problem: str, way_out: str) -> Never:
    """Raise the error of a step that cannot be captured."""
    raise RuntimeError(f"a step in a CUDA graph must repeat without the host, but {problem}: {way_out}")
