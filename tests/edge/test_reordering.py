"""Requests that reuse most go first, and nobody waits for ever."""

from __future__ import annotations

import random

import hypothesis.strategies as st
import pytest
from hypothesis import given
from naive.knowledge import Rig, segment
from naive.kv import CELL

from edge.errors import ConfigError
from edge.knowledge.backend import Segment
from edge.reordering import RequestQueue

LENGTHS = {"a": (100, 10), "b": (100, 50), "c": (300, 50), "d": (0, 10), "e": (40, 0)}


def queue_of(window: int = 32) -> RequestQueue[str]:
    return RequestQueue(LENGTHS.__getitem__, window=window)


def test_more_cached_and_less_computed_goes_first() -> None:
    queue = queue_of()
    for request in "dbcae":
        queue.push(request)
    assert len(queue) == 5
    assert [queue.pop() for _ in range(6)] == ["e", "a", "c", "b", "d", None]


def test_equals_go_in_order_of_arrival() -> None:
    queue: RequestQueue[int] = RequestQueue(lambda request: (1, 1))
    for request in range(5):
        queue.push(request)
    assert [queue.pop() for _ in range(5)] == [0, 1, 2, 3, 4]


def test_the_order_is_that_of_the_moment() -> None:
    cached = {"x": 0, "y": 5}
    queue: RequestQueue[str] = RequestQueue(lambda request: (cached[request], 1))
    queue.push("x")
    queue.push("y")
    cached["x"] = 9
    assert queue.pop() == "x"


def test_without_a_window_it_is_a_plain_queue() -> None:
    queue = queue_of(window=0)
    for request in "dbcae":
        queue.push(request)
    assert [queue.pop() for _ in range(5)] == list("dbcae")
    with pytest.raises(ConfigError, match="-1"):
        queue_of(window=-1)


@given(
    window=st.integers(0, 4),
    steps=st.lists(st.one_of(st.none(), st.tuples(st.integers(0, 9), st.integers(0, 9))), max_size=60),
)
def test_nobody_is_overtaken_more_often_than_the_window_allows(
    window: int, steps: list[tuple[int, int] | None]
) -> None:
    queue: RequestQueue[tuple[int, tuple[int, int]]] = RequestQueue(lambda request: request[1], window=window)
    waiting: list[int] = []
    overtaken: dict[int, int] = {}
    steps = [*steps, *[None] * len(steps)]
    for number, step in enumerate(steps):
        if step is not None:
            queue.push((number, step))
            waiting.append(number)
            overtaken[number] = 0
        elif waiting:
            taken = queue.pop()
            assert taken is not None
            for earlier in waiting[: waiting.index(taken[0])]:
                overtaken[earlier] += 1
            waiting.remove(taken[0])
            assert all(count <= window for count in overtaken.values())
    assert queue.pop() is None
    assert not waiting


def serve(window: int, host_documents: int, requests: list[int], waiting: int) -> Rig:
    """Serves requests for single documents while about `waiting` of them wait."""
    rig = Rig(host=CELL * 20 * host_documents)
    documents = [segment(f"document {i}", 20) for i in range(max(requests) + 1)]

    def lengths(path: list[Segment]) -> tuple[int, int]:
        match = rig.tree.match(path)
        return match.cached, match.missing + 1

    queue = RequestQueue(lengths, window=window)
    for request in requests:
        queue.push([documents[request]])
        if len(queue) > waiting:
            rig.ask(queue.pop() or [])
    while (path := queue.pop()) is not None:
        rig.ask(path)
    return rig


def test_alternating_requests_for_two_documents_hit_two_times_in_three() -> None:
    """The example of RAGCache, section 5.2: room for one document, and in order of arrival nothing is ever found."""
    assert serve(0, 1, [0, 1] * 3, waiting=6).count("context_hits") == 0
    assert serve(32, 1, [0, 1] * 3, waiting=6).count("context_hits") == 4


def test_reordering_hits_more_often_when_memory_is_short() -> None:
    generator = random.Random(5)
    requests = [generator.randrange(6) for _ in range(200)]
    plain, reordered = (serve(window, 2, requests, waiting=20).count("misses") for window in (0, 16))
    assert reordered < 0.7 * plain
