"""`MemoryStore`: the database, the indexes and the models of a memory, within one budget."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.apps.memory.arguments import holds_memory
from edge.apps.memory.filters import register
from edge.apps.memory.models import REBUILD, MemoryModels, MemoryRebuild, TextEmbedder, TextReranker
from edge.apps.memory.records import TEXT_INDEX, migrations
from edge.apps.pool import Held
from edge.apps.store.connections import LOCK, WriterLock
from edge.apps.store.database import Database
from edge.apps.store.erasure import compact, end_erasure, finish
from edge.apps.store.folder import MEMORY, SEGMENTS, can_be_written, claim
from edge.apps.store.health import Health, Trouble, gathered
from edge.apps.store.lexical import FUNCTION_WORDS, LexicalIndex
from edge.apps.store.rebuilding import EmbedderIdentity, Rebuilding
from edge.budget import MemoryBudget
from edge.config import Config, counted
from edge.errors import EdgeError
from edge.ivf.base import Connection, MaintenanceReport
from edge.ivf.index import VectorIndex
from edge.trace import Trace

_CHECK_ROWS = 256
"""The number of rows that this process writes before it checks again whether maintenance is due."""


class Upkeep:
    """Runs the index's maintenance after enough writes. Thread-safe. While another process maintains the index, this
    one does nothing."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._rows = _CHECK_ROWS  # the first write of a process checks, so that short processes maintain it, too
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    def wrote(self, rows: int) -> None:
        """Counts rows that were written or deleted, and starts maintenance in the background if it may be due."""
        with self._starting:
            self._rows += rows
            if self._rows < _CHECK_ROWS or self._stop.is_set() or (self._thread and self._thread.is_alive()):
                return
            self._rows = 0
            self._thread = threading.Thread(target=self._run, name="edge-memory-upkeep", daemon=True)
            self._thread.start()

    def maintain(self, *, full: bool = False) -> MaintenanceReport | None:
        """Runs all due maintenance now; None if nothing was ever stored."""
        store, index = self._store, self._store.index
        if index is None:
            return None
        store.rebuilding.finish(index)
        return store.models.make_way(lambda: index.maintain(store.database.write, full=full, stop=self._stop))

    def close(self) -> None:
        """Stops maintenance after its current step."""
        self._stop.set()
        with self._starting:
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        try:
            self.maintain()
        except EdgeError as error:  # no data is lost: without maintenance, searches are only slower
            logging.getLogger(__name__).warning("the memory's index could not be put in order: %s", error)


DATABASE = MEMORY
_EMBEDDER = "embedder"


class MemoryStore:
    """The database, indexes and models of one directory. Thread-safe."""

    def __init__(
        self,
        path: Path,
        *,
        budget: MemoryBudget,
        config: Config,
        trace: Trace,
        embedder: str | Path | TextEmbedder | Held[Any] | None,
        reranker: str | Path | TextReranker | Held[Any] | None,
    ) -> None:
        """Opens the directory `path`, or creates it."""
        self.path = path
        self.budget = budget
        self.trace = trace
        claim(path, DATABASE)
        frozen = holds_memory(path) and not can_be_written(path)  # a memory on a read-only disk can still be read
        self.database = Database(path / DATABASE, migrations(), budget=budget, read_only=frozen, verbs="edge memory")
        self.lexical = LexicalIndex(TEXT_INDEX, ignored=FUNCTION_WORDS)
        self.models = MemoryModels(budget, config, trace, embedder=embedder, reranker=reranker, identity=self._identity)
        self._config = config
        self._opening = threading.Lock()
        self._index: VectorIndex | None = None
        self.rebuilding = Rebuilding(self.database, MemoryRebuild(self.embed))
        self.upkeep = Upkeep(self)
        self._lock = WriterLock(path / LOCK)
        if not frozen:
            end_erasure(self.database, self._lock, self.end_erasure)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """One consistent view. The connection has the SQL functions that filters use."""
        with self.database.read() as db:
            register(db)
            yield db

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """One transaction, as in `Database.write`."""
        with self.database.write() as db:
            register(db)
            yield db

    @property
    def index(self) -> VectorIndex | None:
        """The vector index; None before the first memory, because the vectors' width is not known yet."""
        with self._opening:
            if self._index is None:
                identity = self._identity()
                if identity is not None:
                    self._index = self._open_index(identity.dim)
            return self._index

    def claimed_index(self) -> VectorIndex:
        """The vector index; created for the current embedder if there is none. Raises as `MemoryModels.embed` does."""
        index = self.index
        if index is not None:
            return index
        described = self.models.describe()
        with self.write() as db:
            db.execute("INSERT OR IGNORE INTO settings VALUES (?, ?)", (_EMBEDDER, described.to_json()))
        index = self.index
        assert index is not None
        return index

    def health(self, *, thorough: bool = False) -> Health:
        """The known damage and unfinished work. It does not read all stored data, as `check` does."""
        index = self.index if thorough else None
        with self.read() as db:
            rebuilding = self.rebuilding.trouble(db, "memories", REBUILD)
            missing = None
            if index is not None and rebuilding is None:
                rows = index.status(db).rows
                texts = db.execute("SELECT (SELECT count(*) FROM memories) + (SELECT count(*) FROM actions)").fetchone()
                if texts[0] != rows:
                    held = counted(texts[0], "memory or action", "memories and actions")
                    what = f"the index has {counted(rows, 'vector')} for {held}"
                    missing = Trouble("missing vectors", what, "edge memory repair")
            return gathered(db, self.database.verbs, rebuilding, missing)

    def counts(self) -> dict[str, int]:
        """The numbers of memories and actions of all scopes."""
        with self.read() as db:
            return {
                name: int(db.execute(f"SELECT count(*) FROM {name}").fetchone()[0]) for name in ("memories", "actions")
            }

    def embed(self, texts: list[str], *, query: bool = False) -> npt.NDArray[np.float32]:
        """The vectors of texts, [n, dim] float32. Raises the errors of `MemoryModels.embed`."""
        with self.trace.span("embed", "memory"):
            if not query:
                self.check_room()
            return self.models.embed(texts, query=query)

    def check_room(self, texts: Sequence[str] = (), held: int = 0) -> None:
        """Checks that texts can be added; see `MemoryModels.check_texts`."""
        self.models.check_texts("remembering", texts, held)

    def end_erasure(self) -> None:
        """Writes the files of the memory without what was erased."""
        with self._lock():
            finish(self.database, lambda: compact(self.database, self.lexical, self.index, self.models.make_way))

    def close(self) -> None:
        """Closes everything. Closing twice is harmless."""
        self.upkeep.close()
        # The database is closed before the index, so that reads of other threads have ended and none reopens the index.
        self.database.close()
        with self._opening:
            index, self._index = self._index, None
        if index is not None:
            index.close()
        self.models.close()

    def _identity(self) -> EmbedderIdentity | None:
        with self.database.read() as db:
            row = db.execute("SELECT value FROM settings WHERE name = ?", (_EMBEDDER,)).fetchone()
            return None if row is None else EmbedderIdentity.from_json(row[0])

    def _open_index(self, dim: int) -> VectorIndex:
        return VectorIndex(
            self.path / SEGMENTS, dim, budget=self.budget, trace=self.trace, threads=self._config.threads,
            search_on=self._config.opened_device,
        )  # fmt: skip
