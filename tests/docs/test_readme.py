from __future__ import annotations

import json
import re
import subprocess
import tomllib
from collections import Counter
from pathlib import Path

from muonlab.lab.studies import studies

ROOT = Path(__file__).parents[2]


def tracked() -> list[str]:
    """Return the files of the repository, or of the folder when it is not one."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    names = listed.stdout.split() if listed.returncode == 0 else [str(p.relative_to(ROOT)) for p in ROOT.rglob("*")]
    return [name for name in names if (ROOT / name).is_file()]


def listed() -> list[str]:
    """Return the .py files of the first code block after the heading "## Files" of the architecture page."""
    page = (ROOT / "docs/architecture.md").read_text()
    block = re.split(r"^## Files$", page, flags=re.M)[1].split("```")[1]
    return re.findall(r"[\w.-]+\.py\b", block)


def test_the_architecture_page_lists_every_source_file_and_none_that_is_gone():
    rooms = ("src", "benchmarks", "examples")
    sources = [Path(name) for name in tracked() if name.endswith(".py")]
    expected = [path.name for path in sources if path.parts[0] in rooms and path.name != "__init__.py"]
    missing = [name for name, count in Counter(expected).items() if listed().count(name) < count]
    assert not missing, f"docs/architecture.md does not list {missing}"
    gone = set(listed()) - {path.name for path in sources}
    assert not gone, f"docs/architecture.md lists {gone}, which the repository does not have"


def results_page() -> str:
    return (ROOT / "docs/results.md").read_text()


def test_the_readme_takes_two_minutes_and_its_tables_are_rows_of_the_results_page():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 150
    rows = [line for line in lines if line.startswith("| ") and "|---" not in line]
    assert len(rows) > 8
    missing = [row for row in rows if row not in results_page().splitlines()]
    assert not missing, f"docs/results.md does not have {missing}"


def test_the_table_on_digits_is_the_committed_result():
    contests = json.loads((ROOT / "results/digits.json").read_text())["contests"]
    page = results_page()
    rows = {c["steps"]: c["rows"] for c in contests}
    for name in ("muon", "sgdm", "sgdm nesterov", "adamw", "muon + adamw", "sgdm + adamw"):
        cells = [
            f"{row['test_loss']['mean']:.3f} ± {row['test_loss']['std']:.3f} ({row['test_accuracy']['mean']:.1%})"
            for row in (rows[75][name], rows[300][name])
        ]
        assert f"| {' | '.join(cells)} |" in page, name


def test_the_table_of_steps_is_the_committed_result():
    report = json.loads((ROOT / "results/step.json").read_text())
    page = results_page()
    for peer in ("torch.optim.Muon, float32", "optimuon, float32, Gram", "optimuon, float32"):
        cells = [
            f"{row['speedup_over'][peer]:.2f} ({row['speedup_over, accuracy half'][peer]:.2f})"
            for row in report["steps"]
        ]
        assert f"| {' | '.join(cells)} |" in page, peer
    slow = report["slow_peers"]
    for peer, factor in slow["speedup_over"].items():
        assert f"{peer} {factor:.0f} ({slow['speedup_over, accuracy half'][peer]:.0f})" in page


def test_the_cost_of_recording_is_the_committed_result():
    page = results_page()
    tasks = json.loads((ROOT / "results/recorder.json").read_text())["tasks"]
    mlp, gpt = (task["overhead_at_the_default_cadence"]["median"] for task in tasks)
    assert f"It costs {mlp:.1%}".replace("%", " %") + " of the time of an MLP on MNIST" in page
    assert f"and {gpt:.1%}".replace("%", " %") + " of a small GPT's" in page


def test_the_speed_of_orthogonalization_and_of_two_ranks_is_the_committed_result():
    page = results_page()
    for row in json.loads((ROOT / "results/orthogonalize.json").read_text())["speed"]:
        m, n = row["shape"]
        assert f"| {m}×{n} | {row['speedup']:.2f} |" in page, row["shape"]
    sides = json.loads((ROOT / "results/distributed.json").read_text())["steps"][1]["sides"]
    copies, shards = (sides[side]["speedup_over_everything"] for side in ("replicated", "sharded"))
    assert f"{copies:.2f} times as fast" in page.replace("\n", " ")
    assert f"{shards:.2f} times with shards" in page.replace("\n", " ")


def rows_between(page: Path, mark: str) -> list[list[str]]:
    """Return the cells of the table between two comments of a page, without its header."""
    text = page.read_text().split(f"<!-- {mark} -->")[1].split(f"<!-- /{mark} -->")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_recommended_pairs_are_those_that_the_committed_programs_found():
    rows = rows_between(ROOT / "docs/guides/learning-rates.md", "pairs")
    assert [row[4] for row in rows] == ["0.003, fixed"] * 3
    contests = json.loads((ROOT / "results/digits.json").read_text())["contests"]
    for row, contest in zip(rows, contests, strict=False):
        assert row[1] == str(contest["steps"])
        found = contest["rows"]["muon + adamw"]
        assert "lr 0.003" in found["what"]
        assert float(row[3].split()[0]) == found["lr"]
    heads = json.loads((ROOT / "results/heads.json").read_text())
    assert float(rows[2][3]) == heads["ways"]["three matrices"]["best_lr"]
    assert rows[2][1] == str(heads["steps"])
    assert f"{heads['rates'][0]} to {heads['rates'][-1]}, {len(heads['rates'])} values" == rows[2][2]
    losses = [f"{heads['ways'][way]['loss']:.3f}" for way in ("three matrices", "one matrix")]
    guide = (ROOT / "docs/guides/parameters.md").read_text()
    assert all(loss in guide for loss in losses)


def test_the_grids_of_learning_rates_are_the_committed_result_and_say_what_the_page_says():
    page = ROOT / "docs/guides/learning-rates.md"
    for task in json.loads((ROOT / "results/learning_rates.json").read_text())["tasks"]:
        own, same, adamw = ({(c["lr"], c["aux_lr"]): c["mean"] for c in way["grid"]} for way in task["ways"].values())
        *muon, last_but_one, last = [row[1:] for row in rows_between(page, task["task"])]
        rates = sorted({aux for _, aux in own})
        for row, lr in zip(muon, sorted({lr for lr, _ in own}), strict=True):
            assert row == [f"{own[lr, aux]:.3f}" for aux in rates]
        assert last_but_one == [f"{same[aux, aux]:.3f}" for aux in rates]
        assert last == [f"{adamw[aux, aux]:.3f}" for aux in rates]
        assert own[0.02, 0.003] < min(adamw.values())
        assert own[0.02, 0.0003] > own[0.02, 0.001] > own[0.02, 0.003]
        if task["task"] == "digits-mlp":
            assert all(same[aux, aux] > adamw[aux, aux] for aux in (0.001, 0.003))
            assert same[0.01, 0.01] < adamw[0.01, 0.01]


def test_the_minutes_of_the_studies_are_those_of_the_queue():
    runs = tomllib.loads((ROOT / "results/queue.toml").read_text())["run"]
    minutes = {(run["study"], run["profile"]): run["cell_minutes"] for run in runs}
    rows = rows_between(ROOT / "docs/guides/studies.md", "minutes")
    assert [row[0].strip("`") for row in rows] == list(studies())
    for (name, cell, total), study in zip(rows, studies().values(), strict=True):
        profile = "paper" if "paper" in cell else "small"
        assert float(cell.split()[0]) == minutes[study.name, profile], name
        expected = minutes[study.name, profile] * len(study.cells(profile))
        assert abs(float(total.split()[0]) - expected) <= 0.5, name


def test_costs_in_the_guides_are_the_committed_results():
    tasks = json.loads((ROOT / "results/autosteps.json").read_text())["tasks"]
    shares = [f"{task['ways']['Polar Express, 5 (default)']['muon_share_of_time']:.0%}" for task in tasks]
    rows = rows_between(ROOT / "docs/guides/muon.md", "share of time")
    assert [row[2].replace(" ", "") for row in rows] == shares
    names = ("quintic, q = 5", "Polar Express, 5 (default)", "Polar Express, AutoSteps 0.95",
             "Polar Express for [0.01, 1], AutoSteps 0.9")  # fmt: skip
    found = [tasks[1]["ways"][name] for name in names]
    rows = rows_between(ROOT / "docs/guides/planning.md", "autosteps")
    assert [row[1:] for row in rows] == [
        [f"{way['flops_over_q5']:.2f}", f"{way['train_loss']['mean']:.3f}"] for way in found
    ]
    planner = json.loads((ROOT / "results/planner.json").read_text())
    assert planner  # the sentence on its errors is in docs/log.md, too
