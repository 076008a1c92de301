"""A prediction changes when bytes arrive, never what is found, and never exceeds its bytes or the budget."""

from __future__ import annotations

import math
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from naive.lists import gridded
from naive.searching import Rig
from naive.waiting import PATIENCE_S

from edge.cache.lookahead import LookaheadOutcome, MissCurve, bytes_to_fetch
from edge.errors import CorruptBlock, InputError
from edge.ivf.plan import probe

pytestmark = pytest.mark.usefixtures("small_process")

DIM = 16


def list_bytes(rig: Rig) -> list[int]:
    return [sum(part.nbytes for part in parts) for parts in rig.lists.snapshot.lists]


def resident(rig: Rig, *, fast: bool = False) -> set[int]:
    """Lists of which every part is in the tier."""
    tier = rig.searcher.fast if fast else rig.searcher.host
    keys = set(tier.residency.keys())
    lists = rig.lists.snapshot.lists
    return {number for number, parts in enumerate(lists) if parts and all(part.key in keys for part in parts)}


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    codec=st.sampled_from(["flat", "sq8"]),
    fast=st.sampled_from([0, 10_000, 60_000]),
    capacity=st.sampled_from([None, 30_000]),
    nbytes=st.sampled_from([0, 1_000, 15_000, 10**9]),
    patience=st.sampled_from(["wait", "go", "cancel"]),
    batch=st.integers(1, 5),
    seed=st.integers(0, 3),
)
def test_results_are_those_of_a_search_without_it(
    codec: str, fast: int, capacity: int | None, nbytes: int, patience: str, batch: int, seed: int
) -> None:
    vectors, queries = gridded(900, DIM, seed), gridded(batch, DIM, seed + 50)
    near = queries + gridded(batch, DIM, seed + 60) / 4
    with TemporaryDirectory() as folder:
        rig = Rig(Path(folder), vectors, codec, nlist=12, deleted=0.1, pending=9, fast=fast, capacity=capacity)
        try:
            tier = rig.searcher.fast or rig.searcher.host
            for _ in range(2):
                with rig.searcher.lookahead(rig.lists.snapshot, near, nbytes=nbytes) as window:
                    if patience == "wait":
                        window.wait()
                    if patience == "cancel":
                        window.cancel()
                    found = rig.search(queries, 7, 4, window=window)
                    rig.check(queries, found, 7, 4)
                    assert window.fetched <= window.asked <= nbytes
                    assert tier.device.memory.used <= tier.device.memory.limit
                    if capacity is not None:
                        assert rig.searcher.host.residency.nbytes <= capacity
                    found = rig.search(queries, 7, 4, window=window)
                    rig.check(queries, found, 7, 4)
        finally:
            rig.close()


def test_the_nearest_lists_that_fit_are_fetched_and_a_list_that_does_not_is_skipped(
    rigs: list[Rig], tmp_path: Path
) -> None:
    rigs.append(rig := Rig(tmp_path, gridded(1500, DIM), nlist=15))
    query = gridded(1, DIM, seed=4)
    sizes = list_bytes(rig)
    order = probe(query, rig.lists.snapshot.centroids, 15)[0].tolist()
    limit = sizes[order[0]] + sizes[order[1]] + min(sizes) + 1
    expected, left = set(), limit
    for number in order:
        if sizes[number] <= left:
            expected.add(number)
            left -= sizes[number]
    with rig.searcher.lookahead(rig.lists.snapshot, query, nbytes=limit) as window:
        window.wait()
        assert window.fetched == window.asked == limit - left
        assert resident(rig) == expected


@pytest.mark.parametrize("codec", ["flat", "sq8"])
def test_vectors_of_the_nearest_lists_are_announced(rigs: list[Rig], tmp_path: Path, codec: str) -> None:
    rigs.append(rig := Rig(tmp_path, gridded(3000, DIM), codec, nlist=30))
    query = gridded(1, DIM, seed=4)
    order = probe(query, rig.lists.snapshot.centroids, 30)[0].tolist()
    with rig.searcher.lookahead(rig.lists.snapshot, query, nprobe=2, nbytes=10**9) as window:
        window.wait()
    announced = {(str(file.path), *where) for file in rig.lists.files for where in file.announced}
    for place, number in enumerate(order):
        for part in rig.lists.snapshot.lists[number]:
            extent = part.source.extents[part.codes]
            assert (str(part.source.path), extent.offset, extent.nbytes) in announced
            if part.vectors is not None:
                table = part.vectors
                where = (str(part.source.path), table.offset, table.rows * table.row_nbytes)
                assert (where in announced) == (place < 8)


def test_a_later_round_fetches_only_what_is_new(rigs: list[Rig], tmp_path: Path) -> None:
    rigs.append(rig := Rig(tmp_path, gridded(1500, DIM), nlist=15))
    query = gridded(1, DIM, seed=4)
    sizes = list_bytes(rig)
    order = probe(query, rig.lists.snapshot.centroids, 15)[0].tolist()
    first = sum(sizes[number] for number in order[:4])
    with rig.searcher.lookahead(rig.lists.snapshot, query, nbytes=first) as window:
        window.wait()
        assert window.asked == first
        rig.search(query, 5, 4, window=window)
    with rig.searcher.lookahead(rig.lists.snapshot, query, nbytes=sizes[order[4]]) as window:
        window.wait()
        assert window.asked == sizes[order[4]], "the budget of a round is for what is new"
        assert set(order[:5]) <= resident(rig)


def test_a_batch_shares_its_bytes_equally(rigs: list[Rig], tmp_path: Path) -> None:
    rigs.append(rig := Rig(tmp_path, gridded(3000, DIM), nlist=30, files=1))
    queries = gridded(3, DIM, seed=11)
    sizes = list_bytes(rig)
    orders = probe(queries, rig.lists.snapshot.centroids, 30).tolist()
    share = 3 * max(sizes)
    with rig.searcher.lookahead(rig.lists.snapshot, queries, nbytes=3 * share) as window:
        window.wait()
        held = resident(rig)
    assert window.asked <= 3 * share
    for order in orders:
        assert set(order[:3]) <= held, "each prediction has its likeliest lists, whatever the others wanted"


def test_a_window_that_is_over_asks_for_nothing_more(rigs: list[Rig], tmp_path: Path) -> None:
    rigs.append(rig := Rig(tmp_path, gridded(3000, DIM), nlist=30, files=1))
    gate = threading.Event()
    blocked = rig.device.link.submit("busy", lambda: int(gate.wait(PATIENCE_S)), 0, priority=-5)
    query = gridded(1, DIM, seed=4)
    window = rig.searcher.lookahead(rig.lists.snapshot, query, nbytes=10**9, seconds=0.05)
    window.wait()
    assert not window._thread.is_alive()
    assert window.fetched == 0
    window.cancel()
    window.cancel()
    gate.set()
    blocked.wait()
    assert rig.searcher.host.residency.nbytes == 0, "nothing that never came stays charged"
    found = rig.search(query, 5, 6)
    rig.check(query, found, 5, 6)


def test_a_search_takes_over_what_it_needs_and_withdraws_the_rest(
    rigs: list[Rig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rigs.append(rig := Rig(tmp_path, gridded(3000, DIM), nlist=30, files=1))
    gate = threading.Event()
    rig.device.link.submit("busy", lambda: int(gate.wait(PATIENCE_S)), 0, priority=-5)
    query = gridded(1, DIM, seed=4)
    window = rig.searcher.lookahead(rig.lists.snapshot, query, nbytes=10**9)
    while window.asked == 0:
        time.sleep(0.001)
    finish = window.finish
    monkeypatch.setattr(window, "finish", lambda: (finish(), gate.set()))  # the link is free from then on
    found = rig.search(query, 5, 2, window=window)
    rig.check(query, found, 5, 2)
    window.cancel()
    probed = set(probe(query, rig.lists.snapshot.centroids, 2)[0].tolist())
    assert resident(rig) == probed


def test_a_prediction_that_cannot_be_read_shows_only_when_it_is_needed(rigs: list[Rig], tmp_path: Path) -> None:
    rigs.append(rig := Rig(tmp_path, gridded(1500, DIM), nlist=15, files=1))
    path = rig.lists.files[0].path
    victim = 3
    part = rig.lists.snapshot.lists[victim][0]
    data = bytearray(path.read_bytes())
    data[part.source.extents[part.codes].offset + 5] ^= 1
    path.write_bytes(data)
    centroids = rig.lists.snapshot.centroids
    orders = probe(centroids, centroids, 2)
    clean = next(i for i in range(15) if victim not in orders[i])
    with rig.searcher.lookahead(rig.lists.snapshot, centroids[[clean]], nbytes=10**9) as window:
        window.wait()
        found = rig.search(centroids[[clean]], 5, 2, window=window)
        rig.check(centroids[[clean]], found, 5, 2)
        with pytest.raises(CorruptBlock, match=r"codes\.3"):
            rig.search(centroids[[victim]], 5, 1, window=window)


def test_the_limited_device_is_searched_beside_the_host(rigs: list[Rig], tmp_path: Path) -> None:
    rigs.append(rig := Rig(tmp_path, gridded(3000, DIM), "sq8", nlist=30, files=1, fast=40_000))
    query = gridded(1, DIM, seed=4)
    with rig.searcher.lookahead(rig.lists.snapshot, query, nbytes=30_000) as window:
        window.wait()
        fetched = resident(rig, fast=True)
        found = rig.search(query, 5, 12, window=window)
        rig.check(query, found, 5, 12)
    probed = probe(query, rig.lists.snapshot.centroids, 12)[0].tolist()
    assert 0 < len(fetched & set(probed)) < 12
    read = {block for file in rig.lists.files for block in file.reads}
    assert set(probed) <= read
    assert resident(rig) == set(probed) - fetched, "the host read only what the device does not hold"
    assert found.hits == len(fetched & set(probed))


def test_a_device_of_its_own_is_filled_and_the_host_is_filled_by_half(rigs: list[Rig], tmp_path: Path) -> None:
    for name, fast in (("host", 0), ("device", 60_000)):
        folder = tmp_path / name
        folder.mkdir()
        rigs.append(rig := Rig(folder, gridded(3000, DIM), nlist=60, files=1, fast=fast, capacity=60_000))
        with rig.searcher.lookahead(rig.lists.snapshot, gridded(1, DIM, seed=7)) as window:
            assert window.nbytes == (60_000 if fast else 30_000)
            window.wait()
            filled = sum(list_bytes(rig)[number] for number in resident(rig, fast=fast > 0))
        assert 15_000 < filled <= 30_000 if fast == 0 else 30_000 < filled <= 60_000


def test_an_error_on_the_fast_tier_is_raised(rigs: list[Rig], tmp_path: Path) -> None:
    rigs.append(rig := Rig(tmp_path, gridded(3000, DIM), nlist=30, files=1, fast=200_000))
    query = gridded(1, DIM, seed=4)
    window = rig.searcher.lookahead(rig.lists.snapshot, query, nbytes=100_000)
    window.wait()

    def broken(*arguments: object) -> None:
        raise RuntimeError("the device fell off")

    working, rig.fast.search = rig.fast.search, broken
    with pytest.raises(RuntimeError, match="fell off"):
        rig.search(query, 5, 12, window=window)
    window.cancel()
    rig.fast.search = working
    found = rig.search(query, 5, 12)
    rig.check(query, found, 5, 12)


@settings(max_examples=60)
@given(
    bandwidth=st.floats(1, 1000), seconds=st.floats(0, 5), slow=st.floats(0, 20),
    steps=st.lists(st.tuples(st.floats(0, 3000), st.floats(0, 1)), max_size=8),
)  # fmt: skip
def test_no_other_number_of_bytes_is_better(
    bandwidth: float, seconds: float, slow: float, steps: list[tuple[float, float]]
) -> None:
    rates = sorted((rate for _, rate in steps), reverse=True)
    misses = [(0.0, 1.0), *zip(sorted(b for b, _ in steps), rates, strict=True)]

    def total(nbytes: float) -> float:
        missed = [rate for at, rate in misses if at <= nbytes][-1]
        return max(seconds, nbytes / bandwidth) + missed * slow

    chosen = bytes_to_fetch(bandwidth, seconds, misses, slow)
    assert chosen >= bandwidth * seconds * (1 - 1e-12)
    for nbytes in np.linspace(0, 4000, 201).tolist() + [at for at, _ in misses]:
        assert total(chosen) <= total(nbytes) + 1e-9


def test_a_window_has_no_negative_length_and_a_dead_link_fetches_nothing() -> None:
    with pytest.raises(InputError):
        bytes_to_fetch(1.0, -1.0, [], 0.0)
    assert bytes_to_fetch(0, 1.0, [], 1.0) == 0
    steps = [(0.0, 1.0), (100.0, 0.0), (150.0, 0.0)]
    assert bytes_to_fetch(100, 1.0, steps, 5.0) == 100, "a step at its very end is reached"


def test_the_miss_curve_is_what_was_needed() -> None:
    curve = MissCurve()
    assert curve.points() == []
    curve.observe([100.0, 300.0])
    curve.observe([100.0, math.inf])
    assert curve.points() == [(0.0, 1.0), (100.0, 0.75), (100.0, 0.5), (300.0, 0.25)]


def test_searches_teach_the_curve_how_far_predictions_reach(rigs: list[Rig], tmp_path: Path) -> None:
    rigs.append(rig := Rig(tmp_path, gridded(1500, DIM), nlist=15, files=1))
    query = gridded(1, DIM, seed=4)
    sizes = list_bytes(rig)
    order = probe(query, rig.lists.snapshot.centroids, 15)[0].tolist()
    limit = sum(sizes[number] for number in order[:2])
    with rig.searcher.lookahead(rig.lists.snapshot, query, nbytes=limit) as window:
        window.wait()
        rig.search(query, 5, 4, window=window)
    points = rig.searcher.misses.points()
    assert points[0] == (0.0, 1.0)
    assert points[-1][0] == limit
    assert points[-1][1] == 0.5


def test_time_bounds_the_bytes_once_the_link_is_known(rigs: list[Rig], tmp_path: Path) -> None:
    rigs.append(rig := Rig(tmp_path, gridded(1500, DIM), nlist=15, files=1, fast=10**6, bandwidth=1e5))
    query = gridded(1, DIM, seed=4)
    first = rig.searcher.lookahead(rig.lists.snapshot, query, nbytes=20_000)
    first.wait()
    first.cancel()
    assert 0 < rig.fast.link.rate.throughput(4000) <= 1.01e5
    window = rig.searcher.lookahead(rig.lists.snapshot, query, seconds=0.1)
    assert window.nbytes <= 1.1e4  # a transfer more may have been learned meanwhile
    window.cancel()


def test_without_a_fast_tier_it_does_not_overrun(rigs: list[Rig], tmp_path: Path) -> None:
    rigs.append(rig := Rig(tmp_path, gridded(1500, DIM), nlist=15, files=1))
    rig.searcher._slow_seconds = 100.0
    rig.searcher.misses.observe([1e5] * 4)
    for _ in range(50):
        rig.device.link.rate.add(10_000, 0.1)
    window = rig.searcher.lookahead(rig.lists.snapshot, gridded(1, DIM, seed=4), seconds=0.01)
    assert window.nbytes == 1000
    window.cancel()


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
    assert window.cancel() == [], "no search came to it"
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
