"""Whatever is added, replaced, deleted and maintained in whatever order, the index holds what a dictionary would."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from naive.index import SMALL, IndexRig, held, mixture

IDS = st.integers(0, 150)
STEPS = st.one_of(
    st.tuples(st.just("add"), st.lists(IDS, min_size=1, max_size=40, unique=True)),
    st.tuples(st.just("delete"), st.lists(IDS, min_size=1, max_size=60, unique=True)),
    st.tuples(st.just("maintain"), st.booleans()),
    st.tuples(st.just("reopen"), st.none()),
    st.tuples(st.just("look"), st.none()),
)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[IndexRig]:
    rig = IndexRig(tmp_path)
    yield rig
    rig.close()


@pytest.mark.parametrize("codec", ["flat", "sq8", "pq"])
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(steps=st.lists(STEPS, min_size=3, max_size=14), seed=st.integers(0, 1000))
def test_any_sequence_of_operations(codec: str, steps: list[tuple[str, object]], seed: int) -> None:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        rig = IndexRig(Path(folder), options=replace(SMALL, codec=codec))
        for number, (step, what) in enumerate(steps):
            if step == "add":
                assert isinstance(what, list)
                rig.add(what, mixture(len(what), rig.dim, seed=seed + number))
            elif step == "delete":
                assert isinstance(what, list)
                rig.delete(what)
            elif step == "maintain":
                rig.maintain(full=bool(what))
            elif step == "reopen":
                rig.reopen()
            else:
                rig.check()
        rig.check()
        rig.maintain(full=True)
        rig.check()
        assert len(rig.files()) <= 1
        rig.close()
        assert rig.budget.used == 0, rig.budget.holders()


def test_growing_from_nothing_to_many_lists_and_back(rig: IndexRig) -> None:
    rig.check()
    rig.maintain()
    for start in range(0, 600, 25):
        rig.add(range(start, start + 25), mixture(25, rig.dim, seed=start))
        rig.maintain()
        rig.check()
    assert rig.snapshot().nlist > 10
    assert rig.snapshot().codec.spec.name == "sq8"
    for start in range(0, 600, 100):
        rig.delete(range(start, start + 95))
        rig.maintain()
        rig.check()
    rig.maintain(full=True)
    rig.check()
    assert rig.snapshot().nlist == 1, "a small collection is flat again"
    rig.delete(list(rig.twin.rows))
    rig.maintain(full=True)
    rig.check()
    assert rig.files() == []


def test_an_id_replaced_again_and_again_is_there_once(rig: IndexRig) -> None:
    rig.add(range(100), mixture(100, rig.dim))
    for turn in range(6):
        rig.add(range(0, 100, 3), mixture(34, rig.dim, seed=turn + 1))
        rig.check()
        rig.maintain(full=turn == 3)
        rig.check()


def test_what_is_rolled_back_was_never_there(rig: IndexRig) -> None:
    rig.add(range(100), mixture(100, rig.dim))
    rig.maintain()
    for count in (3, 200):  # into the pending table; into a segment of its own
        with contextlib.suppress(ZeroDivisionError), rig.database.write() as db:
            rig.index.add(db, np.arange(50, 50 + count), mixture(count, rig.dim, seed=5))
            rig.index.delete(db, np.arange(10))
            assert rig.index.snapshot(db).rows == max(100, 50 + count) - 10
            _ = 1 / 0  # takes everything back
        for number in (7, 8):  # the same generation again, with another content
            rig.add([number], mixture(1, rig.dim, seed=number + count))
        rig.check()
    rig.maintain()
    rig.check()
    assert len(rig.files()) == len(rig.snapshot().lists[0]), "the file of the rolled-back segment is gone"


def test_a_snapshot_stays_what_it_was(rig: IndexRig) -> None:
    rig.add(range(200), mixture(200, rig.dim))
    rig.maintain()
    before = rig.snapshot()
    pending = rig.snapshot().pending_vectors.copy()
    rig.add(range(150, 300), mixture(150, rig.dim, seed=1))
    rig.delete(range(50))
    rig.maintain(full=True)
    rig.check()
    assert held(before) == list(range(200))
    assert before.rows == 200
    np.testing.assert_array_equal(before.pending_vectors, pending)
    files = len(rig.files())
    del before
    rig.maintain()
    assert len(rig.files()) < files, "files go when the last reader does"
