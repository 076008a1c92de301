"""What came of a prediction is told once its search has said what it needed."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest
from naive.lists import gridded
from naive.searching import Rig
from naive.waiting import PATIENCE_S

from edge.cache.lookahead import LookaheadOutcome
from edge.ivf.plan import probe

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
    assert window.cancel() == [LookaheadOutcome(pytest.approx(sizes(rig, near[:2]) * PER_BYTE))]
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
    losses: list[float] = []
    window = rig.searcher.lookahead(
        rig.lists.snapshot, rig.lists.snapshot.centroids[[far]], nbytes=10**6, lost=losses.append
    )
    window.wait()
    found = rig.search(query, 3, 3, window=window)
    assert window.cancel() == [LookaheadOutcome(0.0)]
    assert 0 < len(losses) <= found.lists_read, "the second search has pushed out some of them"
    told = len(losses)
    rig.search(query, 3, 3)
    assert len(losses) == told, "what is there again is lost once"


def test_what_it_displaced_and_a_later_search_needs_is_lost(rig: Rig) -> None:
    """Everything fits that the two searches need, but not what is fetched between them as well."""
    query = rig.lists.snapshot.centroids[[2]]
    near = order(rig, query)
    rig.search(query, 3, 3)
    losses: list[float] = []
    far = rig.lists.snapshot.centroids[[near[-1]]]
    window = rig.searcher.lookahead(rig.lists.snapshot, far, nbytes=10**6, lost=losses.append)
    window.wait()
    rig.search(far, 3, 1, window=window)
    (outcome,) = window.cancel()
    assert outcome.saved_s > 0
    assert not losses
    read = rig.search(query, 3, 3).lists_read
    assert len(losses) == read > 0


def test_what_would_have_been_there_anyway_is_not_saved(rig: Rig) -> None:
    """A first lookahead displaces the lists of a query, a second one fetches them again."""
    query = rig.lists.snapshot.centroids[[2]]
    near = order(rig, query)
    rig.search(query, 3, 2)
    far = rig.lists.snapshot.centroids[[near[-1]]]
    window = rig.searcher.lookahead(rig.lists.snapshot, far, nbytes=10**6)
    window.wait()
    window.cancel()
    again = rig.searcher.lookahead(rig.lists.snapshot, query, nbytes=sizes(rig, near[:2]))
    again.wait()
    assert again.fetched > 0
    rig.search(query, 3, 2, window=again)
    assert again.cancel() == [LookaheadOutcome(0.0)]


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
    assert missed == LookaheadOutcome(0.0)
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


def test_what_both_want_stays_on_its_way(rig: Rig) -> None:
    """A prediction is made anew while the link is busy: what the first one asked for and the second wants as well is
    not asked for again."""
    snapshot = rig.lists.snapshot
    query = snapshot.centroids[[2]]
    near = order(rig, query)
    busy = threading.Event()
    held = rig.lane.submit("busy", lambda: int(busy.wait(PATIENCE_S)), 1)
    first = rig.searcher.lookahead(snapshot, query, nbytes=10**6, depth=2)
    while first.asked < sizes(rig, near[:2]):
        time.sleep(0.001)
    second = rig.searcher.lookahead(snapshot, query, nbytes=10**6, depth=2)
    second.supersede(first, follows=True)
    assert not rig.searcher.host.residency.absent(part.key for n in near[:2] for part in snapshot.lists[n])
    busy.set()
    held.wait()
    while first.fetched < sizes(rig, near[:2]):
        time.sleep(0.001)
    assert rig.search(query, 3, 2, window=second).lists_read == 0
    assert second.fetched == 0
    began, followed = second.cancel()
    assert began.saved_s == pytest.approx(sizes(rig, near[:2]) * PER_BYTE)
    assert followed.saved_s == 0
    assert followed.added_s == 0
