"""Files of torch, safetensors and numpy give their matrices; damaged and hostile ones give one line and run nothing."""

import collections
import io
import os
import pickle
import random
import sys
import warnings
import zipfile

import numpy as np
import pytest
import torch

from muonlab import SGDM, ExactPolar, Muon, MuonWithAux, NewtonSchulz, split_params
from muonlab.diagnostics.certificates.matrix_files import FileError, printable, read_matrices
from muonlab.optim.orthogonalizer import from_plain, to_plain
from muonlab.polynomials import taylor

safetensors = pytest.importorskip("safetensors.torch")


def stepped(optimizer):
    """Return an optimizer after one step on seeded gradients."""
    generator = torch.Generator().manual_seed(0)
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad = torch.randn(p.shape, generator=generator)
    optimizer.step()
    return optimizer


def parameters(*shapes):
    return [torch.nn.Parameter(torch.ones(shape)) for shape in shapes]


def saved(path, content, **options):
    torch.save(content, path, **options)
    return path


def names(found):
    return [matrix.name for matrix in found.matrices]


def refusal(path, **options):
    """Return the one line that refuses a file, without the file's name, with which it starts."""
    with pytest.raises(FileError) as caught:
        read_matrices(path, **options)
    line = str(caught.value)
    assert line.isprintable(), line
    assert line.startswith(printable(str(path), 200))
    assert caught.value.__suppress_context__
    return line.removeprefix(printable(str(path), 200)).strip()


def state(buffer, **group):
    return {"state": {0: {"momentum_buffer": buffer}}, "param_groups": [{"params": [0], **group}]}


# ------------------------------------------------------------------------------------------------------ real optimizers


def test_a_state_of_muon_gives_its_momenta_by_name_with_the_settings_of_their_group(tmp_path):
    named = [("up", parameters((3, 5))[0]), ("down", parameters((5, 3))[0])]
    orthogonalizer = NewtonSchulz(taylor(2), steps=3)
    opt = stepped(Muon([{"params": named}], lr=torch.tensor(0.5), orthogonalizer=orthogonalizer, weight_decay=0.25))
    found = read_matrices(saved(tmp_path / "opt.pt", opt.state_dict()))
    assert (found.kind, names(found), found.skipped, found.note) == ("torch optimizer state", ["up", "down"], (), "")
    for matrix, (_, p) in zip(found.matrices, named, strict=True):
        assert matrix.role == "momentum"
        assert torch.equal(matrix.tensor, opt.state[p]["momentum_buffer"])
        assert from_plain(matrix.group["orthogonalizer"]) == orthogonalizer
        assert (matrix.group["lr"], matrix.group["weight_decay"], matrix.group["nesterov"]) == (0.5, 0.25, True)
        assert "params" not in matrix.group


@pytest.mark.parametrize("legacy", [False, True])
def test_blocks_and_batches_are_named_by_rows_and_index_and_filters_are_flattened(tmp_path, legacy):
    fused, stack, filters = parameters((6, 4), (2, 3, 4), (3, 2, 2, 2))
    groups = [
        {"params": [("qkv", fused)], "matrix_view": (2, 4)},
        {"params": [("experts", stack)], "matrix_view": "batch"},
        {"params": [("conv", filters)]},
    ]
    opt = stepped(Muon(groups, orthogonalizer=ExactPolar(method="svd")))
    path = saved(tmp_path / "opt", opt.state_dict(), _use_new_zipfile_serialization=not legacy)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = read_matrices(path)
    assert not caught
    assert names(found) == ["qkv[0:2]", "qkv[2:6]", "experts[0]", "experts[1]", "conv"]
    M = {matrix.name: matrix for matrix in found.matrices}
    buffers = [opt.state[p]["momentum_buffer"] for p in (fused, stack, filters)]
    assert torch.equal(M["qkv[2:6]"].tensor, buffers[0][2:])
    assert torch.equal(M["experts[1]"].tensor, buffers[1][1])
    assert torch.equal(M["conv"].tensor, buffers[2].flatten(1))
    assert M["conv"].group["orthogonalizer"] == to_plain(ExactPolar(method="svd"))


def test_the_auxiliary_part_of_a_checkpoint_is_skipped_and_weights_are_read_only_when_asked_for(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 6), torch.nn.Linear(6, 2))
    split = split_params(model)
    opt = stepped(MuonWithAux(Muon(split.matrices), torch.optim.AdamW(split.rest)))
    content = {"epoch": 3, "model": model.state_dict(), "inner": {"optimizers": [opt.state_dict(), {"last_epoch": 1}]}}
    path = saved(tmp_path / "checkpoint.ckpt", content)
    found = read_matrices(path)
    assert (found.kind, names(found)) == ("torch checkpoint", ["0.weight", "1.weight"])
    assert dict(found.skipped)["2.weight"] == "has exp_avg of an Adam-like optimizer, no momentum buffer"
    assert found.note == "--weights (weights=True) reads its 3 weights"
    both = read_matrices(path, weights=True)
    weights = {matrix.name: matrix for matrix in both.matrices if matrix.role == "weight"}
    assert list(weights) == ["model.0.weight", "model.1.weight", "model.2.weight"]
    assert torch.equal(weights["model.1.weight"].tensor, model[1].weight)
    assert [matrix.name for matrix in both.matrices if matrix.role == "momentum"] == ["0.weight", "1.weight"]
    assert both.note == ""


def test_groups_of_torch_muon_and_of_muon_optimizer_are_read_as_muonlab_options(tmp_path):
    opt = stepped(torch.optim.Muon(parameters((2, 3)), ns_steps=4, adjust_lr_fn="match_rms_adamw", weight_decay=0.5))
    (matrix,) = read_matrices(saved(tmp_path / "opt.pth", opt.state_dict())).matrices
    assert matrix.name == "group 0, parameter 0"
    assert torch.equal(matrix.tensor, opt.state[opt.param_groups[0]["params"][0]]["momentum_buffer"])
    assert from_plain(matrix.group["orthogonalizer"]) == NewtonSchulz("jordan", steps=4)
    assert (matrix.group["scale"], matrix.group["weight_decay"]) == ("match_rms_adamw", 0.5)
    muon = {"params": [0], "lr": 0.1, "momentum": 0.9, "weight_decay": 0.0, "use_muon": True}
    adam = {"params": [1], "lr": 0.1, "betas": (0.9, 0.9), "eps": 1e-8, "weight_decay": 0.0, "use_muon": False}
    states = {0: {"momentum_buffer": torch.ones(2, 3, 2)}, 1: {"exp_avg": torch.ones(2, 2), "step": 1}}
    found = read_matrices(saved(tmp_path / "opt.bin", {"state": states, "param_groups": [adam, muon]}))
    assert names(found) == ["group 1, parameter 0"]
    assert found.matrices[0].tensor.shape == (2, 6)
    assert from_plain(found.matrices[0].group["orthogonalizer"]) == NewtonSchulz("jordan", steps=5)
    assert [name for name, _ in found.skipped] == ["group 0, parameter 0"]


def test_momenta_of_sgd_are_read_vectors_skipped_and_its_group_kept(tmp_path):
    for build in (torch.optim.SGD, SGDM):
        opt = stepped(build(parameters((3, 4), (4,)), lr=0.1, momentum=0.9))
        found = read_matrices(saved(tmp_path / "opt.pt", opt.state_dict()))
        assert names(found) == ["group 0, parameter 0"]
        assert found.skipped == (("group 0, parameter 1", "is not a matrix, shape (4,)"),)
        assert found.matrices[0].group["momentum"] == 0.9
        assert "orthogonalizer" not in found.matrices[0].group


def test_two_optimizers_get_their_paths_and_a_flat_state_is_read_by_its_names(tmp_path):
    opt = stepped(Muon(parameters((3, 4)))).state_dict()
    found = read_matrices(saved(tmp_path / "two.pt", {"a": opt, "b": [{**opt}]}))
    assert names(found) == ["a: group 0, parameter 0", "b.0: group 0, parameter 0"]
    flat = {"state.up.momentum_buffer": torch.ones(2, 3), "state.up.exp_avg": torch.ones(2, 3), "param_groups.up.lr": 1}
    found = read_matrices(saved(tmp_path / "flat.pt", {"optimizer": flat}))
    assert [(m.name, m.role, m.group) for m in found.matrices] == [
        ("optimizer.state.up.momentum_buffer", "momentum", None)
    ]
    by_name = {"state": {"up": {"momentum_buffer": torch.ones(2, 3)}}, "param_groups": [{"params": ["up"]}]}
    assert names(read_matrices(saved(tmp_path / "named.pt", by_name))) == ["up"]


def test_entries_that_are_not_dense_floats_are_skipped_and_nan_is_passed_on(tmp_path):
    odd = {
        "sparse": (torch.eye(3).to_sparse(), "torch.sparse_coo"),
        "meta": (torch.ones(2, 2, device="meta"), "device meta"),
        "complex": (torch.ones(2, 2, dtype=torch.complex64), "torch.complex64"),
        "int": (torch.ones(2, 2, dtype=torch.int64), "torch.int64"),
        "float8": (torch.ones(2, 2).to(torch.float8_e4m3fn), "float8"),
        "empty": (torch.ones(0, 3), "not a matrix"),
        "scalar": (torch.tensor(1.0), "not a matrix"),
    }
    kept = {
        "nan": torch.full((2, 2), torch.nan),
        "brain": torch.nn.Parameter(torch.ones(2, 3, dtype=torch.bfloat16)),
        "transposed": torch.arange(6.0).reshape(2, 3).T,
    }
    content = {name: tensor for name, (tensor, _) in odd.items()} | kept
    found = read_matrices(saved(tmp_path / "odd.pt", content), weights=True)
    assert names(found) == list(kept)
    reasons = dict(found.skipped)
    assert list(reasons) == list(odd)
    assert all(reason in reasons[name] for name, (_, reason) in odd.items())
    read = {matrix.name: matrix.tensor for matrix in found.matrices}
    assert read["nan"].isnan().all()
    assert read["brain"].dtype == torch.bfloat16
    assert not read["brain"].requires_grad
    assert torch.equal(read["transposed"], kept["transposed"])


def test_a_view_that_does_not_fit_is_a_reason_and_not_an_error(tmp_path):
    content = {
        "state": {i: {"momentum_buffer": torch.ones(4, 3)} for i in range(3)},
        "param_groups": [{"params": [i], "matrix_view": view} for i, view in enumerate([(1, 2), "sideways", (1, 3)])],
    }
    found = read_matrices(saved(tmp_path / "opt.pt", content))
    assert names(found) == ["group 2, parameter 0[0:1]", "group 2, parameter 0[1:4]"]
    assert "must add up to the first dimension" in found.skipped[0][1]
    assert "matrix_view must be made of the words" in found.skipped[1][1]


# -------------------------------------------------------------------------------------------- safetensors and numpy


def test_safetensors_tell_momenta_by_name_and_weights_only_when_asked_for(tmp_path, monkeypatch):
    content = {
        "optimizer.state.up.momentum_buffer": torch.arange(12.0).reshape(2, 3, 2),
        "optimizer.state.up.exp_avg": torch.ones(2, 3),
        "model.up": torch.ones(2, 3, dtype=torch.bfloat16),
        "model.bias": torch.ones(2),
        "model.index": torch.ones(2, 2, dtype=torch.int32),
    }
    path = tmp_path / "x.safetensors"
    safetensors.save_file(content, path)
    found = read_matrices(path)
    assert (found.kind, names(found)) == ("safetensors", ["optimizer.state.up.momentum_buffer"])
    assert torch.equal(found.matrices[0].tensor, torch.arange(12.0).reshape(2, 6))
    assert found.note == "--weights (weights=True) reads its 1 weights"
    both = read_matrices(path, weights=True)
    assert [(m.name, m.role) for m in both.matrices if m.role == "weight"] == [("model.up", "weight")]
    assert {name for name, _ in both.skipped} == {"model.bias", "model.index", "optimizer.state.up.exp_avg"}
    (tmp_path / "x.bin").write_bytes(path.read_bytes())
    assert read_matrices(tmp_path / "x.bin").kind == "safetensors"
    monkeypatch.setitem(sys.modules, "safetensors", None)
    assert refusal(path) == "needs the safetensors package, got none: pip install muonlab[lab]"


def test_npy_is_read_in_any_byte_order_and_layout(tmp_path):
    for dtype in ("<f4", ">f4", "<f8", ">f8", "<f2", "<i4"):
        for order in "CF":
            array = np.asarray(np.arange(6).reshape(2, 3), dtype=dtype, order=order)
            np.save(tmp_path / "M.npy", array)
            found = read_matrices(tmp_path / "M.npy")
            (matrix,) = found.matrices
            assert (found.kind, matrix.name, matrix.role, matrix.group) == ("npy", "M", "matrix", None)
            assert np.array_equal(matrix.tensor.numpy(), array)
            floats = {2: torch.float16, 4: torch.float32, 8: torch.float64}
            assert matrix.tensor.dtype == (torch.float64 if "i" in dtype else floats[array.itemsize])


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_gives_matrices_stacks_and_reasons(tmp_path, save):
    arrays = {"a": np.zeros((40, 50)), "b": np.arange(24.0).reshape(2, 3, 4)}
    odd = {"v": np.ones(3), "z": np.ones((2, 2), complex), "o": np.array([[{}]], dtype=object)}
    save(tmp_path / "x.npz", **arrays, **odd)
    found = read_matrices(tmp_path / "x.npz")
    assert (found.kind, names(found)) == ("npz", ["a", "b[0]", "b[1]"])
    assert np.array_equal(found.matrices[2].tensor.numpy(), arrays["b"][1])
    reasons = dict(found.skipped)
    assert list(reasons) == ["v", "z", "o"]
    assert "complex128" in reasons["z"]
    assert "allow_pickle" in reasons["o"]


# ----------------------------------------------------------------------------------------- hostile and damaged files


class Payload:
    """A pickle that makes a file when it is executed."""

    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return os.system, (f"touch {self.target}",)


@pytest.mark.parametrize("form", ["zip", "legacy", "pickle", "npy", "npz"])
def test_nothing_in_a_file_is_executed(tmp_path, form):
    trap, path = tmp_path / "trap", tmp_path / "evil.pt"
    content, array = state(Payload(trap)), np.array([[Payload(trap)]], dtype=object)
    if form == "pickle":
        path.write_bytes(pickle.dumps(content, 2))
    elif form in ("npy", "npz"):
        path = tmp_path / f"evil.{form}"
        np.save(path, array, allow_pickle=True) if form == "npy" else np.savez(path, a=array)
    else:
        torch.save(content, path, _use_new_zipfile_serialization=form == "zip")
    for weights in (False, True):
        line = refusal(path, weights=weights)
    if form in ("zip", "legacy"):
        assert "must hold tensors and plain values only, got posix.system, which is not loaded: save the op" in line
    assert not trap.exists()
    pickle.loads(pickle.dumps(Payload(trap)))
    assert trap.exists()  # the payload works


def test_refusals_name_the_rule_the_value_and_the_way_out(tmp_path):
    adam = stepped(torch.optim.AdamW(parameters((2, 3)))).state_dict()
    weights = {"weight": torch.ones(2, 3)}
    without = torch.optim.SGD(parameters((2, 3)), lr=0.1).state_dict()
    cases = [
        (adam, "of an Adam-like optimizer, whose exp_avg is not orthogonalized: give the state of a Muon"),
        ({"opt": adam, "model": weights}, "orthogonalized: --weights (weights=True) reads its 1 weights"),
        (weights, "got weights only: --weights (weights=True) reads its 1 weights"),
        (without, "has no momentum buffer: save after a step with momentum > 0"),
        ({"epoch": 1}, "got no tensor or array: save the optimizer alone"),
        ({"state": {}, "param_groups": []}, "got no tensor or array"),
        ({"momentum_buffer": torch.ones(3)}, "got none in 1 entries: the first, momentum_buffer, is not a matrix"),
        (
            state(torch.ones(2, 3), orthogonalizer=("os.system", "true")),
            "must hold an orthogonalizer that Muon accepts",
        ),
        (state(torch.ones(2, 3), ns_steps=5, ns_coefficients=()), "must hold an orthogonalizer that Muon accepts"),
        (collections.defaultdict(list), "got collections.defaultdict, which is not loaded: save the optimizer alone"),
    ]
    for content, message in cases:
        assert message in refusal(saved(tmp_path / "x.pt", content)), message
    os.mkfifo(tmp_path / "pipe.pt")
    (tmp_path / "empty.pt").touch()
    files = {
        "pipe.pt": "must be a regular file, got a directory, pipe or device",
        ".": "must be a regular file, got a directory, pipe or device",
        "empty.pt": "got an empty file: give a file of torch.save",
        "missing\x1b.pt": "got FileNotFoundError",
    }
    for name, message in files.items():
        assert message in refusal(tmp_path / name)
    assert "got another format: give a file of torch.save" in refusal(__file__)
    with zipfile.ZipFile(tmp_path / "sharded.pt", "w") as archive:
        archive.writestr("x/data.pkl", b"\x80\x02ctorch.distributed.nothing\nDTensor\n.")
        archive.writestr("x/byteorder", b"little")
        archive.writestr("x/version", b"3\n")
    assert "full_state_dict=True" in refusal(tmp_path / "sharded.pt")


def test_names_from_a_file_are_printable_and_short(tmp_path):
    evil = "a\x1b[2J\r\n\u202eb" + "x" * 10_000
    np.savez(tmp_path / "x.npz", **{"\x1b[31mred\n": np.ones((2, 2)), "\x07bell": np.ones(2)})
    safetensors.save_file({evil + "momentum_buffer": torch.ones(2, 2)}, tmp_path / "x.safetensors")
    saved(tmp_path / "x.pt", state(torch.ones(2, 2), param_names=[evil]))
    for name in ("x.npz", "x.safetensors", "x.pt"):
        found = read_matrices(tmp_path / name)
        texts = [*names(found), *(text for pair in found.skipped for text in pair)]
        assert texts
        assert all(text.isprintable() and len(text) < 400 for text in texts)
    assert found.matrices[0].name.startswith(r"a\x1b[2J\r\n\u202ebxx")
    assert printable("layers.0.weight λ\x00\x7f\u2028\ud800") == r"layers.0.weight λ\x00\x7f\u2028\ud800"
    assert printable("ab" * 100, 10) == "ababa…babab"


def good_files(folder):
    """Return the bytes of one good file of every kind, by name."""
    opt = stepped(MuonWithAux(Muon([("w", p) for p in parameters((3, 4))]), torch.optim.AdamW(parameters((2,)))))
    M = np.random.default_rng(0).normal(size=(3, 4))
    saved(folder / "zip.pt", {"model": {"w": torch.ones(3, 4)}, "opt": opt.state_dict()})
    saved(folder / "legacy.pt", opt.state_dict(), _use_new_zipfile_serialization=False)
    safetensors.save_file({"momentum_buffer": torch.ones(3, 4), "w": torch.ones(2, 2)}, folder / "x.safetensors")
    np.save(folder / "x.npy", M)
    np.savez(folder / "plain.npz", a=M, b=M.T)
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if read_matrices(path).matrices}


def test_truncated_and_changed_files_are_read_or_refused_in_one_line(tmp_path):
    rng = random.Random(0)
    for name, content in good_files(tmp_path).items():
        path, refused = tmp_path / name, 0
        for trial in range(60):
            damaged = bytearray(content)
            if trial % 2:
                del damaged[rng.randrange(len(content)) :]
            else:
                for _ in range(20):
                    damaged[rng.randrange(len(content))] = rng.randrange(256)
            path.write_bytes(damaged)
            try:
                found = read_matrices(path)
            except FileError as error:
                refused += str(error).isprintable()
            else:
                assert all(m.name.isprintable() and m.tensor.ndim == 2 for m in found.matrices)
        assert refused >= 25, name


def test_a_torch_file_is_memory_mapped_and_its_content_decides_its_kind(tmp_path):
    path = saved(tmp_path / "y.npz", state(torch.ones(2, 3)))
    path.chmod(0o400)
    assert read_matrices(str(path)).kind == "torch optimizer state"
    buffer = io.BytesIO()
    np.save(buffer, np.ones((2, 3)))
    (tmp_path / "x.pt").write_bytes(buffer.getvalue())
    assert read_matrices(tmp_path / "x.pt").kind == "npy"
