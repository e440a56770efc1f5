"""The command line: answers as text and as JSON, exit codes, and errors in one line."""

import io
import json
import math
import subprocess
import sys

import pytest

import muonlab
from muonlab import lab
from muonlab.cli.app import main
from muonlab.cli.console import doctor, table
from muonlab.polynomials import PRESETS
from muonlab.report.explore.explorer import explore
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


def test_importing_and_listing_load_neither_torch_nor_numpy():
    script = (
        "import sys; from muonlab.cli.app import main\n"
        "for words in (['list', 'studies'], ['list', 'datasets'], ['run', '--help']):\n"
        "    try: main(words)\n"
        "    except SystemExit: pass\n"
        "sys.exit(', '.join({'torch', 'numpy', 'datasets'} & set(sys.modules)) or None)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_rates_prints_strict_json(capsys):
    for options in (
        (),
        ("--sigma", "0", "--constants", "paper"),  # SGD-M has no bound there
        ("--delta-0", "0.9", "--q", "5", "--target", "0.5"),
        ("--D", "0", "--target", "0.1"),
        ("--delta-0", "0.999999999999", "--q", "0", "--constants", "paper"),
        ("--kappa", "4", "--q", "0", "--r", "1", "--B", "1", "--T", "1"),
    ):
        code, out, err = run(capsys, "rates", "--json", *options)
        assert (code, err) == (0, ""), options
        report = strict(out)
        assert len(report["methods"]) == 3
        for row in report["methods"]:
            assert row["bound"] is None or math.isfinite(row["bound"])
            assert row["reason"]


def test_an_infinite_bound_is_null_in_json_and_explained_in_text(capsys):
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


def test_the_text_of_rates_names_methods_terms_and_the_target(capsys):
    code, out, _ = run(capsys, "rates", "--target", "0.5")
    assert code == 0
    for part in ("SGD-M", "Muon (SVD)", "Muon (kappa=2, q=3)", "largest term", "steps to target", "sharp constants"):
        assert part in out
    assert "steps to target" not in run(capsys, "rates")[1]


def test_rates_know_schedules_and_nesterov(capsys):
    options = ("rates", "--r", "8", "--lr-schedule", "cosine", "--nesterov")
    expected = summary.rates(L=1.0, D=1.0, sigma=1.0, r=8, B=128, T=10_000, lr_schedule="cosine", nesterov=True)
    assert strict(run(capsys, *options, "--json")[1]) == json.loads(json.dumps(expected))
    note = "Muon: Corollary A1, cosine schedule, with Nesterov's look-ahead; the average is weighted by the rates"
    assert note in run(capsys, *options)[1]


def test_every_list_has_its_names_as_json_and_as_text(capsys):
    from muonlab.optim import optimizers

    for what in ("polynomials", "optimizers", "studies", "models", "datasets"):
        code, out, err = run(capsys, "list", what, "--json")
        assert (code, err) == (0, "")
        names = [row["name"] for row in strict(out)[what]]
        _, text, _ = run(capsys, "list", what)
        assert names
        assert all(name in text for name in names)
        if what == "polynomials":
            assert names == sorted(PRESETS)
            assert all(entry.source in text for entry in PRESETS.values())
        if what == "models":
            assert {row["name"]: row["parameters"] for row in strict(out)[what]}["cifarnet"] == 1_972_792
        if what == "optimizers":
            rows = {row["name"]: row for row in strict(out)[what]}
            assert names == list(optimizers())
            assert rows["muon.airbench"]["renormalize"] == "before"
            assert rows["muon.paper"]["orthogonalizer"] == "taylor2 x3, paper prescale"
            assert rows["muon.paper"]["lr"] is None


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


def test_a_bad_value_exits_with_code_2_and_one_line_that_names_the_rule(capsys):
    interval = "choose a value inside that interval"
    for options, rule in (
        (("--L", "-1"), f"L must be a finite number in (0, inf), got -1.0: {interval}"),
        (("--L", "nan"), f"L must be a finite number in (0, inf), got nan: {interval}"),
        (("--D", "-2"), f"D must be a finite number in [0, inf), got -2.0: {interval}"),
        (("--sigma", "inf"), f"sigma must be a finite number in [0, inf), got inf: {interval}"),
        (("--r", "0"), "r must be at least 1, got 0: pass 1 or more"),
        (("--B", "0"), "B must be at least 1, got 0: pass 1 or more"),
        (("--T", "0"), "T must be at least 1, got 0: pass 1 or more"),
        (("--kappa", "0"), "kappa must be at least 1, got 0: pass 1 or more"),
        (("--q", "-1"), "q must be at least 0, got -1: pass 0 or more"),
        (("--delta-0", "1"), f"delta_0 must be a finite number in [0, 1), got 1.0: {interval}"),
        (("--target", "0"), f"target must be a finite number in (0, inf), got 0.0: {interval}"),
        (("--nesterov",), "nesterov needs a schedule, got lr_schedule = None: pass lr_schedule='constant'"),
        (("--target", "1e-30", "--json"), "target = 1e-30 needs more than 2**100 steps: choose a larger target"),
    ):
        assert run(capsys, "rates", *options) == (2, "", f"muonlab: {rule}\n")


def test_extreme_values_are_answered_or_refused_without_a_traceback(capsys):
    for options in (
        ("--r", "1" + "0" * 400),
        ("--L", "1e-320", "--D", "1e300", "--json"),
        ("--L", "1e300", "--D", "1e300", "--json"),
    ):
        code, out, err = run(capsys, "rates", *options)
        if code == 0:
            strict(out)
        else:
            assert code == 2
            assert err.count("\n") == 1


def test_arguments_that_cannot_be_parsed_exit_with_code_2(capsys):
    for arguments in (
        ("rates", "--L", "abc"),
        ("rates", "--constants", "best"),
        ("list", "networks"),
        ("fly",),
        ("rates", "--x", "1"),
        ("run", "quickstart", "--sedes", "3"),
    ):
        with pytest.raises(SystemExit) as stopped:
            main(list(arguments))
        assert stopped.value.code == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert "Traceback" not in captured.err
        assert arguments[-1] in captured.err or arguments[-2] in captured.err


def test_help_exits_with_code_0_and_names_the_commands(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--help"])
    assert stopped.value.code == 0
    out = capsys.readouterr().out
    names = ("rates", "certify", "plan", "list", "run", "queue", "report", "explore", "data", "doctor")
    assert all(name in out for name in names)


def test_the_version_is_that_of_the_package(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"muonlab {muonlab.__version__}\n"


def test_tables_align_numbers_to_the_right_and_show_missing_values():
    lines = table(["name", "x", "ok"], [["a", 1.23456, True], ["long", None, False]]).splitlines()
    assert lines == ["name      x   ok", "----  -----  ---", "a     1.235  yes", "long      -   no"]


def test_out_of_memory_is_one_line(capsys, monkeypatch):
    for error, got in (
        (MemoryError(), "MemoryError"),
        (MemoryError("\n"), "MemoryError"),
        (MemoryError("Unable to allocate 8 TiB\nmore"), "Unable to allocate 8 TiB"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: 8 TiB"), "DefaultCPUAllocator"),
        (RuntimeError("CUDA out of memory. Tried"), "CUDA out of memory"),
    ):

        def fail(error=error, **_):
            raise error

        monkeypatch.setattr(summary, "rates", fail)
        code, out, err = run(capsys, "rates")
        assert (code, out) == (2, "")
        assert err.startswith(f"muonlab: out of memory, got {got}")
        assert err.endswith(": use a smaller batch\n")
        assert err.count("\n") == 1


def test_an_error_that_is_a_bug_is_raised(monkeypatch):
    for error in (RuntimeError("a bug"), RecursionError("deep"), NotImplementedError()):

        def fail(error=error, **_):
            raise error

        monkeypatch.setattr(summary, "rates", fail)
        with pytest.raises(type(error)) as caught:
            main(["rates"])
        assert caught.value is error


def test_characters_that_the_terminal_cannot_show_are_escaped(monkeypatch):
    shown = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", shown)
    monkeypatch.setattr("muonlab.cli.console.rates", lambda _: "\udcff λ")
    assert main(["rates"]) == 0
    assert shown.buffer.getvalue() == b"\\udcff \\u03bb\n"


def test_a_null_character_in_an_argument_is_refused_in_one_line(capsys, tmp_path):
    for words in (("run", "quickstart", "--out"), ("explore", "--out"), ("report",), ("certify",), ("queue",)):
        assert main([*words, f"{tmp_path}/a\0b"]) == 2
        assert "an argument must have no null character, got" in capsys.readouterr().err
    for use in (lambda: lab.load_results("a\0b"), lambda: lab.run("quickstart", out="a\0b"), lambda: explore("a\0b")):
        with pytest.raises(ValueError, match=r"must be a path, got 'a\\x00b' with a null character: leave it out"):
            use()


def test_a_rate_that_overflows_is_refused_before_a_cell_is_run(capsys, tmp_path):
    assert main(["run", "quickstart", "--out", str(tmp_path / "run"), "--set", "lr=1e300"]) == 2
    assert "lr must be a finite number in (0, 1e+30], got 1e+300" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
