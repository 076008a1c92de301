"""The default folder of a memory, and whether a folder holds one."""

from __future__ import annotations

from pathlib import Path

import platformdirs

from edge.apps.store.folder import MEMORY


def default_path() -> Path:
    """The default folder of a memory: the platform's folder for the user's data."""
    return platformdirs.user_data_path("edge-rag", appauthor=False) / "memory"


def holds_memory(path: Path) -> bool:
    """Whether a directory holds a memory."""
    return (path / MEMORY).is_file()
