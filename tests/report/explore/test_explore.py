"""The explorer without a browser: its data are the library's, it is built in seconds, nothing in it can run or load."""

from __future__ import annotations

import html
import json
import math
import os
import re
import time
import webbrowser
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from muonlab.cli.app import main
from muonlab.diagnostics.planning.candidates import gaussian_spectrum
from muonlab.polynomials import PRESETS, Schedule, analyse, preset, taylor
from muonlab.report.explore import data as explorer_data
from muonlab.report.explore import explorer as explore
from muonlab.theory import alignment_floor, chi, schedule_error
from muonlab.theory.cost import products


class Built:
    """The page as written, with what it took."""

    def __init__(self, folder: Path) -> None:
        begin = time.process_time()
        self.path = Path(explore.explore(folder / "explore.html")["page"])
        self.seconds = time.process_time() - begin
        self.text = self.path.read_text(encoding="utf-8")
        found = re.search(r'<script type="application/json" id="explorer-data">(.*?)</script>', self.text, re.DOTALL)
        assert found
        self.data: dict[str, Any] = json.loads(found[1])


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Built:
    with pytest.MonkeyPatch.context() as patch:  # the floors of all ranks take most of the time
        patch.setattr(explorer_data, "RANKS", (64, 768))
        patch.setattr(explorer_data, "SHARP_STEPS", 1)
        return Built(tmp_path_factory.mktemp("explorer"))


@pytest.mark.slow
def test_the_page_is_one_small_file_written_in_seconds(tmp_path):
    built = Built(tmp_path)
    assert built.seconds < 20  # of the processor
    assert built.path.stat().st_size < 1_500_000
    assert [path.name for path in tmp_path.iterdir()] == ["explore.html"]


def test_what_is_no_place_for_a_file_is_an_error_in_one_line(tmp_path, capsys):
    for name in [".", "missing/explore.html"]:
        assert main(["explore", "--out", str(tmp_path / name)]) == 2
        assert "--out must be a file in an existing directory, got" in capsys.readouterr().err


def test_the_command_names_the_page_and_opens_it(tmp_path, monkeypatch, capsys):
    opened: list[str] = []
    monkeypatch.setattr(explore, "explorer_html", lambda: "page")
    monkeypatch.setattr(webbrowser, "open", opened.append)
    path = tmp_path / "explore.html"
    assert main(["explore", "--out", str(path), "--open"]) == 0
    assert capsys.readouterr().out == f"Page: {path}\n"
    assert opened == [path.resolve().as_uri()]
    assert path.read_text() == "page"


def test_every_preset_is_offered_and_those_that_are_taylor_polynomials_by_their_degree(built):
    names = set(built.data["polynomials"])
    assert names >= {"taylor1", "taylor2", "taylor3", "taylor4", "taylor5", "jordan", "polar_express"}
    left_out = [entry for name, entry in PRESETS.items() if name not in names]
    assert [entry.polynomial for entry in left_out] == [taylor(entry.polynomial.kappa) for entry in left_out]
    options = re.findall(r'<option value="([^"]+)">', built.text)
    assert {name for name in names if not name.startswith("taylor")} | {"taylor"} <= set(options)


def test_coefficients_are_the_exact_ones_rounded_once(built):
    for name, given in built.data["polynomials"].items():
        table = PRESETS[name].table if name in PRESETS else (taylor(given["kappa"]),)
        assert len(given["steps"]) == len(table)
        assert given["products"] == products(given["kappa"])
        for step, p in zip(given["steps"], table, strict=True):
            assert step["u"] == [float(c) for c in p.exact_u]
            assert step["phi"] == [float(c) for c in p.exact_phi]


def test_polynomials_that_theorem_2_does_not_cover_say_why_as_the_library_does(built):
    given = built.data["polynomials"]
    assert all(given[f"taylor{kappa}"]["reason"] is None for kappa in explorer_data.KAPPAS)
    assert given["jordan"]["reason"] == analyse(preset("jordan").polynomial).reason
    assert "p(1) = 0.701, not 1" in given["jordan"]["reason"]
    assert given["polar_express"]["reason"] == analyse(preset("polar_express").table[0]).reason


def test_errors_of_other_polynomials_are_the_librarys(built):
    for name in ["jordan", "polar_express"]:
        for q in (0, 1, 4, 7, 10):
            schedule = preset(name).schedule(q)
            for index in (0, 4, 17, 29, 44):
                delta, left, epsilon = built.data["polynomials"][name]["errors"][q][index]
                ell = math.sqrt(explorer_data.LAMBDAS[index])
                assert epsilon == schedule_error(schedule, ell).epsilon
                assert left == float(1 - explorer_data.residual_on(schedule, ell))
                F = np.asarray(schedule(np.geomspace(ell, 1.0, 4001)))
                seen = float(np.max(np.abs(1 - F**2)))  # on a grid: at most the largest, and close to it
                assert seen <= delta * (1 + 1e-9)
                assert delta <= 1.02 * seen + 1e-9


def test_a_residual_too_large_for_a_float_is_left_out_and_one_where_F_vanishes_is_at_least_1():
    steep = Schedule.repeat(taylor(1).shrunk(Fraction(1, 100)), 8)
    assert {row[:2] for row in explorer_data._errors(steep)} == {(None, None)}
    falls = Schedule.repeat(taylor(1).shrunk(Fraction(1, 2)), 1)  # s ↦ 3s - 4s³ is zero at √¾
    assert explorer_data.residual_on(falls, 0.8) == 1
    assert explorer_data.residual_on(Schedule.repeat(taylor(1), 1), 0.5) == taylor(1).phi(Fraction(3, 4))


def test_floors_are_the_librarys_and_present_where_the_page_says(built):
    floors, ranks = built.data["floors"], built.data["ranks"]
    for power, name, q, place in (
        (2, "taylor2", 3, 1), (2, "taylor5", 10, 0), (2, "jordan", 5, 1), (4, "taylor1", 1, 1),
        (8, "taylor2", 1, 0), (8, "polar_express", 1, 0),
    ):  # fmt: skip
        expected = alignment_floor(explorer_data.schedule_of(name, q), ranks[place], schatten=power)
        assert floors[str(power)][name][q][place] == expected
    assert floors["2"]["taylor2"][3][ranks.index(768)] == pytest.approx(0.159, abs=5e-4)  # as in the theory page
    for power, table in floors.items():
        for rows in table.values():
            assert [row is not None for row in rows] == [
                power == "2" or q <= built.data["sharp_steps"] for q in range(11)
            ]
    assert "q ≤ 1 for the Schatten" in re.sub(r"\s+", " ", built.text)


def test_spectra_and_scales_are_the_librarys(built):
    given = built.data["spectra"]
    assert len(given) == len(explorer_data.SPECTRA) * len(explorer_data.SHAPES)
    for key, one in given.items():
        kind, _, shape = key.rpartition(" ")
        m, n = map(int, shape.split("x"))
        of = explorer_data.spectrum_of(kind, (m, n))
        assert one["values"] == of.values.tolist()
        assert one["values"] == sorted(one["values"], reverse=True)
        assert one["rank"] == of.rank == min(m, n)
        assert one["alphas"] == {name: of.scale(name) for name in ("frobenius", "schatten4", "schatten8", "spectral")}
        assert one["alphas"]["frobenius"] == pytest.approx(1, rel=1e-14)
    ratio = np.array(given["gaussian 256x2304"]["values"]) / gaussian_spectrum(256, 2304)
    assert float(np.ptp(ratio)) < 1e-14


def test_the_first_view_quotes_the_librarys_numbers(built):
    first = explore.examples()[0]
    sigma = explorer_data.spectrum_of("gaussian", (768, 768))
    factor = chi(kappa=2, q=3, bound=True, sigma_min=float(sigma.values[-1]) / sigma.frobenius)
    assert f"{factor:,.0f}" == "5,215"
    exact = chi(kappa=2, q=3, sigma_min=float(sigma.values[-1]) / sigma.frobenius)
    assert f"χ is {exact:,.0f}, and 5,215 by" in first.description
    assert "1.64" in first.description
    assert html.escape(first.description).replace("&#x27;", "&#39;") in built.text


def test_data_cannot_close_the_script_they_stand_in():
    text = str(explore.script_json({"a": "</script><script>alert(1)</script><!--"}))
    assert "<" not in text
    assert json.loads(text)["a"] == "</script><script>alert(1)</script><!--"
    with pytest.raises(ValueError, match="JSON"):
        explore.script_json({"a": math.nan})


def test_the_page_loads_and_runs_nothing_but_what_its_policy_names(built):
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', built.text)
    assert policy
    assert "default-src &#39;none&#39;" in policy[1]
    assert "unsafe" not in policy[1]
    assert policy[1].count("sha256-") == len(explore.SCRIPTS) + len(explore.STYLES)
    assert not re.search(r'\s(?:style|on\w+)="', built.text)
    addresses = re.findall(r'(?:href|src)="([^"]*)"', built.text)
    assert {address[:1] for address in addresses} <= {"#", "d"}  # fragments, and the empty icon "data:,"
    assert not re.search(
        r"\b(?:fetch|XMLHttpRequest|innerHTML|insertAdjacentHTML|eval|import)\s*\(|innerHTML", built.text
    )


def test_only_a_regular_file_is_replaced(tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/null")
    for name, kind in (("pipe", "a pipe"), ("device", "a device")):
        assert main(["explore", "--out", str(tmp_path / name)]) == 2
        assert f"only a regular file is replaced, got {tmp_path / name}, which is {kind}" in capsys.readouterr().err
    assert (tmp_path / "device").is_symlink()
    assert (tmp_path / "pipe").is_fifo()
