import errno
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch

from muonlab.lab.data import cache
from muonlab.lab.data.loading import identify, load
from tests.lab.data.folders import image_folder, kept


def fill(part):
    np.save(part / "numbers.npy", np.arange(10))
    (part / "scratch").mkdir()
    (part / "scratch" / "rest").write_text("x")
    return {"revision": "abc"}


def test_arrays_are_mapped_copy_on_write_with_their_facts(tmp_path):
    cached, arrays = cache.get_or_decode_arrays(tmp_path, "a-1", fill)
    assert arrays["numbers"].tolist() == list(range(10))
    assert isinstance(arrays["numbers"], np.memmap)
    assert (cached.facts, cached.count("numbers")) == ({"revision": "abc"}, 10)
    assert sorted(path.name for path in (tmp_path / "a-1").iterdir()) == ["meta.json", "numbers.npy"]
    arrays["numbers"][:] = 0
    assert cache.get_or_decode_arrays(tmp_path, "a-1", fill)[1]["numbers"].tolist() == list(range(10))


def test_the_second_time_nothing_is_decoded(tmp_path, monkeypatch):
    image_folder(tmp_path, "mnist")
    first = load("mnist", root=tmp_path, cache=tmp_path / "cache")
    for package in ("datasets", "PIL", "tokenizers"):
        monkeypatch.setitem(sys.modules, package, None)
    second = load("mnist", root=tmp_path, cache=tmp_path / "cache")
    assert torch.equal(first.train.pixels, second.train.pixels)
    found = identify("mnist", root=tmp_path, cache=tmp_path / "cache")
    assert first.hash == second.hash == found.hash
    assert first.origin == second.origin == found.origin


def test_identifying_what_is_cached_opens_no_array(tmp_path, monkeypatch):
    found = identify("digits", cache=tmp_path)
    monkeypatch.setattr(np, "load", None)
    assert identify("digits", cache=tmp_path) == found


def test_a_changed_folder_is_decoded_anew_and_a_copied_one_has_the_same_hash(tmp_path):
    image_folder(tmp_path / "a", "mnist")
    image_folder(tmp_path / "b", "mnist", "mnist-subset")
    image_folder(tmp_path / "c", "mnist", each=3)
    a, b, c = (identify("mnist", root=tmp_path / p, cache=tmp_path / "cache").hash for p in "abc")
    assert a == b != c
    image_folder(tmp_path / "a", "mnist", each=3)
    assert identify("mnist", root=tmp_path / "a", cache=tmp_path / "cache").hash == c


def _flip(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def _header(path):
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)


def _other_shape(path):
    array = np.load(path)
    np.save(path, array.reshape(-1))


DAMAGE = {
    "a flipped bit": ("train_images.npy", _flip),
    "a broken header": ("test_labels.npy", _header),
    "a cut array": ("train_images.npy", lambda path: path.write_bytes(path.read_bytes()[:-5])),
    "another shape": ("train_images.npy", _other_shape),
    "a missing array": ("test_images.npy", lambda path: path.unlink()),
    "missing metadata": ("meta.json", lambda path: path.unlink()),
    "metadata that are no JSON": ("meta.json", lambda path: path.write_text("{")),
    "metadata nested too deep": ("meta.json", lambda path: path.write_text("[" * 200_000)),
    "a pipe": ("meta.json", lambda path: (path.unlink(), os.mkfifo(path))),
    "a pipe in place of an array": ("test_labels.npy", lambda path: (path.unlink(), os.mkfifo(path))),
    "metadata of another form": ("meta.json", lambda path: path.write_text("[]")),
    "another hash": ("meta.json", lambda path: path.write_text(path.read_text().replace('"hash": "', '"hash": "0'))),
}


def test_a_damaged_cache_is_decoded_again(tmp_path):
    image_folder(tmp_path, "mnist")
    first = load("mnist", root=tmp_path, cache=tmp_path / "cache")
    pixels = first.train.pixels.clone()
    directory = tmp_path / "cache" / "data" / kept(tmp_path / "cache")[0]
    for damage, (file, spoil) in DAMAGE.items():
        spoil(directory / file)
        again = load("mnist", root=tmp_path, cache=tmp_path / "cache")
        assert again.hash == first.hash, damage
        assert torch.equal(again.train.pixels, pixels), damage
        assert kept(tmp_path / "cache") == [directory.name], damage


def test_damage_that_comes_back_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(
        cache,
        "_describe",
        lambda array: {"dtype": array.dtype.str, "shape": [10], "sha256": os.urandom(4).hex(), "header": ""},
    )
    with pytest.raises(OSError, match="damaged each time it is written: set MUONLAB_CACHE to another disk"):
        cache.get_or_decode_arrays(tmp_path, "a-1", fill)


def test_an_error_or_an_interrupt_leaves_nothing(tmp_path):
    image_folder(tmp_path, "mnist")

    def interrupt(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load("mnist", root=tmp_path, cache=tmp_path / "cache", progress=interrupt)
    assert kept(tmp_path / "cache") == []
    load("mnist", root=tmp_path, cache=tmp_path / "cache")


PROGRAM = """
import sys, time
from pathlib import Path
import numpy as np
from muonlab.lab.data import cache
def fill(part):
    np.save(part / "numbers.npy", np.arange(10))
    print("began", flush=True)
    time.sleep(60)
    return {}
cache.get_or_decode(Path(sys.argv[1]), sys.argv[2], fill)
"""


def test_what_a_killed_process_left_is_neither_used_nor_kept(tmp_path):
    with subprocess.Popen([sys.executable, "-c", PROGRAM, tmp_path, "a-1"], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"began\n"
        process.send_signal(signal.SIGKILL)
    assert len(list(tmp_path.glob("a-1.*.part"))) == 1
    assert cache.read(tmp_path / "a-1") is None
    assert cache.get_or_decode(tmp_path, "a-1", fill).count("numbers") == 10
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["a-1"]


def test_of_two_that_want_the_same_one_decodes_and_the_other_waits(tmp_path):
    calls, found = [], []

    def slow(part):
        calls.append(part)
        time.sleep(0.2)
        return fill(part)

    threads = [
        threading.Thread(target=lambda: found.append(cache.get_or_decode(tmp_path, "a-1", slow))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1
    assert len({cached.hash for cached in found}) == 1
    assert len(found) == 4


def test_without_locks_the_first_to_finish_wins_and_both_are_served(tmp_path, monkeypatch):
    from contextlib import contextmanager

    @contextmanager
    def no_lock(_, **__):
        yield False

    monkeypatch.setattr(cache, "_exclusive", no_lock)
    barrier, found = threading.Barrier(2), []

    def together(part):
        barrier.wait()
        return fill(part)

    threads = [
        threading.Thread(target=lambda: found.append(cache.get_or_decode(tmp_path, "a-1", together))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["a-1"]


def test_a_full_disk_names_the_cache_and_the_way_out(tmp_path):
    def full(part):
        np.save(part / "numbers.npy", np.arange(10))
        try:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        except OSError as error:
            raise RuntimeError("while generating") from error  # as a library wraps it

    with pytest.raises(OSError, match=rf"the cache {tmp_path} cannot be written \(.*set MUONLAB_CACHE") as error:
        cache.get_or_decode(tmp_path, "a-1", full)
    assert "\n" not in str(error.value)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []


def test_a_disk_that_fills_up_while_images_are_written_is_an_error_in_one_line(tmp_path):
    program = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "from muonlab.lab.data import cache\n"
        "import numpy as np\n"
        "from pathlib import Path\n"
        "def fill(part):\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "    with cache.array_writer(part / 'x.npy', 'u1', (100, 10_000)) as write:\n"
        "        for _ in range(100): write(np.zeros((1, 10_000), np.uint8))\n"
        "    return {}\n"
        "try: cache.get_or_decode(Path(sys.argv[1]), 'a-1', fill)\n"
        "except OSError as error: print(error)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=True)
    assert "cannot be written (File too large): free some space, or set MUONLAB_CACHE" in ran.stdout
    assert ran.stdout.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []
