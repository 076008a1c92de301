"""Operations on collections: indexing, rebuilding, compacting, removing, repairing, backups."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from campaign.operations.base import After, Operation
from campaign.program import Home, Snapshot

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


class OnCollection(Operation):
    """A command on a collection of twelve files. Afterwards a check finds nothing, the state is told, old
    and acknowledged passages are found, and the command goes on when it is repeated."""

    damaged = False
    """Whether the collection is damaged before the command."""

    def prepare(self, home: Home) -> None:
        home.with_tiny_models()
        for number in range(12):
            write(home, f"{number}.md", paragraphs(number))
        self.must(home, "index", "docs", "--collection", "col")
        self.change(home)
        kept = Snapshot(home.path)
        before = None if self.damaged else self.results(home)
        done = home.look(*self.arguments(home))
        assert done.code == 0, done
        self.right = self.results(home)
        self.before = self.right if before is None else before
        kept.restore()

    def change(self, home: Home) -> None:
        """The change that makes the command necessary."""

    def watched(self, home: Home) -> tuple[Path, ...]:
        return (home.work / "col",)

    def judge(self, home: Home, after: After) -> str | None:
        checked = home.look("check", "--read-data", "--json", "--collection", "col")
        if problem := checked.fault():
            return problem
        if checked.code != 0 and not (self.damaged and not after.acknowledged):
            return f"a check finds damage: {checked}"
        if checked.code == 0 and (problem := self.told(home, after)):
            return problem
        again = self.again(home)
        if again.code != 0:
            return f"repeated: {again}"
        status = self.status(home)
        if status["health"]["state"] != "ok":
            return f"repeated, the state is {status['health']}"
        if self.results(home) != self.right:
            return "repeated, other passages are found than without an attack"
        return None

    def told(self, home: Home, after: After) -> str | None:
        """The fault in the reports of the commands on the collection."""
        status = self.status(home)
        searched = home.look("search", QUERIES[0], "--no-rerank", "--json", "--collection", "col")
        if problem := searched.fault():
            return problem
        state = status["health"]["state"]
        if json.loads(searched.out)["health"]["state"] not in (state, "unfinished", "ok"):
            return "search and status tell different states"
        if state != "ok":
            if after.acknowledged:
                return f"the command succeeded, and the state is {status['health']}"
            return None if "edge:" in searched.err else "the state is told by `status` alone"
        found = self.results(home)
        if after.acknowledged and found != self.right:
            return "the command succeeded, and other passages are found"
        missing = [path for path, hits in self.before.items() if path in self.right and path not in found and hits]
        return f"{', '.join(missing)} are not found, and nothing says why" if missing else None

    def results(self, home: Home) -> dict[str, list[str]]:
        """The results of searches, by file."""
        found: dict[str, list[str]] = {}
        for query in QUERIES:
            done = home.look("search", query, "--no-rerank", "--json", "-n", "100", "--collection", "col")
            assert done.code in (0, 1), done
            for row in json.loads(done.out)["results"]:
                found.setdefault(Path(row["path"]).name, []).append(f"{query}: {row['line_start']}: {row['snippet']}")
        return {path: sorted(hits) for path, hits in sorted(found.items())}

    def status(self, home: Home) -> dict:  # type: ignore[type-arg]
        done = home.look("status", "--json", "--collection", "col")
        assert done.code == 0, done
        return json.loads(done.out)  # type: ignore[no-any-return]

    @staticmethod
    def must(home: Home, *arguments: str) -> None:
        done = home.look(*arguments)
        assert done.code == 0, done


class Index(OnCollection):
    """Files that are new, changed and gone."""

    name = "index"

    def change(self, home: Home) -> None:
        for number in range(12, 15):
            write(home, f"{number}.md", paragraphs(number))
        write(home, "3.md", paragraphs(33))
        (home.work / "docs" / "5.md").unlink()

    def arguments(self, home: Home) -> list[str]:
        return ["index", "--collection", "col"]


class Rebuild(OnCollection):
    """All vectors again, of files that have not changed; `edge index` goes on with it."""

    name = "rebuild"

    def arguments(self, home: Home) -> list[str]:
        return ["index", "--rebuild", "--collection", "col"]

    def again(self, home: Home):  # type: ignore[no-untyped-def]
        return home.look("index", "--collection", "col")


class Compact(OnCollection):
    """Giving space back, after files were removed."""

    name = "compact"

    def change(self, home: Home) -> None:
        self.must(home, "remove", "docs/2.md", "docs/4.md", "--collection", "col")

    def arguments(self, home: Home) -> list[str]:
        return ["compact", "--collection", "col"]


class Repair(OnCollection):
    """A page of the database, and a byte of a segment, differ from the written ones."""

    name = "repair"
    damaged = True

    def change(self, home: Home) -> None:
        self.must(home, "compact", "--collection", "col")
        path = home.work / "col" / "edge.db"
        data = bytearray(path.read_bytes())
        data[8 * PAGE + 100] ^= 1
        data[PAGE * (len(data) // PAGE // 2) + 9] ^= 1
        path.write_bytes(data)
        for name in ("edge.db-wal", "edge.db-shm"):
            (home.work / "col" / name).unlink(missing_ok=True)
        for path in (home.work / "col" / "segments").glob("*"):
            if path.stat().st_size > PAGE:
                data = bytearray(path.read_bytes())
                data[len(data) // 2] ^= 1
                path.write_bytes(data)

    def arguments(self, home: Home) -> list[str]:
        return ["repair", "--collection", "col"]


class Restore(OnCollection):
    """A backup of another moment, over a collection."""

    name = "restore"

    def change(self, home: Home) -> None:
        self.must(home, "backup", "saved", "--collection", "col")
        self.must(home, "remove", "docs/2.md", "--collection", "col")

    def arguments(self, home: Home) -> list[str]:
        return ["restore", "saved", "--force", "--collection", "col"]


class Backup(OnCollection):
    """A copy; either it is whole, or it is not there."""

    name = "backup"

    def arguments(self, home: Home) -> list[str]:
        return ["backup", "saved/new", "--collection", "col"]

    def watched(self, home: Home) -> tuple[Path, ...]:
        return (home.work / "saved", home.work / "col")

    def judge(self, home: Home, after: After) -> str | None:
        saved = home.work / "saved" / "new"
        if after.acknowledged and not saved.exists():
            return "the command succeeded, and there is no backup"
        if saved.exists():
            done = home.look("restore", "saved/new", "--collection", "col2")
            if done.code != 0:
                return f"a backup that is there cannot be restored: {done}"
            shutil.rmtree(saved)
        return super().judge(home, After(False, after.printed, after.attack))
