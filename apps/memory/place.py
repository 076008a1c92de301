"""The default folder of a memory, and whether a folder holds one."""

from __future__ import annotations

from pathlib import Path

import platformdirs

from edge.apps.store.folder import MEMORY
from edge.errors import InputError


def default_path() -> Path:
    """The default folder of a memory: the platform's folder for the user's data."""
    return platformdirs.user_data_path("edge-rag", appauthor=False) / "memory"


def existing_memory(path: Path | None) -> Path:
    """The folder of a memory that exists; by default the default folder.

    Raises:
        InputError: there is no memory in it.
    """
    place = path or default_path()
    if not holds_memory(place):
        raise InputError(f"there is no memory in {place}: `edge memory add` makes one, --path names another place")
    return place


def holds_memory(path: Path) -> bool:
    """Whether a directory holds a memory."""
    return (path / MEMORY).is_file()
