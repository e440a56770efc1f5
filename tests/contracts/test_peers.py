"""PEERS.md is complete, and every test that it names is there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = Path(__file__).with_name("PEERS.md")
NAMED = re.compile(r"`([^`]+\.py)::(\w+)`")

ITEMS = {
    "Defects of torch.optim.Muon 2.13": (
        "bfloat16 aliasing", "small gradients", "large gradients", "shape (4, 0)", "one NaN gradient", "eps < 0",
        "lr = inf", "momentum = 1.5", "ns_steps = -1", "vectors through add_param_group", "state dict of other shapes",
        "FSDP2 collectives", "FSDP2 error", "FSDP2 empty shard",
    ),
    "Public trackers": (
        "pytorch#166209", "KellerJordan/Muon PR60", "pytorch#160213", "pytorch#146508", "Emerging-Optimizers#229",
        "dion#24", "KellerJordan/Muon#36", "NorMuon#3", "KellerJordan/Muon#24", "modded-nanogpt#99", "dion#74",
        "dion#83", "DeepSpeed#7746", "DeepSpeed#8432", "DeepSpeed#8441", "DeepSpeed#8438", "DeepSpeed#8440",
        "Megatron-LM#4641", "Megatron-LM#6326", "Moonlight#42", "KellerJordan/Muon#52", "pytorch PR179273",
        "pytorch#195566", "KellerJordan/Muon#40", "optax#1565", "Moonlight#22",
    ),
    "PyTorch's TestOptimRenewed": (
        "test_optim_infos_do_not_specify_global_cliquey_kwargs", "test_errors", "test_forloop_goes_right_direction",
        "test_forloop_goes_right_direction_multigpu", "test_param_group_with_lrscheduler_goes_right_direction",
        "test_tensor_lr", "test_rosenbrock_sparse", "test_complex", "test_complex_2d", "test_foreach_matches_forloop",
        "test_mixed_device_dtype", "test_set_default_dtype_works_with_foreach", "test_foreach_large_tensor",
        "test_peak_memory_foreach", "test_fused_matches_forloop", "test_fused_error_on_params_on_meta",
        "test_fused_large_tensor", "test_fused_does_not_step_if_foundinf", "test_cpu_load_state_dict",
        "test_param_groups_weight_decay", "test_param_groups_lr", "test_step_is_noop_when_params_have_no_grad",
        "test_step_is_noop_for_zero_grads", "test_optimizer_can_be_printed", "test_state_dict_deterministic",
        "test_can_load_older_state_dict", "test_can_load_from_to_named_state_dict",
        "test_save_load_equality_with_weights_only", "test_load_nontensor_step", "test_state_dict_with_cuda_params",
        "test_state_dict_pre_hook", "test_state_dict_post_hook", "test_state_dict_pre_post_hook",
        "test_load_state_dict_pre_hook_and_prepend", "test_load_state_dict_post_hook",
        "test_load_state_dict_pre_post_hook", "test_step_post_hook", "test_step_pre_hook", "test_step_all_hooks",
        "test_deepcopy_copies_all_public_attrs", "pickle", "test_second_order_optims_return_consistent_types",
        "test_fused_cpu_matches_cuda", "test_defaults_changed_to_foreach", "test_non_empty_state",
    ),
    "Tests of other packages": (
        "Emerging-Optimizers: naive twin", "Emerging-Optimizers: odd shapes", "Emerging-Optimizers: three dimensions",
        "Emerging-Optimizers: input × 1e-30", "Emerging-Optimizers: no orthogonalization",
        "Emerging-Optimizers: EMA and SGD", "dion: determinism", "dion: split sizes",
        "dion: parameters without gradient", "dion: empty shards", "optax: twenty steps", "optax: twice the identity",
        "optax: prescales", "gram-newton-schulz: stress",
    ),
}  # fmt: skip


def tables(text: str) -> dict[str, list[tuple[str, str, str]]]:
    """Return the rows of each section, as (item, what, here)."""
    found: dict[str, list[tuple[str, str, str]]] = {}
    section = ""
    for line in text.splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
            found[section] = []
        elif line.startswith("|") and not line.startswith(("|---", "| item |")):
            item, what, here = (cell.strip() for cell in line.strip("|").split("|"))
            found[section].append((item, what, here))
    return found


@cache
def functions_in(path: str) -> dict[str, tuple[str, ...]]:
    """Return the functions of a file with their decorators."""
    tree = ast.parse((ROOT / path).read_text())
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return {node.name: tuple(map(ast.unparse, node.decorator_list)) for node in functions}


def fault(here: str) -> str | None:
    """Say what is wrong with the last cell of a row, if anything."""
    named = NAMED.findall(here)
    if here.startswith("reason: "):
        if len(here) < len("reason: ") + 15:
            return "the reason says nothing"
    elif not named or NAMED.sub("", here).strip(", "):
        return "neither tests nor a reason"
    for path, name in named:
        if not (ROOT / path).is_file():
            return f"no file {path}"
        if not name.startswith("test_") or name not in functions_in(path):
            return f"no test {name} in {path}"
    return None


ROWS = tables(PAGE.read_text())


@pytest.mark.parametrize("section", ITEMS)
def test_every_item_has_one_row(section):
    assert list(ROWS) == list(ITEMS)
    assert [item for item, _, _ in ROWS[section]] == list(ITEMS[section])


@pytest.mark.parametrize("row", [row for rows in ROWS.values() for row in rows], ids=lambda row: row[0])
def test_a_row_names_tests_that_exist_or_a_reason(row):
    item, what, here = row
    assert what
    assert fault(here) is None, f"{item}: {fault(here)}"


@pytest.mark.parametrize(
    ("here", "message"),
    [
        ("", "neither tests nor a reason"),
        ("reason: later", "the reason says nothing"),
        ("reason: refused, see `tests/optim/test_muon.py::test_gone`", "no test test_gone in"),
        ("`tests/optim/test_muon.py`", "neither tests nor a reason"),
        ("`tests/optim/test_moon.py::test_it`", "no file tests/optim/test_moon.py"),
        ("`tests/optim/test_muon.py::test_that_is_not_there`", "no test test_that_is_not_there in"),
        ("`tests/optim/test_muon.py::parameters`", "no test parameters in"),
    ],
)
def test_a_row_that_names_nothing_is_found_out(here, message):
    assert message in (fault(here) or "")


def test_no_test_that_is_named_is_skipped_or_expected_to_fail():
    for path, name in sorted(set(NAMED.findall(PAGE.read_text()))):
        decorators = functions_in(path).get(name, ())
        assert not any(re.search(r"mark\.(skip|xfail)\b", decorator) for decorator in decorators), f"{path}::{name}"
