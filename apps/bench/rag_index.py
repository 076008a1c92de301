"""An index on disk for replaying traces over: real sentences' vectors, scaled up, and what stands at each of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
import numpy as np
import numpy.typing as npt

from edge.apps.store.database import Database
from edge.budget import MemoryBudget
from edge.ivf.index import IndexOptions, VectorIndex
from edge.models.training.corpora import Corpus
from edge.runtimes.embedder import Embedder
from edge.sentences import sentences

_ADDED = 20_000
_SHORTEST = 40
_BUILD_MEMORY = 4 << 30
COPY_COSINE = 0.9
"""How near a copy lies to the vector it was made from."""


Command = TypeVar("Command", bound=Callable[..., Any])


def index_options(command: Command) -> Command:
    """The options of a command that makes such an index: `rows`, `list_rows`, `memory_share`, `work_dir`."""
    for option in (
        click.option(
            "--work-dir", type=click.Path(file_okay=False, path_type=Path), help="Where the index is made and kept."
        ),
        click.option("--memory-share", default=0.1, show_default=True, help="Of the index, that lists may take."),
        click.option("--list-rows", default=256, show_default=True, help="Vectors per list that training aims at."),
        click.option("--rows", default=200_000, show_default=True, help="Vectors; real ones first, then copies."),
    ):
        command = option(command)
    return command


def build(
    folder: Path, corpora: Sequence[Corpus], rows: int, *, list_rows: int, say: Callable[[str], None]
) -> tuple[int, int, int]:
    """Makes the index unless it is there: codec flat, as in the paper.

    Rows are the sentences of the corpora, with their titles. Where there are fewer than `rows`, vectors near theirs are
    added (their direction and noise, cosine 0.9 on average): they make the index as large as wanted, and keep the
    clusters' shape. They stand for the text of the vector they were made from.

    Returns:
        Rows, lists, and bytes of the lists.
    """
    folder.mkdir(parents=True, exist_ok=True)
    budget = MemoryBudget(_BUILD_MEMORY)
    texts = _texts(folder / "texts.jsonl", corpora)
    vectors = _vectors(folder / "vectors.npy", texts, budget, say)
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


def texts_of(folder: Path) -> list[str]:
    """The sentences of an index that was built; row `i` stands for text `i` modulo their number."""
    with (folder / "texts.jsonl").open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def _texts(path: Path, corpora: Sequence[Corpus]) -> list[str]:
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


def _vectors(
    path: Path, texts: Sequence[str], budget: MemoryBudget, say: Callable[[str], None]
) -> npt.NDArray[np.float32]:
    if not path.exists():
        parts = []
        with Embedder(budget=budget) as embedder:
            done = 0
            for part in embedder.embed_iter(texts):
                parts.append(part)
                done += len(part)
                if len(parts) % 20 == 0:
                    say(f"embedding: {done:,} of {len(texts):,} sentences")
        np.save(path, np.concatenate(parts))
    vectors: npt.NDArray[np.float32] = np.load(path, mmap_mode="r")
    return vectors


def _near(
    vectors: npt.NDArray[np.float32], copied: npt.NDArray[np.bool_], rng: np.random.Generator
) -> npt.NDArray[np.float32]:
    """The vectors, and for copies a neighbour of each."""
    noise = rng.standard_normal(vectors.shape).astype(np.float32)
    noise *= np.tan(np.arccos(COPY_COSINE)) / np.linalg.norm(noise, axis=1, keepdims=True)
    near = vectors + np.where(copied[:, None], noise, np.float32(0))
    return np.asarray(near / np.linalg.norm(near, axis=1, keepdims=True), np.float32)
