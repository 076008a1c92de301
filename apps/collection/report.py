"""What a run of indexing did, and what a collection holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edge.apps.collection.filters import Filters
from edge.apps.collection.roots import read_roots
from edge.apps.store.health import Health
from edge.apps.store.models import EmbedderIdentity
from edge.budget import MemoryBudget
from edge.connection import Connection
from edge.ivf.base import IndexStatus
from edge.trace import Trace


@dataclass(frozen=True, slots=True)
class IndexReport:
    """What became of the files of a run, and where its time went.

    Attributes:
        indexed: files that were taken in, new or changed.
        unchanged: files that were up to date.
        removed: files that are gone from disk, or are not to be indexed any more, and now from the collection.
        skipped, failed: files that hold nothing to index, and files that could not be read; `Collection.status` has
            the reasons.
        chunks: chunks that were added; `reused` of them took the vector of an equal chunk.
        missing: roots that are not there now, cannot be listed, or are empty though files of them are known; what the
            collection has of them stays.
        unreadable: files and folders below present roots that cannot be read now, and of which the collection has
            something, which stays.
        seconds: of the whole run.
        scan_s: comparing the folders with the collection.
        embed_s: in the embedder.
        wait_s: waiting for the next file to be read and cut, which otherwise happens beside the embedder.
        commit_s: in transactions.
        maintain_s: bringing the vector index into shape afterwards.
    """

    indexed: int = 0
    unchanged: int = 0
    removed: int = 0
    skipped: int = 0
    failed: int = 0
    chunks: int = 0
    reused: int = 0
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
        """Whether the collection is not what it was before."""
        return bool(self.indexed or self.removed)

    @property
    def outside(self) -> float:
        """Share of the time that was not spent in the embedder, 0 ... 1."""
        return 1 - self.embed_s / self.seconds if self.seconds else 0.0

    def to_json(self) -> dict[str, Any]:
        """The figures by name."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A file that is not searched, and why, in one sentence."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class CollectionStatus:
    """What a collection holds.

    Attributes:
        path: its directory.
        roots: folders and files it is kept up to date with.
        indexed: files (and texts) that are searched; `kinds` by kind.
        pending: files that an interrupted run has left for the next one.
        skipped, failed: what is not searched, with the reasons.
        chunks: passages.
        source_nbytes: of the indexed files.
        database_nbytes: of `edge.db` and its log.
        embedder: the model that made the vectors; None as long as there are none.
        vectors: the state of the vector index; None as long as there is none.
        resident_nbytes: of its lists, what is in this process's memory now; the rest is on disk.
        health: what is unfinished or damaged.
        list_hits, list_misses: lists that searches of this process found in memory, or had to read.
    """

    path: Path
    roots: tuple[str, ...]
    indexed: int
    kinds: Mapping[str, int]
    pending: int
    skipped: tuple[LeftOut, ...]
    failed: tuple[LeftOut, ...]
    chunks: int
    source_nbytes: int
    database_nbytes: int
    embedder: EmbedderIdentity | None
    vectors: IndexStatus | None
    resident_nbytes: int
    list_hits: int
    list_misses: int
    health: Health


def read_status(
    db: Connection,
    path: Path,
    embedder: EmbedderIdentity | None,
    vectors: IndexStatus | None,
    budget: MemoryBudget,
    trace: Trace,
    health: Health,
) -> CollectionStatus:
    """The status of the collection in the directory `path`, as `db` sees it, with what `budget` and `trace` know of its
    lists."""
    kinds = dict(db.execute("SELECT kind, count(*) FROM files WHERE status = 'indexed' GROUP BY kind ORDER BY kind"))
    pending, nbytes = db.execute(
        "SELECT count(*) FILTER (WHERE due), coalesce(sum(size) FILTER (WHERE status = 'indexed'), 0) FROM files"
    ).fetchone()
    left: dict[str, tuple[LeftOut, ...]] = {}
    for status in ("skipped", "failed"):
        rows = db.execute("SELECT path, reason FROM files WHERE status = ? ORDER BY path", (status,))
        left[status] = tuple(LeftOut(*row) for row in rows)
    counters = trace.snapshot()
    return CollectionStatus(
        path=path,
        roots=tuple(read_roots(db)),
        indexed=sum(kinds.values()),
        kinds=kinds,
        pending=pending,
        skipped=left["skipped"],
        failed=left["failed"],
        chunks=db.execute("SELECT count(*) FROM chunks").fetchone()[0],
        source_nbytes=nbytes,
        database_nbytes=sum(file.stat().st_size for file in path.glob("edge.db*")),
        embedder=embedder,
        vectors=vectors,
        resident_nbytes=budget.holders().get("lists", 0),
        list_hits=int(counters.get("lists.hits", 0)),
        list_misses=int(counters.get("lists.misses", 0)),
        health=health,
    )


@dataclass(frozen=True, slots=True)
class IndexedFile:
    """A file (or text) that is searched."""

    path: str
    kind: str
    title: str
    size: int
    mtime_ns: int
    chunks: int


def read_files(db: Connection, where: Filters) -> list[IndexedFile]:
    """The indexed files that pass the conditions, in the order of their paths."""
    clause, params = where.where(db)
    rows = db.execute(
        "SELECT path, kind, title, size, mtime_ns, (SELECT count(*) FROM chunks WHERE chunks.file = files.id) "
        f"FROM files WHERE status = 'indexed' AND {clause} ORDER BY path",
        params,
    )
    return [IndexedFile(*row) for row in rows]
