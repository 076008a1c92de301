"""An index on disk over which traces are replayed: vectors of real sentences, with copies, and the sentences."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from bench.options import work_dir_option
from bench.rag_traces import Case, cases
from edge.apps.options import Command, gathered
from edge.apps.store.database import Database
from edge.budget import MemoryBudget
from edge.errors import InputError
from edge.ivf.index import IndexOptions, VectorIndex
from edge.models.training.corpora import Corpus, load
from edge.runtimes.embedder import Embedder
from edge.text.sentences import sentences

_ADDED = 20_000
_SHORTEST = 40
_BUILD_MEMORY = 4 << 30
_COPY_COSINE = 0.9
"""The mean cosine of a copy with its original vector."""


LINK = "link"
"""The name of the link that lists cross in a replay, with which its counters begin."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """An index on disk, and the judged sets that it was made from.

    Attributes:
        folder: of the index.
        corpora: the sets; questions and texts are the first one's.
        rows, lists, nbytes: the number of vectors and of lists, and the bytes of the lists.
        memory: the bytes that lists may take in memory.
    """

    folder: Path
    corpora: Sequence[Corpus]
    rows: int
    lists: int
    nbytes: int
    memory: int

    def conditions(self) -> dict[str, Any]:
        """The facts about the index that a report names."""
        return {
            "rows": self.rows, "lists": self.lists, "index_bytes": self.nbytes,
            "data": [corpus.name for corpus in self.corpora],
        }  # fmt: skip

    def asked(self, count: int) -> list[Case]:
        """The first `count` questions of the first set.

        Raises:
            InputError: it has fewer.
        """
        found = cases(self.corpora[0])[:count]
        if len(found) < count:
            name = self.corpora[0].name
            raise InputError(f"{name} has only {len(found)} questions with company in their paragraph and article")
        return found


@dataclass(frozen=True, slots=True)
class IndexData:
    """The options of a command that makes this index."""

    folders: Sequence[Path]
    rows: int
    list_rows: int
    memory_share: float
    work_dir: Path

    def made(self) -> Replayed:
        """The index, made unless it exists."""
        corpora = [load(folder) for folder in self.folders]
        place = self.work_dir / f"rag-{self.rows}-{self.list_rows}"
        rows, lists, nbytes = build(place, corpora, self.rows, list_rows=self.list_rows, say=say)
        return Replayed(place, corpora, rows, lists, nbytes, int(nbytes * self.memory_share))


def say(text: str) -> None:
    """Prints a message about the progress to stderr."""
    click.echo(text, err=True)


def index_options(
    *, rows: int = 200_000, list_rows: int = 256, memory_share: float = 0.1
) -> Callable[[Command], Command]:
    """Adds the options of `IndexData`, which the function gets as `data`. The arguments are their defaults."""
    return gathered(
        "data",
        IndexData,
        click.option(
            "--data",
            "folders",
            multiple=True,
            required=True,
            type=click.Path(file_okay=False, exists=True, path_type=Path),
            help="Judged set in BEIR layout; questions and texts are the first one's, all of them are indexed.",
        ),
        click.option("--rows", default=rows, show_default=True, help="Vectors; real ones first, then copies."),
        click.option(
            "--list-rows", default=list_rows, show_default=True, help="Vectors per list that training aims at."
        ),
        click.option(
            "--memory-share", default=memory_share, show_default=True, help="Of the index, that lists may take."
        ),
        work_dir_option,
    )


def build(
    folder: Path, corpora: Sequence[Corpus], rows: int, *, list_rows: int, say: Callable[[str], None]
) -> tuple[int, int, int]:
    """Makes the index unless it exists, with the codec flat as in the paper.

    Rows are the sentences of the corpora, with their titles. If there are fewer than `rows`, noisy copies of their
    vectors are added, with a cosine of 0.9 on average. The copies make the index as large as wanted and keep the shape
    of the clusters. A copy stands for the text of its original.

    Args:
        rows: the wanted number of rows.
        list_rows: the number of vectors per list that training aims at.
        say: called with messages about the progress.

    Returns:
        The number of rows, the number of lists, and the bytes of the lists.
    """
    folder.mkdir(parents=True, exist_ok=True)
    budget = MemoryBudget(_BUILD_MEMORY)
    texts = stored_sentences(folder / "texts.jsonl", corpora)
    vectors = stored_vectors(folder / "vectors.npy", texts, budget, say)
    options = IndexOptions(codec="flat", flat_limit=0, list_rows=list_rows)
    with (
        Database(folder / "index.db", VectorIndex.migrations(), budget=budget) as database,
        VectorIndex(folder / "segments", vectors.shape[1], budget=budget, options=options) as index,
    ):
        with database.read() as db:
            held = index.status(db).rows
        rng = np.random.default_rng(held)
        while held < rows:
            ids = np.arange(held, min(rows, held + _ADDED))
            say(f"adding vectors: {ids[-1] + 1:,} of {rows:,}")
            with database.write() as db:
                index.add(db, ids, _near(vectors[ids % len(vectors)], ids >= len(vectors), rng))
            held = int(ids[-1]) + 1
        index.maintain(database.write, full=True, progress=lambda stage, done, total: None)
        with database.read() as db:
            status = index.status(db)
    return status.rows, status.lists, status.nbytes


@contextmanager
def opened_index(folder: Path, dim: int, budget: MemoryBudget, **given: Any) -> Iterator[tuple[VectorIndex, Database]]:
    """Opens an index made by `build`, for searches.

    Args:
        given: further arguments of `VectorIndex`.
    """
    options = IndexOptions(codec="flat", flat_limit=0)
    with (
        Database(folder / "index.db", VectorIndex.migrations(), budget=budget, read_only=True) as database,
        VectorIndex(folder / "segments", dim, budget=budget, options=options, **given) as index,
    ):
        yield index, database


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


_EMBEDDED = 20_000
"""Sentences that are embedded at a time."""


def stored_vectors(
    path: Path, texts: Sequence[str], budget: MemoryBudget, say: Callable[[str], None]
) -> npt.NDArray[np.float32]:
    """The texts' vectors of unit length [n, dim]; mapped from `path`, which is written if it does not exist."""
    if not path.exists():
        parts = []
        with Embedder(budget=budget) as embedder:
            for start in range(0, len(texts), _EMBEDDED):
                parts.append(embedder.embed(texts[start : start + _EMBEDDED]))
                say(f"embedding: {start + len(parts[-1]):,} of {len(texts):,} sentences")
        np.save(path, np.concatenate(parts))
    vectors: npt.NDArray[np.float32] = np.load(path, mmap_mode="r")
    return vectors


def _near(
    vectors: npt.NDArray[np.float32], copied: npt.NDArray[np.bool_], rng: np.random.Generator
) -> npt.NDArray[np.float32]:
    """The vectors of unit length, [n, dim]; with noise added to those that are copies."""
    noise = rng.standard_normal(vectors.shape).astype(np.float32)
    noise *= np.tan(np.arccos(_COPY_COSINE)) / np.linalg.norm(noise, axis=1, keepdims=True)
    near = vectors + np.where(copied[:, None], noise, np.float32(0))
    return np.asarray(near / np.linalg.norm(near, axis=1, keepdims=True), np.float32)
