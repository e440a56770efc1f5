"""``muonlab certify FILE``: the momenta of a checkpoint as its own groups treat them, in a table and as JSON."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from muonlab import Muon, MuonWithAux, NewtonSchulz, split_params
from muonlab.cli.app import main
from muonlab.diagnostics import certify
from muonlab.diagnostics.certificates.file_certificate import certify_file
from muonlab.polynomials import taylor


def run(capsys, *arguments):
    code = main(["certify", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def trained():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(12, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 3))
    split = split_params(net, by="shape")
    how = NewtonSchulz(taylor(2), steps=3, prescale="schatten8")
    muon = Muon([split.matrices[0] | {"orthogonalizer": how}, *split.matrices[1:]], lr=0.05, weight_decay=0.1)
    opt = MuonWithAux(muon, torch.optim.AdamW(split.rest))
    for _ in range(3):
        opt.zero_grad()
        net(torch.randn(16, 12)).square().mean().backward()
        opt.step()
    return net, opt


def close(a, b):
    return all((x is None and y is None) or math.isclose(x, y, rel_tol=1e-9) for x, y in zip(a, b, strict=True))


FIELDS = ("delta_0", "delta", "epsilon", "chi", "descent", "op_norm", "alignment", "alignment_floor", "nuclear")


def test_a_checkpoint_says_what_its_optimizer_says(trained, tmp_path, capsys):
    net, opt = trained
    torch.save({"model": net.state_dict(), "optimizer": opt.state_dict(), "step": 3}, tmp_path / "checkpoint.pt")
    code, out, err = run(capsys, tmp_path / "checkpoint.pt", "--json")
    assert (code, err) == (0, "")
    found, direct = json.loads(out), certify(opt).to_dict()
    assert [m["name"] for m in found["matrices"]] == ["0.weight", "2.weight"]
    for a, b in zip(found["matrices"], direct["matrices"], strict=True):
        assert close([a[f] for f in FIELDS], [b[f] for f in FIELDS])
        assert (a["method"], a["status"], a["step"]) == (b["method"], b["status"], b["step"])
    assert close([found[f] for f in ("alignment", "descent")], [direct[f] for f in ("alignment", "descent")])
    assert {m["method"] for m in found["matrices"]} == {
        "taylor2 x3, schatten8 prescale",
        "polar_express x5 (safety 1.01), frobenius prescale",
    }
    assert {"weight decay", "Nesterov's look-ahead"} <= set(found["not_covered"])


def test_the_table_has_a_line_for_each_matrix_and_a_verdict(trained, tmp_path, capsys):
    net, opt = trained
    torch.save({"model": net.state_dict(), "optimizer": opt.state_dict()}, tmp_path / "checkpoint.pt")
    code, out, _ = run(capsys, tmp_path / "checkpoint.pt")
    assert code == 0
    assert "checkpoint.pt: torch checkpoint, 2 matrices" in out
    for name in ("0.weight", "2.weight"):
        assert any(line.startswith(name) and line.endswith("holds") for line in out.splitlines())
    assert "The whole (momentum buffers): holds." in out
    assert "Not covered: Nesterov's look-ahead; weight decay; 4 auxiliary parameters (Adam-like)." in out


def test_weights_come_only_when_asked_for_are_labelled_and_do_not_count_in_the_whole(trained, tmp_path, capsys):
    net, opt = trained
    torch.save({"model": net.state_dict(), "optimizer": opt.state_dict()}, tmp_path / "checkpoint.pt")
    without = json.loads(run(capsys, tmp_path / "checkpoint.pt", "--json")[1])
    with_weights = json.loads(run(capsys, tmp_path / "checkpoint.pt", "--json", "--weights")[1])
    labelled = [m["name"] for m in with_weights["matrices"] if m["name"].endswith("(weight)")]
    assert labelled == [f"model.{i}.weight (weight)" for i in (0, 2, 4)]
    assert not [m for m in without["matrices"] if "weight)" in m["name"]]
    assert with_weights["alignment"] == without["alignment"]
    assert any("the theorems speak of momenta" in words for words in with_weights["not_covered"])


def test_a_file_of_weights_alone_is_refused_without_the_option(trained, tmp_path, capsys):
    net, _ = trained
    save_file(net.state_dict(), tmp_path / "model.safetensors")
    code, out, err = run(capsys, tmp_path / "model.safetensors")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "--weights" in err
    code, out, _ = run(capsys, tmp_path / "model.safetensors", "--weights")
    assert code == 0
    assert "The whole (weights): holds." in out


def test_arrays_are_certified_with_the_options_of_the_command(tmp_path, capsys):
    rng = np.random.default_rng(0)
    M, stack = rng.standard_normal((8, 12)).astype(np.float32), rng.standard_normal((2, 4, 6))
    np.savez(tmp_path / "arrays.npz", single=M, stack=stack, label=np.array("text"))
    code, out, _ = run(
        capsys, tmp_path / "arrays.npz", "--json", "--polynomial", "jordan", "--steps", "4", "--prescale", "schatten4"
    )
    assert code == 0
    found = {m["name"]: m for m in json.loads(out)["matrices"]}
    assert len(found) == 3
    direct = certify(torch.from_numpy(M), "jordan", steps=4, prescale="schatten4").to_dict()
    assert close([found["single"][f] for f in FIELDS], [direct[f] for f in FIELDS])
    assert [entry["name"] for entry in json.loads(out)["skipped"]] == ["label"]


def test_options_take_the_place_of_what_the_groups_say(trained, tmp_path):
    _, opt = trained
    torch.save(opt.state_dict(), tmp_path / "state.pt")
    changed, _ = certify_file(tmp_path / "state.pt", steps=2)
    assert {c.method for c in changed.matrices.values()} == {"taylor2 x2, frobenius prescale"}
    kept, _ = certify_file(tmp_path / "state.pt")
    assert len({c.method for c in kept.matrices.values()}) == 2


def test_a_state_of_torch_muon_is_certified_with_its_polynomial(tmp_path):
    p = nn.Parameter(torch.randn(6, 4, generator=torch.Generator().manual_seed(0)))
    opt = torch.optim.Muon([p], lr=0.1, ns_steps=3)
    p.square().sum().backward()
    opt.step()
    torch.save(opt.state_dict(), tmp_path / "state.pt")
    found, _ = certify_file(tmp_path / "state.pt")
    (c,) = found.matrices.values()
    assert c.method == "jordan x3, frobenius prescale"
    assert c.status == "holds"
    assert "p(1) = 0.701, not 1" in c.reason


class _Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize("kind", ["missing", "directory", "empty", "text", "pickle", "truncated"])
def test_a_file_that_is_none_gets_one_line_and_nothing_runs(kind, tmp_path, capsys, trained):
    path, harm = tmp_path / "file.pt", tmp_path / "harm"
    if kind == "directory":
        path.mkdir()
    elif kind == "empty":
        path.touch()
    elif kind == "text":
        path.write_text("no matrices here\n" * 10)
    elif kind == "pickle":
        torch.save({"state": _Bomb(harm), "param_groups": []}, path)
    elif kind == "truncated":
        torch.save(trained[1].state_dict(), path)
        path.write_bytes(path.read_bytes()[:-300])
    harm.unlink(missing_ok=True)
    code, out, err = run(capsys, path)
    assert (code, out) == (2, "")
    assert err.startswith("muonlab: ")
    assert err.count("\n") == 1
    assert not harm.exists()


def test_names_from_a_file_cannot_write_to_the_terminal(tmp_path, capsys):
    save_file({"\x1b[2Jmomentum_buffer\n<b>": torch.eye(3)}, tmp_path / "state.safetensors")
    code, out, _ = run(capsys, tmp_path / "state.safetensors")
    assert code == 0
    assert "\x1b" not in out
    certificate, _ = certify_file(tmp_path / "state.safetensors")
    assert "<b>" not in certificate._repr_html_()


def test_an_unknown_polynomial_is_refused_by_name(tmp_path, capsys):
    np.save(tmp_path / "M.npy", np.eye(3))
    code, _, err = run(capsys, tmp_path / "M.npy", "--polynomial", "nope")
    assert code == 2
    assert "unknown preset 'nope'" in err


def test_progress_goes_to_a_terminal_and_nowhere_else(tmp_path, capsys, monkeypatch):
    np.savez(tmp_path / "three.npz", a=np.eye(3), b=np.eye(4), c=np.eye(5))
    assert run(capsys, tmp_path / "three.npz")[2] == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    _, out, err = run(capsys, tmp_path / "three.npz")
    assert [part.strip() for part in err.split("\r") if part.strip()][:3] == [f"{i} of 3 matrices" for i in (1, 2, 3)]
    assert "of 3 matrices" not in out.splitlines()[0]


def test_options_keep_the_lengths_of_the_steps(trained, tmp_path):
    _, opt = trained
    torch.save(opt.state_dict(), tmp_path / "state.pt")
    kept, changed = (certify_file(tmp_path / "state.pt", steps=steps)[0] for steps in (None, 4))
    assert kept.steps == changed.steps
    assert len(set(kept.steps.values())) == 2


@pytest.mark.parametrize(
    ("array", "code"),
    [(np.eye(3), 0), (np.zeros((3, 4)), 1), (np.full((3, 4), np.nan), 1)],
    ids=["holds", "zero", "NaN"],
)
def test_the_exit_code_is_the_verdict(array, code, tmp_path, capsys):
    np.save(tmp_path / "M.npy", array)
    assert run(capsys, tmp_path / "M.npy")[0] == code


def test_a_plan_that_is_not_met_ends_in_exit_code_1(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("MUONLAB_CACHE", str(tmp_path))
    for target, code in (("0.9", 0), ("0.9999999999", 1)):
        assert main(["plan", "--shape", "8x12", "--target-alignment", target]) == code
        assert ("not_met" in capsys.readouterr().out) == bool(code)


def test_a_lack_of_memory_is_one_line(tmp_path, capsys, monkeypatch):
    np.save(tmp_path / "M.npy", np.eye(3))

    def short(*_, **__):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory\nmore lines")

    monkeypatch.setattr("muonlab.diagnostics.certificates.file_certificate.certify_entries", short)
    code, out, err = run(capsys, tmp_path / "M.npy")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "memory" in err


@pytest.mark.parametrize(
    "odd",
    [
        {"scale": "nope"},
        {"scale": None},
        {"scale": ["none"]},
        {"lr": math.nan},
        {"lr": math.inf},
        {"lr": 1.7e308, "scale": "match_rms_adamw"},
        {"lr": None},
        {"lr": "1"},
        {"lr": -0.1},
        {"lr": torch.tensor(math.nan)},
    ],
    ids=str,
)
@pytest.mark.parametrize("options", [(), ("--steps", "3")])
def test_a_length_of_step_that_no_muon_has_is_refused_in_one_line_that_names_the_file(
    tmp_path, capsys, trained, odd, options
):
    state = trained[1].muon.state_dict()
    state["param_groups"][0].update(odd)
    state["state"] = {key: {"momentum_buffer": torch.randn(120, 120)} for key in state["state"]}
    torch.save(state, tmp_path / "state.pt")
    code, out, err = run(capsys, tmp_path / "state.pt", *options)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert err.startswith(f"muonlab: {tmp_path / 'state.pt'} must hold a finite lr")


ASSUMED = "the file names no orthogonalizer: five quintic steps assumed, --polynomial changes that"


@pytest.mark.parametrize("kind", ["sgd", "npy", "safetensors"])
def test_a_file_that_names_no_orthogonalizer_says_which_one_was_assumed(tmp_path, capsys, kind):
    path = tmp_path / f"file.{kind}"
    if kind == "sgd":
        p = nn.Parameter(torch.eye(3))
        opt = torch.optim.SGD([p], lr=0.1, momentum=0.9)
        p.square().sum().backward()
        opt.step()
        torch.save(opt.state_dict(), path)
    elif kind == "npy":
        np.save(path, np.eye(3))
    else:
        save_file({"momentum_buffer": torch.eye(3)}, path)
    assert ASSUMED in run(capsys, path)[1].splitlines()
    assert json.loads(run(capsys, path, "--json")[1])["note"] == ASSUMED
    for options in (("--polynomial", "jordan"), ("--steps", "3"), ("--prescale", "schatten4")):
        assert "names no orthogonalizer" not in run(capsys, path, *options)[1]


def test_only_matrices_without_an_orthogonalizer_are_said_to_have_none(trained, tmp_path, capsys):
    net, opt = trained
    torch.save({"model": net.state_dict(), "optimizer": opt.state_dict()}, tmp_path / "checkpoint.pt")
    assert "no orthogonalizer" not in run(capsys, tmp_path / "checkpoint.pt")[1]
    out = run(capsys, tmp_path / "checkpoint.pt", "--weights")[1]
    assert "the file names no orthogonalizer for 3 of 5 matrices: five quintic steps assumed" in out


@pytest.mark.parametrize("name", [b"\xff\xfe.npy", b"\x1b[2J\n.npy"])
def test_a_file_name_of_any_bytes_is_printed_escaped(tmp_path, name):
    path = os.fsencode(tmp_path) + b"/" + name
    with open(path, "wb") as file:
        np.save(file, np.eye(3))
    for options in ([], ["--json"]):
        command = [sys.executable, "-m", "muonlab", "certify", path, *options]
        done = subprocess.run(command, capture_output=True, timeout=120, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
        assert b"\x1b" not in done.stdout
        assert b"\xff" not in done.stdout


def test_a_reader_that_leaves_early_gets_no_traceback(tmp_path):
    np.save(tmp_path / "M.npy", np.eye(3))
    program = f"{sys.executable} -m muonlab certify {tmp_path / 'M.npy'} | true"
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.stderr == ""
