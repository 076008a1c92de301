"""What came of a prediction is told once its search has said what it needed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from naive.lists import gridded
from naive.searching import Rig

from edge.ivf.router import probe
from edge.lookahead import Outcome

pytestmark = pytest.mark.usefixtures("small_process")

DIM = 16
PER_BYTE = 1e-6


@pytest.fixture
def rig(rigs: list[Rig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    """Transfers take a second per million bytes, as far as the link knows."""
    rigs.append(made := Rig(tmp_path, gridded(1500, DIM), nlist=15, capacity=45_000))
    monkeypatch.setattr(made.lane.rate, "throughput", lambda nbytes: 1 / PER_BYTE)
    return made


def sizes(rig: Rig, numbers: list[int]) -> int:
    return sum(part.nbytes for number in numbers for part in rig.lists.snapshot.lists[number])


def order(rig: Rig, query: np.ndarray) -> list[int]:
    found: list[int] = probe(query, rig.lists.snapshot.centroids, 15)[0].tolist()
    return found


def test_what_a_search_finds_fetched_is_saved(rig: Rig) -> None:
    query = rig.lists.snapshot.centroids[[2]]
    near = order(rig, query)
    window = rig.searcher.lookahead(rig.lists.snapshot, query, nbytes=sizes(rig, near[:2]))
    window.wait()
    rig.search(query, 3, 3, window=window)
    assert window.cancel() == [Outcome(pytest.approx(sizes(rig, near[:2]) * PER_BYTE))]
    assert window.cancel() == []


def test_a_prediction_that_no_search_came_to_has_no_outcome(rig: Rig) -> None:
    window = rig.searcher.lookahead(rig.lists.snapshot, rig.lists.snapshot.centroids[[2]], nbytes=10**6)
    window.wait()
    assert window.cancel() == []


def test_what_it_displaced_and_the_search_needed_is_lost(rig: Rig) -> None:
    query = rig.lists.snapshot.centroids[[2]]
    far = order(rig, query)[-1]
    rig.search(query, 3, 3)
    rig.search(rig.lists.snapshot.centroids[[far]], 3, 3)
    window = rig.searcher.lookahead(rig.lists.snapshot, rig.lists.snapshot.centroids[[far]], nbytes=10**6)
    window.wait()
    found = rig.search(query, 3, 3, window=window)
    (outcome,) = window.cancel()
    assert found.lists_read > 0
    assert outcome.saved_s < 0
    assert outcome.added_s is None


def test_following_is_compared_with_the_prediction_that_it_followed(rig: Rig) -> None:
    """The first prediction is one list off: had it gone on, it would have come to fewer of the lists."""
    snapshot = rig.lists.snapshot
    query = snapshot.centroids[[2]]
    near = order(rig, query)
    wrong = snapshot.centroids[[near[-1]]]
    first = rig.searcher.lookahead(snapshot, wrong, nbytes=sizes(rig, [near[-1]]))
    first.wait()
    second = rig.searcher.lookahead(snapshot, query, nbytes=sizes(rig, near[:2]))
    second.supersede(first, follows=True)
    second.wait()
    rig.search(query, 3, 3, window=second)
    missed, followed = second.cancel()
    assert missed == Outcome(0.0)
    saved = sizes(rig, near[:2]) * PER_BYTE
    assert followed.saved_s == pytest.approx(saved)
    alone = [number for number in order(rig, wrong)[1:3] if number in near[:3]]
    assert followed.added_s == pytest.approx(saved - sizes(rig, alone) * PER_BYTE)
    assert followed.added_s > 0


def test_following_that_names_the_same_lists_adds_nothing(rig: Rig) -> None:
    snapshot = rig.lists.snapshot
    query = snapshot.centroids[[2]]
    near = order(rig, query)
    first = rig.searcher.lookahead(snapshot, query, nbytes=sizes(rig, near[:1]))
    first.wait()
    second = rig.searcher.lookahead(snapshot, query, nbytes=sizes(rig, near[1:2]))
    second.supersede(first, follows=True)
    second.wait()
    rig.search(query, 3, 3, window=second)
    began, followed = second.cancel()
    assert began.saved_s > 0
    assert followed.saved_s > 0
    assert followed.added_s == pytest.approx(0.0)
