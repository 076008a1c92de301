"""Making folders: folders of the user's own data can be read by that user only."""

from __future__ import annotations

from pathlib import Path

import platformdirs

_FOR_ONE = 0o700
_FOR_ALL = 0o777
"""The user's umask is subtracted from this."""


def make_folder(path: Path) -> None:
    """Makes a folder and its missing parents. Existing folders stay as they are.

    Folders within the program's folders of data, settings, state or cache can be read by the user only, because they
    hold the user's memories and documents.

    Source: https://specifications.freedesktop.org/basedir-spec/latest/ (mode 0700 for new folders)

    Raises:
        OSError: the folder cannot be made.
    """
    path = path.absolute()
    above = (path, *path.parents)
    mode = _FOR_ONE if any(own in above for own in _own()) else _FOR_ALL
    missing = [folder for folder in above if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(mode=mode, exist_ok=True)
    if not path.is_dir():
        raise NotADirectoryError(20, "Not a directory", str(path))


def _own() -> list[Path]:
    names = ("user_data_path", "user_config_path", "user_state_path", "user_cache_path")
    return [Path(getattr(platformdirs, name)("edge-rag", appauthor=False)).absolute() for name in names]
