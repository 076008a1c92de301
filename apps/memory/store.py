"""`MemoryStore`: the database, the indexes and the models of a memory, within one budget."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import apsw
import numpy as np
import numpy.typing as npt

from edge.apps.memory.arguments import holds_memory
from edge.apps.memory.filters import register
from edge.apps.memory.records import full_text, migrations
from edge.apps.memory.validity import Judge
from edge.apps.pool import Held
from edge.apps.store.connections import LOCK, WriterLock
from edge.apps.store.database import Database
from edge.apps.store.erasure import compact, end_erasure, finish
from edge.apps.store.failures import Health, Trouble, gathered
from edge.apps.store.folder import MEMORY, SEGMENTS, can_be_written, claim
from edge.apps.store.lexical import LexicalIndex
from edge.apps.store.models import StoreModels, embedded_nbytes, fingerprint, holding
from edge.apps.store.rebuilding import EMBEDDER, EmbedderIdentity, Rebuilding
from edge.apps.store.rows import held
from edge.budget import MemoryBudget, OperationPlan
from edge.config import Config, counted
from edge.errors import BudgetExceeded, EdgeError, InputError, ModelError
from edge.ivf.base import Connection, MaintenanceReport
from edge.ivf.index import VectorIndex
from edge.models.blending import Retrieved
from edge.models.evidence import Evidence, load
from edge.models.packed import PackedModel
from edge.runtimes.reranker import Ranked, Reranker
from edge.trace import Trace

Vectors = npt.NDArray[np.float32]

CONTEXT = 0.5
"""The weight of the previous turn in a turn's vector (the benchmark `memory`)."""

_TINY = 1e-12

REBUILD = "edge memory rebuild"


class TextEmbedder(Protocol):
    """The interface of an embedder that a memory uses; `edge.Embedder` has it."""

    @property
    def dim(self) -> int:
        """The width of a vector."""

    def embed(self, texts: Sequence[str], *, query: bool = False) -> Vectors:
        """The vectors of texts, [n, dim] float32, of unit length. `query` says that the texts are questions."""

    def close(self) -> None:
        """Frees the model's memory."""


class TextReranker(Protocol):
    """The interface of a reranker that a memory uses; `edge.Reranker` has it."""

    def rank(
        self, query: str, docs: Sequence[str], top_k: int | None = None, *, retrieved: Retrieved = False
    ) -> list[Ranked]:
        """The best `top_k` of `docs`, best first. `retrieved`: the scores of the retriever that found them, if any."""

    def close(self) -> None:
        """Frees the model's memory."""


_INDEXED_NBYTES = 8
"""Memory of a full-text index for a character."""

_WHOLE = 1 << 24
"""A token limit that no text reaches."""


class MemoryModels(StoreModels[TextEmbedder, TextReranker]):
    """See `StoreModels`; any model with the interface of the above will do."""

    def check_texts(self, operation: str, texts: Sequence[str], nbytes: int) -> None:
        def plan(beside: int) -> OperationPlan:
            found = self.plan(operation, rerank=False, candidates=0, writes=True)
            return holding(found, nbytes + beside) if nbytes else found

        least, most = embedded_nbytes(self.named_embedder(), self._config, texts) if texts else (0, 0)
        try:
            self._pool.check(lambda: plan(least))
        except BudgetExceeded as error:
            refusal = plan(most).refusal(self._budget.limit, self._budget.used)
            raise max(error, refusal, key=lambda error: error.needed) from None

    def rank(self, query: str, docs: Sequence[str], top_k: int | None = None, *, retrieved: Retrieved) -> list[Ranked]:
        """The best `top_k` of `docs` (at least one; all if None), best first. Raises as `embed` does."""
        return self._reranker.run(lambda reranker: reranker.rank(query, docs, top_k, retrieved=retrieved))

    def word_scores(self, query: str, texts: Sequence[str]) -> dict[int, float]:
        """BM25 of the query's words among these texts, by the place of each text that has one."""
        lexical = LexicalIndex("texts")
        nbytes = _INDEXED_NBYTES * sum(map(len, texts))
        with self._budget.reserve("full text", nbytes), closing(apsw.Connection(":memory:")) as db:
            db.execute(LexicalIndex.create(lexical.table))
            lexical.add(db, range(len(texts)), texts)
            return dict(lexical.search(db, query, len(texts), budget=self._budget))

    def describe(self) -> EmbedderIdentity:
        return self._use_embedder(self._described)

    def count(self, text: str) -> int:
        """The number of tokens of a text in the reranker's vocabulary, with the special tokens at its ends."""
        return self._reranker.run(lambda reranker: _length(reranker, text))

    def evidence(self, name: str, signals: tuple[str, ...]) -> Evidence | None:
        """The fitted model of this name; None if there is none for the models in use."""
        packed = getattr(self._reranker.run(lambda reranker: reranker), "model", None)
        if not isinstance(packed, PackedModel):
            return None
        found = load(packed, name, signals)
        return found if found is not None and found.embedder == self.describe().name else None

    def _described(self, model: TextEmbedder) -> EmbedderIdentity:
        chosen = self._chosen
        if isinstance(chosen, str | Path) and chosen:
            source = str(chosen)
        else:
            source = self._config.embedder if chosen is None else _place(model)
        return EmbedderIdentity(_name(model), source, fingerprint(model), model.dim)

    def _compare(self, embedder: TextEmbedder) -> None:
        known, own = self.identity(), fingerprint(embedder)
        if known is not None and known.fingerprint != own:
            raise ModelError(
                f"the memory was embedded with {known.name} ({known.fingerprint[:12]}), not with "
                f"{_name(embedder)} ({own[:12]}), and vectors of two models cannot be compared: open it with "
                f"{known.name}, or export it and import it into a new one"
            )


def _length(reranker: TextReranker, text: str) -> int:
    if not isinstance(reranker, Reranker):
        raise InputError("this reranker cannot count tokens: give count=, best that of the model that will read")
    return reranker.engine.vocabulary.length(text, _WHOLE)


def _name(model: object) -> str:
    packed = getattr(model, "model", model)
    return str(getattr(packed, "name", type(model).__qualname__))


def _place(model: object) -> str:
    """The path of an open model's files; empty if it has none."""
    return str(getattr(getattr(model, "model", None), "path", ""))


def in_context(vectors: Vectors, previous: Sequence[int | None]) -> Vectors:
    """The vectors of turns, [n or more, dim] of unit length, each mixed with that of the turn before it (its row in
    `previous`, or None), because an answer seldom names its question."""
    mixed: Vectors = vectors[: len(previous)].copy()
    for row, place in enumerate(previous):
        if place is not None:
            mixed[row] += CONTEXT * vectors[place]
            mixed[row] /= max(float(np.linalg.norm(mixed[row])), _TINY)
    return mixed


class MadeFrom(NamedTuple):
    """The input of a vector: a text, and the turn before it if the text is a turn of a conversation."""

    text: str
    before: str | None = None


class MemoryRebuild:
    """The source of a rebuild (`edge.apps.store.rebuilding.Source`): the texts of all memories."""

    def __init__(self, embed: Callable[[list[str]], Vectors]) -> None:
        self._embed = embed

    def rows(self, db: Connection, after: int, limit: int) -> list[tuple[int, MadeFrom]]:
        memories = db.execute(
            "SELECT memories.id, memories.text, earlier.text FROM memories "
            "LEFT JOIN memories AS earlier ON earlier.id = memories.follows "
            "WHERE memories.id > ? ORDER BY memories.id LIMIT ?",
            (after, limit),
        )
        return held(db, memories, lambda row: (row[0], MadeFrom(*row[1:])))

    def count(self, db: Connection, after: int) -> int:
        return int(db.execute("SELECT count(*) FROM memories WHERE id > ?", (after,)).fetchone()[0])

    def vectors(self, made_from: Sequence[MadeFrom]) -> Vectors:
        texts = [text for text, _ in made_from]
        place = {text: number for number, text in enumerate(texts)}
        for _, before in made_from:
            if before is not None and before not in place:
                place[before] = len(texts)
                texts.append(before)
        return in_context(self._embed(texts), [None if before is None else place[before] for _, before in made_from])


_CHECK_ROWS = 256
"""The number of rows that this process writes before it checks again whether maintenance is due."""


class Upkeep:
    """Runs the index's maintenance after enough writes, unless another process does. Thread-safe."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._rows = _CHECK_ROWS  # the first write of a process checks, so that short processes maintain it, too
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    def wrote(self, rows: int) -> None:
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
        self.path = path
        self.budget = budget
        self.trace = trace
        claim(path, DATABASE)
        frozen = holds_memory(path) and not can_be_written(path)  # a memory on a read-only disk can still be read
        self.database = Database(path / DATABASE, migrations(), budget=budget, read_only=frozen, verbs="edge memory")
        self.lexical = full_text()
        self.models = MemoryModels(self.database, config, budget, trace, embedder=embedder, reranker=reranker)
        self._config = config
        self._opening = threading.Lock()
        self._index: VectorIndex | None = None
        self._judge: Judge | None = None
        self._judges = budget.reserve("memory judge", 0)
        self.source = MemoryRebuild(self.embed)
        self.rebuilding = Rebuilding(self.database, self.source)
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
        with self.database.write() as db:
            register(db)
            yield db

    @property
    def index(self) -> VectorIndex | None:
        """The vector index; None before the first memory, because the vectors' width is not known yet."""
        with self._opening:
            if self._index is None:
                identity = self.models.identity()
                if identity is not None:
                    self._index = self._open_index(identity.dim)
            return self._index

    def claimed_index(self) -> VectorIndex:
        """The vector index, created for the current embedder if there is none."""
        index = self.index
        if index is not None:
            return index
        described = self.models.describe()
        with self.write() as db:
            db.execute("INSERT OR IGNORE INTO settings VALUES (?, ?)", (EMBEDDER, described.to_json()))
        index = self.index
        assert index is not None
        return index

    @property
    def judge(self) -> Judge:
        with self._opening:
            if self._judge is None:
                judge = Judge()
                self._judges.resize(judge.model.nbytes)
                self._judge = judge
            return self._judge

    def health(self, *, thorough: bool = False) -> Health:
        """The known damage and unfinished work. It does not read all stored data, as `check` does."""
        index = self.index if thorough else None
        with self.read() as db:
            rebuilding = self.rebuilding.trouble(db, "memories", REBUILD)
            missing = None
            if index is not None and rebuilding is None:
                rows = index.status(db).rows
                texts = self.count(db)
                if texts != rows:
                    what = f"the index has {counted(rows, 'vector')} for {counted(texts, 'memory', 'memories')}"
                    missing = Trouble("missing vectors", what, "edge memory repair")
            return gathered(db, self.database.verbs, rebuilding, missing)

    def count(self, db: Connection) -> int:
        return int(db.execute("SELECT count(*) FROM memories").fetchone()[0])

    def embed(self, texts: list[str], *, query: bool = False) -> npt.NDArray[np.float32]:
        """The vectors of texts, [n, dim] float32."""
        with self.trace.span("embed", "memory"):
            if not query:
                self.check_room()
            return self.models.embed(texts, query=query)

    def check_room(self, texts: Sequence[str] = (), held: int = 0) -> None:
        self.models.check_texts("remembering", texts, held)

    def end_erasure(self) -> None:
        """Writes the files of the memory without what was erased."""
        with self._lock():
            finish(self.database, lambda: compact(self.database, self.lexical, self.index, self.models.make_way))

    def close(self) -> None:
        self.upkeep.close()
        # The database is closed before the index, so that reads of other threads have ended and none reopens the index.
        self.database.close()
        with self._opening:
            index, self._index, self._judge = self._index, None, None
            self._judges.release()
        if index is not None:
            index.close()
        self.models.close()

    def _open_index(self, dim: int) -> VectorIndex:
        return VectorIndex(
            self.path / SEGMENTS, dim, budget=self.budget, trace=self.trace, threads=self._config.threads,
            search_on=self._config.opened_device,
        )  # fmt: skip
