"""How long a search will take: by what is resident, by what searches took, and as widely as that allows.

The published figures are those of PipeRAG: retrieval by nprobe, and nprobe by the time an interval takes.
"""

from __future__ import annotations

from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from naive.lists import gridded
from naive.searching import Rig

from edge.errors import InputError
from edge.ivf.dispatch import SearchCost, fitting_nprobe, search_bytes
from edge.ivf.plan import probe

RETRIEVAL = {1: 26.06, 2: 48.12, 4: 92.59, 8: 178.43, 16: 344.49, 32: 666.43, 64: 1298.52, 128: 2544.44}
PER_TOKEN = (7.24, 7.29, 7.71, 8.34, 9.31, 10.47, 11.84, 13.19)
EXPECTED = np.interp(np.arange(1, 129), list(RETRIEVAL), list(RETRIEVAL.values())) / 1e3
DIM = 16

pytestmark = pytest.mark.usefixtures("small_process")


@pytest.mark.parametrize(("length", "first", "last"), [(64, 22, 41), (32, 10, 20), (16, 4, 9), (8, 2, 4)])
def test_the_search_widens_as_generation_slows(length: int, first: int, last: int) -> None:
    """The published choices come from a straight line; the points themselves differ by one at most."""
    per_token = np.repeat(PER_TOKEN, 128) / 1e3
    intervals = [float(per_token[start : start + length].sum()) for start in range(0, 1024, length)]
    chosen = [fitting_nprobe(EXPECTED, slack) for slack in intervals]
    assert chosen == sorted(chosen)
    assert abs(chosen[0] - first) <= 1
    assert abs(chosen[-1] - last) <= 1


@given(steps=st.lists(st.floats(0.001, 1), min_size=1, max_size=40), slack=st.floats(0, 20))
def test_nprobe_is_the_largest_that_fits(steps: list[float], slack: float) -> None:
    expected = np.cumsum(steps)
    fitting = [nprobe for nprobe, seconds in enumerate(expected.tolist(), 1) if seconds <= slack]
    assert fitting_nprobe(expected, slack) == max(fitting, default=1)


def test_nothing_is_promised_before_a_search_was_seen() -> None:
    pace = SearchCost()
    some = np.array([10, 20])
    assert pace.seconds(some, some, 1e6) is None
    pace.learn(10, 10, 0.5, 0.0)
    pace.learn(0, 0, 0.5, 1e6)
    assert pace.seconds(some, some, 1e6) is None, "neither says what a byte takes"
    pace.learn(0, 10, 0.5, 0.0)
    assert pace.seconds(some, some, 0.0) is None, "nothing is known of the link"
    assert pace.seconds(np.zeros(2, np.int64), some, 0.0) is not None


def test_searches_that_only_wait_for_the_link_are_known_by_it() -> None:
    pace = SearchCost()
    for _ in range(5):
        pace.learn(1000, 1000, 0.5, 2000.0)
    promised = pace.seconds(np.array([4000]), np.array([4000]), 2000.0)
    assert promised is not None
    assert 2.0 <= promised[0] < 3.0


def test_a_steady_machine_is_known_within_a_tenth() -> None:
    """One second for a thousand bytes read at 2,000 a second, and scanned at as many."""
    pace = SearchCost()
    for read in (1000, 0, 500, 1000, 0, 0, 250, 1000, 0, 500, 0, 0, 1000, 0):
        pace.learn(read, 1000, read / 2000 + 0.5, 2000.0)
    promised = pace.seconds(np.array([0, 1000, 3000]), np.array([1000, 1000, 3000]), 2000.0)
    assert promised is not None
    assert np.all(np.array([0.5, 1.0, 3.0]) <= promised * 1.01)
    assert np.all(promised <= np.array([0.5, 1.0, 3.0]) * 1.15)


def test_an_unsteady_machine_is_hardly_late() -> None:
    random = np.random.default_rng(5)
    pace = SearchCost()
    late = 0
    for turn in range(300):
        taken = float(random.lognormal(0.0, 0.3))
        promised = pace.seconds(np.array([500]), np.array([1000]), 1000.0)
        late += turn >= 20 and promised is not None and taken > 1.1 * promised[0]
        pace.learn(500, 1000, taken, 1000.0)
    assert late <= 15, "one in twenty"


@pytest.mark.parametrize("fast", [0, 60_000])
def test_bytes_are_those_that_a_search_reads(rigs: list[Rig], tmp_path: Path, fast: int) -> None:
    rigs.append(rig := Rig(tmp_path, gridded(2000, DIM), nlist=20, files=3, deleted=0.1, fast=fast, capacity=40_000))
    snapshot = rig.lists.snapshot
    rig.search(gridded(1, DIM, seed=3), 5, 4)
    if fast:
        with rig.searcher.lookahead(snapshot, gridded(1, DIM, seed=4), nbytes=15_000) as window:
            window.wait()
    tiers = [tier for tier in (rig.searcher.fast, rig.searcher.host) if tier is not None]
    for nprobe in (1, 5, 20):
        query = gridded(1, DIM, seed=nprobe)
        read, scanned = search_bytes(snapshot, query[0], tiers)
        assert len(read) == len(scanned) == snapshot.nlist
        lists = probe(query, snapshot.centroids, nprobe)[0].tolist()
        assert scanned[nprobe - 1] == sum(part.nbytes for number in lists for part in snapshot.lists[number])
        assert rig.search(query, 5, nprobe).bytes_read == read[nprobe - 1]


def test_a_search_fits_by_what_is_resident(rigs: list[Rig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a link of 100 kB a second a search of lists in memory may be wider than one of cold lists."""
    rigs.append(rig := Rig(tmp_path, gridded(3000, DIM), nlist=30, files=1, fast=60_000, bandwidth=1e5))
    slow = rig.fast
    assert slow is not None
    rig.searcher.host.device = slow  # the host reads over the slow link
    snapshot = rig.lists.snapshot
    query = gridded(1, DIM, seed=9)
    assert rig.searcher.fitting(snapshot, query, 1.0) is None
    rig.search(gridded(1, DIM, seed=1), 5, 2)
    assert rig.searcher.fitting(snapshot, query, 1.0) is not None, "a search teaches it"
    pace = SearchCost()
    pace.learn(0, 10**6, 1e-3, 0.0)
    monkeypatch.setattr(pace, "learn", lambda *search: None)
    monkeypatch.setattr(rig.searcher, "_pace", pace)
    cold = rig.searcher.fitting(snapshot, query, 0.3)
    assert cold is not None
    rig.search(query, 5, 2 * cold)
    warm = rig.searcher.fitting(snapshot, query, 0.3)
    assert warm is not None
    assert 1 <= cold < warm
    assert rig.searcher.fitting(snapshot, query, 0.0) == 1
    both = np.concatenate([query, gridded(1, DIM, seed=77)])
    each = [rig.searcher.fitting(snapshot, one[None], 0.3) for one in both]
    assert rig.searcher.fitting(snapshot, both, 0.6) == min(each), "the narrower of the two, with half the time each"
    with pytest.raises(InputError, match=r"queries must be \[q, 16\]"):
        rig.searcher.fitting(snapshot, query[:, :5], 1.0)


def test_scanning_that_hides_behind_reading_is_not_learned() -> None:
    pace = SearchCost()
    pace.learn(0, 1000, 0.5, 2000.0)
    for _ in range(30):
        pace.learn(1000, 1000, 0.6, 2000.0)  # half a second of it is the link's
    promised = pace.seconds(np.array([0]), np.array([1000]), 2000.0)
    assert promised is not None
    assert pace._scan.mean == pytest.approx(0.5 / 1000)
