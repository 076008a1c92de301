"""What the writer refuses, where rows go, and what adding costs the files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from naive.index import IndexRig, mixture

from edge.errors import BudgetExceeded, ConfigError, InputError
from edge.ivf.base import MAINTENANCE_NBYTES, IndexOptions
from edge.ivf.index import VectorIndex


def test_what_is_refused(rig: IndexRig) -> None:
    one = mixture(1, rig.dim)
    wrong = [
        ([-1], one, "id -1 is negative"),
        ([4, 4], mixture(2, rig.dim), "twice"),
        ([1, 2], one, r"2 ids need vectors of shape \(2, 8\), not \(1, 8\)"),
        ([1], mixture(1, 9), r"shape \(1, 8\), not \(1, 9\)"),
        ([1], one * np.nan, "not a finite number"),
        ([1.5], one, "integers"),
        ([[1]], one, "one-dimensional"),
    ]
    for ids, vectors, message in wrong:
        with pytest.raises(InputError, match=message), rig.database.write() as db:
            rig.index.add(db, ids, vectors)
    with pytest.raises(InputError, match="twice"), rig.database.write() as db:
        rig.index.delete(db, [3, 3])
    with pytest.raises(InputError, match="transaction"):
        rig.index.add(rig.database.connect(), [1], one)
    with pytest.raises(InputError, match="id 12 "), rig.database.read() as db:
        rig.index.vectors(db, [12])
    with pytest.raises(InputError, match="at least one"):
        VectorIndex(rig.folder, 0, budget=rig.budget)
    rig.check()
    assert rig.snapshot().generation == 0, "nothing has happened"


def test_an_index_of_another_width_is_refused(rig: IndexRig) -> None:
    rig.add([1], mixture(1, rig.dim))
    other = VectorIndex(rig.folder / "segments", 9, budget=rig.budget, device=rig.device)
    for use in (
        lambda db: other.search(db, mixture(1, 9), 1),
        lambda db: other.add(db, [1], mixture(1, 9)),
        lambda db: other.status(db),
    ):
        with pytest.raises(ConfigError, match="width 8, not 9"), rig.database.write() as db:
            use(db)
    other.close()


def test_few_rows_touch_no_file(rig: IndexRig) -> None:
    rig.check()
    for number in range(20):  # twice the limit of pending rows
        rig.add([number], mixture(1, rig.dim, seed=number))
        rig.check()
    assert not (rig.folder / "segments").exists()
    assert len(rig.snapshot().pending_ids) == 20
    rig.add([20], mixture(1, rig.dim, seed=20))
    rig.check()
    assert len(rig.files()) == 1, "more would make searches and openings slow"
    assert len(rig.snapshot().pending_ids) == 0


def test_vectors_come_back_in_the_order_asked_for(rig: IndexRig) -> None:
    vectors = mixture(150, rig.dim)
    rig.add(range(150), vectors)
    rig.maintain()
    again = mixture(5, rig.dim, seed=2)
    rig.add(range(40, 45), again)
    vectors[40:45] = again
    asked = [44, 3, 149, 3, 40, 0]
    with rig.database.read() as db:
        np.testing.assert_array_equal(rig.index.vectors(db, asked), vectors[asked])
        assert rig.index.vectors(db, []).shape == (0, rig.dim)
        with pytest.raises(InputError, match="no vector with id 777"):
            rig.index.vectors(db, [3, 777])
    rig.delete([3, 44])
    for gone in (3, 44):
        with pytest.raises(InputError, match=f"no vector with id {gone}"), rig.database.read() as db:
            rig.index.vectors(db, [gone])
    with rig.database.read() as db:
        some = rig.index.vectors(db, [44, 5, 777], absent_as_zero=True)
    np.testing.assert_array_equal(some, [np.zeros(rig.dim), vectors[5], np.zeros(rig.dim)])


def test_rows_wait_while_the_memory_is_too_small_for_a_segment(tmp_path: Path) -> None:
    rig = IndexRig(tmp_path, limit=8 << 20)  # a writer takes 12 MB
    rig.add(range(15), mixture(15, rig.dim))
    rig.add(range(10, 22), mixture(12, rig.dim, seed=1))
    rig.check()
    assert rig.files() == []
    more = [3, *range(40, 49)]
    with rig.database.write() as db, pytest.raises(BudgetExceeded, match="index writer"):
        rig.index.add(db, np.array(more), mixture(10, rig.dim))
    with pytest.raises(BudgetExceeded, match="index writer"):
        rig.maintain(full=True)
    rig.check()
    rig.budget.limit = 1 << 36
    rig.add(more, mixture(10, rig.dim))
    rig.check()
    assert len(rig.files()) == 1
    rig.close()


def test_maintenance_and_additions_take_what_is_planned_for_them(tmp_path: Path) -> None:
    """With the options that are used, through flushing, merging and training."""
    rig = IndexRig(tmp_path, 64, options=IndexOptions(grace_seconds=0), limit=MAINTENANCE_NBYTES + (6 << 20))
    for start in range(0, 24_000, 3_000):
        rig.add(range(start, start + 3_000), mixture(3_000, rig.dim, seed=start))
        rig.maintain()
    rig.maintain(full=True)
    assert rig.trace.snapshot()["index.trainings"] > 0
    rig.close()


def test_what_is_cleared_is_forgotten_and_can_have_another_width(rig: IndexRig) -> None:
    """Trained, with deleted and pending rows; readers of the state before go on with it."""
    rig.add(list(range(600)), mixture(600, rig.dim))
    rig.maintain(full=True)
    rig.delete([3, 4])
    rig.add([900], mixture(1, rig.dim))
    with rig.database.read() as db:
        before = rig.index.snapshot(db)
    with rig.database.write() as db:
        rig.index.clear(db)
    with rig.database.read() as db:
        assert rig.index.status(db).rows == 0
        assert (rig.index.search(db, mixture(2, rig.dim), 3).ids == -1).all()
    assert before.nlist > 0
    other = VectorIndex(rig.folder / "segments", 9, budget=rig.budget, device=rig.device)
    with rig.database.write() as db:
        other.add(db, [1, 2], mixture(2, 9))
    with rig.database.read() as db:
        assert other.search(db, mixture(2, 9), 1).ids[:, 0].tolist() == [1, 2]
    other.close()
    with pytest.raises(InputError, match="write transaction"):
        rig.index.clear(rig.database.connect())
