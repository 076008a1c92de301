"""A stream of requests like those of retrieval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from edge.errors import InputError


@dataclass(frozen=True, slots=True)
class StreamShape:
    """The parameters by which requests are drawn.

    Attributes:
        topics: different lists of `per_request` documents. Requests choose topics by Zipf's law, and topics documents.
        tokens: the mean number of tokens of a document.
        spread: the standard deviation of the logarithm of a document's length; 0 makes all equally long.
        exponent: the exponent of Zipf's law; 0 is uniform.
        drift: the number of requests after which other topics become popular; 0 for never.
        question: the number of tokens of a question. No question occurs twice.
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
    """The drawn requests: the number of tokens of each document, and the documents of each request in their order."""

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
