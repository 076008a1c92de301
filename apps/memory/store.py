"""`MemoryStore`: the files of a memory and all that lives in them, within one budget."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import platformdirs

from edge.apps.memory.filters import register
from edge.apps.memory.ledger import Ledger
from edge.apps.memory.models import Models, TextEmbedder, TextReranker
from edge.apps.memory.remembered import REBUILD, Remembered
from edge.apps.memory.schema import migrations
from edge.apps.memory.upkeep import Upkeep
from edge.apps.store.database import Database, make_folder
from edge.apps.store.health import Health, Trouble, gathered
from edge.apps.store.models import EmbedderIdentity
from edge.apps.store.rebuilding import Rebuilding
from edge.budget import MemoryBudget
from edge.config import Config
from edge.connection import Connection
from edge.ivf.index import VectorIndex
from edge.trace import Trace

DATABASE = "memory.db"
SEGMENTS = "segments"
_EMBEDDER = "embedder"


def default_path() -> Path:
    """Where a memory lies when nobody says where: the platform's place for the user's data."""
    return platformdirs.user_data_path("edge-rag", appauthor=False) / "memory"


def holds_memory(path: Path) -> bool:
    """Whether there is a memory in a directory."""
    return (path / DATABASE).is_file()


class MemoryStore:
    """Database, indexes and models of one directory. Thread-safe."""

    def __init__(
        self,
        path: Path,
        *,
        budget: MemoryBudget,
        config: Config,
        trace: Trace,
        embedder: str | Path | TextEmbedder | None,
        reranker: str | Path | TextReranker | None,
    ) -> None:
        """Opens the directory `path`, or makes it.

        Raises:
            StorageError: it cannot be made or opened.
        """
        self.path = path
        self.budget = budget
        self.trace = trace
        make_folder(path)
        self.database = Database(path / DATABASE, migrations(), budget=budget, verbs="edge memory")
        self.ledger = Ledger()
        self.models = Models(budget, config, trace, embedder=embedder, reranker=reranker, identity=self._identity)
        self._config = config
        self._opening = threading.Lock()
        self._index: VectorIndex | None = None
        self.rebuilding = Rebuilding(self.database, Remembered(self.embed))
        self.upkeep = Upkeep(lambda: self.index, self.database.write, self.rebuilding.finish)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """One consistent view; the connection knows the functions that filters use."""
        with self.database.read() as db:
            register(db)
            yield db

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """One transaction, as `Database.write`."""
        with self.database.write() as db:
            register(db)
            yield db

    @property
    def index(self) -> VectorIndex | None:
        """The vector index; None as long as there is not one memory, because then nobody knows the vectors' width."""
        with self._opening:
            if self._index is None:
                identity = self._identity()
                if identity is not None:
                    self._index = self._open_index(identity.dim)
            return self._index

    def claimed_index(self) -> VectorIndex:
        """The vector index, begun with the present embedder if there is none; raises as `Models.embed`."""
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
        """What is unfinished or damaged, as far as it is known without reading everything (see `check`).

        Args:
            thorough: also counts the vectors.
        """
        index = self.index if thorough else None
        with self.read() as db:
            rebuilding = self.rebuilding.trouble(db, "memories", REBUILD)
            missing = None
            if index is not None and rebuilding is None:
                rows = index.status(db).rows
                texts = db.execute("SELECT (SELECT count(*) FROM memories) + (SELECT count(*) FROM actions)").fetchone()
                if texts[0] != rows:
                    what = f"there are {rows:,} vectors for {texts[0]:,} memories and actions"
                    missing = Trouble("missing vectors", what, "edge memory repair")
            return gathered(db, self.database.lost, rebuilding, missing)

    def counts(self) -> dict[str, int]:
        """How many memories and actions there are, of all scopes."""
        with self.read() as db:
            return {
                name: int(db.execute(f"SELECT count(*) FROM {name}").fetchone()[0]) for name in ("memories", "actions")
            }

    def embed(self, texts: list[str], *, query: bool = False) -> npt.NDArray[np.float32]:
        """Vectors of texts; raises as `Models.embed`."""
        with self.trace.span("embed", "memory"):
            return self.models.embed(texts, query=query)

    def close(self) -> None:
        """Closes everything. Closing twice is harmless."""
        self.upkeep.close()
        # First, so that what other threads read has ended, and nobody opens again what is closed here.
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
            search_on=self._config.device,
        )  # fmt: skip
