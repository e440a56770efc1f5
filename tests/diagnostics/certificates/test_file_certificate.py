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
    opt.zero_grad()  # a file has no gradients
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
    assert {"weight decay needs the weights", "Nesterov's look-ahead needs the gradients"} <= set(found["not_covered"])
    code, out, _ = run(capsys, tmp_path / "checkpoint.pt")
    assert code == 0
    assert "checkpoint.pt: torch checkpoint, 2 matrices" in out
    for name in ("0.weight", "2.weight"):
        assert any(line.startswith(name) and line.endswith("holds") for line in out.splitlines())
    assert "Network (momentum buffers): holds." in out
    assert (
        "Not covered: Nesterov's look-ahead needs the gradients; weight decay needs the weights; 4 auxiliary "
        "parameters (Adam-like)." in out
    )
    assert "no orthogonalizer" not in out


def test_weights_come_only_when_asked_for_are_labelled_and_do_not_count_in_the_whole(trained, tmp_path, capsys):
    net, opt = trained
    torch.save({"model": net.state_dict(), "optimizer": opt.state_dict()}, tmp_path / "checkpoint.pt")
    without = json.loads(run(capsys, tmp_path / "checkpoint.pt", "--json")[1])
    with_weights = json.loads(run(capsys, tmp_path / "checkpoint.pt", "--json", "--weights")[1])
    labelled = [m["name"] for m in with_weights["matrices"] if m["name"].endswith("(weight)")]
    assert labelled == [f"model.{i}.weight (weight)" for i in (0, 2, 4)]
    assert not [m for m in without["matrices"] if "weight)" in m["name"]]
    assert with_weights["alignment"] == without["alignment"]
    assert "weights: the theorems are about momenta" in with_weights["not_covered"]
    assert "names no orthogonalizer for 3 of 5 matrices: five quintic steps assumed" in with_weights["note"]
    save_file(net.state_dict(), tmp_path / "model.safetensors")
    code, out, err = run(capsys, tmp_path / "model.safetensors")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "--weights" in err
    code, out, _ = run(capsys, tmp_path / "model.safetensors", "--weights")
    assert code == 0
    assert "Network (weights): holds." in out


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
    changed = certify_file(tmp_path / "state.pt", steps=2).certificate
    assert {c.method for c in changed.matrices.values()} == {"taylor2 x2, frobenius prescale"}
    kept = certify_file(tmp_path / "state.pt").certificate
    assert len({c.method for c in kept.matrices.values()}) == 2
    assert kept.steps == changed.steps
    assert len(set(kept.steps.values())) == 2


def test_a_state_of_torch_muon_is_certified_with_its_polynomial(tmp_path):
    p = nn.Parameter(torch.randn(6, 4, generator=torch.Generator().manual_seed(0)))
    opt = torch.optim.Muon([p], lr=0.1, ns_steps=3)
    p.square().sum().backward()
    opt.step()
    torch.save(opt.state_dict(), tmp_path / "state.pt")
    (c,) = certify_file(tmp_path / "state.pt").certificate.matrices.values()
    assert c.method == "jordan x3, frobenius prescale"
    assert c.status == "holds"
    assert "p(1) = 0.701, not 1" in c.reason


def test_a_file_that_cannot_be_read_gets_one_line(tmp_path, capsys, trained):
    (tmp_path / "directory.pt").mkdir()
    (tmp_path / "text.pt").write_text("no matrices here\n" * 10)
    torch.save(trained[1].state_dict(), tmp_path / "truncated.pt")
    os.truncate(tmp_path / "truncated.pt", 2000)
    for name in ("missing.pt", "directory.pt", "text.pt", "truncated.pt"):
        code, out, err = run(capsys, tmp_path / name)
        assert (code, out) == (2, "")
        assert err.startswith("muonlab: ")
        assert err.count("\n") == 1


def test_names_from_a_file_cannot_write_to_the_terminal(tmp_path, capsys):
    save_file({"\x1b[2Jmomentum_buffer\n<b>": torch.eye(3)}, tmp_path / "state.safetensors")
    code, out, _ = run(capsys, tmp_path / "state.safetensors")
    assert code == 0
    assert "\x1b" not in out
    assert "<b>" not in certify_file(tmp_path / "state.safetensors").certificate._repr_html_()


def test_progress_goes_to_a_terminal_and_nowhere_else(tmp_path, capsys, monkeypatch):
    np.savez(tmp_path / "three.npz", a=np.eye(3), b=np.eye(4), c=np.eye(5))
    assert run(capsys, tmp_path / "three.npz")[2] == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    _, out, err = run(capsys, tmp_path / "three.npz")
    assert [part.strip() for part in err.split("\r") if part.strip()][:3] == [f"{i} of 3 matrices" for i in (1, 2, 3)]
    assert "of 3 matrices" not in out.splitlines()[0]


def test_the_exit_code_is_the_verdict(tmp_path, capsys):
    for array, code in ((np.eye(3), 0), (np.zeros((3, 4)), 1), (np.full((3, 4), np.nan), 1)):
        np.save(tmp_path / "M.npy", array)
        assert run(capsys, tmp_path / "M.npy")[0] == code
    code, _, err = run(capsys, tmp_path / "M.npy", "--polynomial", "nope")
    assert code == 2
    assert "unknown preset 'nope'" in err


def test_a_lack_of_memory_is_one_line(tmp_path, capsys, monkeypatch):
    np.save(tmp_path / "M.npy", np.eye(3))

    def short(*_, **__):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory\nmore lines")

    monkeypatch.setattr("muonlab.diagnostics.certificates.file_certificate.certify_matrices", short)
    code, out, err = run(capsys, tmp_path / "M.npy")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "memory" in err


ODD = [
    {"scale": "nope"},
    {"scale": ["none"]},
    {"lr": math.nan},
    {"lr": 1.7e308, "scale": "match_rms_adamw"},
    {"lr": None},
    {"lr": -0.1},
    {"lr": torch.tensor(math.nan)},
]


def test_a_step_length_that_no_muon_has_is_refused_in_one_line_that_names_the_file(tmp_path, capsys, trained):
    state = trained[1].muon.state_dict()
    state["state"] = {key: {"momentum_buffer": torch.randn(120, 120)} for key in state["state"]}
    good = dict(state["param_groups"][0])
    for odd in ODD:
        state["param_groups"][0] = {**good, **odd}
        torch.save(state, tmp_path / "state.pt")
        code, out, err = run(capsys, tmp_path / "state.pt")
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


@pytest.mark.slow
def test_a_file_name_of_any_bytes_is_printed_escaped(tmp_path):
    path = os.fsencode(tmp_path) + b"/\xff\xfe\x1b[2J\n.npy"
    with open(path, "wb") as file:
        np.save(file, np.eye(3))
    for options in ([], ["--json"]):
        command = [sys.executable, "-m", "muonlab", "certify", path, *options]
        done = subprocess.run(command, capture_output=True, timeout=120, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
        assert b"\x1b" not in done.stdout
        assert b"\xff" not in done.stdout


@pytest.mark.slow
def test_a_reader_that_leaves_early_gets_no_traceback(tmp_path):
    np.save(tmp_path / "M.npy", np.eye(3))
    program = f"{sys.executable} -m muonlab certify {tmp_path / 'M.npy'} | true"
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.stderr == ""


def test_a_small_file_that_unpacks_to_a_large_one_needs_a_higher_limit(tmp_path, capsys):
    zeros = np.zeros((1_000, 1_500), np.float32)
    np.savez_compressed(tmp_path / "a.npz", zeros)
    np.save(tmp_path / "b.npy", zeros)
    save_file({"w": torch.from_numpy(zeros)}, tmp_path / "c.safetensors")
    torch.save({"w": torch.zeros(1).expand(1_000, 1_500)}, tmp_path / "d.pt")  # takes four bytes until it is read
    for path in sorted(tmp_path.iterdir()):
        assert main(["certify", str(path), "--weights", "--max-gigabytes", "0.001"]) == 2, path
        message = capsys.readouterr().err
        assert "must have matrices of at most 0.001 GB, got 0.006 GB: pass --max-gigabytes" in message, path
    assert (tmp_path / "a.npz").stat().st_size < 10_000
    np.savez(tmp_path / "many.npz", *[np.eye(10) for _ in range(2_000)])
    assert main(["certify", str(tmp_path / "many.npz"), "--max-gigabytes", "0.001"]) == 2  # all of them together
    with pytest.raises(ValueError, match="max_gigabytes must be a finite number"):
        certify_file(tmp_path / "a.npz", max_gigabytes=0.0)


def test_a_list_that_holds_itself_a_million_times_is_read_once(tmp_path):
    value = [torch.eye(3)]
    for _ in range(40):
        value = [value, value]
    torch.save({"a": value}, tmp_path / "a.pt")
    certificate = certify_file(tmp_path / "a.pt", weights=True)
    assert len(certificate.file.matrices) == 1
    torch.save({"a": torch.eye(3), "b": bytearray(8)}, tmp_path / "b.pt")
    with pytest.raises(ValueError, match="must hold tensors and plain values only, got a bytearray"):
        certify_file(tmp_path / "b.pt", weights=True)
