"""Retrieval behind generation: as wide as fits, as stale as stated, and held against the published tables.

The figures are those of PipeRAG (retrieval by nprobe, milliseconds per token by position) and what follows from them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from edge.curve import Curve
from edge.errors import InputError
from edge.pipelining import (
    Interval,
    RetrievalPipeline,
    choose_nprobe,
    generation_seconds,
    hidden_bytes,
    measure_retrieval,
    modelled_seconds,
    schedule,
    shift,
)
from edge.trace import Trace

RETRIEVAL = {1: 26.06, 2: 48.12, 4: 92.59, 8: 178.43, 16: 344.49, 32: 666.43, 64: 1298.52, 128: 2544.44}
PER_TOKEN = (7.24, 7.29, 7.71, 8.34, 9.31, 10.47, 11.84, 13.19)
CURVE = Curve.measured([(nprobe, ms / 1e3) for nprobe, ms in RETRIEVAL.items()])
NLIST = 16384


def intervals(length: int) -> list[float]:
    """Seconds of each interval of 1,024 tokens."""
    per_token = np.repeat(PER_TOKEN, 128) / 1e3
    return [float(per_token[start : start + length].sum()) for start in range(0, 1024, length)]


def test_generation_alone_takes_what_the_table_adds_up_to() -> None:
    assert sum(intervals(64)) == pytest.approx(9.65, abs=0.005)


@pytest.mark.parametrize(
    ("nprobe", "serial", "pipelined"),
    [
        (4, 11.04, 9.74),
        (8, 12.33, 9.83),
        (16, 14.82, 9.99),
        (32, 19.65, 11.47),
        (64, 29.13, 20.40),
        (128, 47.82, 39.09),
    ],
)  # fmt: skip
def test_latency_follows_from_the_longer_of_the_two(nprobe: int, serial: float, pipelined: float) -> None:
    generation = intervals(64)
    retrieval = [RETRIEVAL[nprobe] / 1e3] * 15
    assert modelled_seconds(generation, retrieval, pipelined=False) == pytest.approx(serial, abs=0.01)
    assert modelled_seconds(generation, retrieval, pipelined=True) == pytest.approx(pipelined, abs=0.01)


def test_the_gain_has_one_peak_where_both_take_equally_long() -> None:
    generation = intervals(64)
    gains = []
    for ms in RETRIEVAL.values():
        both = [modelled_seconds(generation, [ms / 1e3] * 15, pipelined=p) for p in (False, True)]
        gains.append(both[0] / both[1])
    peak = gains.index(max(gains))
    assert list(RETRIEVAL)[peak] == 32
    assert max(gains) == pytest.approx(1.71, abs=0.01)
    assert gains == sorted(gains[: peak + 1]) + sorted(gains[peak + 1 :], reverse=True)
    assert max(gains) < 2


@pytest.mark.parametrize(("length", "first", "last"), [(64, 22, 41), (32, 10, 20), (16, 4, 9), (8, 2, 4)])
def test_the_search_widens_as_generation_slows(length: int, first: int, last: int) -> None:
    """The published choices come from a straight line; the points themselves differ by one at most."""
    chosen = [choose_nprobe(CURVE, slack, NLIST).nprobe for slack in intervals(length)]
    assert chosen == sorted(chosen)
    assert abs(chosen[0] - first) <= 1
    assert abs(chosen[-1] - last) <= 1
    for nprobe, slack in zip(chosen, intervals(length), strict=True):
        assert CURVE(nprobe) <= slack < CURVE(nprobe + 1)


def test_a_straight_line_would_be_wrong_where_it_matters() -> None:
    slope, start = np.polyfit(list(RETRIEVAL), list(RETRIEVAL.values()), 1)
    assert (slope, start) == (pytest.approx(19.8, abs=0.05), pytest.approx(18.2, abs=0.1))
    assert (start + slope) / RETRIEVAL[1] == pytest.approx(1.46, abs=0.01)
    assert CURVE(1) * 1e3 == pytest.approx(RETRIEVAL[1])


@given(
    points=st.dictionaries(st.integers(1, 64), st.floats(0.001, 10), min_size=1, max_size=6),
    slack=st.floats(0, 20),
    nlist=st.integers(1, 64),
)
def test_nprobe_is_the_largest_that_fits(points: dict[int, float], slack: float, nlist: int) -> None:
    curve = Curve.measured(list(points.items()))
    probes = choose_nprobe(curve, slack, nlist)
    fitting = [p for p in range(1, nlist + 1) if curve(p) <= slack]
    assert probes.nprobe == max(fitting, default=1)
    assert probes.hidden == bool(fitting)
    assert probes.predicted == curve(probes.nprobe)
    if probes.hidden:
        assert probes.predicted <= 1.1 * slack


def test_an_index_without_lists_is_refused() -> None:
    with pytest.raises(InputError, match="not 0"):
        choose_nprobe(CURVE, 1.0, 0)


def test_the_same_rule_sizes_lookahead() -> None:
    assert hidden_bytes(2e9, 0.25) == 500_000_000
    assert hidden_bytes(2e9, -1.0) == 0


def test_generation_time_is_predicted_by_position() -> None:
    curve = Curve((0, 100), (0.01, 0.02))
    assert generation_seconds(curve, 0, 2) == pytest.approx(0.01 + 0.0101)
    assert generation_seconds(curve, 100, 3) == pytest.approx(0.02 + 0.0201 + 0.0202)
    assert generation_seconds(curve, 5, 0) == 0


def test_retrieval_is_measured_at_powers_of_two_and_all_lists() -> None:
    clock = [0.0]
    asked = []

    def search(nprobe: int) -> None:
        asked.append(nprobe)
        clock[0] += 0.1 + 0.01 * nprobe

    curve = measure_retrieval(search, 11, repeats=2, clock=lambda: clock[0])
    assert curve.counts == (1, 2, 4, 8, 11)
    assert curve.seconds == pytest.approx((0.11, 0.12, 0.14, 0.18, 0.21))
    assert asked == [1, 1, 1, 2, 2, 4, 4, 8, 8, 11, 11]


def test_the_schedule_asks_one_interval_early_from_the_third_on() -> None:
    assert list(schedule(40, 16, window=20)) == [
        Interval(0, 16, None, 0),
        Interval(16, 32, (0, 16), 0),
        Interval(32, 40, (0, 16), 16),
    ]
    assert list(schedule(80, 16, window=20))[4] == Interval(64, 80, (28, 48), 16)


@given(total=st.integers(0, 300), interval=st.integers(1, 80), window=st.integers(1, 80))
def test_the_schedule_covers_all_tokens_and_asks_only_for_what_is_written(
    total: int, interval: int, window: int
) -> None:
    parts = list(schedule(total, interval, window=window))
    assert [t for part in parts for t in range(part.start, part.end)] == list(range(total))
    for number, part in enumerate(parts):
        assert (part.query is None) == (number == 0)
        if part.query is not None:
            start, end = part.query
            assert end == part.start - part.stale
            assert 0 < end - start <= window
            assert part.stale == 0 or part.stale == interval


def test_a_schedule_needs_positive_lengths() -> None:
    for lengths in ((0, 5), (5, 0)):
        with pytest.raises(InputError, match="at least 1"):
            list(schedule(10, lengths[0], window=lengths[1]))


def test_a_passage_is_shifted_by_what_was_written_meanwhile() -> None:
    assert shift([1, 2, 3, 4], [5, 6, 7, 8], 3) == [4, 5, 6, 7]
    assert shift([1, 2, 3, 4], [5], 3) == [4, 5]
    assert shift([1, 2, 3, 4], [5, 6], 0) == [1, 2, 3, 4]
    assert shift([1, 2], [3, 4], 9) == []


def test_a_pipeline_searches_behind_the_callers_work() -> None:
    trace = Trace()
    let = threading.Event()

    def search(query: str, nprobe: int) -> str:
        let.wait()
        return f"{query} {nprobe}"

    with RetrievalPipeline(search, CURVE, NLIST, trace=trace) as pipeline:
        probes = pipeline.ask("rivers", 0.2)
        assert probes.nprobe == choose_nprobe(CURVE, 0.2, NLIST).nprobe == 9
        let.set()
        assert pipeline.take() == "rivers 9"
        with pytest.raises(InputError, match="no retrieval is under way"):
            pipeline.take()
    assert trace.counters["pipelining.searches"] == 1


def timed(factor: float, trace: Trace) -> tuple[RetrievalPipeline[int, int], Callable[[], float]]:
    clock = [0.0]

    def search(query: int, nprobe: int) -> int:
        clock[0] += factor * CURVE(nprobe)
        return query

    return RetrievalPipeline(search, CURVE, NLIST, trace=trace, clock=lambda: clock[0]), lambda: clock[0]


def test_a_slower_machine_searches_less_until_it_is_in_time() -> None:
    trace = Trace()
    pipeline, _ = timed(2.0, trace)
    chosen = []
    with pipeline:
        for query in range(40):
            chosen.append(pipeline.ask(query, 0.5).nprobe)
            assert pipeline.take() == query
        assert pipeline.drag == pytest.approx(2.0, abs=0.01)
    assert chosen == sorted(chosen, reverse=True)
    assert chosen[-1] == choose_nprobe(CURVE, 0.25, NLIST).nprobe
    late = trace.counters["pipelining.late"]
    assert 0 < late < 15


def test_a_faster_machine_is_not_trusted_beyond_the_measurement() -> None:
    pipeline, _ = timed(0.5, Trace())
    with pipeline:
        for query in range(20):
            assert pipeline.ask(query, 0.5).nprobe == choose_nprobe(CURVE, 0.5, NLIST).nprobe
            pipeline.take()
        assert pipeline.drag == 1.0


def test_a_search_that_fails_says_so_where_its_result_is_taken() -> None:
    def search(query: str, nprobe: int) -> str:
        raise OSError("no such index")

    with RetrievalPipeline(search, CURVE, NLIST) as pipeline:
        pipeline.ask("x", 1.0)
        with pytest.raises(OSError, match="no such index"):
            pipeline.take()


def test_a_query_that_is_replaced_is_forgotten() -> None:
    with RetrievalPipeline(lambda query, nprobe: query, CURVE, NLIST) as pipeline:
        pipeline.ask("old", 1.0)
        pipeline.ask("new", 1.0)
        assert pipeline.take() == "new"
