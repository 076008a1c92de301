"""A stream of requests like those of retrieval, and its replay over the real knowledge tree in simulated time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from bench.cost_table import CostTable
from edge.budget import MemoryBudget
from edge.errors import InputError
from edge.kv_cache.backend import StateSegment
from edge.kv_cache.prefix_tree import Replacement
from edge.kv_cache.tree import KnowledgeTree
from edge.trace import Trace


@dataclass(frozen=True, slots=True)
class StreamShape:
    """The parameters by which requests are drawn.

    Attributes:
        requests: the number of requests.
        topics: the number of topics, which are different lists of documents. Requests choose topics by Zipf's law.
        documents: the number of documents. Topics choose documents by Zipf's law, too, so that topics share beginnings.
        per_request: the number of documents of each topic, in a fixed order.
        tokens: the mean number of tokens of a document.
        spread: the standard deviation of the logarithm of a document's length; 0 makes all equally long.
        exponent: the exponent of Zipf's law; 0 is uniform.
        drift: the number of requests after which other topics become popular; 0 for never.
        question: the number of tokens of a question. No question occurs twice.
        seed: the seed of the random numbers.
    """

    requests: int = 60
    topics: int = 30
    documents: int = 60
    per_request: int = 4
    tokens: int = 500
    spread: float = 0.0
    exponent: float = 1.0
    drift: int = 0
    question: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        numbers = (self.requests, self.topics, self.documents, self.per_request, self.tokens, self.question)
        if min(numbers) < 1 or min(self.spread, self.exponent, self.drift) < 0:
            raise InputError(f"a stream needs positive numbers, not {asdict(self)}")
        if self.per_request > self.documents:
            raise InputError(f"{self.per_request} documents per request are more than the {self.documents} there are")


@dataclass(frozen=True, slots=True)
class RequestStream:
    """The drawn requests.

    Attributes:
        lengths: the number of tokens of each document.
        requests: the numbers of each request's documents, in their order.
    """

    shape: StreamShape
    lengths: tuple[int, ...]
    requests: tuple[tuple[int, ...], ...]

    @classmethod
    def draw(cls, shape: StreamShape) -> RequestStream:
        """Draws a stream. The same shape gives the same stream."""
        generator = np.random.default_rng(shape.seed)
        scale = np.exp(shape.spread * generator.standard_normal(shape.documents) - shape.spread**2 / 2)
        lengths = tuple(max(1, int(length)) for length in np.rint(shape.tokens * scale))
        popularity = _zipf(shape.documents, shape.exponent)
        topics = [
            tuple(int(i) for i in generator.choice(shape.documents, shape.per_request, replace=False, p=popularity))
            for _ in range(shape.topics)
        ]
        ranks = generator.choice(shape.topics, shape.requests, p=_zipf(shape.topics, shape.exponent))
        requests = []
        for number, rank in enumerate(ranks):
            if shape.drift and number and number % shape.drift == 0:
                topics = [topics[i] for i in generator.permutation(shape.topics)]
            requests.append(topics[rank])
        return cls(shape, lengths, tuple(requests))


def reusable(requests: Sequence[tuple[int, ...]], warmup: int = 0) -> float:
    """The share of the documents in all requests after the warm-up that an unlimited prefix cache would find."""
    seen: set[tuple[int, ...]] = set()
    found = total = 0
    for number, request in enumerate(requests):
        for end in range(1, len(request) + 1):
            found += number >= warmup and request[:end] in seen
            total += number >= warmup
            seen.add(request[:end])
    return found / total


def _zipf(count: int, exponent: float) -> npt.NDArray[np.float64]:
    weights = np.arange(1, count + 1, dtype=np.float64) ** -exponent
    shares: npt.NDArray[np.float64] = weights / weights.sum()
    return shares


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

    def path(number: int) -> list[StateSegment]:
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


def _segments(stream: RequestStream) -> dict[int, StateSegment]:
    """The segments of the documents by number, and of the system prompt under -1. Their first tokens all differ."""
    lengths = {-1: _SYSTEM} | dict(enumerate(stream.lengths))
    return {i: StateSegment(f"d{i}", (i + 1, *[0] * (length - 1))) for i, length in lengths.items()}
