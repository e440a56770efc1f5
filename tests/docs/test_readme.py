from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def tracked() -> list[str]:
    """Return the files of the repository, or of the folder when it is not one."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    names = listed.stdout.split() if listed.returncode == 0 else [str(p.relative_to(ROOT)) for p in ROOT.rglob("*")]
    return [name for name in names if (ROOT / name).is_file()]


def tree() -> str:
    readme = (ROOT / "README.md").read_text()
    return readme.split("## The tree")[1].split("```")[1]


def test_the_tree_has_a_line_for_every_source_file():
    text = tree()
    for name in tracked():
        path = Path(name)
        if path.parts[0] in ("src", "benchmarks", "examples") and path.suffix == ".py":
            if path.name == "__init__.py" and path.parent.name != "muonlab":
                continue
            assert re.search(rf"\b{re.escape(path.name)} ", text), f"{name} is not in the README's tree"


def test_the_tree_names_no_file_that_is_gone():
    names = {Path(name).name for name in tracked()}
    for name in re.findall(r"[\w.-]+\.(?:py|md|toml|lock|cff|json)\b", tree()):
        assert name in names, f"{name} is in the README's tree but not in the repository"


def test_the_example_is_ten_lines():
    readme = (ROOT / "README.md").read_text()
    example = readme.split("## Ten lines")[1].split("```")[1]
    assert len(re.findall(r"^>>> ", example, flags=re.M)) == 10


def test_nothing_is_too_long_to_read():
    for name in tracked():
        if name.startswith("src/") and name.endswith(".py"):
            assert len((ROOT / name).read_text().splitlines()) <= 330, f"{name} does more than one thing"


def test_the_table_on_digits_is_the_committed_result():
    contests = json.loads((ROOT / "results/digits.json").read_text())["contests"]
    readme = (ROOT / "README.md").read_text()
    rows = {c["steps"]: c["rows"] for c in contests}
    for name in ("muon", "sgdm", "sgdm nesterov", "adamw", "muon + adamw", "sgdm + adamw"):
        cells = [
            f"{row['test_loss']['mean']:.3f} ± {row['test_loss']['std']:.3f} ({row['test_accuracy']['mean']:.1%})"
            for row in (rows[75][name], rows[300][name])
        ]
        assert f"| {' | '.join(cells)} |" in readme, name


def test_the_table_of_steps_is_the_committed_result():
    report = json.loads((ROOT / "results/step.json").read_text())
    readme = (ROOT / "README.md").read_text()
    for peer in ("torch.optim.Muon, float32", "optimuon, float32, Gram", "optimuon, float32"):
        cells = [
            f"{row['speedup_over'][peer]:.2f} ({row['speedup_over, accuracy half'][peer]:.2f})"
            for row in report["steps"]
        ]
        assert f"| {' | '.join(cells)} |" in readme, peer
    slow = report["slow_peers"]
    for peer, factor in slow["speedup_over"].items():
        assert f"{peer} {factor:.0f} ({slow['speedup_over, accuracy half'][peer]:.0f})" in readme


def test_the_cost_of_recording_is_the_committed_result():
    readme = (ROOT / "README.md").read_text()
    tasks = json.loads((ROOT / "results/recorder.json").read_text())["tasks"]
    mlp, gpt = (task["overhead_at_the_default_cadence"]["median"] for task in tasks)
    assert f"It costs {mlp:.1%}".replace("%", " %") + " of the time of an MLP on MNIST" in readme
    assert f"and {gpt:.1%}".replace("%", " %") + " of a small GPT's" in readme
