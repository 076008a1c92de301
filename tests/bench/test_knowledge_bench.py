"""The stream is skewed as it says, a replay follows the real tree, and served answers do not depend on reuse."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from making.random_gguf import RandomModel
from naive.kv import GridCosts
from naive.policies import LRU

from bench.knowledge import work
from bench.request_stream import RequestStream, StreamShape, reusable
from edge.budget import MemoryBudget
from edge.errors import InputError
from edge.kv_cache.backend import StateSegment
from edge.kv_cache.prefix_tree import PGDSF, Replacement
from edge.kv_cache.tree import KnowledgeTree

SHAPE = StreamShape(requests=150, topics=20, documents=30, per_request=2, tokens=100, question=10)
COSTS = GridCosts(
    "modelled", (0, 200), (1, 100), tuple(tuple(0.01 * b + 1e-5 * b * (a + b / 2) for b in (1, 100)) for a in (0, 200))
)


def test_a_shape_is_always_the_same_stream() -> None:
    assert RequestStream.draw(SHAPE) == RequestStream.draw(SHAPE)
    assert RequestStream.draw(SHAPE) != RequestStream.draw(replace(SHAPE, seed=1))


def test_a_stream_is_as_its_shape_says() -> None:
    stream = RequestStream.draw(SHAPE)
    assert len(stream.requests) == 150
    assert all(len(set(request)) == 2 for request in stream.requests)
    assert set(stream.lengths) == {100}
    assert len(set(stream.requests)) <= 20
    varied = RequestStream.draw(replace(SHAPE, spread=0.8, documents=2000))
    assert len(set(varied.lengths)) > 100
    assert sum(varied.lengths) / 2000 == pytest.approx(100, rel=0.1)


def concentration(stream: RequestStream) -> float:
    """The share of all document uses that falls on the most used tenth of the used documents."""
    counts = np.sort(np.unique(np.concatenate(stream.requests), return_counts=True)[1])[::-1]
    return float(counts[: -(-len(counts) // 10)].sum() / counts.sum())


def test_popularity_follows_the_exponent_and_drifts() -> None:
    uniform = RequestStream.draw(replace(SHAPE, exponent=0, requests=600))
    skewed = RequestStream.draw(replace(SHAPE, exponent=1.5, requests=600))
    assert concentration(skewed) > 2 * concentration(uniform)
    drifting = RequestStream.draw(replace(SHAPE, exponent=1.5, requests=600, drift=100))
    assert drifting.requests[:100] == skewed.requests[:100]
    assert concentration(drifting) < concentration(skewed)


def test_what_can_be_reused_is_every_prefix_that_was_there() -> None:
    assert reusable([(1, 2), (1, 3), (1, 2), (2, 1)]) == 3 / 8
    assert reusable([(1, 2), (1, 3), (1, 2), (2, 1)], warmup=2) == 2 / 4


@pytest.mark.parametrize("shape", [{"requests": 0}, {"spread": -1.0}, {"per_request": 61}, {"drift": -1}])
def test_what_is_no_shape_is_refused(shape: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        StreamShape(**shape)


SYSTEM = 32
"""The number of tokens of the system prompt."""


class SimulatedContext:
    """A `KVBackend` that computes nothing and has a simulated clock. A token's state is one byte, so that sizes in
    bytes are numbers of tokens."""

    bytes_per_token = 1
    fingerprint = COSTS.fingerprint

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.length = 0
        self.now = 0.0

    def prefill(self, tokens: Sequence[int], cancelled: Callable[[], bool] | None = None) -> int:
        self.now += COSTS.estimate(self.length, len(tokens))
        self.length += len(tokens)
        return len(tokens)

    def extract(self, start: int, end: int) -> bytes:
        return bytes(end - start)

    def restore(self, state: bytes | bytearray | memoryview, start: int, end: int) -> None:
        self.length = end

    def truncate(self, length: int) -> None:
        self.length = length


@dataclass(frozen=True)
class Replay:
    """The simulated seconds to the first token of each request, and the share of documents whose states were cached."""

    ttft: list[float]
    hit_rate: float


def replay(stream: RequestStream, *, tokens: int, policy: Callable[[], Replacement], warmup: int = 0) -> Replay:
    """Serves the stream over the real tree in simulated time, with host memory for the states of `tokens` tokens. The
    first `warmup` requests do not count."""
    lengths = {-1: SYSTEM} | dict(enumerate(stream.lengths))
    segments = {i: StateSegment(f"d{i}", (i + 1, *[0] * (length - 1))) for i, length in lengths.items()}
    longest = max(sum(stream.lengths[i] for i in request) for request in stream.requests)
    backend = SimulatedContext(SYSTEM + longest + stream.shape.question)
    # A state takes one byte per token here, but the tree's index has its real size. The budget has room for the index
    # besides the states, because only the states are compared.
    index = 10**5 + sum(len(set(request)) for request in stream.requests) * (longest * 4 + 4096)
    tree = KnowledgeTree(
        backend, MemoryBudget(tokens + index, part=True), host_limit=tokens, costs=COSTS, policy=policy,
        clock=lambda: backend.now,
    )  # fmt: skip
    ttft, places = [], []
    for number, request in enumerate(stream.requests):
        asked = backend.now
        with tree.prepare([segments[i] for i in (-1, *request)], suffix=stream.shape.question) as prepared:
            backend.prefill(range(stream.shape.question))
            if number >= warmup:
                ttft.append(backend.now - asked)
                places += prepared.places[1:]
    return Replay(ttft, sum(place != "nowhere" for place in places) / len(places))


def test_with_room_for_all_a_replay_finds_whatever_can_be_reused() -> None:
    stream = RequestStream.draw(SHAPE)
    found = replay(stream, tokens=10**6, policy=PGDSF, warmup=30)
    assert found.hit_rate == pytest.approx(reusable(stream.requests, 30))
    assert len(found.ttft) == 120


def test_with_no_room_a_replay_still_has_the_context() -> None:
    stream = RequestStream.draw(SHAPE)
    found = replay(stream, tokens=0, policy=PGDSF)
    pairs = zip(stream.requests[1:], stream.requests, strict=False)
    same = sum(2 if new == old else new[0] == old[0] for new, old in pairs)
    assert found.hit_rate == pytest.approx(same / 300)
    lengths = [SYSTEM, 100, 100, 10]
    without_reuse = sum(COSTS.estimate(sum(lengths[:i]), lengths[i]) for i in range(4))
    assert np.mean(found.ttft) < without_reuse == pytest.approx(found.ttft[0])


def test_frequency_and_cost_beat_recency_on_a_skewed_stream() -> None:
    stream = RequestStream.draw(replace(SHAPE, requests=400, topics=60, documents=60, spread=0.8))
    pgdsf, lru = (replay(stream, tokens=1500, policy=policy, warmup=100) for policy in (PGDSF, LRU))
    assert pgdsf.hit_rate > lru.hit_rate
    assert np.mean(pgdsf.ttft) < np.mean(lru.ttft)


def test_served_answers_are_the_same_with_and_without_reuse(tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    stream = {"requests": 4, "topics": 1, "documents": 2, "per_request": 2, "tokens": 20, "question": 4}
    task = {
        "model": str(RandomModel().write(tmp_path / "model.gguf")), "folder": str(tmp_path), "context": 256,
        "threads": 1, "memory": 1 << 33, "bytes": 10**6, "batch": 32, "answer": 4, "warmup": 1, "every": 1,
        "policy": "pgdsf", "disk": 0, "stream": stream, "ahead": "path", "cold": None,
    }  # fmt: skip
    none, edge = (work(task | {"system": system}) for system in ("none", "edge"))
    assert none["numbers"] == [1, 2, 3]
    assert edge["numbers"] == [0, 1, 2, 3]
    assert none["answers"] == edge["answers"][1:]
    assert edge["cached"][0] == 0
    assert edge["prompt"][1] > edge["cached"][1] >= 40
    assert edge["counters"].get("knowledge.misses", 0) == 0, "counted from the end of the warm-up on"
    # Two documents asked for in turn, and room for neither: states that memory gives up come back from disk.
    turns = task | {"stream": stream | {"topics": 2, "documents": 4, "requests": 12, "exponent": 0.0}, "bytes": 8000}
    memory, disk = (work(turns | {"system": "edge", "disk": nbytes}) for nbytes in (0, 10**8))
    assert memory["answers"] == disk["answers"]
    assert disk["counters"]["knowledge.disk_hits"] > 0
    assert sum(disk["cached"]) > sum(memory["cached"])
    for ahead in ("", "path", "named"):
        cold = work(turns | {"system": "edge", "disk": 10**8, "cold": 0.0, "ahead": ahead})
        assert (cold["answers"], cold["cached"]) == (disk["answers"], disk["cached"])
    assert {path.name for path in tmp_path.iterdir()} == {"model.gguf", "gguf-hashes.json"}


def test_the_peer_keeps_as_many_bytes_as_it_counts_or_as_it_holds(tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    stream = {"requests": 8, "topics": 8, "documents": 9, "per_request": 2, "tokens": 20, "exponent": 0.0}
    task = {
        "model": str(RandomModel().write(tmp_path / "model.gguf")), "context": 256, "threads": 1, "bytes": 250_000,
        "batch": 32, "answer": 4, "warmup": 1, "stream": stream,
    }  # fmt: skip
    counted, held = (work(task | {"system": system}) for system in ("ram-cache", "ram-cache-held"))
    assert counted["counters"]["counted"] <= 250_000 < counted["held"]
    assert 0 < held["held"] <= 250_000
