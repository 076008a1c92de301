"""The result of an indexing run, and the status of a collection."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edge.apps.collection.catalog import read_roots
from edge.apps.documents.secrets import ASKED
from edge.apps.store.failures import Health
from edge.apps.store.rebuilding import EmbedderIdentity
from edge.apps.store.rows import held, held_by_key
from edge.config import counted
from edge.ivf.base import Connection, IndexStatus

FileProgress = Callable[[int, int, str], None]
"""Finished passages, all passages as estimated, and the place, such as `4 of 9 files read: notes.md`."""


MOST_NAMED, MOST_LEFT = 5, 10


@dataclass(frozen=True, slots=True)
class IndexReport:
    """The outcomes for the files of a run, and its seconds by task.

    Attributes:
        indexed: new or changed files that were indexed.
        unchanged: files that were up to date.
        removed: files that were removed from the collection, because they are gone from disk or are no longer to be
            indexed.
        incomplete: files among the indexed ones of which a part could not be read.
        skipped, failed: files with nothing to index, and files that could not be read; `Collection.status` has the
            reasons.
        chunks: number of added chunks; `reused` of them took the vector of an equal chunk.
        named: paths of the first indexed or removed files, at most `MOST_NAMED`.
        failed_files, incomplete_files: the first of these files with their reasons, at most `MOST_LEFT` of each.
        missing: roots that do not exist now, cannot be listed, or are empty although the collection has files of
            theirs. Those files stay in the collection.
        unreadable: indexed files and folders below other roots that cannot be read now. Their content stays in the
            collection.
        seconds: of the whole run.
        scan_s: comparing the folders with the collection.
        embed_s: in the embedder.
        wait_s: waiting until the next file was read and chunked, which otherwise overlaps with the embedder.
        commit_s: in transactions.
        maintain_s: maintaining the vector index afterwards.
    """

    indexed: int = 0
    incomplete: int = 0
    unchanged: int = 0
    removed: int = 0
    skipped: int = 0
    failed: int = 0
    chunks: int = 0
    reused: int = 0
    named: tuple[str, ...] = ()
    failed_files: tuple[LeftOut, ...] = ()
    incomplete_files: tuple[LeftOut, ...] = ()
    missing: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    seconds: float = 0.0
    scan_s: float = 0.0
    embed_s: float = 0.0
    wait_s: float = 0.0
    commit_s: float = 0.0
    maintain_s: float = 0.0

    @property
    def changed(self) -> bool:
        return bool(self.indexed or self.removed)

    @property
    def outside(self) -> float:
        return 1 - self.embed_s / self.seconds if self.seconds else 0.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Tally:
    """The figures of a run as it goes on: files by outcome, the rest as in `IndexReport`."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.unreadable: set[str] = set()
        self._named: list[str] = []
        self._left: defaultdict[str, list[LeftOut]] = defaultdict(list)
        self.chunks = self.reused = 0
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._started = time.perf_counter()

    def name(self, path: str) -> None:
        if len(self._named) < MOST_NAMED:
            self._named.append(path)

    def add(self, outcome: str, path: str, reason: str) -> None:
        self.counts[outcome] += 1
        if len(self._left[outcome]) < MOST_LEFT:
            self._left[outcome].append(LeftOut(path, reason))

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - started

    def report(self, missing: tuple[str, ...] = ()) -> IndexReport:
        counts: dict[str, Any] = {
            name: self.counts[name] for name in ("indexed", "incomplete", "unchanged", "removed", "skipped", "failed")
        }
        return IndexReport(
            **counts | self.seconds, chunks=self.chunks, reused=self.reused, named=tuple(self._named), missing=missing,
            failed_files=tuple(self._left["failed"]), incomplete_files=tuple(self._left["incomplete"]),
            unreadable=tuple(sorted(self.unreadable)), seconds=time.perf_counter() - self._started,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class LeftOut:
    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class CollectionStatus:
    """Size and state of a collection.

    Attributes:
        path: its directory.
        roots: folders and files that it is kept up to date with.
        indexed: number of searchable files and texts; `kinds` counts them by kind.
        pending: files that an interrupted run has left for the next one.
        incomplete: searchable files of which a part is left out, with the reasons.
        skipped, failed: files that are not searched, with the reasons.
        chunks: number of passages.
        source_nbytes: bytes of the indexed files.
        database_nbytes: bytes of `edge.db` and its log.
        embedder: the model that made the vectors; None if there are no vectors.
        vectors: the state of the vector index; None if there is none.
        resident_nbytes: bytes of vector lists in this process's memory now; the other lists are on disk.
        health: unfinished work and known damage.
        list_hits, list_misses: lists that searches of this process found in memory, or had to read.
    """

    path: Path
    roots: Sequence[str]
    indexed: int
    kinds: Mapping[str, int]
    pending: int
    incomplete: Sequence[LeftOut]
    skipped: Sequence[LeftOut]
    failed: Sequence[LeftOut]
    chunks: int
    source_nbytes: int
    database_nbytes: int
    embedder: EmbedderIdentity | None
    vectors: IndexStatus | None
    resident_nbytes: int
    list_hits: int
    list_misses: int
    health: Health

    def to_json(self) -> dict[str, Any]:
        return {
            "collection": str(self.path),
            "health": self.health.to_json(),
            "roots": list(self.roots),
            "indexed": self.indexed,
            "kinds": dict(self.kinds),
            "pending": self.pending,
            "incomplete": [asdict(file) for file in self.incomplete],
            "skipped": [asdict(file) for file in self.skipped],
            "failed": [asdict(file) for file in self.failed],
            "chunks": self.chunks,
            "source_bytes": self.source_nbytes,
            "database_bytes": self.database_nbytes,
            "embedder": None if self.embedder is None else asdict(self.embedder),
            "index": None if self.vectors is None else asdict(self.vectors),
            "tiers": {
                "resident_bytes": self.resident_nbytes,
                "disk_bytes": 0 if self.vectors is None else self.vectors.nbytes,
                "hits": self.list_hits,
                "misses": self.list_misses,
            },
        }


@dataclass(frozen=True, slots=True)
class IndexedFile:
    path: str
    kind: str
    title: str
    size: int
    mtime_ns: int
    chunks: int


NO_REASONS = ("", ASKED)
"""Of a file of which no part is left out."""


def contents(db: Connection) -> dict[str, Any]:
    sql = "SELECT kind, count(*) FROM files WHERE status = 'indexed' GROUP BY kind ORDER BY kind"
    kinds: dict[str, int] = held_by_key(db, db.execute(sql))
    pending, nbytes = db.execute(
        "SELECT count(*) FILTER (WHERE due), coalesce(sum(size) FILTER (WHERE status = 'indexed'), 0) FROM files"
    ).fetchone()
    left: dict[str, Sequence[LeftOut]] = {}
    for name, status in (("incomplete", "indexed"), ("skipped", "skipped"), ("failed", "failed")):
        known = "SELECT path, reason FROM files WHERE status = ? AND reason NOT IN (?, ?) ORDER BY path"
        left[name] = held(db, db.execute(known, (status, *NO_REASONS)), lambda row: LeftOut(*row))
    return {
        "roots": read_roots(db), "indexed": sum(kinds.values()), "kinds": kinds, "pending": pending, **left,
        "chunks": db.execute("SELECT count(*) FROM chunks").fetchone()[0], "source_nbytes": nbytes,
    }  # fmt: skip


def unfinished(due: int, busy: bool, *, embedding: bool) -> str:
    waiting = f"{counted(due, 'file')} {'is' if due == 1 else 'are'}"
    if not busy:
        return f"{waiting} waiting to be read" if due else "a run was interrupted at its end"
    if due:
        return f"{waiting} being read"
    return "passages are being made searchable by meaning" if embedding else "the index is being tidied"
