"""One run of indexing: find changed files, index them, remove deleted files, maintain the vector index."""

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
from edge.ivf.storage.connection import Connection
from edge.trace import Trace


class MaintainedIndex(Index, Protocol):
    """The methods of the vector index that a run calls."""

    def maintain(self, write: Callable[[], AbstractContextManager[Connection]]) -> object: ...


class Run:
    """One run of indexing. The caller must hold the writer's lock."""

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
        """Compares the results of a scan with the collection."""
        started = time.perf_counter()
        with self._trace.span("scan", "index"):
            discovery.compare(scanned, roots)
        self._seconds["scan_s"] += time.perf_counter() - started

    def due(self, scopes: Sequence[str]) -> int:
        """How many files below `scopes` are due."""
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
        """Indexes the due files below `scopes`."""
        with Preparation(self._database, self._catalog, extractor, self._budget, list(scopes)) as preparation:
            try:
                self.take_in(preparation, index, embed, advance, extractor)
            finally:
                self._seconds["wait_s"] += preparation.waited

    def take_in(
        self,
        files: Iterable[Prepared],
        index: Index,
        embed: Callable[[Sequence[str]], Floats],
        advance: Advance | None = None,
        extractor: TextExtractor | None = None,
    ) -> None:
        """Indexes prepared files. The extractor, if given, reads the next ones meanwhile."""
        intake = Intake(self._database, self._catalog, index, embed, extractor=extractor, advance=advance)
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
        """Removes files below `scopes` that the scan did not find. Call it last, because a moved file passes its
        vectors on to its new name."""
        started = time.perf_counter()
        discovery.remove_unseen(scopes)
        self._seconds["commit_s"] += time.perf_counter() - started

    def count(self, discovery: Discovery) -> None:
        """Adds the counts of a discovery."""
        self._counts += discovery.counts
        self._unreadable |= discovery.kept

    def maintain(
        self, index: MaintainedIndex | None, make_way: Callable[[Callable[[], object]], object], *, due: bool = False
    ) -> None:
        """Maintains the vector index after changes; if `due`, even without changes.

        Args:
            make_way: calls a function, and calls it again with more memory free if the memory was not enough.
        """
        started = time.perf_counter()
        if index is not None and (due or self._counts["indexed"] or self._counts["removed"]):
            with self._trace.span("maintain", "index"):
                make_way(lambda: index.maintain(self._database.write))
        self._seconds["maintain_s"] += time.perf_counter() - started

    def report(self, missing: tuple[str, ...] = ()) -> IndexReport:
        """The report of the run; `missing` are roots that do not exist."""
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
