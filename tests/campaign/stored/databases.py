"""The files of a collection and of a memory: the database, the log that a killed process leaves, the vectors, and
the files beside them."""

from __future__ import annotations

import json
import shutil
import sqlite3
import tempfile
from abc import abstractmethod
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

from campaign.operations.collections import QUERIES, paragraphs, write
from campaign.program import Home, Snapshot
from campaign.stored.base import Stored

Rows = list[list[Any]]


class DatabaseFiles(Stored):
    """Damage changes no result in silence. A check finds it, and a repair leaves a sound store.

    Attributes:
        folder: name of the store's folder in `work`.
        database: name of its database.
        verbs: arguments before a verb.
        option: the option that names the folder.
        patterns: the files to damage.
        queries: commands that print results as JSON.
    """

    folder: ClassVar[str]
    database: ClassVar[str]
    verbs: ClassVar[tuple[str, ...]]
    option: ClassVar[str]
    patterns: ClassVar[tuple[str, ...]]
    queries: ClassVar[tuple[tuple[str, ...], ...]]

    def prepare(self, home: Home) -> None:
        home.with_tiny_models()
        self.fill(home)
        folder = home.work / self.folder
        snapshot = Snapshot(folder)
        found = self.results(home)
        assert isinstance(found, list), found
        self.right = found
        snapshot.restore()  # a command that writes has emptied the log
        sound = self.moved(home)
        assert sound is not None
        self.sound = sound
        self.whole = [path for pattern in self.patterns for path in sorted(folder.glob(pattern)) if path.stat().st_size]
        assert len(self.whole) >= len(self.patterns), self.whole

    @abstractmethod
    def fill(self, home: Home) -> None:
        """Makes the store."""

    @abstractmethod
    def row(self, result: dict[str, Any]) -> Any:
        """The fields of one result that must not change."""

    @abstractmethod
    def repaired(self, after: Rows) -> str | None:
        """Judges the results after a repair; None if it is right, else one sentence."""

    def made_up(self, found: Rows) -> Any:
        """A result with a key of a right one that is not right; None if there is none. Damage of the full text may
        change the order and show other results, but each is verified."""
        right = [self.proved(row) for rows in self.right for row in rows]
        keys = {row[0] for row in right}
        shown = (self.proved(row) for rows in found for row in rows)
        return next((row for row in shown if row[0] in keys and row not in right), None)

    @abstractmethod
    def proved(self, row: Any) -> Any:
        """The key of a result and those of its fields that depend on its stored row alone."""

    def files(self, home: Home) -> list[Path]:
        return self.whole

    def run(self, home: Home, *arguments: str) -> Any:
        """Runs a verb on the store."""
        return home.look(*self.verbs, *arguments, self.option, self.folder)

    def results(self, home: Home) -> Rows | str | None:
        """The results; a sentence where a command did a forbidden thing; None where damage was said."""
        found: Rows = []
        for query in self.queries:
            done = self.run(home, *query)
            if problem := done.fault():
                return str(problem)
            if done.code == 2:
                return None if "edge" in done.err else f"no way out is named: {done}"
            document = json.loads(done.out)
            if document["health"]["state"] == "damaged":
                return None
            found.append([self.row(row) for row in document["results"]])
        return found

    def judge(self, home: Home, path: Path) -> str | None:
        harmful, emptied = self.is_harmful(home, path), path.stat().st_size == 0
        found = self.results(home)
        if isinstance(found, str):
            return found
        if found is not None and (made_up := self.made_up(found)):
            return f"a result that was not stored: {made_up}"
        checked = self.run(home, "check", "--read-data")
        if problem := checked.fault():
            return str(problem)
        # SQLite recovers a damaged log up to its first wrong frame, and the commits behind it are lost without a word.
        if checked.code == 0 and harmful and found != self.right and not path.name.endswith("-wal"):
            return "a check finds nothing, although results differ"
        repaired = self.run(home, "repair")
        if repaired.code != 0:
            return f"not repaired: {repaired}"
        checked = self.run(home, "check", "--read-data")
        if checked.code != 0:
            return f"after the repair: {checked}"
        after = self.results(home)
        if not isinstance(after, list):
            return f"after the repair: {after or 'damage is said'}"
        # The list of the indexed folders is lost with the rest, so a person has to name them again.
        return None if emptied else self.repaired(after)

    def moved(self, home: Home) -> bytes | None:
        """The database file as SQLite alone makes it of the file and its log. A page that differs from this is lost.
        The others lay where the log holds the page anew, or behind the last commit of the log.

        Returns:
            None where SQLite refuses it.
        """
        with tempfile.TemporaryDirectory() as place:
            copy = Path(place, self.database)
            for end in ("", "-wal"):
                source = home.work / self.folder / (self.database + end)
                if source.exists():
                    shutil.copyfile(source, copy.with_name(self.database + end))
            try:
                with closing(sqlite3.connect(copy)) as db:
                    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            except sqlite3.Error:
                return None
            return copy.read_bytes()

    def is_harmful(self, home: Home, path: Path) -> bool:
        """Whether a damaged file lacks something that was written. SQLite makes the file `-shm` anew."""
        if path.name in (self.database, f"{self.database}-wal"):
            return self.moved(home) != self.sound
        return not path.name.endswith("-shm")


class CollectionFiles(DatabaseFiles):
    """A repair brings back the content of the files."""

    name = "collection"
    share = 4
    folder = "col"
    database = "edge.db"
    verbs = ()
    option = "--collection"
    patterns = ("edge.db", "segments/*.blk")
    queries = tuple(("search", query, "--no-rerank", "--json", "-n", "100") for query in QUERIES)

    def fill(self, home: Home) -> None:
        for number in range(12):
            write(home, f"{number}.md", paragraphs(number))
        for verb in (("index", "docs"), ("compact",)):
            done = self.run(home, *verb)
            assert done.code == 0, done
        write(home, "12.md", paragraphs(12))
        done = self.run(home, "index")
        assert done.code == 0, done

    def row(self, result: dict[str, Any]) -> Any:
        return result["path"], result["line_start"], result["score"], result["snippet"]

    def proved(self, row: Any) -> Any:
        return row[:2], row[3]

    def repaired(self, after: Rows) -> str | None:
        def places(rows: list[Any]) -> list[Any]:
            return sorted((path, line, snippet) for path, line, _, snippet in rows)

        same = list(map(places, after)) == list(map(places, self.right))
        return None if same else "the repair did not bring back what the files hold"


class KilledCollection(CollectionFiles):
    """A collection as a killed process leaves it: the last commits stand in the log alone."""

    name = "collection's log"
    share = 2
    patterns = ("edge.db-wal", "edge.db-shm", "edge.db")

    def fill(self, home: Home) -> None:
        from edge.apps.collection.collection import Collection

        super().fill(home)
        write(home, "13.md", paragraphs(13))
        col, live = home.work / self.folder, home.work / "live"
        col.rename(live)
        with Collection(live, config=tiny_config(home)) as collection:
            collection.index()
            shutil.copytree(live, col)
        shutil.rmtree(live)


class MemoryFiles(DatabaseFiles):
    """A repair leaves nothing that was never stored."""

    name = "memory"
    share = 3
    folder = "mem"
    database = "memory.db"
    verbs = ("memory",)
    option = "--path"
    patterns = ("memory.db", "segments/*.blk")
    queries = (
        ("list", "-n", "100", "--json"),
        ("search", "river 1907", "--no-rerank", "-n", "100", "--json"),
    )

    def fill(self, home: Home) -> None:
        texts = [f"Fact {n}: the river flooded in {1900 + n}. " + "It is long. " * 60 * n for n in range(12)]
        done = self.run(home, "add", *texts)
        assert done.code == 0, done
        with opened_memory(home, self.folder) as memory:
            memory.maintain(full=True)
        done = self.run(home, "add", "Fact 12: the river flooded in 1912.")
        assert done.code == 0, done

    def row(self, result: dict[str, Any]) -> Any:
        return result["id"], result["memory"], result.get("pinned", False)

    def proved(self, row: Any) -> Any:
        return row

    def repaired(self, after: Rows) -> str | None:
        stored = {row[1] for rows in self.right for row in rows}
        return "a repair made a memory up" if {row[1] for rows in after for row in rows} - stored else None


class KilledMemory(MemoryFiles):
    """A memory as a killed process leaves it: the last commits stand in the log alone."""

    name = "memory's log"
    share = 2
    patterns = ("memory.db-wal", "memory.db-shm", "memory.db")

    def fill(self, home: Home) -> None:
        super().fill(home)
        mem, live = home.work / self.folder, home.work / "live"
        mem.rename(live)
        with opened_memory(home, live.name) as memory:
            memory.add("A fact that a killed process added: the river froze in 1913.", user_id="default")
            shutil.copytree(live, mem)
        shutil.rmtree(live)


def opened_memory(home: Home, folder: str) -> Any:
    """A memory in `work`, as a context."""
    from edge.apps.memory.memory import Memory

    return Memory(home.work / folder, config=tiny_config(home))


def tiny_config(home: Home) -> Any:
    """Settings under which a process of the campaign's own uses the models of a home."""
    from edge.config import Config

    return Config.load(
        flags={"models_dir": str(home.models), "embedder": "tiny-embedder", "reranker": "tiny", "memory": "10GB"}
    )
