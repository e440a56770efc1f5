from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
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
