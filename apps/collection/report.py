"""`Reports`: the status and health of a collection, and the result of an indexing run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edge.apps.collection.catalog import ChunkRebuild
from edge.apps.collection.filters import Filters
from edge.apps.collection.models import CollectionModels
from edge.apps.collection.roots import read_descriptions, read_roots
from edge.apps.store.database import Database
from edge.apps.store.health import Health, Trouble, gathered, is_noted
from edge.apps.store.lock import WriterLock
from edge.apps.store.models import EmbedderIdentity
from edge.apps.store.rebuilding import Rebuilding
from edge.budget import MemoryBudget
from edge.config import counted
from edge.ivf.base import IndexStatus
from edge.ivf.index import VectorIndex
from edge.trace import Trace


@dataclass(frozen=True, slots=True)
class IndexReport:
    """The outcomes for the files of a run, and its seconds by task.

    Attributes:
        indexed: new or changed files that were indexed.
        unchanged: files that were up to date.
        removed: files that were removed from the collection, because they are gone from disk or are no longer to be
            indexed.
        skipped, failed: files with nothing to index, and files that could not be read; `Collection.status` has the
            reasons.
        chunks: number of added chunks; `reused` of them took the vector of an equal chunk.
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
        """Whether the run has changed the collection."""
        return bool(self.indexed or self.removed)

    @property
    def outside(self) -> float:
        """Share of the time outside the embedder, 0 ... 1."""
        return 1 - self.embed_s / self.seconds if self.seconds else 0.0

    def to_json(self) -> dict[str, Any]:
        """The figures by name, ready for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A file that is not searched, and the reason in one sentence."""

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

    def to_json(self) -> dict[str, Any]:
        """The status as a dictionary for JSON."""
        return {
            "collection": str(self.path),
            "health": self.health.to_json(),
            "roots": list(self.roots),
            "indexed": self.indexed,
            "kinds": dict(self.kinds),
            "pending": self.pending,
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
    """A searchable file or text."""

    path: str
    kind: str
    title: str
    size: int
    mtime_ns: int
    chunks: int


class Reports:
    """Answers questions about a collection. Reads only."""

    def __init__(self, path: Path, database: Database, lock: WriterLock, models: CollectionModels) -> None:
        self._path = path
        self._database = database
        self._lock = lock
        self._models = models
        self._rebuilding = Rebuilding(database, ChunkRebuild(models.embed))

    def health(self, vectors: int | None = None) -> Health:
        """Unfinished work and known damage.

        Args:
            vectors: number of vectors in the index, to compare with the passages; None skips the comparison.
        """
        busy = self._lock.is_held()
        remedy = "" if busy else "edge index"
        with self._database.read() as db:
            due = db.execute("SELECT count(*) FROM files WHERE due").fetchone()[0]
            rebuilding = self._rebuilding.trouble(db, "passages", remedy)
            found = [rebuilding]
            if due or is_noted(db, "indexing"):
                found.append(Trouble("indexing", _unfinished(due, busy), remedy))
            if busy and is_noted(db, "compacting"):
                found.append(Trouble("compacting", "the collection is being compacted", ""))
            if vectors is not None and rebuilding is None:
                passages = db.execute("SELECT count(*) FROM chunks").fetchone()[0]
                if passages != vectors:
                    what = f"the index has {counted(vectors, 'vector')} for {counted(passages, 'passage')}"
                    found.append(Trouble("missing vectors", what, "edge repair"))
            return gathered(db, *found)

    def status(self, index: VectorIndex | None, budget: MemoryBudget, trace: Trace) -> CollectionStatus:
        """The content of the collection, the skipped files with their reasons, and the state of its index. `budget` and
        `trace` supply the figures of its vector lists."""
        with self._database.read() as db:
            vectors = index.status(db) if index is not None else None
            kinds = dict(
                db.execute("SELECT kind, count(*) FROM files WHERE status = 'indexed' GROUP BY kind ORDER BY kind")
            )
            pending, nbytes = db.execute(
                "SELECT count(*) FILTER (WHERE due), coalesce(sum(size) FILTER (WHERE status = 'indexed'), 0) "
                "FROM files"
            ).fetchone()
            left: dict[str, tuple[LeftOut, ...]] = {}
            for status in ("skipped", "failed"):
                rows = db.execute("SELECT path, reason FROM files WHERE status = ? ORDER BY path", (status,))
                left[status] = tuple(LeftOut(*row) for row in rows)
            counters = trace.snapshot()
            return CollectionStatus(
                path=self._path,
                roots=tuple(read_roots(db)),
                indexed=sum(kinds.values()),
                kinds=kinds,
                pending=pending,
                skipped=left["skipped"],
                failed=left["failed"],
                chunks=db.execute("SELECT count(*) FROM chunks").fetchone()[0],
                source_nbytes=nbytes,
                database_nbytes=sum(file.stat().st_size for file in self._path.glob("edge.db*")),
                embedder=self._models.identity(),
                vectors=vectors,
                resident_nbytes=budget.holders().get("lists", 0),
                list_hits=int(counters.get("lists.hits", 0)),
                list_misses=int(counters.get("lists.misses", 0)),
                health=self.health(0 if vectors is None else vectors.rows),
            )

    def roots(self) -> list[str]:
        """Folders and files that the collection is kept up to date with."""
        with self._database.read() as db:
            return read_roots(db)

    def descriptions(self) -> dict[str, str]:
        """The descriptions of folders and files, by path."""
        with self._database.read() as db:
            return read_descriptions(db)

    def files(self, where: Filters) -> list[IndexedFile]:
        """The indexed files that pass the conditions, in the order of their paths."""
        with self._database.read() as db:
            clause, params = where.where(db)
            rows = db.execute(
                "SELECT path, kind, title, size, mtime_ns, (SELECT count(*) FROM chunks WHERE chunks.file = files.id) "
                f"FROM files WHERE status = 'indexed' AND {clause} ORDER BY path",
                params,
            )
            return [IndexedFile(*row) for row in rows]


def _unfinished(due: int, busy: bool) -> str:
    """A clause on an indexing run that goes on, or was interrupted. At its end no file is due, and only the index is
    tidied."""
    waiting = f"{counted(due, 'file')} {'is' if due == 1 else 'are'}"
    if busy:
        return f"{waiting} being taken in" if due else "the files were taken in, and the index is being tidied"
    return f"a run was interrupted, {waiting} waiting" if due else "a run was interrupted at its end"
