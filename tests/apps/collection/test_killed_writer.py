"""A writer that ends between any two commits loses nothing that was committed, and leaves nothing twice. SQLite undoes
what a kill interrupts within one (`tests/apps/store/test_foreign.py`)."""

from __future__ import annotations

import re
import shutil
from contextlib import AbstractContextManager
from hashlib import blake2b
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from edge.apps.collection.collection import Collection
from edge.apps.store.database import Database
from tests.apps.collection.conftest import Check, Make

MARK = re.compile(r"f\d+p\d+v\d+")


def text(number: int, parts: int, changed: int = -1) -> str:
    """A text of marked parts, of which one is in its second version."""
    marks = (f"f{number}p{part}v{int(part == changed)}" for part in range(parts))
    return "\n\n".join(f"{mark} " + "words of a paragraph that fills a chunk " * 25 for mark in marks)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def taken_in(collection: Collection, versions: list[dict[str, bytes]]) -> set[str]:
    """Files that stand in the collection in their last version; asserts that a file which stands there in any version
    has the chunks of that version, each once."""
    marks = {
        blake2b(data, digest_size=16).digest(): sorted(MARK.findall(data.decode()))
        for version in versions
        for data in version.values()
    }
    found = set()
    with collection.database.read() as db:
        for file, path, digest in db.execute("SELECT id, path, hash FROM files WHERE status = 'indexed'").fetchall():
            texts = db.execute("SELECT text FROM chunks WHERE file = ?", (file,)).fetchall()
            if digest is not None:
                assert sorted(mark for (each,) in texts for mark in MARK.findall(each)) == marks[digest], path
                name = Path(path).name
                if versions[-1].get(name) and blake2b(versions[-1][name], digest_size=16).digest() == digest:
                    found.add(name)
    return found


def test_an_end_between_any_two_commits_loses_nothing(
    make: Make, folder: Any, tmp_path: Path, consistent: Check,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Of a run over files that are new, changed, gone, moved and the same, with more parts than one commit takes."""
    for module in ("collection.intake", "store.rebuilding"):
        monkeypatch.setattr(f"edge.apps.{module}.BATCH", 4)
    for number in range(5):
        folder.write(f"{number}.txt", text(number, 6))
    with make("before") as collection:
        collection.index(folder.path)
    versions = [contents(folder.path)]
    folder.write("0.txt", text(10, 9))
    folder.write("1.txt", text(1, 6, changed=2))
    (folder.path / "2.txt").unlink()
    (folder.path / "3.txt").rename(folder.path / "moved.txt")
    folder.write("5.txt", text(5, 9))
    versions.append(contents(folder.path))
    kept: set[str] = {"4.txt"}
    write = Database.write
    for commits in count():
        shutil.copytree(tmp_path / "before", tmp_path / str(commits))
        left = iter(range(commits))

        def ended(self: Database, left: Any = left) -> AbstractContextManager[Any]:
            if next(left, None) is None:
                raise KeyboardInterrupt
            return write(self)

        with make(str(commits)) as collection, monkeypatch.context() as patch:
            patch.setattr(Database, "write", ended)
            try:
                collection.index(folder.path)
            except KeyboardInterrupt:
                finished = False
            else:
                finished = True
        with make(str(commits)) as collection:
            now = taken_in(collection, versions)
            consistent(collection)
            assert kept <= now, "what was committed is lost"
            kept = now
            collection.index(folder.path)
            assert taken_in(collection, versions) == set(versions[-1])
            consistent(collection)
            assert collection.vectors is not None
            with collection.database.read() as db:
                assert collection.vectors.status(db).rows == collection.status().chunks
            assert collection.health().state == "ok"
        if finished:
            break
    assert commits > 10, commits
