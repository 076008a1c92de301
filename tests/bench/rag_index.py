"""An index on disk over which traces are replayed: vectors of real sentences, with copies, and the sentences."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench.process import say
from bench.vectors import BLOCK, Floats, filled
from edge.apps.assistant.retrieval import Retrieval, Vectors
from edge.apps.collection.filters import Filters
from edge.apps.collection.hits import Hit
from edge.apps.store.database import Database
from edge.budget import MemoryBudget
from edge.cache.lookahead import Lookahead
from edge.ivf.index import IndexOptions, VectorIndex
from edge.ivf.plan import choose_nprobe
from edge.models.training.corpora import Corpus
from edge.runtimes.embedder import Embedder
from edge.text.sentences import sentences
from edge.trace import Trace

_SHORTEST = 40
_BUILD_MEMORY = 4 << 30
_COPY_COSINE = 0.9
"""The mean cosine of a copy with its original vector."""


LINK = "link"
"""The name of the link that lists cross in a replay, with which its counters begin."""


def build(folder: Path, corpora: Sequence[Corpus], rows: int, *, list_rows: int) -> tuple[int, int, int]:
    """Makes the index unless it exists, with the codec flat as in the paper. Returns the number of rows, the number of
    lists, and the bytes of the lists.

    Rows are the sentences of the corpora, with their titles. If there are fewer than `rows`, noisy copies of their
    vectors are added, with a cosine of 0.9 on average, which keeps the shape of the clusters. A copy stands for the
    text of its original.
    """
    folder.mkdir(parents=True, exist_ok=True)
    budget = MemoryBudget(_BUILD_MEMORY)
    texts = stored_sentences(folder / "texts.jsonl", corpora)
    vectors = stored_vectors(folder / "vectors.npy", texts, budget)
    options = IndexOptions(codec="flat", flat_limit=0, list_rows=list_rows)

    def blocks(held: int) -> Iterator[tuple[int, Floats]]:
        rng = np.random.default_rng(held)
        for start in range(held, rows, BLOCK):
            ids = np.arange(start, min(rows, start + BLOCK))
            yield start, _near(vectors[ids % len(vectors)], ids >= len(vectors), rng)

    status = filled(folder, vectors.shape[1], budget, blocks, options)
    return status.rows, status.lists, status.nbytes


def texts_of(folder: Path) -> list[str]:
    """The sentences of an index made by `build`. Row `i` stands for sentence `i` modulo their number."""
    with (folder / "texts.jsonl").open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def stored_sentences(path: Path, corpora: Sequence[Corpus]) -> list[str]:
    """The sentences of the corpora with their titles, each once; from `path`, which is written if it does not exist."""
    if not path.exists():
        found = [
            f"{title}: {sentence}" if title else sentence
            for corpus in corpora
            for title, text in zip(corpus.titles, corpus.texts, strict=True)
            for sentence in sentences(text)
            if len(sentence) >= _SHORTEST
        ]
        path.write_text("".join(json.dumps(text) + "\n" for text in dict.fromkeys(found)), encoding="utf-8")
    return texts_of(path.parent)


def stored_vectors(path: Path, texts: Sequence[str], budget: MemoryBudget) -> Floats:
    """The texts' vectors of unit length [n, dim]; mapped from `path`, which is written if it does not exist."""
    if not path.exists():
        parts = []
        with Embedder(budget=budget) as embedder:
            for start in range(0, len(texts), BLOCK):
                parts.append(embedder.embed(texts[start : start + BLOCK]))
                say(f"embedding: {start + len(parts[-1]):,} of {len(texts):,} sentences")
        np.save(path, np.concatenate(parts))
    vectors: Floats = np.load(path, mmap_mode="r")
    return vectors


def _near(vectors: Floats, copied: npt.NDArray[np.bool_], rng: np.random.Generator) -> Floats:
    """The vectors of unit length, [n, dim]; with noise added to those that are copies."""
    noise = rng.standard_normal(vectors.shape).astype(np.float32)
    noise *= np.tan(np.arccos(_COPY_COSINE)) / np.linalg.norm(noise, axis=1, keepdims=True)
    near = vectors + np.where(copied[:, None], noise, np.float32(0))
    return np.asarray(near / np.linalg.norm(near, axis=1, keepdims=True), np.float32)


_RECALL = 0.95


class IndexLibrary:
    """An index whose rows stand for sentences, with the interface of a collection for pipelines
    (`edge.apps.assistant.retrieval.CollectionLibrary`)."""

    def __init__(
        self, folder: Path, index: VectorIndex, database: Database, embedder: Embedder, *, reuse: bool, trace: Trace
    ) -> None:
        """A search probes as many lists as the recall target needs. `reuse` keeps them in memory for later ones."""
        self.budget = embedder.budget
        self.trace = trace
        self.hideable = 0.0
        """The seconds of one question that perfect foresight would save: the wait of each search for the link, but at
        most the duration of the generation before it, which can hide it."""
        self._index = index
        self._database = database
        self._reuse = reuse
        self._embedder = embedder
        self._texts = texts_of(folder)
        self._before: Mapping[str, float] = {}
        with database.read() as db:
            snapshot = index.snapshot(db)
        self.nprobe = choose_nprobe(snapshot, _RECALL)

    def embed_queries(self, queries: Sequence[str]) -> Vectors:
        return self._embedder.embed(queries, query=True)

    def candidates(
        self,
        queries: Sequence[Retrieval],
        vectors: Vectors,
        k: int,
        *,
        where: Filters | None = None,
        seconds: float | None = None,
        window: Lookahead | None = None,
    ) -> list[list[Hit]]:
        ahead = window if isinstance(window, Lookahead) else None
        asked = self.trace.snapshot()
        with self._database.read() as db:
            nprobe = self.nprobe if seconds is None else None
            found = self._index.search(db, vectors, k, nprobe=nprobe, seconds=seconds, window=ahead)
        if not self._reuse:
            self._index.release_lists()
        self.hideable += self._took(asked)
        self.trace.count("index.lists_read", found.lists_read)
        self.trace.count("index.hits", found.hits)
        return [
            [self._hit(int(row), float(score)) for row, score in zip(ids, scores, strict=True) if row >= 0]
            for ids, scores in zip(found.ids, found.scores, strict=True)
        ]

    def lookahead(
        self, queries: Vectors, *, seconds: float | None = None, lost: Callable[[float], object] | None = None
    ) -> Lookahead:
        with self._database.read() as db:
            return self._index.lookahead(db, queries, seconds=seconds, lost=lost)

    def begin(self) -> None:
        """Resets the figure for a new question."""
        self.hideable = 0.0
        self._before = self.trace.snapshot()

    def _took(self, asked: Mapping[str, float]) -> float:
        before, self._before = self._before, self.trace.snapshot()

        def since(name: str, earlier: Mapping[str, float]) -> float:
            return self._before.get(name, 0.0) - earlier.get(name, 0.0)

        return min(since(f"{LINK}.stall_s", asked), since("assistant.generate_s", before))

    def _hit(self, row: int, score: float) -> Hit:
        return Hit(
            id=row, path=str(row), line_start=1, line_end=1, page=None, score=score, snippet="",
            text=self._texts[row % len(self._texts)], title="", kind="", context="", file=row, ordinals=(0, 0),
        )  # fmt: skip
