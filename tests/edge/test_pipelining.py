"""Retrieval behind generation: as wide as fits, as stale as stated, and held against the published tables.

The figures are those of PipeRAG (retrieval by nprobe, milliseconds per token by position) and what follows from them.
"""

from __future__ import annotations

import threading

import numpy as np
import pytest

from edge.errors import InputError
from edge.pipelining import RetrievalPipeline, modelled_seconds
from edge.trace import Trace

RETRIEVAL = {1: 26.06, 2: 48.12, 4: 92.59, 8: 178.43, 16: 344.49, 32: 666.43, 64: 1298.52, 128: 2544.44}
PER_TOKEN = (7.24, 7.29, 7.71, 8.34, 9.31, 10.47, 11.84, 13.19)


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


def test_a_pipeline_searches_behind_the_callers_work() -> None:
    trace = Trace()
    let = threading.Event()

    def search(query: str, seconds: float) -> str:
        let.wait()
        return f"{query} within {seconds}"

    with RetrievalPipeline(search, trace=trace) as pipeline:
        pipeline.ask("rivers", 0.2)
        let.set()
        assert pipeline.take() == "rivers within 0.2"
        with pytest.raises(InputError, match="no retrieval is under way"):
            pipeline.take()
    assert trace.counters["pipelining.searches"] == 1


@pytest.mark.parametrize("slack", [0.1, 2.0, 100.0])
@pytest.mark.parametrize(("takes", "late"), [(1.0, 0), (2.19, 0), (2.21, 1), (50.0, 1)])
def test_a_search_is_late_beyond_a_tenth_more_than_the_time_there_was(takes: float, late: int, slack: float) -> None:
    """Two seconds pass from `ask` to `take`, whatever slack was predicted."""
    trace = Trace()
    clock = [0.0]
    searching, written = threading.Event(), threading.Event()

    def search(query: str, seconds: float) -> str:
        searching.set()
        written.wait(10)
        clock[0] = takes
        return query

    def now() -> float:
        if threading.current_thread() is threading.main_thread() and clock[0] == 2.0:
            written.set()
        return clock[0]

    with RetrievalPipeline(search, trace=trace, clock=now) as pipeline:
        pipeline.ask("rivers", slack)
        searching.wait(10)
        clock[0] = 2.0
        pipeline.take()
    counters = trace.snapshot()
    assert counters.get("pipelining.late", 0) == late
    assert counters["pipelining.search_s"] == pytest.approx(takes)
    assert counters["pipelining.slack_error_s"] == pytest.approx(abs(slack - 2.0))


def test_a_search_that_fails_says_so_where_its_result_is_taken() -> None:
    def search(query: str, seconds: float) -> str:
        raise OSError("no such index")

    with RetrievalPipeline(search) as pipeline:
        pipeline.ask("x", 1.0)
        with pytest.raises(OSError, match="no such index"):
            pipeline.take()


def test_a_query_that_is_replaced_is_forgotten() -> None:
    with RetrievalPipeline(lambda query, seconds: query) as pipeline:
        pipeline.ask("old", 1.0)
        pipeline.ask("new", 1.0)
        assert pipeline.take() == "new"
