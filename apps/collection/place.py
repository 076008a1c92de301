"""Where a collection lies: by its name, by its directory, or where one is looked for when nobody says."""

from __future__ import annotations

from pathlib import Path

import platformdirs

from edge.apps.collection.registry import Registry

PROJECT = ".edge"
"""The folder of a project that holds its settings and its collection."""


def locate(chosen: str | Path | None = None, *, start: Path | None = None) -> Path:
    """The directory of the collection: of `chosen`, a name of the registry or a directory; else the nearest `.edge`
    folder from `start` (the working directory) upward; else the platform's place for the user's data."""
    if chosen:
        if (named := Registry().names().get(str(chosen))) is not None:
            return named
        return Path(chosen).expanduser().absolute()
    start = (start or Path.cwd()).absolute()
    for folder in (start, *start.parents):
        if (folder / PROJECT).is_dir():
            return folder / PROJECT
    return platformdirs.user_data_path("edge-rag", appauthor=False) / "collection"
