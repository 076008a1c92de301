"""Requests that share a pass get the same results as alone, to the last bit."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from naive.waiting import PATIENCE_S, until

from edge.config import Config
from edge.errors import BudgetExceeded, InputError, ModelError, Withdrawn
from edge.runtimes.embedder import Embedder
from edge.runtimes.engine import Tuning
from edge.runtimes.reranker import Ranking, Reranker
from edge.scheduling.waiting_line import BATCH, PERSON, Urgency, urgent

SHAPES = ["tiny-bert", "tiny-xlm-roberta", "tiny-qwen3"]


def texts(seed: int, count: int) -> list[str]:
    """Documents of different lengths."""
    random = np.random.default_rng(seed)
    return [" ".join(f"word{n}" for n in random.integers(0, 50, random.integers(2, 40))) for _ in range(count)]


REQUESTS = [(f"which river floods in {month}", texts(n, 3 + 4 * n), 1 + n) for n, month in enumerate("abcde")]


TUNINGS: list[dict[str, Any]] = [
    {"chunk_tokens": 2000},
    {"chunk_tokens": 60, "buffers": 2},
    {"chunk_tokens": 60, "buffers": 2, "offload": True},
]


@pytest.fixture
def opened(pack: Callable[..., Path], open_reranker: Callable[..., Reranker]) -> Callable[..., Reranker]:
    return lambda name, **tuning: open_reranker(pack(name, "int8"), tuning=Tuning(**tuning))


class Together:
    """Starts requests while a first one is held in its first layer, so that the next pass takes them all."""

    def __init__(self, reranker: Reranker) -> None:
        self.reranker = reranker
        self.line = reranker.engine._line
        self.held, self.go = threading.Event(), threading.Event()
        self.pool = ThreadPoolExecutor(12)
        self.first = self.start(lambda: reranker.explain("first", texts(99, 3), every_layer=True, watch=self._hold))
        assert self.held.wait(PATIENCE_S)

    def _hold(self, report: object) -> None:
        self.held.set()
        assert self.go.wait(PATIENCE_S)

    def start(self, request: Callable[[], Any], urgency: Urgency | None = None) -> Future[Any]:
        before = len(self.line)

        def run() -> Any:
            with urgent(urgency or Urgency()):
                return request()

        future = self.pool.submit(run)
        until(lambda: len(self.line) == before + 1)
        return future

    def results(self, requests: Iterable[Any], **how: Any) -> list[Ranking]:
        futures = [self.start(lambda r=r: self.reranker.explain(*r, **how)) for r in requests]  # type: ignore[misc]
        self.finish()
        return [future.result() for future in futures]

    def finish(self) -> None:
        self.go.set()
        self.pool.shutdown()
        self.first.result()


def same(one: Ranking, other: Ranking) -> None:
    assert one.results == other.results
    assert [(r.layer, r.ids.tolist(), r.scores.tolist()) for r in one.layers] == [
        (r.layer, r.ids.tolist(), r.scores.tolist()) for r in other.layers
    ]
    assert (one.stats.evaluations, one.stats.layers_run) == (other.stats.evaluations, other.stats.layers_run)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("tuning", TUNINGS, ids=str)
def test_results_equal_those_of_each_request_alone(
    opened: Callable[..., Reranker], shape: str, tuning: dict[str, Any]
) -> None:
    reranker = opened(shape, **tuning)
    how: dict[str, Any] = {"threshold": 0.01, "mode": "top-k", "every_layer": True}
    alone = [reranker.explain(*request, **how) for request in REQUESTS]
    assert {ranking.stats.requests for ranking in alone} == {1}
    assert len({ranking.stats.layers_run for ranking in alone}) > 1, "some are pruned to their end early"
    shared = Together(reranker).results(REQUESTS, **how)
    for one, other in zip(alone, shared, strict=True):
        same(one, other)
    assert max(ranking.stats.requests for ranking in shared) > 1, "there was a pass for several"


def test_each_layer_is_read_once_for_all(opened: Callable[..., Reranker]) -> None:
    reranker = opened("tiny-bert", buffers=2)
    alone = reranker.explain(*REQUESTS[0]).stats.lane_bytes
    assert alone > 0
    together = Together(reranker)
    before = reranker.engine.trace.snapshot()["forward.layers"]
    assert {found.stats.requests for found in together.results(REQUESTS)} == {len(REQUESTS)}
    layers = reranker.model.spec.layers
    assert reranker.engine.trace.snapshot()["forward.layers"] - before <= 2 * layers, "the held pass and one for all"
    apart = opened("tiny-bert", share=False)
    assert {found.stats.requests for found in Together(apart).results(REQUESTS)} == {1}


def test_one_that_fails_or_is_withdrawn_leaves_the_others_alone(opened: Callable[..., Reranker]) -> None:
    reranker = opened("tiny-bert", buffers=2)
    query, docs, k = REQUESTS[2]
    alone = reranker.explain(query, docs, k)
    together = Together(reranker)
    urgency = Urgency()

    def withdraw(report: object) -> None:
        urgency.cancel()

    def fail(report: object) -> None:
        raise ModelError("no such score")

    before = together.start(lambda: reranker.explain(query, docs, k))
    gone = together.start(lambda: reranker.explain(query, docs, every_layer=True, watch=withdraw), urgency)
    bad = together.start(lambda: reranker.explain(query, docs, every_layer=True, watch=fail))
    unfit = together.start(lambda: reranker.explain(query, docs, retrieved=[1.0]))
    after = together.start(lambda: reranker.explain(query, docs, k))
    together.finish()
    for future, error in ((gone, Withdrawn), (bad, ModelError), (unfit, InputError)):
        with pytest.raises(error):
            future.result()
    same(before.result(), alone)
    same(after.result(), alone)
    assert before.result().stats.requests == 4
    assert set(reranker.budget.holders()).isdisjoint({"candidates", "tokens", "hidden states", "workspace"})


@pytest.mark.parametrize("beside", [False, True])
def test_a_layer_ends_early_only_if_nobody_waits_for_the_pass(
    opened: Callable[..., Reranker], monkeypatch: pytest.MonkeyPatch, beside: bool
) -> None:
    reranker = opened("tiny-bert", chunk_tokens=60, buffers=2)
    query, docs, k = REQUESTS[-1]
    alone = reranker.explain(query, docs, k)
    together = Together(reranker)
    urgency, kernel, chunks = Urgency(), type(reranker.engine.kernel), []
    gone = together.start(lambda: reranker.explain(query, docs, k), urgency)
    stays = [together.start(lambda: reranker.explain(query, docs, k))] if beside else []
    advance = kernel.advance

    def withdraw(*given: Any) -> None:
        if not together.line.waiting:  # the pass that was held has ended
            chunks.append(given)
            urgency.cancel()
        advance(*given)

    monkeypatch.setattr(kernel, "advance", withdraw)
    together.finish()
    with pytest.raises(Withdrawn):
        gone.result()
    for future in stays:
        same(future.result(), alone)
    assert (len(chunks) == 1) == (not beside)


def test_what_does_not_fit_together_goes_one_after_the_other(
    opened: Callable[..., Reranker], monkeypatch: pytest.MonkeyPatch
) -> None:
    reranker = opened("tiny-bert", chunk_tokens=2000)
    alone = [reranker.explain(*request) for request in REQUESTS]
    plan_memory, tried = reranker.engine.room.__class__.plan_memory, []

    def refuse(room: Any, batches: list[Any]) -> Any:
        tried.append(len(batches))
        if len(batches) > 1:
            raise BudgetExceeded("not together", owner="test", asked=1, free=0, needed=1)
        return plan_memory(room, batches)

    monkeypatch.setattr(type(reranker.engine.room), "plan_memory", refuse)
    for found, expected in zip(Together(reranker).results(REQUESTS), alone, strict=True):
        same(found, expected)
    assert max(tried) > 1


def test_embedders_share_passes_too(pack: Callable[..., Path]) -> None:
    parts = [texts(seed, 2 + seed) for seed in range(6)]
    with Embedder(pack("tiny-bert-embedder"), config=Config(memory=10**11)) as embedder:
        alone = [embedder.embed(part) for part in parts]
        with ThreadPoolExecutor(6) as pool:
            for _ in range(5):
                for one, other in zip(alone, pool.map(embedder.embed, parts), strict=True):
                    np.testing.assert_array_equal(one, other)


class Beside:
    """Holds a long request in the middle of its second layer, between two chunks."""

    def __init__(self, reranker: Reranker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.line = reranker.engine._line
        self.held, self.go = threading.Event(), threading.Event()
        self.pool = ThreadPoolExecutor(12)
        window, aside = reranker.engine.window, reranker.engine._aside
        seen: list[int] = []

        def hold(*given: Any) -> None:
            seen.extend(window._in_use)
            if seen.count(1) == 3 and not self.held.is_set():
                self.held.set()
                assert self.go.wait(PATIENCE_S)
            if reranker.engine._aside_s < math.inf:
                reranker.engine._aside_s = 0.0  # whatever time the last one took
            aside(*given)

        self.aside: list[int] = []
        """The requests of each pass that ran within another one."""
        run = reranker.engine._pass

        def noted(jobs: Any, taken: Any, *, aside: bool = False) -> None:
            run(jobs, taken, aside=aside)
            self.aside.extend([len(jobs)] * aside)

        monkeypatch.setattr(reranker.engine, "_pass", noted)
        monkeypatch.setattr(reranker.engine, "_aside", hold)
        self.long = self.pool.submit(lambda: reranker.explain(*LONG, every_layer=True))
        assert self.held.wait(PATIENCE_S)

    start = Together.start

    def finish(self) -> None:
        self.go.set()
        self.pool.shutdown()


LONG = ("which river floods", texts(7, 50), 5)
SMALL = [("when does it rain", texts(n, 1), 1) for n in range(3)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("tuning", TUNINGS, ids=str)
def test_small_requests_run_between_the_chunks_of_a_long_one(
    opened: Callable[..., Reranker], monkeypatch: pytest.MonkeyPatch, shape: str,
    tuning: dict[str, Any],
) -> None:  # fmt: skip
    """Before its end, and with the results of each alone."""
    reranker = opened(shape, **{**tuning, "chunk_tokens": 60})
    alone = [reranker.explain(*request, every_layer=True) for request in (LONG, *SMALL)]
    beside = Beside(reranker, monkeypatch)
    futures = [
        beside.start(lambda r=request: reranker.explain(*r, every_layer=True))  # type: ignore[misc]
        for request in SMALL
    ]
    unfit = beside.start(lambda: reranker.explain(SMALL[0][0], SMALL[2][1], retrieved=[]))
    other = beside.start(lambda: reranker.explain(*LONG, every_layer=True))
    beside.finish()
    for future, expected in zip((beside.long, *futures), alone, strict=True):
        same(future.result(), expected)
    same(other.result(), alone[0])
    with pytest.raises(InputError):
        unfit.result()
    assert sum(beside.aside) == len(SMALL)
    assert set(reranker.budget.holders()).isdisjoint({"candidates", "tokens", "hidden states", "workspace"})


def test_a_long_request_does_not_join_the_pass_of_a_small_one(opened: Callable[..., Reranker]) -> None:
    """Which would have to wait for it. Small ones behind it join."""
    reranker = opened("tiny-bert", chunk_tokens=60, buffers=2)
    requests = (SMALL[0], LONG, SMALL[1])
    alone = [reranker.explain(*request) for request in requests]
    found = Together(reranker).results(requests)
    for one, other in zip(found, alone, strict=True):
        same(one, other)
    assert [ranking.stats.requests for ranking in found] == [2, 1, 2]


@pytest.mark.parametrize("why", ["priority", "memory", "size"])
def test_what_may_not_run_beside_a_long_request_waits(
    opened: Callable[..., Reranker], monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    reranker = opened("tiny-bert", chunk_tokens=60)
    alone = reranker.explain(*SMALL[2])
    beside = Beside(reranker, monkeypatch)
    if why == "memory":
        plan_memory, refused = reranker.engine.room.__class__.plan_memory, []

        def refuse(room: Any, batches: list[Any]) -> Any:
            if not beside.long.done() and not refused:
                refused.append(batches)
                raise BudgetExceeded("not beside", owner="test", asked=1, free=0, needed=1)
            return plan_memory(room, batches)

        monkeypatch.setattr(type(reranker.engine.room), "plan_memory", refuse)
    request = SMALL[2] if why != "size" else ("when", texts(3, 200), 1)
    later = beside.start(lambda: reranker.explain(*request), Urgency(BATCH if why == "priority" else PERSON))
    beside.finish()
    if why != "size":
        same(later.result(), alone)
    assert beside.aside == []
