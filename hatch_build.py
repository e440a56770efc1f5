"""The README for a package index: links into the repository and pictures lead nowhere there, and are left out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class ReadmeHook(MetadataHookInterface):  # type: ignore[misc]
    """Sets the ``readme`` of the package to README.md without relative links."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the readme."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = re.sub(r"^!\[[^]]*\]\([^)]*\)\n\n?", "", text, flags=re.M)
        text = re.sub(r"\[([^]]+)\]\((?!https?:|#)[^)]*\)", r"\1", text)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
