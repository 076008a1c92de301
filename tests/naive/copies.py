"""Copies of an index's folder at every moment at which a kill could come."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from naive.index import IndexRig, NaiveIndex, SimpleDatabase, held


class Copies:
    """The whole folder as it is at each step that a kill could come before or after."""

    def __init__(self, folder: Path, target: Path) -> None:
        self.folder = folder
        self.target = target
        self.taken: list[tuple[Path, dict[int, Any], dict[int, Any]]] = []
        self.twin = NaiveIndex()
        self.committed: dict[int, Any] = {}
        self._last: dict[Path, tuple[int, int, int]] = {}

    def take(self) -> None:
        """Takes a copy, unless the last one is the same."""
        files = {path: path.stat() for path in self.folder.rglob("*") if path.is_file()}
        state = {path: (found.st_ino, found.st_size, found.st_mtime_ns) for path, found in files.items()}
        if self.taken and (state, self.committed, self.twin.rows) == (self._last, *self.taken[-1][1:]):
            return
        self._last = state
        place = self.target / str(len(self.taken))
        shutil.copytree(self.folder, place)
        self.taken.append((place, dict(self.committed), dict(self.twin.rows)))

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            self.take()
            result = function(*args, **options)
            self.take()
            return result

        return call

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        """Takes a copy before and after each file operation and each transaction."""
        patch.setattr(os, "replace", self.around(os.replace))
        patch.setattr(os, "fsync", self.around(os.fsync))
        patch.setattr(Path, "unlink", self.around(Path.unlink))
        plain = SimpleDatabase.write

        def write(database: SimpleDatabase) -> Any:
            self.take()
            return plain(database)

        patch.setattr(SimpleDatabase, "write", write)

    def check(self) -> None:
        """Each copy holds the rows that were committed, and one maintenance removes every other file."""
        for place, committed, latest in self.taken:
            again = IndexRig(place)
            again.twin.rows = committed if held(again.snapshot()) == sorted(committed) else latest
            again.check()
            again.maintain()
            again.check()
            used = {part.key[0] for parts in again.snapshot().lists for part in parts}
            assert used == set(again.files()), "nothing is left of an unfinished step"
            again.close()
