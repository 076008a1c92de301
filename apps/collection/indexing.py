"""One run of indexing: find what has changed, take it in, remove what is gone, tidy the vector index."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from edge.apps.collection.advance import Advance
from edge.apps.collection.catalog import Catalog
from edge.apps.collection.discovery import Discovery, Scanned
from edge.apps.collection.intake import Floats, Index, Intake
from edge.apps.collection.preparation import Preparation, Prepared, TextExtractor
from edge.apps.collection.report import IndexReport
from edge.apps.store.database import Database
from edge.budget import MemoryBudget
from edge.connection import Connection
from edge.trace import Trace


class MaintainedIndex(Index, Protocol):
    """What a run needs of the vector index."""

    def maintain(self, write: Callable[[], AbstractContextManager[Connection]]) -> object: ...


class Run:
    """One run; its caller holds the writer's lock."""

    def __init__(self, database: Database, catalog: Catalog, budget: MemoryBudget, trace: Trace) -> None:
        self._database = database
        self._catalog = catalog
        self._budget = budget
        self._trace = trace
        self._started = time.perf_counter()
        self._counts: Counter[str] = Counter()
        self._unreadable: set[str] = set()
        self._chunks = self._reused = 0
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def discover(self, discovery: Discovery, scanned: Scanned, roots: Sequence[str]) -> None:
        """Compares what a scan finds with the collection."""
        started = time.perf_counter()
        with self._trace.span("scan", "index"):
            discovery.compare(scanned, roots)
        self._seconds["scan_s"] += time.perf_counter() - started

    def due(self, scopes: Sequence[str]) -> int:
        """Files below `scopes` that have work waiting."""
        with self._database.read() as db:
            return self._catalog.count_due(db, scopes)

    def take_in_due(
        self,
        scopes: Sequence[str],
        index: Index,
        embed: Callable[[Sequence[str]], Floats],
        extractor: TextExtractor,
        advance: Advance | None,
    ) -> None:
        """Takes in the files that are due below `scopes`."""
        with Preparation(self._database, self._catalog, extractor, self._budget, list(scopes)) as preparation:
            try:
                self.take_in(preparation, index, embed, advance)
            finally:
                self._seconds["wait_s"] += preparation.waited

    def take_in(
        self,
        files: Iterable[Prepared],
        index: Index,
        embed: Callable[[Sequence[str]], Floats],
        advance: Advance | None = None,
    ) -> None:
        """Takes in files that were prepared."""
        intake = Intake(self._database, self._catalog, index, embed, advance=advance)
        try:
            for prepared in files:
                intake.take(prepared)
            intake.finish()
        finally:
            intake.close()
            self._counts += intake.counts
            self._unreadable |= set(intake.unreadable)
            self._chunks += intake.chunks
            self._reused += intake.reused
            self._seconds["embed_s"] += intake.embed_s
            self._seconds["commit_s"] += intake.commit_s

    def remove(self, discovery: Discovery, scopes: Sequence[str]) -> None:
        """Removes what lies below `scopes` and was not seen. Last, because a file that was moved leaves its vectors to
        its new name."""
        started = time.perf_counter()
        discovery.remove_unseen(scopes)
        self._seconds["commit_s"] += time.perf_counter() - started

    def count(self, discovery: Discovery) -> None:
        """Adds what a discovery has settled."""
        self._counts += discovery.counts
        self._unreadable |= discovery.kept

    def maintain(self, index: MaintainedIndex | None, *, due: bool = False) -> None:
        """Brings the vector index into shape after changes; also without any, if it is `due`."""
        started = time.perf_counter()
        if index is not None and (due or self._counts["indexed"] or self._counts["removed"]):
            with self._trace.span("maintain", "index"):
                index.maintain(self._database.write)
        self._seconds["maintain_s"] += time.perf_counter() - started

    def report(self, missing: tuple[str, ...] = ()) -> IndexReport:
        """What the run has done; `missing` are roots that were not there."""
        counts, seconds = self._counts, self._seconds
        return IndexReport(
            indexed=counts["indexed"],
            unchanged=counts["unchanged"],
            removed=counts["removed"],
            skipped=counts["skipped"],
            failed=counts["failed"],
            chunks=self._chunks,
            reused=self._reused,
            missing=missing,
            unreadable=tuple(sorted(self._unreadable)),
            seconds=time.perf_counter() - self._started,
            scan_s=seconds["scan_s"],
            embed_s=seconds["embed_s"],
            wait_s=seconds["wait_s"],
            commit_s=seconds["commit_s"],
            maintain_s=seconds["maintain_s"],
        )
