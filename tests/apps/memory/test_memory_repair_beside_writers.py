"""A repair beside writers: whatever another process changes between two transactions of the repair stays as it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from naive.words import WordEmbedder

from edge.apps.memory.care import MemoryCare
from edge.apps.memory.memory import Memory
from edge.apps.store.checking import check
from edge.apps.store.database import Database
from edge.apps.store.repairing import repair
from edge.budget import MemoryBudget
from edge.errors import EdgeError
from edge.ivf.base import Connection

Make = Callable[..., Memory]
Change = Callable[[Memory, str], object]

CHANGES: dict[str, Change] = {
    "add": lambda memory, _: memory.add("The mill stands by the pond", user_id="ann"),
    "delete": lambda memory, lacking: memory.delete(lacking),
    "update": lambda memory, lacking: memory.update(lacking, "The cat is grey"),
    "maintain": lambda memory, _: memory.maintain(full=True),
    "rebuild": lambda memory, _: memory.rebuild(),
}

DAMAGE = ("vectors", "segment")


class _Between:
    """Calls `work` before the transaction number `moment` of the databases that are opened meanwhile."""

    def __init__(self, moment: int, work: Callable[[], object]) -> None:
        self._left = moment
        self._work = work
        self._working = False

    def install(self, patch: pytest.MonkeyPatch) -> None:
        for name in ("read", "write"):
            patch.setattr(Database, name, self._wrapped(getattr(Database, name)))

    @property
    def happened(self) -> bool:
        return self._left < 0

    def _wrapped(self, real: Callable[[Database], object]) -> object:
        @contextmanager
        def begun(database: Database) -> Iterator[Connection]:
            if not self._working and database._pool.current() is None:
                self._left -= 1
                if self._left == -1:
                    self._working = True
                    self._work()
                    self._working = False
            with real(database) as db:  # type: ignore[attr-defined]
                yield db

        return begun


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_at_any_moment_of_a_repair_stays(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, damage: str
) -> None:
    moment = 0
    while True:
        name = f"memory-{moment}"
        memory = make(name)
        memory.add([f"Fact {n}: the river floods in year {n}" for n in range(6)], user_id="ann")
        lacking = memory.get_all(user_id="ann")["results"][0]["id"]
        index = memory.store.index
        assert index is not None
        if damage == "segment":
            while memory.maintain(full=True).busy:  # the first write of a process maintains it, too
                time.sleep(0.01)
            (segment,) = (tmp_path / name / "segments").glob("*.blk")
            data = bytearray(segment.read_bytes())
            data[len(data) // 2] ^= 255
            segment.write_bytes(data)
        with memory.store.write() as db:
            number = db.execute("SELECT id FROM memories WHERE uuid = ?", (lacking,)).fetchone()[0]
            if damage == "vectors":
                index.delete(db, np.array([number]))
            index.add(db, np.array([1_000]), np.ones((1, WordEmbedder().dim), np.float32))
        memory.close()

        def between(name: str = name, lacking: str = lacking) -> None:
            other = make(name)
            with suppress(EdgeError):  # a segment is damaged still
                CHANGES[change](other, lacking)
            other.close()

        try:
            with monkeypatch.context() as patch:
                clock = _Between(moment, between)
                clock.install(patch)
                report = repair(MemoryCare(tmp_path / name, lambda name=name: make(name)), budget=MemoryBudget(10**10))
        except Exception as error:
            raise AssertionError(f"before transaction {moment}: {error}") from error
        where = f"{change} before transaction {moment}"
        assert report.after.findings == [], where
        assert check(MemoryCare(tmp_path / name, lambda name=name: make(name)), read_data=True).sound, where
        with make(name) as memory:
            assert memory.health(thorough=True), where
            index = memory.store.index
            assert index is not None
            texts = {}
            with memory.store.read() as db:
                texts = dict(db.execute("SELECT id, text FROM memories").fetchall())
                vectors = index.vectors(db, list(texts))
            assert np.allclose(vectors, WordEmbedder().embed(list(texts.values()))), where
        if not clock.happened:
            break
        moment += 1
    assert moment > 5, "the change came at several moments"
