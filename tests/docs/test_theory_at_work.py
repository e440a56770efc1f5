"""Every table of docs/theory/theory-at-work.md is made of results/theory_at_work.json."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SLACKS = {
    "one step; tracking at t = 1 or β = 0": ("one_step", "tracking"),
    "tracking at t > 1, β > 0": ("tracking, t > 1, beta > 0",),
    "sum over a run": ("pathwise",),
    "certificate of a run; paper and sharp bound, exact polar factor": ("run", "paper", "sharp"),
    "certificate of the gap of a run": ("run_gap",),
    "alignment theorem with the floor": ("floor",),
    "Theorems A to C; the gap of Theorem B": ("trajectory", "trajectory_gap"),
    "sharp SGD-M bound, root mean square; average": ("sgdm_L_F_rms", "sgdm_L_F"),
    "the paper's SGD-M bound, root mean square; average": ("sgdm_paper_rms", "sgdm_paper"),
}
OURS = ("corrected", "floor_corrected", "sgdm_L_F")
PAPERS = ("paper", "paper_after", "sgdm_paper")


@pytest.fixture(scope="module")
def report():
    return json.loads((ROOT / "results/theory_at_work.json").read_text())


@pytest.fixture(scope="module")
def page():
    return (ROOT / "docs/theory/theory-at-work.md").read_text()


def digits(x):
    """Three digits, and one where there is no more to say."""
    return "—" if x is None else f"{x:.3g}" if x < 1e3 else f"{x:.0e}".replace("e+0", "e").replace("e+", "e")


def signed(x):
    return f"{x:.2f}".replace("-0.00", "0.00").replace("-", "−")


def small(x):
    return "0" if abs(x) < 1e-13 else f"{x:.2g}".replace("e-0", "e-")


def assert_rows(page, rows):
    for cells in rows:
        assert f"| {' | '.join(cells)} |" in page, cells


def by(rows, *keys):
    return {tuple(row[key] for key in keys): row for row in rows}


def problem_name(row):
    return row["problem"].replace("_", " ") + (f", σ = {row['sigma']:g}" if row["sigma"] else "")


def test_nothing_is_violated_and_the_counts_are_those_of_the_result(report, page):
    assert f"**{report['runs']:,} seeded runs, {report['steps']:,} steps: nothing is violated.**" in page
    assert report["violated"] == 0
    for document in ("docs/log.md", "docs/paper/main.tex"):
        text = (ROOT / document).read_text()
        assert f"{report['runs']:,} seeded runs" in text, document
        assert f"{report['steps']:,} steps" in text, document
    slack = report["least_slack"]
    assert_rows(
        page, ([name, "; ".join(dict.fromkeys(small(slack[k]) for k in keys))] for name, keys in SLACKS.items())
    )


def test_the_averages_and_bounds_of_the_page_are_the_result(report, page):
    found = by(report["compared"], "method", "problem", "sigma")
    methods = dict.fromkeys(row["method"] for row in report["compared"] if "max prescale" not in row["method"])
    assert len(methods) == 12
    for method in methods:
        cells = []
        for problem in ("wells", "quadratic"):
            for sigma in (0.0, 2.0):
                row = found[method, problem, sigma]
                ratios = row["bound_over_measured"]
                own = next(ratios[name] for name in OURS if name in ratios)
                paper = next((ratios[name] for name in PAPERS if name in ratios), None)
                cells.append(f"{digits(row['measured'])}; {digits(own)}; {digits(paper)}")
        assert_rows(page, [[method, *cells]])


def test_the_slopes_of_the_page_are_the_result(report, page):
    for table, names in (("T", ("scaled_wells", "decaying")), ("r", ("scaled_wells", "bowl", "decaying", "ravine"))):
        slopes = by(report[f"growth_in_{table}"]["rows"], "method", "problem", "sigma")
        for method in {key[0] for key in slopes}:
            rows = [slopes[method, name, sigma] for sigma in (0.0, 1.0) for name in names]
            assert_rows(
                page, [[method, *(f"{signed(row['slope'])} ({signed(row['slope_of_bound'])})" for row in rows)]]
            )


def test_the_tables_of_canyon_and_of_decaying_rates_are_the_result(report, page):
    rows = by(report["canyon"]["rows"], "method", "lr_schedule")
    for method in {key[0] for key in rows}:
        cells = []
        for schedule in ("constant", "linear"):
            row = rows[method, schedule]
            cells += [*map(digits, row["measured"]), signed(row["slope"])]
        assert_rows(page, [[method, *cells]])
    rows = by(report["decaying_rates"], "problem", "method")
    for problem in {key[0] for key in rows}:
        chosen = [row for key, row in rows.items() if key[0] == problem]
        cells = [
            " → ".join(digits(row["measured"][kind]) for kind in ("constant", "linear", "cosine")) for row in chosen
        ]
        assert_rows(page, [[problem.replace("_", " "), *cells]])


def test_the_tables_of_muon_as_it_is_run_of_weight_decay_and_of_heavy_tails_are_the_result(report, page):
    rows = by(report["as_muon_is_run"], "problem", "method")
    for problem in {key[0] for key in rows}:
        chosen = [row for key, row in rows.items() if key[0] == problem]
        cells = [
            f"{digits(row['algorithm_1'])} → {digits(row['measured'])}; {digits(row['trajectory_over_measured'])}"
            for row in chosen
        ]
        assert_rows(page, [[problem_name(chosen[0]), *cells]])
    for row in report["weight_decay"]:
        gap, bound = (row[name].get("trajectory_gap") for name in ("gap", "gap_bound"))
        numbers = (row["measured"], gap, bound, row["trajectory_over_measured"])
        assert_rows(page, [[problem_name(row), f"{row['weight_decay']:g}", row["method"], *map(digits, numbers)]])
    for row in report["heavy_tails"]:
        numbers = (row["beta"], row["measured"], row["largest_average"], row["trajectory_over_measured"])
        assert_rows(page, [[problem_name(row), row["method"], *map(digits, numbers)]])


def test_the_tables_of_the_short_paper_are_the_results(report):
    paper = (ROOT / "docs/paper/main.tex").read_text()
    canyon = by(report["canyon"]["rows"], "method", "lr_schedule")
    names = {
        "sgdm_L_F": "SGD, tuned to $L_F$", "muon_q2": "quintic, 2 steps", "muon_q5": "quintic, 5 steps",
        "muon_svd": "exact polar factor", "polar_express": "Polar Express, 5 steps",
    }  # fmt: skip
    for method, name in names.items():
        row = canyon[method, "constant"]
        cells = [name, *(f"{x:.3f}" for x in row["measured"]), f"{row['slope']:.2f}"]
        assert " & ".join(cells) in paper, cells
    found = by(report["compared"], "method", "problem", "sigma")
    for method, name in {**names, "muon_q3": "quintic, 3 steps", "jordan": "Jordan, 5 steps"}.items():
        if method != "sgdm_L_F":
            for problem, sigma in (("wells", 0.0), ("quadratic", 0.0), ("wells", 2.0)):
                row = found[method, problem, sigma]
                ratio = next(row["bound_over_measured"][bound] for bound in OURS if bound in row["bound_over_measured"])
                line = next(
                    line for line in paper.splitlines() if line.startswith(f"{name} &") and line.count("&") == 9
                )
                assert f"{row['measured']:.2f} & {ratio:.2f}" in line, (method, problem)
    theorems = json.loads((ROOT / "results/trajectory.json").read_text())["theorems"]
    for document, mark in ((paper, " & "), ((ROOT / "docs/log.md").read_text(), " | ")):
        for name, kinds in theorems.items():
            title = "Corollary A1" if name == "A1" else f"Theorem {name}"
            row = next(line for line in document.splitlines() if line.lstrip("| ").startswith(title + mark))
            printed = [float(x) for x in row.strip("| \\").split(mark.strip())[1:] if x.strip()]
            assert printed == pytest.approx([kind["least"] for kind in kinds.values()], rel=0, abs=5e-3)
            assert all(kind["configurations"] >= 1000 and not kind["violations"] for kind in kinds.values())
