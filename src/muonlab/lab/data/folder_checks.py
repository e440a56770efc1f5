"""Refuses folders of data that would take time or memory without limit: pipes, YAML with references, packed lines."""

from __future__ import annotations

import bz2
import gzip
import lzma
import stat
from pathlib import Path

from muonlab import _files
from muonlab.lab.data.sources import Source

LARGEST_CARD = 2**20
"""Most bytes of a README.md or YAML file, from which the library reads settings."""
LONGEST_LINE = 2**26
"""Most bytes of a line of packed text; the library reads a line at once."""
_PIECE = 2**20
_PACKED = (".gz", ".bz2", ".xz")


def check_folder(source: Source, folder: Path) -> None:
    """Raise ValueError for a file of a folder that the ``datasets`` library would read without end or limit."""
    for path in sorted(folder.rglob("*")):
        try:
            mode = path.stat().st_mode
        except OSError:  # a broken link, which the library names
            continue
        where = f"{source.phrase}, {path.relative_to(folder).as_posix()}"
        if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
            raise ValueError(
                f"a folder of data must have regular files only, got a pipe or device in {where}: remove it"
            )
        if path in (folder / "README.md", folder / ".huggingface.yaml"):  # what the library reads settings from
            _check_card(path, where)
        if path.suffix in _PACKED and stat.S_ISREG(mode):
            _check_lines(path, where)


def _check_card(path: Path, where: str) -> None:
    import yaml  # type: ignore[import-untyped]  # a requirement of datasets
    from huggingface_hub.repocard import REGEX_YAML_BLOCK

    try:
        text = _files.read_bytes(path, at_most=LARGEST_CARD, follow_link=True).decode(errors="replace")
        if path.name == "README.md":
            block = REGEX_YAML_BLOCK.search(text)
            text = block[2] if block else ""
        refers = any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text))
    except (yaml.YAMLError, RecursionError):  # the library names what is wrong
        return
    if refers:
        raise ValueError(f"YAML of a dataset must not refer to itself (*name), got it in {where}: write it out")


def _unpack(path: Path) -> gzip.GzipFile | bz2.BZ2File | lzma.LZMAFile:
    if path.suffix == ".gz":
        return gzip.open(path, "rb")
    return bz2.open(path, "rb") if path.suffix == ".bz2" else lzma.open(path, "rb")


def _check_lines(path: Path, where: str) -> None:
    length = 0
    try:
        with _unpack(path) as file:
            while piece := file.read(_PIECE):
                last = piece.rfind(b"\n")
                length = length + len(piece) if last < 0 else len(piece) - last - 1
                if length > LONGEST_LINE:
                    raise ValueError(
                        f"packed text must have lines of at most {LONGEST_LINE:,} bytes, got a longer one in {where}: "
                        f"unpack the file, or split the line"
                    )
    except (OSError, EOFError, lzma.LZMAError):  # damaged; the library names it
        return
