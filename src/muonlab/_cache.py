"""The directory for calibrations, decoded data and other files that are computed once."""

from __future__ import annotations

import os
from pathlib import Path


def cache_directory() -> Path | None:
    """Return ``MUONLAB_CACHE``, else ``muonlab`` in the user's cache directory; None if there is no home directory."""
    chosen = os.environ.get("MUONLAB_CACHE")
    if chosen:
        return Path(chosen)
    for variable in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        base = os.environ.get(variable, "")
        if os.path.isabs(base):  # the XDG standard says to ignore relative paths
            return Path(base) / "muonlab"
    try:
        return Path.home() / ".cache" / "muonlab"
    except RuntimeError:
        return None
