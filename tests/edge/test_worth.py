"""Frequencies by place and by age, and what follows from them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from naive.lists import gridded
from naive.searching import Rig

from edge.worth import NEVER, Worth


def test_at_first_a_prediction_is_believed() -> None:
    worth = Worth()
    assert worth.of_place(0) == worth.of_place(1000) == 1.0
    assert worth.of_age(0) == worth.of_age(99) == worth.of_age(NEVER) < 0.1


def test_frequencies_are_learned_apart_for_places_and_ages() -> None:
    worth = Worth()
    places = {f"p{i}": i for i in range(32)}
    ages = {"used": 0, "old": 7, "ahead": NEVER}
    for turn in range(600):
        needed = {"p0", "p1", "used"} | ({"p20", "old"} if turn % 4 == 0 else set())
        worth.observe(places, ages, needed)
    assert worth.of_place(0) > 0.95
    assert worth.of_place(31) < 0.1
    assert worth.of_age(0) > 0.9
    assert worth.of_age(7) == pytest.approx(0.25, abs=0.04)
    assert worth.of_age(NEVER) < 0.01


def test_what_was_learned_is_forgotten_slowly() -> None:
    worth = Worth()
    for _ in range(300):
        worth.observe({"a": 0}, {"b": 0}, {"b"})
    assert worth.of_place(0) < 0.1 < 0.9 < worth.of_age(0)
    for _ in range(300):
        worth.observe({"a": 0}, {"b": 0}, {"a"})
    assert worth.of_place(0) > 0.9 > 0.1 > worth.of_age(0)


@pytest.mark.usefixtures("small")
def test_wrong_predictions_stop_pushing_out_what_is_used_again(tmp_path: Path) -> None:
    rig = Rig(tmp_path, gridded(1500, 16), nlist=15, capacity=45_000)
    snapshot = rig.lists.snapshot
    asked = snapshot.centroids[[2]]
    far = snapshot.centroids[[int(np.argmin(snapshot.centroids @ asked[0]))]]
    read = []
    for _ in range(40):
        with rig.searcher.lookahead(snapshot, far, nbytes=45_000) as window:
            window.wait()
            found = rig.search(asked, 3, 3, window=window)
        rig.check(asked, found, 3, 3)
        read.append(found.lists_read)
    assert sum(read[:5]) >= 5  # the lists were pushed out again and again
    assert sum(read[-10:]) == 0
    rig.close()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger holds far less than the test process: nothing is to be given up for that."""
    monkeypatch.setattr("edge.budget.anonymous_resident", lambda: 0)


def test_places_are_told_apart_at_the_front_and_ages_up_to_a_bound() -> None:
    worth = Worth()
    for _ in range(300):
        worth.observe({"a": 1, "b": 2, "c": 3, "d": 4}, {"old": 40}, {"a", "old"})
    assert worth.of_place(1) > 0.9 > 0.1 > worth.of_place(2)
    assert worth.of_place(3) == worth.of_place(4)
    assert worth.of_age(40) == worth.of_age(99) == worth.of_age(16) > 0.9


def test_what_is_in_memory_may_be_needed_by_any_search_until_it_is_evicted() -> None:
    """One in ten is needed at each age: of those that have ten searches before them, two in three."""
    worth = Worth()
    random = np.random.default_rng(0)
    for _ in range(3000):
        worth.observe({}, {age: age for age in range(10)}, set(np.flatnonzero(random.random(10) < 0.1).tolist()))
    assert worth.before(9, 9) == pytest.approx(worth.of_age(9))
    assert worth.of_age(9) == pytest.approx(0.1, abs=0.06)
    assert worth.before(0, 9) == pytest.approx(1 - 0.9**10, abs=0.1)
    assert worth.before(12, 9) == pytest.approx(worth.of_age(12))
    assert worth.before(NEVER, 9) == worth.of_age(NEVER)
