"""What the results page says of torch.optim.Muon and of Muon here, each cell found out by running both."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from muonlab import Muon

PAGE = (Path(__file__).parents[2] / "docs/results.md").read_text()
SIDES = {"muonlab": Muon.torch, "torch.optim.Muon": torch.optim.Muon}


def weight(*shape, dtype=torch.float32):
    return torch.nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype))


def stepped(build, p, grad, **options):
    """Return the optimizer after one step along ``grad``."""
    optimizer = build([p], **options)
    p.grad = grad
    optimizer.step()
    return optimizer


def accepts(action):
    try:
        action()
    except (TypeError, ValueError):
        return "refused"
    return "accepted"


def momentum_in_bfloat16(build):
    p = weight(4, 6, dtype=torch.bfloat16)
    grad = torch.randn(4, 6, generator=torch.Generator().manual_seed(1)).bfloat16()
    buffer = stepped(build, p, grad, nesterov=False).state[p]["momentum_buffer"]
    return "kept" if torch.allclose(buffer, torch.zeros_like(grad).lerp(grad, 0.05)) else "overwritten by the update"


def updates_by_scale(build):
    updates = []
    for scale in (1.0, 1e-10, 1e20):
        p = weight(8, 8)
        before = p.detach().clone()
        stepped(build, p, scale * torch.eye(8), lr=1.0, weight_decay=0.0)
        updates.append(before - p.detach())
    same = all(torch.allclose(update, updates[0], atol=1e-3) for update in updates[1:])
    return "the same update" if same else "another update"


def empty_parameter(build):
    try:
        stepped(build, weight(4, 0), torch.zeros(4, 0))
    except ZeroDivisionError:
        return "ZeroDivisionError"
    return "left alone"


def after_a_nan(build):
    outcomes = []
    for options in ({}, {"nonfinite": "raise"}, {"nonfinite": "skip"}):
        p = weight(4, 4)
        try:
            optimizer = stepped(build, p, torch.full((4, 4), math.nan), **options)
        except ValueError:
            outcomes.append("refused")
            continue
        except TypeError:
            break  # no such option
        p.data.fill_(1.0)
        p.grad = torch.ones(4, 4)
        optimizer.step()
        outcomes.append("NaN for good" if p.isnan().any() else "skipped")
    return ", ".join(outcomes) if len(outcomes) == 1 else f"{', '.join(outcomes[:-1])} or {outcomes[-1]}, as chosen"


def absurd_options(build):
    options = [{"momentum": 1.5}, {"lr": math.inf}, {"ns_steps": -1}]
    found = {accepts(lambda option=option: build([weight(4, 4)], **option)) for option in options}
    return found.pop() if len(found) == 1 else "some accepted"


def vector_in_a_new_group(build):
    optimizer = build([weight(4, 4)])
    return accepts(lambda: optimizer.add_param_group({"params": [weight(4)]}))


def state_of_other_shapes(build):
    other = stepped(build, weight(3, 5), torch.ones(3, 5))
    return accepts(lambda: build([weight(4, 4)]).load_state_dict(other.state_dict()))


def filters(build):
    return accepts(lambda: stepped(build, weight(4, 3, 3, 3), torch.ones(4, 3, 3, 3)))


def state_before_the_first_step(build):
    p = weight(4, 4)
    return "there" if "momentum_buffer" in build([p]).state[p] else "missing"


CLAIMS = {
    "momentum of bfloat16 weights without Nesterov": momentum_in_bfloat16,
    "gradient × 1e-10 or 1e20": updates_by_scale,
    "parameter of shape (4, 0)": empty_parameter,
    "after one NaN gradient": after_a_nan,
    "`momentum=1.5`, `lr=inf`, −1 steps": absurd_options,
    "vector in a new group": vector_in_a_new_group,
    "state dict of other shapes": state_of_other_shapes,
    "convolution filters": filters,
    "state before the first step": state_before_the_first_step,
}


def table():
    """Return the comparison of the page, row by row."""
    lines = PAGE.split("| what happens |")[1].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    return {
        row[0]: dict(zip(SIDES, row[1:], strict=True))
        for row in rows[: next(i for i, r in enumerate(rows) if r == [""])]
    }


def test_a_cell_of_the_table_says_what_happens():
    for side, build in SIDES.items():
        for claim, observe in CLAIMS.items():
            assert table()[claim][side] == observe(build), (claim, side)


def test_the_readme_claims_nothing_that_is_not_run():
    assert list(table()) == list(CLAIMS)
