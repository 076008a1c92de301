"""The files of a collection: its database, the log a killed process leaves, its vectors, and what lies beside."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import ClassVar

from campaign.operations.collections import QUERIES, paragraphs, write
from campaign.program import Home
from campaign.stored.base import Stored


class CollectionFiles(Stored):
    """Damage changes no result in silence; a check finds it, and a repair brings back what the files hold."""

    name = "collection"
    share = 4
    patterns: ClassVar = ("edge.db", "edge.db-mark", "edge.db-schema", "segments/*.blk")

    def prepare(self, home: Home) -> None:
        home.with_tiny_models()
        for number in range(12):
            write(home, f"{number}.md", paragraphs(number))
        for verb in (("index", "docs"), ("compact",)):
            done = home.look(*verb, "--collection", "col")
            assert done.code == 0, done
        write(home, "12.md", paragraphs(12))
        done = home.look("index", "--collection", "col")
        assert done.code == 0, done
        self.finish(home)
        self.right = self.results(home)
        assert isinstance(self.right, list), self.right
        folder = home.work / "col"
        self.whole = [path for pattern in self.patterns for path in sorted(folder.glob(pattern)) if path.stat().st_size]
        assert len(self.whole) >= len(self.patterns)

    def finish(self, home: Home) -> None:
        """The last preparation."""

    def files(self, home: Home) -> list[Path]:
        return self.whole

    def results(self, home: Home) -> list[object] | str | None:
        """What searches find; a sentence where one did what no command may; None where damage was said."""
        found: list[object] = []
        for query in QUERIES:
            done = home.look("search", query, "--no-rerank", "--json", "-n", "100", "--collection", "col")
            if problem := done.fault():
                return problem
            if done.code == 2:
                return None if "edge" in done.err else f"no way out is named: {done}"
            document = json.loads(done.out)
            if document["health"]["state"] == "damaged":
                return None
            found.append(
                [(row["path"], row["line_start"], row["score"], row["snippet"]) for row in document["results"]]
            )
        return found

    def judge(self, home: Home, path: Path) -> str | None:
        found = self.results(home)
        if isinstance(found, str):
            return found
        if found is not None and found != self.right:
            return "another result in silence"
        checked = home.look("check", "--read-data", "--collection", "col")
        if problem := checked.fault():
            return problem
        if checked.code == 0 and not self.harmless(path):
            return "`edge check --read-data` finds nothing"
        repaired = home.look("repair", "--collection", "col")
        if repaired.code != 0:
            return f"not repaired: {repaired}"
        checked = home.look("check", "--read-data", "--collection", "col")
        if checked.code != 0:
            return f"after the repair: {checked}"
        after = self.results(home)
        if not isinstance(after, list):
            return f"after the repair: {after or 'damage is said'}"
        kept = [sorted((row[0], row[1], row[3]) for row in rows) for rows in self.right]
        have = [sorted((row[0], row[1], row[3]) for row in rows) for rows in after]
        return None if have == kept else "the repair did not bring back what the files hold"

    def harmless(self, path: Path) -> bool:
        """Whether the file holds nothing that is missed: a command that writes makes it anew."""
        return path.name.endswith(("-schema", "-mark"))


class KilledCollection(CollectionFiles):
    """A collection as a killed process leaves it: the last commits stand in the log alone."""

    name = "collection's log"
    share = 2
    patterns: ClassVar = ("edge.db-wal",)

    def finish(self, home: Home) -> None:
        from edge.apps.collection.collection import Collection
        from edge.config import Config

        write(home, "13.md", paragraphs(13))
        col, live = home.work / "col", home.work / "live"
        config = Config.load(
            flags={"models_dir": str(home.models), "embedder": "tiny-embedder", "reranker": "tiny", "memory": "1GB"}
        )
        col.rename(live)
        with Collection(live, config=config) as collection:
            collection.index()
            shutil.copytree(live, col)
        shutil.rmtree(live)

    def harmless(self, path: Path) -> bool:
        return True  # what follows the last commit in the log is of no meaning
