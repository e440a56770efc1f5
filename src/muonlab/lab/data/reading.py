"""Opens folders and hub repositories with Hugging Face's ``datasets``, with its own caches in a scratch directory."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from muonlab.lab.data.folder_checks import check_folder
from muonlab.lab.data.registry import Dataset
from muonlab.lab.data.sources import Source

_HUB_TIMEOUT = 10.0
"""Seconds after which the hub counts as unreachable."""


def missing_package(package: str, extra: str) -> ValueError:
    """Return the error for a package that is not installed."""
    return ValueError(f"this dataset needs the package {package}, got none installed: pip install muonlab[{extra}]")


def first_line(error: BaseException) -> str:
    """Return the type and first line of an error, or of its cause if it has one."""
    inner = error.__cause__ or error
    lines = str(inner).strip().splitlines()
    return f"{type(inner).__name__}: {lines[0]}" if lines else type(inner).__name__


@contextmanager
def open_splits(entry: Dataset, source: Source, scratch: Path) -> Iterator[tuple[Mapping[str, Any], str | None]]:
    """Open the splits of a dataset and check their columns; yield the splits and the hub's revision.

    Images are in memory, undecoded; text is streamed, so that only documents that are used are fetched.

    Args:
        entry: the dataset.
        source: a folder or the hub.
        scratch: directory for the library's caches, which the caller removes.
    """
    try:
        import datasets  # type: ignore[import-untyped]
    except ImportError:
        raise missing_package("datasets", "data") from None
    scratch.mkdir(parents=True, exist_ok=True)
    with _quiet(datasets), _hub_cache(scratch / "hub"):
        revision = _revision(entry, source.where) if source.kind == "hub" else None
        where, config = (source.where, entry.config) if source.folder is None else _folder(datasets, entry, source)
        mode: dict[str, Any] = {"streaming": True} if entry.kind == "tokens" else {"keep_in_memory": True}
        try:
            splits = datasets.load_dataset(where, config, cache_dir=str(scratch), revision=revision, **mode)
        except Exception as error:  # the library raises about thirty types
            raise ValueError(
                f"{source.phrase} must hold {entry.title} in the hub's layout, got something that cannot be read "
                f"({first_line(error)}): fetch it again"
            ) from error
        yield {name: _checked(entry, source, splits, name) for name in entry.splits}, revision


def tokenizer_file(entry: Dataset, source: Source, scratch: Path) -> Path:
    """Return the tokenizer's file; it is downloaded into ``scratch`` if it comes from the hub."""
    if source.tokenizer is not None:
        return source.tokenizer / "tokenizer.json"
    import huggingface_hub

    try:
        return Path(huggingface_hub.hf_hub_download(str(entry.tokenizer), "tokenizer.json", cache_dir=scratch / "hub"))
    except Exception as error:
        raise _unreachable(entry, str(entry.tokenizer), error) from error


def _folder(datasets: Any, entry: Dataset, source: Source) -> tuple[str, str | None]:
    """Return the path and the configuration of a folder, as ``load_dataset`` takes them."""
    where = os.path.abspath(source.folder or ".")  # a relative name could be a repository of the hub
    if set(where) & set("[]*?\n") or "::" in where:
        raise ValueError(
            f"a path to data must have no [, ], *, ?, :: or newline, which datasets takes for patterns, got {where!r}: "
            f"move it"
        )
    check_folder(source, Path(where))
    try:
        names = datasets.get_dataset_config_names(where)
    except Exception as error:
        raise ValueError(
            f"{source.phrase} must hold {entry.title} in the hub's layout, got no data files "
            f"({first_line(error)}): fetch it again"
        ) from error
    return where, entry.config if entry.config in names else None


def _checked(entry: Dataset, source: Source, splits: Mapping[str, Any], name: str) -> Any:
    if name not in splits:
        raise ValueError(
            f"{source.phrase} must have the splits {' and '.join(entry.splits)} of {entry.title}, "
            f"got {', '.join(splits) or 'none'}: fetch it again"
        )
    split = splits[name]
    got = list(split.features or {})
    needed = entry.columns if entry.kind == "images" else entry.columns[:1]
    if not set(needed) <= set(got):
        raise ValueError(
            f"split {name!r} of {source.phrase} must have the columns {' and '.join(entry.columns)}, "
            f"got {', '.join(got) or 'none'}: use a copy of {entry.hub}"
        )
    return split


def _revision(entry: Dataset, hub: str) -> str | None:
    """Return the commit of a repository by one request; ``datasets`` itself would retry for half a minute."""
    import huggingface_hub

    try:
        return huggingface_hub.HfApi().dataset_info(hub, timeout=_HUB_TIMEOUT).sha
    except Exception as error:
        raise _unreachable(entry, hub, error) from error


def _unreachable(entry: Dataset, hub: str, error: BaseException) -> ValueError:
    return ValueError(
        f"{entry.title} must come from the hub's {hub}, got no answer ({type(error).__name__}): "
        f"connect to the network, or pass --data DIR with a folder that has a copy"
    )


@contextmanager
def _quiet(datasets: Any) -> Iterator[None]:
    """Silence the library's progress bars and log messages."""
    shown = not datasets.are_progress_bars_disabled()
    loggers = [logging.getLogger(name) for name in ("datasets", "huggingface_hub")]
    levels = [logger.level for logger in loggers]
    datasets.disable_progress_bars()
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if shown:
            datasets.enable_progress_bars()


@contextmanager
def _hub_cache(path: Path) -> Iterator[None]:
    """Download to ``path``: ``load_dataset`` does not use its ``cache_dir`` for downloads."""
    from huggingface_hub import constants

    before = constants.HF_HUB_CACHE
    constants.HF_HUB_CACHE = str(path)
    try:
        yield
    finally:
        constants.HF_HUB_CACHE = before
