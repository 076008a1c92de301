"""Vectors for measuring an index (real embeddings, alone or with added noise, or a mixture), their nearest rows, and an
index."""

from __future__ import annotations

import json
import mmap
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.process import say
from edge.apps.store.database import Database
from edge.budget import MemoryBudget
from edge.errors import InputError
from edge.ivf.index import IndexOptions, IndexStatus, VectorIndex

Floats = npt.NDArray[np.float32]

NEIGHBOURS = 10
BLOCK = 20_000
"""The number of rows made or read at a time."""

_NOTE = "set.json"

_SPREAD = 0.5
"""The length of the noise added to an embedding of length 1."""

_CENTRES = 4_000
_DIM = 384
_DECAY = 64.0
"""The number of dimensions over which the mixture's components decay by a factor of e."""


@dataclass(frozen=True, slots=True)
class VectorSet:
    """Files of one set of vectors: `vectors.f32` [rows, dim], `queries.npy` [q, dim], `truth.npy` [q, NEIGHBOURS].

    Attributes:
        kind: a description of the vectors.
    """

    folder: Path
    rows: int
    dim: int
    kind: str

    @classmethod
    def made(cls, folder: Path, *, rows: int, queries: int, base: Path | None) -> VectorSet:
        """The set in `folder`; it is made if it does not exist.

        Args:
            base: a .npy file of real embeddings [n, dim] of unit length (`edge embed --out`). If they are enough, the
                first ones are the rows, and the last ones the queries. If not, some become the queries, and each of
                the others the centre of many rows. Without it, rows and queries are drawn from a mixture.
        """
        if (folder / _NOTE).exists():
            known = cls.stored(folder)
            if (known.rows, len(known.queries)) != (rows, queries):
                raise InputError(f"{folder} holds another set ({known.rows:,} rows of {known.kind}); remove it first")
            return known
        random = np.random.default_rng(0)
        real = np.asarray(np.load(base), np.float32) if base else None
        if real is not None and len(real) >= rows + queries:
            kind = f"{rows:,} real embeddings; queries are embeddings held out"
            chosen = (real[start : min(start + BLOCK, rows)] for start in range(0, rows, BLOCK))
            return cls._written(folder, chosen, real[-queries:], rows, kind)
        source = _mixture(queries, random) if real is None else _expanded(real, queries, random)
        blocks = (source.rows(min(BLOCK, rows - start), random) for start in range(0, rows, BLOCK))
        return cls._written(folder, blocks, source.queries, rows, source.kind)

    @classmethod
    def _written(cls, folder: Path, blocks: Iterable[Floats], queries: Floats, rows: int, kind: str) -> VectorSet:
        folder.mkdir(parents=True, exist_ok=True)
        made = cls(folder, rows, queries.shape[1], kind)
        with open(made.path, "wb") as file:
            for block in blocks:
                block.tofile(file)
        np.save(folder / "queries.npy", queries)
        np.save(folder / "truth.npy", made.neighbours())
        facts = {"rows": rows, "dim": made.dim, "kind": kind}
        (folder / _NOTE).write_text(json.dumps(facts), encoding="utf-8")
        return made

    @classmethod
    def stored(cls, folder: Path) -> VectorSet:
        return cls(folder, **json.loads((folder / _NOTE).read_text("utf-8")))

    @property
    def path(self) -> Path:
        return self.folder / "vectors.f32"

    @property
    def queries(self) -> Floats:
        return np.asarray(np.load(self.folder / "queries.npy"), np.float32)

    @property
    def truth(self) -> npt.NDArray[np.int64]:
        return np.asarray(np.load(self.folder / "truth.npy"), np.int64)

    def neighbours(self, first: int = 0) -> npt.NDArray[np.int64]:
        """Computes the exact nearest rows of each query among the rows from `first` on, [q, NEIGHBOURS]."""
        queries = np.asarray(np.load(self.folder / "queries.npy"), np.float32)
        ids = np.full((len(queries), NEIGHBOURS), -1, np.int64)
        scores = np.full((len(queries), NEIGHBOURS), -np.inf, np.float32)
        for start, rows in self.blocks(first):
            found = queries @ rows.T
            all_scores = np.concatenate((scores, found), axis=1)
            all_ids = np.concatenate((ids, np.broadcast_to(np.arange(start, start + len(rows)), found.shape)), axis=1)
            best = np.argpartition(-all_scores, NEIGHBOURS - 1, axis=1)[:, :NEIGHBOURS]
            scores, ids = np.take_along_axis(all_scores, best, axis=1), np.take_along_axis(all_ids, best, axis=1)
        return ids

    def mapped(self) -> Floats:
        mapped = np.memmap(self.path, np.float32, "r", shape=(self.rows, self.dim))
        if hasattr(mmap, "MADV_RANDOM"):  # rows are read singly, so the system should not read ahead around them
            mapped._mmap.madvise(mmap.MADV_RANDOM)  # type: ignore[attr-defined]
        return mapped

    def blocks(self, first: int = 0, end: int | None = None) -> Iterator[tuple[int, Floats]]:
        """Yields the rows `first` to `end` block by block, each block with the number of its first row."""
        end = self.rows if end is None else end
        with open(self.path, "rb") as file:
            file.seek(4 * self.dim * first)
            for start in range(first, end, BLOCK):
                count = min(BLOCK, end - start)
                yield start, np.fromfile(file, np.float32, count * self.dim).reshape(count, self.dim)


@dataclass(frozen=True, slots=True)
class _Source:
    kind: str
    queries: Floats
    centres: Floats
    noise: Floats
    """Vectors [n, dim] whose differences are the directions of the noise."""

    weights: npt.NDArray[np.float64]

    def rows(self, count: int, random: np.random.Generator) -> Floats:
        chosen = random.choice(len(self.centres), count, p=self.weights)
        one, other = random.integers(0, len(self.noise), (2, count))
        noise = self.noise[one] - self.noise[other]
        noise *= _SPREAD / np.maximum(np.linalg.norm(noise, axis=1, keepdims=True), 1e-6)
        return _unit(self.centres[chosen] + noise)


@contextmanager
def opened_index(
    folder: Path, dim: int, budget: MemoryBudget, *, read_only: bool = False, **given: Any
) -> Iterator[tuple[VectorIndex, Database]]:
    """The index in a folder and its database, for rows of `dim` values. `given` are more arguments of `VectorIndex`."""
    folder.mkdir(parents=True, exist_ok=True)
    with (
        Database(folder / "index.db", VectorIndex.migrations(), budget=budget, read_only=read_only) as database,
        VectorIndex(folder / "segments", dim, budget=budget, **given) as index,
    ):
        yield index, database


def filled(
    folder: Path, dim: int, budget: MemoryBudget, blocks: Callable[[int], Iterable[tuple[int, Floats]]],
    options: IndexOptions,
) -> IndexStatus:  # fmt: skip
    """Adds the blocks from the row on that the index in a folder does not hold yet, each with the number of its first
    row, and trains it."""
    with opened_index(folder, dim, budget, options=options) as (index, database):
        with database.read() as db:
            held = index.status(db).rows
        for start, rows in blocks(held):
            say(f"adding vectors from {start:,} on")
            with database.write() as db:
                index.add(db, np.arange(start, start + len(rows)), rows)
        index.maintain(database.write, full=True)
        with database.read() as db:
            return index.status(db)


def recall(found: Iterable[Iterable[int]], truth: npt.NDArray[np.int64]) -> float:
    """The share of the nearest rows `truth` [q, k] that were found for their query."""
    hits = (len(set(own) & set(exact)) for own, exact in zip(found, truth.tolist(), strict=True))
    return sum(hits) / truth.size


def _expanded(vectors: Floats, queries: int, random: np.random.Generator) -> _Source:
    if len(vectors) < 2 * queries:
        raise InputError(f"{2 * queries:,} embeddings are needed for {queries:,} queries, not {len(vectors):,}")
    order = random.permutation(len(vectors))
    held, centres = vectors[order[:queries]], vectors[order[queries:]]
    kind = (
        f"{len(centres):,} real embeddings, each with noise of length {_SPREAD} in the direction between two others; "
        f"queries are embeddings held out"
    )
    return _Source(kind, held, centres, centres, np.full(len(centres), 1 / len(centres)))


def _mixture(queries: int, random: np.random.Generator) -> _Source:
    scale = np.exp(-np.arange(_DIM) / _DECAY).astype(np.float32)
    centres = _unit(random.standard_normal((_CENTRES + queries, _DIM), np.float32) * scale)
    noise = random.standard_normal((_CENTRES, _DIM), np.float32) * scale
    weights = 1 / np.arange(1, _CENTRES + 1) ** 0.5
    source = _Source(
        f"a mixture of {_CENTRES:,} directions of unequal weight with noise of length {_SPREAD}",
        centres[_CENTRES:], centres[:_CENTRES], noise, weights / weights.sum(),
    )  # fmt: skip
    near = source.rows(queries, random)
    return _Source(source.kind, near, source.centres, source.noise, source.weights)


def _unit(vectors: Floats) -> Floats:
    vectors = np.asarray(vectors, np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors
