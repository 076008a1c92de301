"""A vector index as a dictionary, and a database around the real one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
from apsw import Connection

from edge.budget import MemoryBudget
from edge.devices.cpu import CpuDevice
from edge.devices.faiss_codec import FaissCodecs
from edge.ivf.base import IndexOptions, Snapshot
from edge.ivf.index import VectorIndex
from edge.trace import Trace

Vectors = npt.NDArray[np.float32]

SMALL = IndexOptions(flat_limit=60, pending_limit=10, list_rows=16, grace_seconds=0)
"""Everything happens early: training, flushing, splitting."""


class NaiveIndex:
    """The right content of an index: id -> vector."""

    def __init__(self) -> None:
        self.rows: dict[int, Vectors] = {}

    def add(self, ids: Iterable[int], vectors: Vectors) -> None:
        self.rows.update(zip(ids, vectors, strict=True))

    def delete(self, ids: Iterable[int]) -> int:
        return sum(self.rows.pop(number, None) is not None for number in ids)

    def scores(self, query: Vectors) -> dict[int, float]:
        """Inner product of every vector with `query`."""
        return {number: float(vector @ query) for number, vector in self.rows.items()}


class SimpleDatabase:
    """SQLite with the index's tables, and transactions as the owner of a database has them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._db = self.connect()
        if not self._db.execute("PRAGMA user_version").fetchone()[0]:
            for step in VectorIndex.migrations():
                self._db.execute(step)
            self._db.execute("PRAGMA user_version = 1")

    def connect(self) -> Connection:
        db = Connection(str(self.path))
        db.set_busy_timeout(60_000)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = OFF")  # no test here takes the power away
        return db

    @contextlib.contextmanager
    def write(self) -> Iterator[Connection]:
        db = self.connect()
        try:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
            except BaseException:
                db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")
        finally:
            db.close()

    @contextlib.contextmanager
    def read(self) -> Iterator[Connection]:
        db = self.connect()
        try:
            db.execute("BEGIN")
            yield db
        finally:
            db.close()

    def close(self) -> None:
        self._db.close()


class IndexRig:
    """An index in a folder, its database, its twin, and a check that both hold the same."""

    def __init__(self, folder: Path, dim: int = 8, *, options: IndexOptions = SMALL, limit: int = 1 << 40) -> None:
        self.folder = folder
        self.dim = dim
        self.options = options
        self.budget = MemoryBudget(limit, baseline=0)
        self.trace = Trace()
        self.database = SimpleDatabase(folder / "edge.db")
        self.twin = NaiveIndex()
        self.device = CpuDevice(self.budget)
        self.index = self.open()

    def open(self) -> VectorIndex:
        """Another index object over the same files."""
        return VectorIndex(
            self.folder / "segments",
            self.dim,
            budget=self.budget,
            trace=self.trace,
            device=self.device,
            codecs=FaissCodecs(),
            options=self.options,
        )

    def reopen(self) -> None:
        self.index.close()
        self.index = self.open()

    def add(self, ids: Iterable[int], vectors: Vectors) -> None:
        ids = list(ids)
        with self.database.write() as db:
            self.index.add(db, np.array(ids, np.int64), vectors)
        self.twin.add(ids, vectors)

    def delete(self, ids: Iterable[int]) -> None:
        ids = list(ids)
        with self.database.write() as db:
            count = self.index.delete(db, np.array(ids, np.int64))
        assert count == self.twin.delete(ids)

    def maintain(self, *, full: bool = False) -> None:
        report = self.index.maintain(self.database.write, full=full)
        assert not report.busy

    def snapshot(self) -> Snapshot:
        with self.database.read() as db:
            return self.index.snapshot(db)

    def files(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "segments").glob("*.*") if path.suffix != ".lock")

    def check(self) -> None:
        """The index holds exactly the twin's rows, and finds them."""
        snapshot = self.snapshot()
        assert held(snapshot) == sorted(self.twin.rows)
        assert snapshot.rows == len(self.twin.rows)
        ids = np.array(sorted(self.twin.rows), np.int64)
        with self.database.read() as db:
            stored = self.index.vectors(db, ids)
            np.testing.assert_array_equal(
                stored, np.array([self.twin.rows[n] for n in ids.tolist()]).reshape(-1, self.dim)
            )
            if len(ids):
                self._check_search(db, stored[:: max(1, len(ids) // 5)], snapshot)

    def _check_search(self, db: Connection, queries: Vectors, snapshot: Snapshot) -> None:
        # Every row is scored exactly: those that came after training lie outside of what codes can say.
        k = -(-len(self.twin.rows) // snapshot.rescore)
        with patch("edge.ivf.scan.DEVIATIONS", 1e9):
            found = self.index.search(db, queries, k, nprobe=snapshot.nlist)
        for query, ids, scores in zip(queries, found.ids.tolist(), found.scores.tolist(), strict=True):
            expected = self.twin.scores(query)
            np.testing.assert_allclose(scores, sorted(expected.values(), reverse=True)[:k], rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(scores, [expected[number] for number in ids], rtol=1e-5, atol=1e-5)
            assert len(set(ids)) == k

    def close(self) -> None:
        self.index.close()
        self.device.close()
        self.database.close()


def held(snapshot: Snapshot) -> list[int]:
    """All ids that count in a snapshot, read from the parts themselves, repeats included."""
    ids = snapshot.pending_ids.tolist()
    for parts in snapshot.lists:
        for part in parts:
            block = np.empty(part.nbytes, np.uint8)
            part.source.read(part.codes, block.data)
            ids += np.delete(part.split(block)[0], part.deleted).tolist()
    return sorted(ids)


def mixture(count: int, dim: int, seed: int = 0, centres: int = 12, spread: float = 0.4) -> Vectors:
    """Unit vectors around a few centres."""
    random = np.random.default_rng(seed)
    middle = np.random.default_rng(99).standard_normal((centres, dim))
    middle /= np.linalg.norm(middle, axis=1, keepdims=True)
    vectors = middle[random.integers(centres, size=count)] + spread * random.standard_normal((count, dim))
    unit: Vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return unit
