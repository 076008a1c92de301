"""`Narrowed`: looks at single paths below a root exactly as a scan of the whole root would, without walking it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from edge.apps.collection.roots import ancestors, contains


class Narrowed:
    """The part of a scan that concerns some paths.

    A scan of `root` that leaves `siblings` out comes by the paths, and applies the rules of all folders it passes
    through, as it always does; of what it says, only what `concerns` them is news.
    """

    def __init__(self, root: str, paths: Iterable[str]) -> None:
        """`paths` at or below `root`, none of them below another."""
        self._paths = frozenset(paths)
        self._names: dict[str, set[str]] = {}
        for path in self._paths:
            for folder in ancestors(path):
                if not contains(root, folder):
                    break
                self._names.setdefault(folder, set()).add(os.path.relpath(path, folder).split(os.sep, 1)[0])

    def siblings(self) -> Iterator[str]:
        """Everything in the folders on the way to the paths that is not on the way itself."""
        for folder, names in self._names.items():
            yield from _others(folder, names)

    def concerns(self, path: str) -> bool:
        """Whether a path is one of the paths, lies below one, or is a folder on the way to one."""
        return path in self._paths or path in self._names or not self._paths.isdisjoint(ancestors(path))


def _others(folder: str, names: set[str]) -> Iterator[str]:
    """What is in a folder besides `names`."""
    try:
        with os.scandir(folder) as entries:
            # What a symlink points at may be on the way; the link itself is never followed.
            yield from (entry.path for entry in entries if entry.name not in names and not entry.is_symlink())
    except OSError:
        return  # the folder is gone, and with it all that was below
