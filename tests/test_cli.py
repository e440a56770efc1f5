"""The command line: reports for people and for programs, and refusals in one line."""

import io
import json
import math

import pytest

from muonlab.cli.app import main
from muonlab.cli.console import doctor, table
from muonlab.polynomials import PRESETS
from muonlab.theory import summary


def strict(text):
    """Parse JSON, refusing NaN and Infinity."""

    def refuse(constant):
        raise AssertionError(f"not JSON: {constant}")

    return json.loads(text, parse_constant=refuse)


def run(capsys, *arguments):
    """Exit code, standard output and standard error of one command."""
    code = main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--sigma", "0", "--constants", "paper"),  # SGD-M has no bound there
        ("--delta-0", "0.9", "--q", "5", "--target", "0.5"),
        ("--D", "0", "--target", "0.1"),
        ("--delta-0", "0.999999999999", "--q", "0", "--constants", "paper"),
        ("--kappa", "4", "--q", "0", "--r", "1", "--B", "1", "--T", "1"),
    ],
)
def test_rates_prints_strict_json(capsys, options):
    code, out, err = run(capsys, "rates", "--json", *options)
    assert (code, err) == (0, "")
    report = strict(out)
    assert len(report["methods"]) == 3
    for row in report["methods"]:
        assert row["bound"] is None or math.isfinite(row["bound"])
        assert row["reason"]


def test_an_infinite_bound_is_null_in_json_and_explained_to_people(capsys):
    _, out, _ = run(capsys, "rates", "--json", "--sigma", "0", "--constants", "paper")
    row = strict(out)["methods"][0]
    assert (row["method"], row["bound"], row["status"]) == ("SGD-M", None, "not_applicable")
    _, text, _ = run(capsys, "rates", "--sigma", "0", "--constants", "paper")
    assert "SGD-M: no bound. theta = 0.25 is not below 1/4" in text


def test_json_rates_are_the_summary_of_the_options(capsys):
    _, out, _ = run(
        capsys, "rates", "--json", "--L", "2", "--D", "3", "--sigma", "0.5", "--r", "32", "--B", "8", "--T", "700",
        "--kappa", "1", "--q", "4", "--delta-0", "0.8", "--target", "1.5", "--constants", "paper",
    )  # fmt: skip
    expected = summary.rates(
        L=2.0, D=3.0, sigma=0.5, r=32, B=8, T=700, kappa=1, q=4, delta_0=0.8, target=1.5, constants="paper"
    )
    assert strict(out) == json.loads(json.dumps(expected))


def test_rates_for_people_names_methods_terms_and_the_target(capsys):
    code, out, _ = run(capsys, "rates", "--target", "0.5")
    assert code == 0
    for part in ("SGD-M", "Muon (SVD)", "Muon (kappa=2, q=3)", "largest term", "steps to target", "sharp constants"):
        assert part in out
    assert "steps to target" not in run(capsys, "rates")[1]


def test_list_prints_every_polynomial_as_strict_json_and_as_text(capsys):
    for arguments in (("list", "polynomials", "--json"), ("list", "--json")):
        code, out, err = run(capsys, *arguments)
        assert (code, err) == (0, "")
        assert [row["name"] for row in strict(out)["polynomials"]] == sorted(PRESETS)
    _, text, _ = run(capsys, "list")
    for entry in PRESETS.values():
        assert entry.name in text
        assert entry.source in text


def test_doctor_prints_strict_json(capsys):
    code, out, err = run(capsys, "doctor", "--json")
    assert (code, err) == (0, "")
    report = strict(out)
    assert set(report["versions"]) == {"muonlab", "python", "torch", "numpy"}
    assert report["hardware_products"]["cpu"]["float32"] is True
    gemm, svd = report["throughput"]
    assert (gemm["what"], svd["what"]) == ("gemm", "svd")
    ratio = gemm["flops_per_second"] / svd["flops_per_second"]
    assert report["gemm_over_svd"] == pytest.approx(ratio, rel=1e-12, abs=0)
    text = doctor(report)
    assert f"{ratio:.3g} times faster" in text
    assert "256x1024" in text


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        (("--L", "-1"), "L must be a finite number in (0, inf), got -1.0: choose a value inside that interval"),
        (("--L", "nan"), "L must be a finite number in (0, inf), got nan: choose a value inside that interval"),
        (("--D", "-2"), "D must be a finite number in [0, inf), got -2.0: choose a value inside that interval"),
        (("--sigma", "-2"), "sigma must be a finite number in [0, inf), got -2.0: choose a value inside that interval"),
        (("--sigma", "inf"), "sigma must be a finite number in [0, inf), got inf: choose a value inside that interval"),
        (("--r", "0"), "r must be at least 1, got 0: pass 1 or more"),
        (("--B", "0"), "B must be at least 1, got 0: pass 1 or more"),
        (("--T", "0"), "T must be at least 1, got 0: pass 1 or more"),
        (("--kappa", "0"), "kappa must be at least 1, got 0: pass 1 or more"),
        (("--delta-0", "1"), "delta_0 must be a finite number in [0, 1), got 1.0: choose a value inside that interval"),
        (("--target", "0"), "target must be a finite number in (0, inf), got 0.0: choose a value inside that interval"),
        (("--target", "1e-30"), "target = 1e-30 needs more than 2**100 steps: choose a larger target"),
    ],
)
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_a_bad_value_exits_with_code_2_and_one_line_that_names_the_rule(capsys, options, rule, form):
    code, out, err = run(capsys, "rates", *options, *form)
    assert code == 2
    assert out == ""
    assert err == f"muonlab: {rule}\n"


def test_a_negative_number_of_steps_is_refused_by_the_options_own_name(capsys):
    code, out, err = run(capsys, "rates", "--q", "-1")
    assert (code, out) == (2, "")
    assert err == "muonlab: q must be at least 0, got -1: pass 0 or more\n"


@pytest.mark.parametrize(
    "options",
    [
        ("--r", "1" + "0" * 400),
        ("--L", "1e-320", "--D", "1e300", "--json"),
        ("--L", "1e300", "--D", "1e300", "--json"),
    ],
)
def test_extreme_values_are_answered_or_refused_without_a_traceback(capsys, options):
    code, out, err = run(capsys, "rates", *options)
    if code == 0:
        strict(out)
    else:
        assert code == 2
        assert err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("rates", "--L", "abc"),
        ("rates", "--constants", "best"),
        ("list", "networks"),
        ("fly",),
        ("rates", "--x", "1"),
    ],
)
def test_what_cannot_be_parsed_exits_with_code_2(capsys, arguments):
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    assert stopped.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert arguments[-1] in captured.err or arguments[-2] in captured.err


def test_help_exits_with_code_0_and_names_the_commands(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--help"])
    assert stopped.value.code == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ("rates", "list", "doctor"))


def test_tables_align_numbers_to_the_right_and_show_what_is_missing():
    lines = table(["name", "x", "ok"], [["a", 1.23456, True], ["long", None, False]]).splitlines()
    assert lines == ["name      x   ok", "----  -----  ---", "a     1.235  yes", "long      -   no"]


def test_list_optimizers_shows_every_registered_one_with_its_settings(capsys):
    from muonlab.optim import optimizers

    code, out, _ = run(capsys, "list", "optimizers", "--json")
    assert code == 0
    rows = {row["name"]: row for row in strict(out)["optimizers"]}
    assert list(rows) == list(optimizers())
    assert rows["muon.airbench"]["renormalize"] == "before"
    assert rows["muon.moonlight"]["scale"] == "match_rms_adamw"
    assert rows["muon.paper"]["orthogonalizer"] == "taylor2 x3, paper prescale"
    assert rows["muon.paper"]["lr"] is None
    _, text, _ = run(capsys, "list", "optimizers")
    assert all(name in text for name in rows)
    assert "cifar10-airbench" in text


@pytest.mark.parametrize(
    ("error", "got"),
    [
        (MemoryError(), "MemoryError"),
        (MemoryError("\n"), "MemoryError"),
        (MemoryError("Unable to allocate 8 TiB\nmore"), "Unable to allocate 8 TiB"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: 8 TiB"), "DefaultCPUAllocator"),
        (RuntimeError("CUDA out of memory. Tried"), "CUDA out of memory"),
    ],
)
def test_a_lack_of_memory_is_one_line_with_or_without_words(capsys, monkeypatch, error, got):
    def short(**_):
        raise error

    monkeypatch.setattr(summary, "rates", short)
    code, out, err = run(capsys, "rates")
    assert (code, out) == (2, "")
    assert err.startswith(f"muonlab: there is not enough memory for this, got {got}")
    assert err.count("\n") == 1


@pytest.mark.parametrize("error", [RuntimeError("a bug"), RecursionError("deep"), NotImplementedError()])
def test_an_error_that_is_a_bug_is_seen(monkeypatch, error):
    def broken(**_):
        raise error

    monkeypatch.setattr(summary, "rates", broken)
    with pytest.raises(type(error)) as caught:
        main(["rates"])
    assert caught.value is error


def test_what_the_terminal_cannot_show_is_escaped(monkeypatch):
    shown = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", shown)
    monkeypatch.setattr("muonlab.cli.console.rates", lambda _: "\udcff λ")
    assert main(["rates"]) == 0
    assert shown.buffer.getvalue() == b"\\udcff \\u03bb\n"
