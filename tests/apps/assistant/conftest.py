"""A collection of a few sentences and a generator that gives scripted replies: both small enough to think through."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

import numpy as np
import pytest

from edge.apps.assistant.reading import Answering, Reading
from edge.apps.assistant.retrieval import Retrieval, Vectors
from edge.apps.assistant.steps import Steps
from edge.apps.assistant.units import Unit, Window
from edge.apps.collection.filters import Filters
from edge.apps.collection.hits import Hit, Stages
from edge.apps.verbs.requests import AskOptions
from edge.budget import MemoryBudget
from edge.cache.lookahead import LookaheadOutcome
from edge.runtimes.generation.base import Document, GenerationStats, Message, Piece, Sampling, answer_room, numbered
from edge.scheduling.predictor import TimePredictor
from edge.trace import Trace


def answering(probability: float) -> Answering:
    """The beginning of the best passage, as an answer of some probability."""
    unit = Unit("", "sentence", 0, 0)
    return Answering(
        0, Window((), (unit,)), unit, probability, probability, probability=probability, around=probability
    )


@pytest.fixture
def llama() -> None:
    """For tests that run a language model: they need the extra `llm`."""
    pytest.importorskip("llama_cpp")


TEXTS = (
    "The river Ombra floods its valley in spring, when the snow melts.",
    "The bridge over the Ombra was built in 1821 by Anna Berg.",
    "Anna Berg was born in the town of Kell.",
    "Bread needs flour, water, salt and time.",
    "The mill of Kell grinds flour for the whole valley.",
)


def words(text: str) -> set[str]:
    return {word for word in re.findall(r"[a-z0-9]+", text.lower()) if len(word) > 2} - {"the", "was", "when", "who"}


def make_hit(number: int, text: str, **changes: object) -> Hit:
    hit = Hit(
        id=number, path=f"/notes/{number}.md", line_start=10 * number, line_end=10 * number + text.count("\n"),
        page=None, score=0.0, snippet="", text=text, title=f"Note {number}", kind="markdown", context="", file=number,
        ordinals=(0, 0),
    )  # fmt: skip
    return replace(hit, **changes)  # type: ignore[arg-type]


class AtOnce:
    """Stands for `edge.scheduling.background.Background`: work is done when it is submitted, in the caller's thread."""

    busy = False
    seconds = 0.0

    def __init__(self, name: str) -> None: ...

    def submit(self, work: Callable[[], object]) -> None:
        work()

    def settle(self) -> None: ...


@pytest.fixture(autouse=True)
def predictions_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replies of these tests take no time: a thread would hardly have begun to predict."""
    monkeypatch.setattr("edge.apps.assistant.retrieval.Background", AtOnce)


@dataclass
class FakeAhead:
    nbytes: int = 1000
    cancelled: bool = False
    earlier: list[FakeAhead] = field(default_factory=list)
    followed: bool = False
    outcomes: list[LookaheadOutcome] = field(default_factory=list)
    """What came of it and of those before, as a search tells."""

    def supersede(self, earlier: FakeAhead, *, follows: bool) -> None:
        earlier.cancel()
        self.earlier = [*earlier.earlier, earlier]
        self.followed = follows

    def cancel(self) -> list[LookaheadOutcome]:
        self.cancelled = True
        return self.outcomes


@dataclass
class FakeLibrary:
    """Vectors are bags of words; relevance is the share of the question's words that a passage has."""

    texts: Sequence[str] = TEXTS
    budget: MemoryBudget = field(default_factory=lambda: MemoryBudget(10**11, baseline=0))
    trace: Trace = field(default_factory=lambda: Trace(events=True))
    log: list[tuple[str, object]] = field(default_factory=list)
    aheads: list[FakeAhead] = field(default_factory=list)
    windows: list[FakeAhead | None] = field(default_factory=list)
    vectors: list[Vectors] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    judged: tuple[float, float] | None = None
    """The probability of an answer, and the one from which it is certain."""
    best: tuple[int, str] | None = None
    fetches: int = 1000
    """Bytes that a lookahead may fetch."""

    def embed_queries(self, queries: Sequence[str]) -> Vectors:
        self.log.append(("embed", tuple(queries)))
        rows = np.zeros((len(queries), 64), np.float32)
        for row, query in zip(rows, queries, strict=True):
            for word in words(query):
                row[hash_of(word)] += 1
            row /= max(float(np.linalg.norm(row)), 1e-9)
        return rows

    def candidates(
        self,
        queries: Sequence[Retrieval],
        vectors: Vectors,
        k: int,
        *,
        where: Filters | None = None,
        seconds: float | None = None,
        window: FakeAhead | None = None,
    ) -> list[list[Hit]]:
        self.windows.append(window)
        self.batches.append(len(queries))
        asked = zip(queries, vectors, strict=True)
        return [self._found(query.words, vector, k, seconds, where) for query, vector in asked]

    def _found(self, query: str, vector: Vectors, k: int, seconds: float | None, where: Filters | None) -> list[Hit]:
        self.log.append(("search", (query, k, seconds, where)))
        self.vectors.append(vector)
        scores = [float(self.quiet_vector(t) @ vector) + 1e-6 * len(words(query) & words(t)) for t in self.texts]
        order = sorted(range(len(self.texts)), key=lambda i: (-scores[i], i))[:k]
        return [make_hit(i, self.texts[i], score=scores[i]) for i in order]

    def rerank(self, query: str, hits: Sequence[Hit], top_k: int, judged: int) -> list[Hit]:
        hits = hits[:judged]
        self.log.append(("rerank", (query, len(hits), top_k)))
        asked = words(query)
        scores = [len(asked & words(hit.text)) / max(1, len(asked)) for hit in hits]
        order = sorted(range(len(hits)), key=lambda i: (-scores[i], i))[:top_k]
        return [replace(hits[i], score=scores[i], stages=Stages(reranker=scores[i])) for i in order]

    def read(self, question: str, hits: Sequence[Hit]) -> Reading:
        """As probable as `judged` says, or as the best passage's relevance."""
        relevance = max((hit.stages.reranker or 0.0 for hit in hits), default=0.0)
        probability, certain = self.judged or (relevance, 0.0)
        return Reading((answering(probability),), certain)

    def best_unit(self, question: str, hits: Sequence[Hit]) -> tuple[int, str] | None:
        self.log.append(("quote", question))
        return self.best

    def related(self, statement: str, texts: Sequence[str]) -> list[float]:
        return [1.0] * len(texts)

    def lookahead(
        self, queries: Vectors, *, seconds: float | None = None, lost: Callable[[float], object] | None = None
    ) -> FakeAhead:
        self.log.append(("lookahead", (len(queries), seconds)))
        self.aheads.append(FakeAhead(self.fetches))
        return self.aheads[-1]

    def quiet_vector(self, text: str) -> Vectors:
        log, self.log = self.log, []
        vector = self.embed_queries([text])[0]
        self.log = log
        return vector

    def calls(self, kind: str) -> list[object]:
        return [what for name, what in self.log if name == kind]


def hash_of(word: str) -> int:
    return sum(ord(char) * 31**place for place, char in enumerate(word)) % 64


Reply = Callable[[Sequence[Message], Sequence[Document]], str]


class FakeGenerator:
    """Replies by a function of the request, a word at a time; notes every request."""

    name = "fake"

    def __init__(
        self, reply: Reply, *, follows_instructions: bool = True, seconds: float = 0.0, context: int = 4096
    ) -> None:
        self.context = context
        self.follows_instructions = follows_instructions
        self.stats: GenerationStats | None = None
        self.requests: list[tuple[Sequence[Message], Sequence[Document], Sampling]] = []
        self.closed = 0
        self.sure: Callable[[str], float | None] = lambda word: 0.0
        self.tokens: Callable[[str], list[str]] = re.compile(r"\s*\S+").findall
        self._reply = reply
        self._seconds = seconds

    def stream(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        *,
        documents: Sequence[Document] = (),
        cancel: threading.Event | None = None,
    ) -> Iterator[Piece]:
        room = self.context - sum(self.count(m.content) for m in messages)
        room -= answer_room(self.context, sampling.max_tokens)
        sizes = accumulate(self.count(numbered(d, i)) for i, d in enumerate(documents, 1))
        dropped = sum(size > room for size in sizes)
        documents = documents[: len(documents) - dropped]
        self.requests.append((tuple(messages), tuple(documents), sampling))
        text = self._reply(messages, documents)
        if messages[-1].role == "assistant":  # an answer begun is continued
            assert text.startswith(messages[-1].content), (text, messages[-1].content)
            text = text[len(messages[-1].content) :]
        pieces = self.tokens(text)
        finish = "cancelled"
        new = 0
        try:
            for piece in pieces:
                if cancel is not None and cancel.is_set():
                    return
                if new == sampling.max_tokens:
                    finish = "length"
                    return
                time.sleep(self._seconds)
                new += 1
                yield Piece(piece, None, self.sure(piece.strip()))
            finish = "stop"
        finally:
            self.closed += 1
            asked = sum(self.count(m.content) for m in messages) + sum(self.count(d.text) for d in documents)
            self.stats = GenerationStats(asked, 0, new, 0.0, 0.0, dropped, finish)  # type: ignore[arg-type]

    def count(self, text: str) -> int:
        return len(text.split())

    def close(self) -> None:
        pass

    def users(self) -> list[str]:
        """The user's message of each request."""
        return [next(m.content for m in messages if m.role == "user") for messages, _, _ in self.requests]


@pytest.fixture
def library() -> FakeLibrary:
    return FakeLibrary()


@pytest.fixture
def generator() -> type[FakeGenerator]:
    return FakeGenerator


@pytest.fixture
def hit() -> Callable[..., Hit]:
    return make_hit


@pytest.fixture
def steps(library: FakeLibrary) -> Callable[..., Steps]:
    def make(generator: FakeGenerator, pipeline: str = "plain", **options: object) -> Steps:
        settings = AskOptions(**{"min_relevance": 0.2, **options})  # type: ignore[arg-type]
        return Steps(library, generator, settings, pipeline=pipeline, predictor=TimePredictor())

    return make
