"""Operations on collections: indexing, rebuilding, compacting, removing, repairing, backups."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from campaign.operations.base import After, OnStore
from campaign.program import Finished, Home, Snapshot

QUERIES = ("which river floods in spring", "a bridge of stone", "page 7")
PAGE = 4096


def write(home: Home, name: str, text: str) -> None:
    """Writes a file that is old enough to be believed unchanged."""
    path = home.work / "docs" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    os.utime(path, (1_600_000_000 + len(text), 1_600_000_000 + len(text)))


def paragraphs(number: int) -> str:
    return "\n\n".join(
        f"The river of page {number} floods in spring {year} and the bridge of stone {number * 7} stands." * 3
        for year in range(1900, 1904)
    )


class OnCollection(OnStore):
    """A command on a collection of twelve files, in which old and acknowledged passages are found afterwards."""

    place = ("--collection", "col")
    listing = ("search", QUERIES[0], "--no-rerank", "--json")

    def prepare(self) -> None:
        self.home.with_tiny_models()
        for number in range(12):
            write(self.home, f"{number}.md", paragraphs(number))
        self.must("index", "docs")
        self.change()
        kept = Snapshot(self.home.path)
        before = None if self.damaged else self.found()
        done = self.home.look(*self.arguments)
        assert done.code == 0, done
        self.right = self.found()
        self.before = self.right if before is None else before
        kept.restore()

    def wrong(self, after: After, found: dict[str, list[str]]) -> str | None:
        if after.acknowledged and found != self.right:
            return "other passages are found than without an attack"
        missing = [path for path, hits in self.before.items() if path in self.right and path not in found and hits]
        return f"{', '.join(missing)} are not found, and nothing says why" if missing else None

    def found(self) -> dict[str, list[str]]:
        """The results of searches, by file."""
        found: dict[str, list[str]] = {}
        for query in QUERIES:
            for row in self.must("search", query, "--no-rerank", "--json", "-n", "100")["results"]:
                found.setdefault(Path(row["path"]).name, []).append(f"{query}: {row['line_start']}: {row['snippet']}")
        return {path: sorted(hits) for path, hits in sorted(found.items())}


class Index(OnCollection):
    """Files that are new, changed and gone."""

    name = "index"
    arguments = ("index", "--collection", "col")

    def change(self) -> None:
        for number in range(12, 15):
            write(self.home, f"{number}.md", paragraphs(number))
        write(self.home, "3.md", paragraphs(33))
        (self.home.work / "docs" / "5.md").unlink()


class Rebuild(OnCollection):
    """All vectors again, of files that have not changed; `edge index` goes on with it."""

    name = "rebuild"
    arguments = ("index", "--rebuild", "--collection", "col")

    def again(self) -> Finished:
        return self.home.look("index", "--collection", "col")


class Compact(OnCollection):
    """Giving space back, after files were removed."""

    name = "compact"
    arguments = ("compact", "--collection", "col")

    def change(self) -> None:
        self.must("remove", "docs/2.md", "docs/4.md")


class Repair(OnCollection):
    """A page of the database, and a byte of a segment, differ from the written ones."""

    name = "repair"
    damaged = True
    arguments = ("repair", "--collection", "col")

    def change(self) -> None:
        self.must("compact")
        path = self.home.work / "col" / "edge.db"
        data = bytearray(path.read_bytes())
        data[8 * PAGE + 100] ^= 1
        data[PAGE * (len(data) // PAGE // 2) + 9] ^= 1
        path.write_bytes(data)
        for name in ("edge.db-wal", "edge.db-shm"):
            (self.home.work / "col" / name).unlink(missing_ok=True)
        for path in (self.home.work / "col" / "segments").glob("*"):
            if path.stat().st_size > PAGE:
                data = bytearray(path.read_bytes())
                data[len(data) // 2] ^= 1
                path.write_bytes(data)


class Restore(OnCollection):
    """A backup of another moment, over a collection."""

    name = "restore"
    arguments = ("restore", "saved", "--force", "--collection", "col")

    def change(self) -> None:
        self.must("backup", "saved")
        self.must("remove", "docs/2.md")


class Backup(OnCollection):
    """A copy; either it is whole, or it is not there."""

    name = "backup"
    arguments = ("backup", "saved/new", "--collection", "col")

    def watched(self) -> tuple[Path, ...]:
        return (self.home.work / "saved", self.home.work / "col")

    def judge(self, after: After) -> str | None:
        saved = self.home.work / "saved" / "new"
        if after.acknowledged and not saved.exists():
            return "the command succeeded, and there is no backup"
        if saved.exists():
            done = self.home.look("restore", "saved/new", "--collection", "col2")
            if done.code != 0:
                return f"a backup that is there cannot be restored: {done}"
            shutil.rmtree(saved)
        return super().judge(After(False, after.printed))
