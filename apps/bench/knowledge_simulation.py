"""Replays a stream of requests over the real knowledge tree in simulated time.

The code that serves real requests decides about keeping, finding and evicting states. Only the model's work is
simulated: a prefill takes as long as the cost table gives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from edge.apps.bench.request_stream import RequestStream
from edge.budget import MemoryBudget
from edge.kv_cache.backend import Segment
from edge.kv_cache.costs import CostTable
from edge.kv_cache.replacement import Replacement
from edge.kv_cache.tree import KnowledgeTree
from edge.trace import Trace

_SYSTEM = 32
"""The number of tokens of the system prompt."""


class SimulatedContext:
    """A `KVBackend` that computes nothing and has a simulated clock. A token's state is one byte, so that sizes in
    bytes are numbers of tokens."""

    bytes_per_token = 1

    def __init__(self, costs: CostTable, capacity: int) -> None:
        self.fingerprint = costs.fingerprint
        self.capacity = capacity
        self.length = 0
        self.now = 0.0
        self._costs = costs

    def prefill(self, tokens: Sequence[int], cancelled: Callable[[], bool] | None = None) -> int:
        self.now += self._costs.estimate(self.length, len(tokens))
        self.length += len(tokens)
        return len(tokens)

    def extract(self, start: int, end: int) -> bytes:
        return bytes(end - start)

    def restore(self, state: bytes | bytearray | memoryview, start: int, end: int) -> None:
        self.length = end

    def truncate(self, length: int) -> None:
        self.length = length


@dataclass(frozen=True, slots=True)
class Replay:
    """The results of a replay, in simulated seconds.

    Attributes:
        ttft: the time to the first token of each request, which is the prefill of its uncached tokens and question.
        hit_rate: the share of documents whose states were cached.
        cached: the share of the prompts' tokens whose states were cached.
    """

    ttft: tuple[float, ...]
    hit_rate: float
    cached: float

    @property
    def mean(self) -> float:
        return float(np.mean(self.ttft))


def replay(
    stream: RequestStream,
    costs: CostTable,
    *,
    tokens: int,
    policy: Callable[[], Replacement],
    warmup: int = 0,
) -> Replay:
    """Serves the stream in simulated time.

    Args:
        tokens: the number of tokens whose states host memory holds.
        policy: makes the replacement policy.
        warmup: the number of requests at the start that do not count.
    """
    segments = _segments(stream)
    longest = max(sum(stream.lengths[i] for i in request) for request in stream.requests)
    backend = SimulatedContext(costs, _SYSTEM + longest + stream.shape.question)
    trace = Trace()
    # A state takes one byte per token here, but the tree's index has its real size. The budget has room for the index
    # besides the states, because only the states are compared.
    index = 10**5 + sum(len(set(request)) for request in stream.requests) * (longest * 4 + 4096)
    tree = KnowledgeTree(
        backend,
        MemoryBudget(tokens + index, part=True),
        host_limit=tokens,
        costs=costs,
        policy=policy,
        trace=trace,
        clock=lambda: backend.now,
    )
    question = range(stream.shape.question)
    ttft: dict[int, float] = {}
    counted = {name: 0.0 for name in ("cached_tokens", "computed_tokens")}
    hits = documents = 0

    def path(number: int) -> list[Segment]:
        return [segments[-1], *(segments[i] for i in stream.requests[number])]

    for number in range(len(stream.requests)):
        asked = backend.now
        with tree.prepare(path(number), suffix=len(question)) as prepared:
            backend.prefill(question)
            ttft[number] = backend.now - asked
            if number >= warmup:
                hits += sum(place != "nowhere" for place in prepared.places[1:])
                documents += len(prepared.places) - 1
                counted["cached_tokens"] += prepared.cached_tokens
                counted["computed_tokens"] += prepared.computed_tokens + len(question)
    return Replay(
        tuple(ttft[number] for number in range(warmup, len(stream.requests))),
        hits / documents,
        counted["cached_tokens"] / sum(counted.values()),
    )


def uncached(stream: RequestStream, costs: CostTable, *, warmup: int = 0) -> Replay:
    """Serves the stream without reuse: every prompt is computed from its first token."""
    ttft = []
    for request in stream.requests[warmup:]:
        context = SimulatedContext(costs, 10**9)
        for length in (_SYSTEM, *(stream.lengths[i] for i in request), stream.shape.question):
            context.prefill(range(length))
        ttft.append(context.now)
    return Replay(tuple(ttft), 0.0, 0.0)


def _segments(stream: RequestStream) -> dict[int, Segment]:
    """The segments of the documents by number, and of the system prompt under -1. Their first tokens all differ."""
    lengths = {-1: _SYSTEM} | dict(enumerate(stream.lengths))
    return {i: Segment(f"d{i}", (i + 1, *[0] * (length - 1))) for i, length in lengths.items()}
