"""A tuned index: the same as a fresh one with its parameters, tuned once, safe at every moment, kept when it grows."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from naive.copies import Copies
from naive.index import SMALL, IndexRig, mixture

from edge.errors import BudgetExceeded, CorruptBlock, InputError, StorageError
from edge.ivf.base import Goal, MaintenanceReport, Parameters, Tuned
from edge.ivf.maintenance.maintainer import Guard, maintain
from edge.ivf.maintenance.training import choose_nlist, due
from edge.ivf.storage.manifest import IndexManifest
from edge.planner import tuner

ROWS = 400
GOAL = Goal(recall=0.9)


def chosen(parameters: Parameters, rows: int = ROWS, nprobe: int = 2) -> Tuned:
    return Tuned(parameters, GOAL, rows, nprobe, 1.0, 1e-3, 0.9, 1000)


def train(rig: IndexRig, parameters: Parameters) -> None:
    """Trains an index with parameters that are given instead of chosen."""
    maintain(rig.index._work(rig.database.write), lambda work: chosen(parameters))


@pytest.fixture(autouse=True)
def one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each search is timed once: nothing here depends on how exact the times are."""
    monkeypatch.setattr("edge.planner.candidates._ROUNDS", 1)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[IndexRig]:
    rig = IndexRig(tmp_path)
    rig.add(range(ROWS), mixture(ROWS, rig.dim))
    rig.maintain()
    yield rig
    rig.close()


def found(rig: IndexRig, **wish: Any) -> tuple[list[Any], list[Any], int]:
    with rig.database.read() as db:
        result = rig.index.search(db, mixture(25, rig.dim, seed=5), 10, **wish)
    return result.ids.tolist(), result.scores.tolist(), result.nprobe


def test_as_a_fresh_index_with_these_parameters(rig: IndexRig, tmp_path: Path) -> None:
    done = rig.index.tune(rig.database.write, GOAL)
    assert done.changed
    assert done.tuned.recall >= 0.9
    assert done.tuned.rows == ROWS
    assert done.tuned.seconds > 0
    rig.check()
    (tmp_path / "fresh").mkdir()
    fresh = IndexRig(tmp_path / "fresh")
    fresh.add(range(ROWS), mixture(ROWS, rig.dim))
    fresh.maintain()
    maintain(fresh.index._work(fresh.database.write), lambda work: done.tuned)
    assert found(fresh) == found(rig)
    assert fresh.snapshot().nlist == rig.snapshot().nlist
    with rig.database.read() as db:
        assert rig.index.status(db).tuned == done.tuned
    fresh.close()


def test_tuning_again_changes_nothing(rig: IndexRig) -> None:
    first = rig.index.tune(rig.database.write, GOAL)
    before, files = rig.snapshot().generation, rig.files()
    again = rig.index.tune(rig.database.write, GOAL)
    assert (again.changed, again.tuned) == (False, first.tuned)
    assert (rig.snapshot().generation, rig.files()) == (before, files)
    rig.reopen()
    assert not rig.index.tune(rig.database.write, GOAL).changed
    assert rig.index.tune(rig.database.write, Goal(recall=0.7)).changed, "another goal"
    rig.add(range(ROWS, ROWS + 60), mixture(60, rig.dim, seed=3))
    assert rig.index.tune(rig.database.write, Goal(recall=0.7)).changed, "many more vectors"
    rig.check()


EVERY = [
    Parameters(1, "flat", 32, 1), Parameters(9, "flat", 32, 1), Parameters(9, "sq8", 8, 2), Parameters(30, "pq", 4, 3),
    Parameters(9, "pq", 2, 16), Parameters(9, "opq", 1, 16), Parameters(12, "opq", 2, 1),
]  # fmt: skip


@pytest.mark.parametrize("parameters", EVERY, ids=str)
def test_every_parameter_reaches_the_index(rig: IndexRig, parameters: Parameters) -> None:
    train(rig, parameters)
    rig.check()
    snapshot = rig.snapshot()
    assert snapshot.nlist >= parameters.lists  # large lists are split
    assert snapshot.codec.spec.name == parameters.codec
    assert snapshot.codec.spec.code_size == parameters.code_size
    assert snapshot.rescore == parameters.rescore
    if parameters.lists > 1:
        assert found(rig)[2] >= 2, "a search probes at least the chosen lists"
    rig.reopen()
    assert rig.snapshot().rescore == parameters.rescore
    rig.maintain(full=True)
    assert rig.snapshot().codec.spec.code_size == parameters.code_size
    expected = {number: vector for number, vector in rig.twin.rows.items()}
    with rig.database.read() as db:
        stored = rig.index.vectors(db, np.array(sorted(expected)))
    np.testing.assert_array_equal(stored, [expected[number] for number in sorted(expected)])


def test_deeper_rescoring_finds_no_less(rig: IndexRig) -> None:
    queries = mixture(25, rig.dim, seed=5)
    recalls = []
    for depth in (1, 4, 40):
        train(rig, Parameters(9, "opq", 1, depth))
        ids = found(rig, nprobe=1 << 20)[0]
        true = [set(sorted(rig.twin.rows, key=lambda n: -rig.twin.rows[n] @ q)[:10]) for q in queries]
        recalls.append(sum(len(set(a) & b) for a, b in zip(ids, true, strict=True)))
    assert recalls == sorted(recalls)
    assert recalls[0] < recalls[2] == 250


def test_every_moment_of_tuning_could_be_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = tmp_path / "index", tmp_path / "copies"
    source.mkdir()
    rig = IndexRig(source)
    rig.add(range(300), mixture(300, rig.dim))
    rig.maintain()
    copies = Copies(source, target)
    copies.twin = rig.twin
    copies.committed = dict(rig.twin.rows)
    copies.watch(monkeypatch)
    rig.index.tune(rig.database.write, GOAL)
    rig.close()
    monkeypatch.undo()
    assert len(copies.taken) > 10
    copies.check()


def test_what_cannot_be_tuned_is_refused_and_left_alone(
    rig: IndexRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = rig.snapshot().generation
    with pytest.raises(InputError, match="at least 30 questions"):
        rig.index.tune(rig.database.write, GOAL, questions=mixture(3, rig.dim))
    with pytest.raises(InputError, match="queries must be"):
        rig.index.tune(rig.database.write, GOAL, questions=mixture(30, rig.dim + 1))
    with pytest.raises(InputError, match="no parameters"):
        rig.index.tune(rig.database.write, Goal(recall=0.9, seconds=1e-9))
    with Guard(rig.folder / "segments" / "maintenance.lock"), pytest.raises(StorageError, match="another thread"):
        rig.index.tune(rig.database.write, GOAL)
    with monkeypatch.context() as patch:
        patch.setattr("edge.planner.tuner.maintain", lambda work, tune: MaintenanceReport())
        with pytest.raises(StorageError, match="another state"):
            rig.index.tune(rig.database.write, GOAL)
    with rig.database.read() as db:
        assert rig.index.status(db).tuned is None
    assert rig.snapshot().generation == before
    rig.check()
    assert len(rig.files()) == 1, "no file of the measurements is left"
    (tmp_path / "small").mkdir()
    few = IndexRig(tmp_path / "small")
    few.add(range(50), mixture(50, rig.dim))
    with pytest.raises(InputError, match="at least 200 vectors, and there are 50"):
        few.index.tune(few.database.write, GOAL)
    few.check()
    few.close()


@pytest.mark.parametrize("lists", [1, 128])
def test_the_smallest_limit_that_is_named_works(
    tmp_path: Path, small_process: None, monkeypatch: pytest.MonkeyPatch, lists: int
) -> None:
    """The sample is smaller there, and the ledger never holds more than the limit. The choice depends on measured
    times, and sorting needs more memory with more lists, so that each number of lists is tried."""

    real_tune = tuner.tune

    def tune(*arguments: Any) -> Tuned:
        found = real_tune(*arguments)
        return replace(found, parameters=replace(found.parameters, lists=lists))

    monkeypatch.setattr("edge.planner.tuner.tune", tune)
    rig = IndexRig(tmp_path, dim=32)
    rig.add(range(2_000), mixture(2_000, 32))
    rig.maintain()
    before, others = rig.snapshot().generation, rig.budget.free - (8 << 20)
    with rig.budget.reserve("others", others), pytest.raises(BudgetExceeded) as refused:
        rig.index.tune(rig.database.write, GOAL)
    missing = refused.value.needed - rig.budget.limit
    del refused  # its traceback keeps tables of the refused call in memory
    assert rig.snapshot().generation == before
    rig.check()
    with rig.budget.reserve("others", others - missing):
        assert rig.index.tune(rig.database.write, GOAL).tuned.recall >= 0.9
    rig.check()
    rig.close()


def test_the_sample_is_freed_with_its_lease(rig: IndexRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A view of an array keeps the whole of it, even if it has no rows."""
    arrays: list[weakref.ref[np.ndarray]] = []
    drawn, codecs = tuner.TuningCandidates._drawn, type(rig.index._codecs)
    train, calibrated = codecs.train, tuner.calibrated

    def noted_sample(*arguments: Any) -> Any:
        found = drawn(*arguments)
        arrays.append(weakref.ref(found))
        return found

    def noted_rows(self: Any, name: str, rows: np.ndarray, **more: Any) -> Any:
        arrays.append(weakref.ref(rows))
        return train(self, name, rows, **more)

    def measured(*arguments: Any) -> Any:
        assert [kept().nbytes for kept in arrays if kept() is not None] == []
        return calibrated(*arguments)

    monkeypatch.setattr(tuner.TuningCandidates, "_drawn", noted_sample)
    monkeypatch.setattr(codecs, "train", noted_rows)
    monkeypatch.setattr(tuner, "calibrated", measured)
    rig.index.tune(rig.database.write, GOAL)
    assert len(arrays) > 1


def test_questions_of_another_kind_are_counted(rig: IndexRig) -> None:
    """Questions that are rows find their neighbours in fewer lists than made-up ones."""
    near = rig.index.tune(rig.database.write, GOAL, questions=mixture(60, rig.dim))
    assert near.tuned.recall >= 0.9
    rig.check()


def test_the_choice_is_kept_while_the_index_grows(rig: IndexRig) -> None:
    train(rig, Parameters(16, "sq8", 8, 2))
    tuned = chosen(Parameters(16, "sq8", 8, 2))
    assert [choose_nlist(rows, SMALL, tuned) for rows in (100, 400, 900, 1599)] == [8, 16, 24, 32]
    assert choose_nlist(1600, SMALL, tuned) == choose_nlist(1600, SMALL), "four times as many: as without tuning"
    assert choose_nlist(3, SMALL, tuned) == 1
    one = chosen(Parameters(1, "flat", 32, 1))
    assert [choose_nlist(rows, SMALL, one) for rows in (400, 1599)] == [1, 1]
    with rig.database.read() as db:
        state = IndexManifest(db).state()
    assert not due(state, SMALL, tuned)
    assert not due(replace(state, training=0, rows=1599), SMALL, one), "one list was chosen"
    assert due(replace(state, training=0, rows=1600), SMALL, one)
    rig.delete(range(330))
    rig.maintain()
    assert rig.snapshot().nlist < 16
    assert rig.snapshot().rescore == 2
    rig.check()


@pytest.mark.parametrize(
    "change", ["record = x'7b7d'", "record = x'00'", "crc = crc + 1", "record = x'5b315d', crc = 0"]
)
def test_a_damaged_record_is_reported(rig: IndexRig, change: str) -> None:
    train(rig, EVERY[2])
    with rig.database.write() as db:
        assert IndexManifest(db).tuned() is not None
        db.execute(f"UPDATE ivf_tuning SET {change}")
        with pytest.raises(CorruptBlock, match="the record of its tuning"):
            IndexManifest(db).tuned()
        rig.index.clear(db)
        assert IndexManifest(db).tuned() is None, "cleared vectors take their tuning along"
    assert rig.snapshot().tuned is None
    for text in ("", "[]", "{}", '{"goal": {}, "parameters": {}}', "nothing"):
        with pytest.raises(CorruptBlock, match="cannot be read"):
            Tuned.from_json(text)
    whole = chosen(EVERY[2])
    assert Tuned.from_json(whole.to_json()) == whole
