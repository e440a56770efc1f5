"""Files that nobody vouches for: real ones give their matrices, hostile and damaged ones one line and nothing else."""

import collections
import io
import os
import pickle
import random
import struct
import sys
import tarfile
import warnings
import zipfile

import numpy as np
import pytest
import torch

from muonlab import SGDM, ExactPolar, Muon, MuonWithAux, NewtonSchulz, split_params
from muonlab.diagnostics.certificates import entries, files
from muonlab.diagnostics.certificates.files import FileError, printable, read_matrices
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
    """Return the one line that refuses a file; it starts with the file's name."""
    with pytest.raises(FileError) as caught:
        read_matrices(path, **options)
    line = str(caught.value)
    assert line.isprintable(), line
    assert line.startswith(printable(str(path), 200))
    assert caught.value.__cause__ is None
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
        assert matrix.what == "momentum"
        assert matrix.shape == tuple(p.shape)
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
    found = read_matrices(path)
    assert names(found) == ["qkv[0:2]", "qkv[2:6]", "experts[0]", "experts[1]", "conv"]
    M = {matrix.name: matrix for matrix in found.matrices}
    buffers = [opt.state[p]["momentum_buffer"] for p in (fused, stack, filters)]
    assert torch.equal(M["qkv[2:6]"].tensor, buffers[0][2:])
    assert torch.equal(M["experts[1]"].tensor, buffers[1][1])
    assert torch.equal(M["conv"].tensor, buffers[2].flatten(1))
    assert (M["experts[1]"].shape, M["conv"].shape) == ((2, 3, 4), (3, 2, 2, 2))
    assert M["conv"].group["orthogonalizer"] == to_plain(ExactPolar(method="svd"))


def test_the_auxiliary_part_of_a_training_checkpoint_is_skipped_with_a_reason_and_weights_only_come_when_asked(
    tmp_path,
):
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 6), torch.nn.Linear(6, 2))
    split = split_params(model)
    opt = stepped(MuonWithAux(Muon(split.matrices), torch.optim.AdamW(split.rest)))
    content = {"epoch": 3, "model": model.state_dict(), "inner": {"optimizers": [opt.state_dict(), {"last_epoch": 1}]}}
    path = saved(tmp_path / "checkpoint.ckpt", content)
    found = read_matrices(path)
    assert (found.kind, names(found)) == ("torch checkpoint", ["0.weight", "1.weight"])
    assert {matrix.what for matrix in found.matrices} == {"momentum"}
    assert dict(found.skipped)["2.weight"] == "has exp_avg of an Adam-like optimizer, no momentum buffer"
    assert found.note == "--weights (weights=True) reads its 3 weights"
    both = read_matrices(path, weights=True)
    weights = {matrix.name: matrix for matrix in both.matrices if matrix.what == "weight"}
    assert list(weights) == ["model.0.weight", "model.1.weight", "model.2.weight"]
    assert torch.equal(weights["model.1.weight"].tensor, model[1].weight)
    assert [matrix.name for matrix in both.matrices if matrix.what == "momentum"] == ["0.weight", "1.weight"]
    assert both.note == ""


def test_torch_muon_is_told_in_our_terms(tmp_path):
    opt = stepped(torch.optim.Muon(parameters((2, 3)), ns_steps=4, adjust_lr_fn="match_rms_adamw", weight_decay=0.5))
    (matrix,) = read_matrices(saved(tmp_path / "opt.pth", opt.state_dict())).matrices
    assert matrix.name == "group 0, parameter 0"
    assert torch.equal(matrix.tensor, opt.state[opt.param_groups[0]["params"][0]]["momentum_buffer"])
    assert from_plain(matrix.group["orthogonalizer"]) == NewtonSchulz("jordan", steps=4)
    assert (matrix.group["scale"], matrix.group["weight_decay"]) == ("match_rms_adamw", 0.5)


def test_a_state_of_muon_optimizer_is_told_in_our_terms(tmp_path):
    muon = {"params": [0], "lr": 0.1, "momentum": 0.9, "weight_decay": 0.0, "use_muon": True}
    adam = {"params": [1], "lr": 0.1, "betas": (0.9, 0.9), "eps": 1e-8, "weight_decay": 0.0, "use_muon": False}
    states = {0: {"momentum_buffer": torch.ones(2, 3, 2)}, 1: {"exp_avg": torch.ones(2, 2), "step": 1}}
    found = read_matrices(saved(tmp_path / "opt.bin", {"state": states, "param_groups": [adam, muon]}))
    assert names(found) == ["group 1, parameter 0"]
    assert found.matrices[0].tensor.shape == (2, 6)
    assert from_plain(found.matrices[0].group["orthogonalizer"]) == NewtonSchulz("jordan", steps=5)
    assert [name for name, _ in found.skipped] == ["group 0, parameter 0"]


@pytest.mark.parametrize("build", [torch.optim.SGD, SGDM])
def test_momenta_of_sgd_are_read_vectors_skipped_and_its_group_kept_plain(tmp_path, build):
    opt = stepped(build(parameters((3, 4), (4,)), lr=0.1, momentum=0.9))
    found = read_matrices(saved(tmp_path / "opt.pt", opt.state_dict()))
    assert names(found) == ["group 0, parameter 0"]
    assert found.skipped == (("group 0, parameter 1", "is a vector or a number, shape (4,), not a matrix"),)
    assert found.matrices[0].group["momentum"] == 0.9
    assert "orthogonalizer" not in found.matrices[0].group


def test_two_optimizers_are_told_apart_and_a_flat_state_is_read_by_its_names(tmp_path):
    opt = stepped(Muon(parameters((3, 4)))).state_dict()
    found = read_matrices(saved(tmp_path / "two.pt", {"a": opt, "b": [{**opt}], "same again": opt}))
    assert names(found) == ["a: group 0, parameter 0", "b.0: group 0, parameter 0"]
    flat = {"state.up.momentum_buffer": torch.ones(2, 3), "state.up.exp_avg": torch.ones(2, 3), "param_groups.up.lr": 1}
    found = read_matrices(saved(tmp_path / "flat.pt", {"optimizer": flat}))
    assert [(m.name, m.what, m.group) for m in found.matrices] == [
        ("optimizer.state.up.momentum_buffer", "momentum", None)
    ]
    by_name = {"state": {"up": {"momentum_buffer": torch.ones(2, 3)}}, "param_groups": [{"params": ["up"]}]}
    assert names(read_matrices(saved(tmp_path / "named.pt", by_name))) == ["up"]


def test_adam_is_refused_by_name_and_its_checkpoint_offers_the_weights(tmp_path):
    model = torch.nn.Linear(3, 2)
    opt = stepped(torch.optim.AdamW(model.parameters()))
    line = refusal(saved(tmp_path / "opt.pt", opt.state_dict()))
    assert "this is the state of an Adam-like optimizer; its exp_avg is never orthogonalized" in line
    path = saved(tmp_path / "all.pt", {"opt": opt.state_dict(), "model": model.state_dict()})
    assert refusal(path).endswith("--weights (weights=True) reads its 1 weights")
    assert [(m.name, m.what) for m in read_matrices(path, weights=True).matrices] == [("model.weight", "weight")]


def test_a_state_without_momentum_says_what_to_do(tmp_path):
    opt = torch.optim.SGD(parameters((2, 3)), lr=0.1)
    assert "save after a step with momentum > 0" in refusal(saved(tmp_path / "opt.pt", opt.state_dict()))
    assert "save after a step with momentum > 0" in refusal(saved(tmp_path / "new.pt", stepped(opt).state_dict()))


def test_a_file_that_torch_wrote_without_checksums_is_read(tmp_path):
    torch.serialization.set_crc32_options(False)
    try:
        path = saved(tmp_path / "opt.pt", state(torch.ones(2, 3)))
    finally:
        torch.serialization.set_crc32_options(True)
    assert len(read_matrices(path).matrices) == 1


def test_entries_that_are_no_dense_floats_are_skipped_and_nan_is_passed_on(tmp_path):
    odd = {
        "sparse": torch.eye(3).to_sparse(),
        "meta": torch.ones(2, 2, device="meta"),
        "complex": torch.ones(2, 2, dtype=torch.complex64),
        "bool": torch.ones(2, 2, dtype=torch.bool),
        "int": torch.ones(2, 2, dtype=torch.int64),
        "float8": torch.ones(2, 2).to(torch.float8_e4m3fn),
        "empty": torch.ones(0, 3),
        "scalar": torch.tensor(1.0),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that these kinds are new, or old
        odd["csr"] = torch.eye(3).to_sparse_csr()
        odd["quantized"] = torch.quantize_per_tensor(torch.ones(2, 2), 0.1, 0, torch.qint8)
    kept = {
        "nan": torch.full((2, 2), torch.nan),
        "half": torch.ones(2, 3, dtype=torch.float16),
        "brain": torch.nn.Parameter(torch.ones(2, 3, dtype=torch.bfloat16)),
        "transposed": torch.arange(6.0).reshape(2, 3).T,
    }
    found = read_matrices(saved(tmp_path / "odd.pt", {**odd, **kept}), weights=True)
    assert names(found) == list(kept)
    assert [name for name, _ in found.skipped] == list(odd)
    reasons = dict(found.skipped)
    assert "torch.sparse_coo" in reasons["sparse"]
    assert "device meta" in reasons["meta"]
    assert "torch.complex64" in reasons["complex"]
    assert "no entries" in reasons["empty"]
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
    assert "matrix_view must be one of" in found.skipped[1][1]


# -------------------------------------------------------------------------------------------- safetensors and numpy


def test_safetensors_tell_momenta_by_name_and_weights_only_when_asked(tmp_path):
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
    assert [(m.name, m.what) for m in both.matrices if m.what == "weight"] == [("model.up", "weight")]
    assert {name for name, _ in both.skipped} == {"model.bias", "model.index", "optimizer.state.up.exp_avg"}
    renamed = tmp_path / "x.bin"
    renamed.write_bytes(path.read_bytes())
    assert read_matrices(renamed).kind == "safetensors"


def test_safetensors_of_weights_are_refused_with_the_option_that_reads_them(tmp_path):
    path = tmp_path / "x.safetensors"
    safetensors.save_file({"w": torch.ones(2, 3), "v": torch.ones(3, 2)}, path)
    assert (
        refusal(path)
        == "must hold momentum buffers, got 2 weights and none: --weights (weights=True) reads its 2 weights"
    )


def test_without_safetensors_the_line_names_what_to_install(tmp_path, monkeypatch):
    path = tmp_path / "x.safetensors"
    safetensors.save_file({"w": torch.ones(2, 3)}, path)
    monkeypatch.setitem(sys.modules, "safetensors", None)
    assert refusal(path) == "needs the safetensors package, got none: pip install muonlab[lab]"


@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f8", ">f8", "<f2"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_npy_is_read_in_any_byte_order_and_layout(tmp_path, dtype, order):
    array = np.asarray(np.arange(6).reshape(2, 3), dtype=dtype, order=order)
    np.save(tmp_path / "M.npy", array)
    found = read_matrices(tmp_path / "M.npy")
    (matrix,) = found.matrices
    assert (found.kind, matrix.name, matrix.what, matrix.group) == ("npy", "M", "matrix", None)
    assert np.array_equal(matrix.tensor.numpy(), array)
    assert matrix.tensor.dtype == {2: torch.float16, 4: torch.float32, 8: torch.float64}[array.itemsize]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_gives_matrices_stacks_and_reasons(tmp_path, save):
    arrays = {"a": np.zeros((40, 50)), "b": np.arange(24.0).reshape(2, 3, 4), "c": np.arange(6).reshape(2, 3)}
    save(tmp_path / "x.npz", **arrays, v=np.ones(3), z=np.ones((2, 2), complex), t=np.ones((2, 2), bool))
    found = read_matrices(tmp_path / "x.npz")
    assert (found.kind, names(found)) == ("npz", ["a", "b[0]", "b[1]", "c"])
    assert np.array_equal(found.matrices[2].tensor.numpy(), arrays["b"][1])
    assert found.matrices[2].shape == (2, 3, 4)
    assert found.matrices[3].tensor.dtype == torch.float64
    assert found.note == "integers were read as float64"
    assert [name for name, _ in found.skipped] == ["v", "z", "t"]
    assert "complex128" in dict(found.skipped)["z"]


def test_the_content_decides_and_not_the_extension(tmp_path):
    np.save(tmp_path / "x.npy", np.ones((2, 3)))
    (tmp_path / "x.npy").rename(tmp_path / "x.pt")
    assert read_matrices(tmp_path / "x.pt").kind == "npy"
    assert read_matrices(saved(tmp_path / "y.npz", state(torch.ones(2, 3)))).kind == "torch optimizer state"
    assert "SafetensorError" in refusal(saved(tmp_path / "y.safetensors", state(torch.ones(2, 3))))


# ------------------------------------------------------------------------------------------------------ hostile files


class Payload:
    """A pickle that would make a file when it is loaded."""

    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return os.system, (f"touch {self.target}",)


class Evaluated(Payload):
    def __reduce__(self):
        return eval, (f"open({str(self.target)!r}, 'w').close()",)


def raw_zip(path, body, *, storages=(), compression=zipfile.ZIP_STORED, extra=()):
    """Write an archive in torch's layout around any pickle."""
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w", compression) as archive:
        warnings.simplefilter("ignore")  # doubled names are the point of some
        for name, content in [("x/data.pkl", body), ("x/byteorder", b"little"), ("x/version", b"3\n"), *extra]:
            archive.writestr(name, content)
        for key, content in enumerate(storages):
            archive.writestr(f"x/data/{key}", content)
    return path


def tensor_pickle(size, stride, numel, count=1):
    """Return a pickle of momenta that claim any size, stride and storage."""

    class Claim:
        def __reduce__(self):
            return torch._utils._rebuild_tensor_v2, (Storage(), 0, size, stride, False, collections.OrderedDict())

    class Storage:
        pass

    class Pickler(pickle.Pickler):
        def persistent_id(self, value):
            return ("storage", torch.FloatStorage, "0", "cpu", numel) if isinstance(value, Storage) else None

    stream = io.BytesIO()
    Pickler(stream, 2).dump({f"{i}.momentum_buffer": Claim() for i in range(count)})
    return stream.getvalue()


@pytest.mark.parametrize("payload", [Payload, Evaluated])
@pytest.mark.parametrize("form", ["zip", "legacy", "pickle 2", "pickle 4", "npy", "npz", "tar", "proto 4 zip"])
def test_nothing_in_a_file_is_executed(tmp_path, payload, form):
    trap = tmp_path / "trap"
    content = {"state": {0: {"momentum_buffer": payload(trap)}}, "param_groups": [{"params": [0]}]}
    path = tmp_path / "evil.pt"
    if form == "npy":
        np.save(tmp_path / "evil.npy", np.array([[payload(trap)]], dtype=object), allow_pickle=True)
        path = tmp_path / "evil.npy"
    elif form == "npz":
        np.savez(tmp_path / "evil.npz", a=np.array([[payload(trap)]], dtype=object))
        path = tmp_path / "evil.npz"
    elif form == "tar":
        with tarfile.open(path, "w") as archive:
            for name in ("storages", "tensors", "pickle"):
                body = pickle.dumps(content, 2)
                info = tarfile.TarInfo(name)
                info.size = len(body)
                archive.addfile(info, io.BytesIO(body))
    elif form.startswith("pickle"):
        path.write_bytes(pickle.dumps(content, int(form[-1])))
    elif form == "proto 4 zip":
        raw_zip(path, pickle.dumps(content, 4))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=form == "zip")
    with torch.serialization.safe_globals([eval, os.system]):  # not even if the process has allowed it elsewhere
        for weights in (False, True):
            line = refusal(path, weights=weights)
    expected = {
        "zip": "must hold tensors and plain values only, got",
        "legacy": "must hold tensors and plain values only, got",
        "pickle 2": "a pickle that torch.save did not write",
        "pickle 4": "a pickle that torch.save did not write",
        "npy": "is of object",
        "npz": "is of object",
        "tar": "a tar archive",
        "proto 4 zip": "STACK_GLOBAL",
    }
    assert expected[form] in line
    assert not trap.exists()
    pickle.loads(pickle.dumps(payload(trap)))
    assert trap.exists()  # the trap was live


class Named:
    def __init__(self, function, *args):
        self.reduced = function, args

    def __reduce__(self):
        return self.reduced


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (Named(bytearray, 10**12), "bytearray, not loaded"),
        (Named(torch.load, "/nowhere"), "torch.serialization.load, not loaded"),
        (collections.defaultdict(list), "collections.defaultdict, not loaded: save the optimizer alone"),
        (np.float64(1.0), "numpy"),
    ],
)
def test_what_is_no_tensor_or_plain_value_is_named_with_the_way_out(tmp_path, content, rule):
    assert rule in refusal(raw_zip(tmp_path / "x.pt", pickle.dumps(content, 2)))


def test_sharded_tensors_say_how_to_gather_them(tmp_path):
    body = b"\x80\x02ctorch.distributed.tensor\nDTensor\n."
    line = refusal(raw_zip(tmp_path / "x.pt", body))
    assert "torch.distributed.tensor.DTensor" in line
    assert "full_state_dict=True" in line


@pytest.mark.parametrize(
    ("level", "rule"),
    [
        (b"\x85", "must nest tuples at most 100 deep"),
        (b"\x85q\x010h\x01", "must nest tuples at most 100 deep"),  # by way of the memo
        (b"\x85q\x01h\x01h\x01\x86", "must hold tuples of at most 100000 values"),
    ],
)
def test_tuples_too_deep_to_hash_are_refused_before_torch_hashes_them(tmp_path, level, rule):
    body = b"\x80\x02}(" + b")" + level * 1_000_000 + b"K\x01u."
    assert rule in refusal(raw_zip(tmp_path / "x.pt", body))


@pytest.mark.parametrize("use", [b"}h\x3bK\x01s.", b"\x8f(h\x3b\x90.", b"h\x3b."])
def test_a_small_file_whose_tuples_hold_one_another_2_to_the_59_times_is_refused_at_once(tmp_path, use):
    body = b"\x80\x02)q\x00"
    for i in range(1, 60):
        body += b"h" + bytes([i - 1]) + b"h" + bytes([i - 1]) + b"\x86q" + bytes([i])
    assert "must hold tuples of at most 100000 values" in refusal(raw_zip(tmp_path / "x.pt", body + use))


def test_tuples_below_the_limit_may_not_be_hashed_without_end(tmp_path):
    body = b"\x80\x02(" + b"K\x01" * 90_000 + b"tq\x00}" + b"h\x00K\x01s" * 100_000 + b"."
    assert "10000000 in those used again, got more" in refusal(raw_zip(tmp_path / "x.pt", body))


def test_lists_in_a_group_that_hold_one_another_many_times_are_no_setting(tmp_path):
    nested = [1.0] * 9000
    for _ in range(3):
        nested = [nested] * 9000
    (matrix,) = read_matrices(saved(tmp_path / "x.pt", state(torch.ones(2, 3), lr=0.1, odd=nested))).matrices
    assert dict(matrix.group) == {"lr": 0.1}


def test_lists_nested_deeply_and_cycles_end(tmp_path):
    body = b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b"."
    assert "more than 16 levels deep" in refusal(raw_zip(tmp_path / "deep.pt", body))
    cyclic = {"inner": [state(torch.ones(2, 3))]}
    cyclic["inner"].append(cyclic)
    cyclic["self"] = cyclic
    assert len(read_matrices(saved(tmp_path / "cycle.pt", cyclic)).matrices) == 1


@pytest.mark.parametrize(
    ("size", "stride", "numel", "count"),
    [
        ((10**6, 10**6), (10**6, 1), 4, 1),  # more than its storage
        ((10**6, 10**6), (10**6, 1), 10**12, 1),  # a storage larger than the file
        ((10**5, 10**5), (0, 0), 4, 1),  # one number, repeated
        ((20, 20), (0, 0), 4, 5_000),  # each of them small
        ((2, 2), (-1, 1), 4, 1),
        ((-2, 2), (1, 1), 4, 1),
        ((2, 2), (2, 1), -4, 1),
    ],
)
def test_a_tensor_that_claims_more_than_the_file_holds_is_refused(tmp_path, size, stride, numel, count):
    body = tensor_pickle(size, stride, numel, count)
    refusal(raw_zip(tmp_path / "x.pt", body, storages=[b"\0" * 16]))
    honest = raw_zip(tmp_path / "ok.pt", tensor_pickle((2, 2), (2, 1), 4), storages=[b"\0" * 16])
    assert names(read_matrices(honest)) == ["0.momentum_buffer"]


def test_archives_that_two_readers_could_see_differently_are_refused(tmp_path):
    body, storage = tensor_pickle((2, 2), (2, 1), 4), [b"\0" * 16]
    doubled = "must hold every member once"
    for name in ("x/data.pkl", "x/DATA.pkl"):
        assert doubled in refusal(raw_zip(tmp_path / "x.pt", body, storages=storage, extra=[(name, b"\x80\x02N.")]))
    made = "must be an archive as torch.save writes it"
    assert made in refusal(raw_zip(tmp_path / "x.pt", body, storages=storage, extra=[("y/data.pkl", b"\x80\x02N.")]))
    assert made in refusal(raw_zip(tmp_path / "x.pt", body, storages=storage, compression=zipfile.ZIP_DEFLATED))
    raw_zip(tmp_path / "x.pt", body, storages=storage)
    with zipfile.ZipFile(tmp_path / "x.pt", "a") as archive:
        archive.comment = b"a comment"
    assert made in refusal(tmp_path / "x.pt")


def test_attributes_that_a_pickle_sets_do_not_reach_the_reader(tmp_path):
    class Shadowed:
        def __reduce__(self):
            return collections.OrderedDict, (), {"items": 5, "get": 5}, None, iter([("w", torch.ones(2, 3))])

    found = read_matrices(saved(tmp_path / "x.pt", {"momentum_buffer": Shadowed()}))
    assert names(found) == ["momentum_buffer.w"]
    tensor = torch.ones(2, 3)
    tensor.reshape = tensor.split = 5
    (matrix,) = read_matrices(saved(tmp_path / "y.pt", state(tensor))).matrices
    assert torch.equal(matrix.tensor.reshape(3, 2), torch.ones(3, 2))


NEWTON = ("frobenius", "auto", "auto", "full")


@pytest.mark.parametrize(
    "orthogonalizer",
    [
        ("newton_schulz", "x", (("1e999999999", "1"),), *NEWTON),
        ("newton_schulz", "x", (("1/0", "1"),), *NEWTON),
        ("newton_schulz", "x", (("9" * 300, "1"),) * 30, *NEWTON),  # doubly exponential in exact arithmetic
        ("newton_schulz", "x", (("3/2", "-1/2"),) * 5000, *NEWTON),
        ("newton_schulz", "x", (("3/2",) * 5000,), *NEWTON),
        ("newton_schulz", "x", (("3/2", "-1/2"),), "no such prescale", "auto", "auto", "full"),
        ("newton_schulz",),
        ("os.system", "true"),
        ("exact_polar", {}, []),
        "newton_schulz",
        (),
    ],
)
def test_an_orthogonalizer_that_muon_would_not_write_is_refused_without_long_computation(tmp_path, orthogonalizer):
    refusal(saved(tmp_path / "x.pt", state(torch.ones(2, 3), orthogonalizer=orthogonalizer)))


QUINTIC = (3.4445, -4.775, 2.0315)


@pytest.mark.parametrize(
    ("steps", "coefficients"),
    [
        (10**9, QUINTIC),
        (100, QUINTIC),
        (-1, QUINTIC),
        ("5", QUINTIC),
        (None, QUINTIC),
        (99, (1e300, 1e300)),
        (5, (1e308, 1.0, 1.0)),
        (5, (float("nan"), 1.0, 1.0)),
        (5, (float("inf"), 1.0, 1.0)),
        (5, (2.0,) * 1000),
        (5, ()),
        (5, None),
        (5, {"a": 1}),
    ],
)
def test_a_polynomial_of_torch_muon_that_cannot_be_understood_is_refused_without_long_computation(
    tmp_path, steps, coefficients
):
    group = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.0, "nesterov": True, "adjust_lr_fn": None}
    content = state(torch.ones(2, 3), **group, ns_steps=steps, ns_coefficients=coefficients)
    assert "must hold an orthogonalizer as Muon takes it" in refusal(saved(tmp_path / "x.pt", content))


def test_names_from_a_file_are_printable_and_short(tmp_path):
    evil = "a\x1b[2J\r\n\u202eb" + "x" * 10_000
    np.savez(tmp_path / "x.npz", **{"\x1b[31mred\n": np.ones((2, 2)), "\x07bell": np.ones(2)})
    safetensors.save_file({evil + "momentum_buffer": torch.ones(2, 2)}, tmp_path / "x.safetensors")
    group = {"params": [0], "param_names": [evil], "\x1bkey": 1, "value": "\x1b[0m", "scale": "original"}
    content = {"state": {0: {"momentum_buffer": torch.ones(2, 2)}}, "param_groups": [group]}
    saved(tmp_path / "x.pt", content)
    for name in ("x.npz", "x.safetensors", "x.pt"):
        found = read_matrices(tmp_path / name)
        texts = [*names(found), *(text for pair in found.skipped for text in pair)]
        assert texts
        assert all(text.isprintable() and len(text) < 400 for text in texts)
    assert found.matrices[0].name.startswith(r"a\x1b[2J\r\n\u202ebxx")
    assert dict(found.matrices[0].group) == {r"\x1bkey": 1, "scale": "original"}
    assert "No such file" in refusal(tmp_path / "no such\x1b[31m\nfile.npy")
    refusal(saved(tmp_path / "w.pt", {evil: torch.ones(2)}), weights=True)


# ------------------------------------------------------------------------------------------- numpy, zip and safetensors


def npy(shape, descr="<f8", data=b"", version=(1, 0)):
    """Return a .npy with any header."""
    header = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape!r}, }}\n".encode()
    length = struct.pack("<H" if version == (1, 0) else "<I", len(header))
    return b"\x93NUMPY" + bytes(version) + length + header + data


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (npy((10**6, 10**6), data=b"\0" * 32), "claims more than its file holds"),
        (npy((2, 3), data=b"\0" * 32), "where the file has"),
        (npy((2, 2), data=b"\0" * 64), "where the file has"),
        (npy((2**40, 2**40), "<f8"), "claims more than its file holds"),
        (npy((0, 2**70)), "has no entries"),
        (npy((-1, -4), data=b"\0" * 32), "has no entries"),
        (npy((2, 2), "|O", b"\x80\x04N."), "is of object"),
        (npy((2, 2), "<c16", b"\0" * 64), "is of complex128"),
        (npy((2, 2), "|b1", b"\0" * 4), "is of bool"),
        (npy((2, 2), "<U4", b"\0" * 64), "is of <U4"),
        (npy((2, 2), "|V2", b"\0" * 8), "is of |V2"),
        (npy((2, 2), [("a", "<f8")], b"\0" * 32), "is of"),
        (npy((2, 2), "(1000,1000)<f8", b"\0" * 32), "must hold a matrix"),
        (npy((2, 2), data=b"\0" * 32, version=(3, 0)), "header of version (3, 0), not 1 or 2"),
        (npy((2, 2), data=b"\0" * 32, version=(9, 9)), "header of version (9, 9), not 1 or 2"),
        (npy(((2, 2), 2), data=b"\0" * 64), "ValueError"),
        (npy((4,), data=b"\0" * 32), "is a vector"),
        (b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**31) + b"{", "ValueError"),
        (b"\x93NUMPY\x01\x00\x10\x27" + b"(" * 10_000, ""),
        (b"\x93NUMPY", "ValueError"),
    ],
)
def test_a_lying_header_of_numpy_is_refused_alone_and_in_an_archive(tmp_path, content, rule):
    path = tmp_path / "x.npy"
    path.write_bytes(content)
    assert rule in refusal(path)
    for compression in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        with zipfile.ZipFile(tmp_path / "x.npz", "w", compression) as archive:
            archive.writestr("x.npy", content)
        assert rule in refusal(tmp_path / "x.npz")


def test_a_compressed_archive_may_expand_only_so_far(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "x.npz", a=np.zeros((500, 500)), b=np.zeros((500, 500)))
    assert len(read_matrices(tmp_path / "x.npz").matrices) == 2
    monkeypatch.setattr(files, "INFLATED", 4_000_000)
    assert refusal(tmp_path / "x.npz").startswith("must expand to at most 4000000 bytes, got 4000256")


def test_an_archive_of_anything_else_writes_nothing_and_is_refused(tmp_path):
    inside = tmp_path / "inside"
    inside.mkdir()
    with zipfile.ZipFile(inside / "x.zip", "w") as archive:
        archive.writestr("../../escaped.txt", "text")
        archive.writestr("/etc/escaped", "text")
    assert "neither torch's nor numpy's" in refusal(inside / "x.zip")
    with zipfile.ZipFile(inside / "y.npz", "w") as archive:
        archive.writestr("../escaped.npy", npy((2, 2), data=b"\0" * 32))
    assert names(read_matrices(inside / "y.npz")) == ["../escaped"]
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["inside", "x.zip", "y.npz"]


def test_members_that_overlap_or_repeat_are_refused(tmp_path):
    path = tmp_path / "x.npz"
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w") as archive:
        warnings.simplefilter("ignore")
        archive.writestr("x.npy", npy((2, 2), data=b"\0" * 32))
        archive.writestr("x.npy", npy((2, 2), data=b"\1" * 32))
    assert "must hold every member once" in refusal(path)
    with zipfile.ZipFile(path, "w") as archive:
        for i in range(40):  # all of them point to the bytes of the first
            archive.writestr(f"{i}.npy", npy((20, 20), data=b"\0" * 3200) if i == 0 else b"")
        first = archive.getinfo("0.npy")
        for member in archive.infolist():
            member.header_offset, member.CRC = first.header_offset, first.CRC
            member.file_size = member.compress_size = first.file_size
    assert "must hold every member once" in refusal(path)


@pytest.mark.parametrize(
    "content",
    [
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", 2**40) + b"{" + b" " * 100,
        struct.pack("<Q", 2) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        b"\x10",
    ]
    + [
        struct.pack("<Q", len(header)) + header.encode() + b"\0" * 16
        for header in (
            '{"a.momentum_buffer":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},'
            '"b.momentum_buffer":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}',
            '{"a.momentum_buffer":{"dtype":"F32","shape":[2,2],"data_offsets":[0,1600]}}',
            '{"a.momentum_buffer":{"dtype":"F32","shape":[1000000,1000000],"data_offsets":[0,16]}}',
            '{"a.momentum_buffer":{"dtype":"F32","shape":[18446744073709551615,2],"data_offsets":[0,16]}}',
            '{"a.momentum_buffer":{"dtype":"F99","shape":[2,2],"data_offsets":[0,16]}}',
            '{"a.momentum_buffer":{"dtype":"F32","shape":[2,2],"data_offsets":[16,0]}}',
            '{"a.momentum_buffer":' + "[" * 5000 + "}",
        )
    ],
)
def test_a_lying_header_of_safetensors_is_refused(tmp_path, content):
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    refusal(path)


# --------------------------------------------------------------------------------------- what is no file, and damage


def test_what_is_no_regular_file_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "pipe.pt")
    (tmp_path / "zero.npy").symlink_to("/dev/zero")
    (tmp_path / "loop.npy").symlink_to(tmp_path / "loop.npy")
    (tmp_path / "dangling.npy").symlink_to(tmp_path / "nothing")
    (tmp_path / "empty.pt").touch()
    (tmp_path / "directory.npz").mkdir()
    assert "got a pipe, socket or device: give the path of one file" in refusal(tmp_path / "pipe.pt")
    assert "got a pipe, socket or device: give the path of one file" in refusal(tmp_path / "zero.npy")
    assert "got a directory: give the path of one file" in refusal(tmp_path / "directory.npz")
    assert "got an empty file: give a file of torch.save" in refusal(tmp_path / "empty.pt")
    assert "No such file or directory: check path and permissions" in refusal(tmp_path / "missing.pt")
    assert "No such file or directory" in refusal(tmp_path / "dangling.npy")
    assert "must be a file that can be read" in refusal(tmp_path / "loop.npy")
    assert "must be a file that can be read" in refusal(tmp_path / ("x" * 300))
    assert "Not a directory" in refusal(tmp_path / "empty.pt" / "x")
    assert "embedded null byte" in refusal("a\0b")


def test_a_file_that_may_not_be_read_is_refused(tmp_path, monkeypatch):
    path = saved(tmp_path / "x.pt", state(torch.ones(2, 3)))

    def forbidden(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.open", forbidden)  # root may read what the mode forbids
    assert refusal(path) == "must be a file that can be read, got Permission denied: check path and permissions"


def test_a_symlink_to_a_file_and_a_file_without_write_permission_are_read(tmp_path):
    path = saved(tmp_path / "x.pt", state(torch.ones(2, 3)))
    path.chmod(0o400)
    (tmp_path / "link.pt").symlink_to(path)
    assert len(read_matrices(str(tmp_path / "link.pt")).matrices) == 1


def test_files_without_any_matrix_say_what_they_hold(tmp_path):
    assert "got no tensor or array: save the optimizer alone" in refusal(saved(tmp_path / "x.pt", {"epoch": 1}))
    line = refusal(saved(tmp_path / "y.pt", {"bias": torch.ones(3), "step": torch.tensor(1.0)}), weights=True)
    assert line.endswith("bias is a vector or a number, shape (3,), not a matrix and 1 more like it")
    assert "bytes that are none of these" in refusal(__file__)
    assert "got no tensor" in refusal(saved(tmp_path / "z.pt", {"state": {}, "param_groups": []}))
    for content in ({"state": {0: 1}, "param_groups": [{"params": [0]}]}, {"state": {}, "param_groups": [1]}):
        refusal(saved(tmp_path / "z.pt", content))


def test_a_torchscript_archive_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.pt", "w") as archive:
        archive.writestr("x/data.pkl", b"\x80\x02N.")
        archive.writestr("x/constants.pkl", b"\x80\x02).")
        archive.writestr("x/version", b"3\n")
    assert "TorchScript" in refusal(tmp_path / "x.pt")


def test_too_many_matrices_are_refused(tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", np.ones((11, 2, 2)))
    monkeypatch.setattr(entries, "MATRICES", 11)
    assert len(read_matrices(tmp_path / "x.npy").matrices) == 11
    monkeypatch.setattr(entries, "MATRICES", 10)
    assert refusal(tmp_path / "x.npy") == "must hold at most 10 matrices, got more: split it"


def good_files(folder):
    """Write one good file of every kind."""
    opt = stepped(MuonWithAux(Muon([("w", p) for p in parameters((3, 4))]), torch.optim.AdamW(parameters((2,)))))
    M = np.random.default_rng(0).normal(size=(3, 4))
    saved(folder / "zip.pt", {"model": {"w": torch.ones(3, 4)}, "opt": opt.state_dict()})
    saved(folder / "legacy.pt", opt.state_dict(), _use_new_zipfile_serialization=False)
    safetensors.save_file({"momentum_buffer": torch.ones(3, 4), "w": torch.ones(2, 2)}, folder / "x.safetensors")
    np.save(folder / "x.npy", M)
    np.savez(folder / "plain.npz", a=M, b=M.T)
    np.savez_compressed(folder / "packed.npz", a=M, b=M.T)
    return sorted(folder.iterdir())


@pytest.mark.parametrize("which", range(6))
def test_truncated_flipped_and_spliced_files_are_read_or_refused_in_one_line(tmp_path, which):
    source = tmp_path / "source"
    source.mkdir()
    good = good_files(source)
    assert len(good) == 6
    content, rng = good[which].read_bytes(), random.Random(which)
    assert read_matrices(good[which]).matrices
    path = tmp_path / f"damaged{good[which].suffix}"
    outcomes = collections.Counter()
    for trial in range(400):
        damaged = bytearray(content)
        if trial % 4 == 0:
            del damaged[rng.randrange(len(content)) :]
        elif trial % 4 == 1:
            damaged[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        elif trial % 4 == 2:
            for _ in range(20):
                damaged[rng.randrange(len(content))] = rng.randrange(256)
        else:
            start, length = rng.randrange(len(content)), rng.randrange(1, 64)
            damaged[start : start + length] = rng.randbytes(rng.randrange(64))
        path.write_bytes(damaged)
        try:
            found = read_matrices(path, weights=bool(trial & 8))
        except FileError as error:
            outcomes["refused"] += str(error).isprintable()
        else:
            assert all(m.name.isprintable() and m.tensor.ndim == 2 for m in found.matrices)
            sum(m.tensor.double().sum() for m in found.matrices)  # every entry can be touched
            outcomes["read"] += 1
    assert outcomes.total() == 400  # and each refusal in one printable line
    assert outcomes["refused"] > 50
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([path.name, "source"])


def test_random_bytes_are_refused_under_every_magic_number(tmp_path):
    rng = random.Random(0)
    magics = [b"", b"PK\x03\x04", b"\x93NUMPY\x01\x00", files._LEGACY, b"\x80\x02", b"\x40" + b"\0" * 7 + b"{"]
    for magic in magics:
        for trial in range(30):
            path = tmp_path / f"x{rng.choice(['.pt', '.npy', '.npz', '.safetensors', ''])}"
            path.write_bytes(magic + rng.randbytes(rng.choice([0, 1, 30, 1000]) + (trial == 0)))
            if path.stat().st_size:
                refusal(path, weights=True)


def test_no_warning_leaks(tmp_path):
    content = state(torch.ones(2, 3))
    for legacy in (False, True):
        path = saved(tmp_path / "x.pt", content, _use_new_zipfile_serialization=not legacy)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            read_matrices(path)
        assert not caught


def test_printable_keeps_what_can_be_shown_and_escapes_the_rest():
    assert printable("layers.0.weight λ") == "layers.0.weight λ"
    assert printable("\x00\x1b\x7f\x85\u200f\u2028\ud800") == r"\x00\x1b\x7f\x85\u200f\u2028\ud800"
    assert printable("ab" * 100, 10) == "ababa…babab"
