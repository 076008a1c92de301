"""Where a collection lies when nobody says where."""

from __future__ import annotations

from pathlib import Path

import platformdirs

PROJECT = ".edge"
"""The folder of a project that holds its settings and its collection."""


def locate(chosen: str | Path | None = None, *, start: Path | None = None) -> Path:
    """The directory of the collection: `chosen`; else the nearest `.edge` folder from `start` (the working directory)
    upward; else the platform's place for the user's data."""
    if chosen:
        return Path(chosen).expanduser().absolute()
    start = (start or Path.cwd()).absolute()
    for folder in (start, *start.parents):
        if (folder / PROJECT).is_dir():
            return folder / PROJECT
    return platformdirs.user_data_path("edge-rag", appauthor=False) / "collection"
