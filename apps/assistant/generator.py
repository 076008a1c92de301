"""The assistant's generator: a language model that reuses KV states, or a picker of the documents' sentences."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from hashlib import blake2b
from itertools import accumulate

from edge.apps.assistant.answer import MAYBE
from edge.apps.assistant.evidence import FEW_WORDS, WORD, UnitJudge, Window, standing
from edge.apps.assistant.question import judged_question
from edge.apps.collection.collection import Collection
from edge.apps.requests import AskOptions
from edge.budget import MemoryBudget
from edge.config import Config
from edge.errors import BudgetExceeded
from edge.kv_cache.costs import LearnedCosts
from edge.kv_cache.store import KnowledgeStore
from edge.kv_cache.tree import KnowledgeTree
from edge.runtimes.generation.base import Document, Generator, Message, Piece, Sampling
from edge.runtimes.generation.chat_template import USUAL_NBYTES
from edge.runtimes.generation.extractive import ExtractiveGenerator
from edge.runtimes.generation.llama_cpp import LlamaGenerator
from edge.runtimes.generation.opening import generator_stages, open_generator
from edge.scheduling.background import Background
from edge.trace import Trace

_STATES = "kv-states"
_STATES_DISK = 2 << 30
"""The most bytes of documents' KV states on disk, for all collections and models together."""

_STATES_SHARE = 0.25
"""The share of the memory limit that documents' KV states may take while nothing else needs the memory."""


def picks_sentences(llm: str | os.PathLike[str]) -> bool:
    """Whether a choice of a generator means the documents' best sentences, for which nothing is opened."""
    return llm in ("", ExtractiveGenerator.name)


def retrieval_nbytes(collection: Collection) -> int:
    """Working memory of a collection's embedder and reranker and of a chat template, which run one after the other.
    Opens both models."""
    engines = [] if collection.identity is None else [collection.embedder.engine]
    return max(USUAL_NBYTES, *(engine.working for engine in [*engines, collection.reranker.engine]))


@contextmanager
def limit_named(collection: Collection, options: AskOptions, llm: object) -> Iterator[None]:
    """While a language model of this process is opened: a refusal names a limit that is enough for the model and for
    retrieval together, not for the next of them only."""
    held = collection.budget.used
    try:
        yield
    except BudgetExceeded as error:
        if stages := generator_stages(llm, collection.config) if isinstance(llm, str | os.PathLike) else ():
            whole = collection.models.plan(
                "answering", rerank=options.rerank, candidates=2 * options.pool, extra=stages
            ).refusal(collection.budget.limit, held)  # fmt: skip
            if whole.needed > error.needed:
                raise whole from None
        raise


def open_llm(
    llm: str | os.PathLike[str], budget: MemoryBudget, config: Config, *, beside: int, kv_cache: bool, trace: Trace
) -> Generator:
    """Opens a language model, with a knowledge tree if its states can be extracted.

    Args:
        llm: see `Assistant`; not one of those that `picks_sentences`.
        beside: bytes that stay free for retrieval. The generator takes its memory for good, and would otherwise leave
            embedder and reranker too little to run.
        kv_cache: whether states are kept, in memory and on disk.

    Raises:
        ModelError, BudgetExceeded, CapabilityError, ConfigError: see `open_generator`.
    """
    with budget.reserve("retrieval", beside):
        generator = open_generator(os.fspath(llm), budget, config, trace=trace)
    if isinstance(generator, LlamaGenerator):
        generator.beside = beside
        try:
            generator.tree = _knowledge(generator, budget, config, trace) if kv_cache else None
        except BaseException:
            generator.close()
            raise
    return generator


def _knowledge(generator: LlamaGenerator, budget: MemoryBudget, config: Config, trace: Trace) -> KnowledgeTree | None:
    """The tree of a generator's states, in memory and on disk; None if they cannot be extracted."""
    if generator.states is None:
        return None
    fingerprint = generator.states.fingerprint
    store = KnowledgeStore(config.scratch_path / _STATES, fingerprint, _STATES_DISK, trace=trace)
    digest = blake2b(fingerprint.encode(), digest_size=8).hexdigest()
    costs = LearnedCosts(fingerprint, config.scratch_path / f"prefill-costs-{digest}.json")
    host_limit = int(budget.limit * _STATES_SHARE)
    writer = Background("edge-states")  # the engine's thread, which writes all answers, must not wait for the disk
    return KnowledgeTree(
        generator.states, budget, host_limit=host_limit, store=store, costs=costs, writer=writer, trace=trace
    )


_MOST = 3
_NEARLY = 2.0
"""A unit is shown beside the best one if its score is lower by at most this many log-odds. Chosen on the half `choose`
of the benchmark `answers`: 65 % of its paraphrased questions find their answer with 2, and 59 % with 1."""

_ELSEWHERE = 1.5
"""Log-odds subtracted from units of other passages than the best unit's, because they are often off the subject. With
1.5 answers have 5 % fewer words than with 1, and one of 545 is no longer right."""

_BEFORE, _BEHIND = 1, 3
"""The units around the best one in which a value is looked for that the question asks for and the best one lacks."""

_BESIDE = 0.01
"""The log-odds by which such a unit stands below the best one, so that it is shown next."""

_SHORT, _LINE = 10, 35
"""A unit of at most `_SHORT` words that does not hold a value asked for is shown with the rest of its line, if the line
has at most `_LINE` words. In notes and lists a line is one thought: "19 April: slugs ate all lettuces. Bought copper
tape." On the halves `choose` of the benchmarks `answers` and `household` 3 of 179 more answers are right with the
default embedder, and all have 4 % more words."""

_PASSAGES, _WORDS = 2, 60
"""The number of passages that are shown if they may not answer, and the most words of each around its best unit. On
the halves `choose` of the benchmarks `answers` and `household` 14 of 179 more answers are right than with the best
units alone (default embedder), and 7 with 80 words of one passage."""

_HIDDEN = float("-inf")


class PickedSentences(ExtractiveGenerator):
    """Answers with the best units of the passages (see `units`), scored by the reranker and by their vectors (see
    `evidence`). Units much worse than the best one are left out, so that answers are short. If the passages may not
    answer, the answer says so first, and then shows the best of them, so that a person can judge."""

    def __init__(self, judge: UnitJudge) -> None:
        super().__init__(self._score, most=_MOST, floor=-1e9)
        self._judge = judge
        self._windows: list[Window] = []
        self._texts: list[str] = []

    def stream(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        *,
        documents: Sequence[Document] = (),
        cancel: threading.Event | None = None,
    ) -> Iterator[Piece]:
        """See `ExtractiveGenerator.stream`."""
        question = judged_question(next((m.content for m in reversed(messages) if m.role == "user"), ""))
        self._windows = self._judge.windows(question, documents)
        self._texts = [document.text for document in documents]
        judged = [
            replace(document, parts=[window.unit for window in self._windows if window.passage == number])
            for number, document in enumerate(documents)
        ]
        yield from super().stream(messages, sampling, documents=judged, cancel=cancel)

    def _lead(self, question: str) -> str:
        return f"{MAYBE}\n" if self._judge.doubts(judged_question(question)) else ""

    def _score(self, question: str, found: Sequence[str]) -> list[float]:
        """Scores units in log-odds. Units not worth showing get minus infinity."""
        best: dict[str, float] = {}
        first = max(self._windows, key=standing)
        if self._judge.doubts(question):
            closest = [window.unit.text.casefold() for window in self._closest()]
            self._most = len(closest)
            return [-closest.index(text.casefold()) if text.casefold() in closest else _HIDDEN for text in found]
        self._most = _MOST
        top = standing(first)
        reply = self._reply_to(first)
        for window in self._windows:
            key = window.unit.text.casefold()
            elsewhere = window.passage != first.passage
            best[key] = max(best.get(key, _HIDDEN), standing(window) - _ELSEWHERE * elsewhere)
        if reply:  # in a list of questions, the question itself is found best, and says nothing
            best = {key: _HIDDEN if key.endswith("?") else score for key, score in best.items()}
            best |= {window.unit.text.casefold(): top - _BESIDE * place for place, window in enumerate(reply)}
            first = reply[-1]
        value = self._value_near(first)
        rest = self._rest_of_line(first) if value is None and not reply else []
        for place, window in enumerate(rest if value is None else [value], 1 + len(reply)):
            best[window.unit.text.casefold()] = top - _BESIDE * place
        scores = [best[text.casefold()] for text in found]
        least = max(scores) - _NEARLY
        return [score if score >= least else _HIDDEN for score in scores]

    def _closest(self) -> list[Window]:
        """The units of the best passages that are nearest to the best unit of each, in their order."""
        best: dict[int, Window] = {}
        for window in sorted(self._windows, key=standing, reverse=True):
            best.setdefault(window.passage, window)
        return [each for first in list(best.values())[:_PASSAGES] for each in self._around(first)]

    def _around(self, first: Window) -> list[Window]:
        """A unit with the nearest ones of its passage, at most `_WORDS` words of them, in their order."""
        beside = [window for window in self._windows if window.passage == first.passage]
        at = beside.index(first)
        nearest = sorted(range(len(beside)), key=lambda place: (abs(place - at), place < at))
        words = accumulate(len(beside[place].unit.text.split()) for place in nearest)
        fitting = sum(total <= _WORDS for total in words)
        return [beside[place] for place in sorted(nearest[: max(1, fitting)])]

    def _reply_to(self, asked: Window) -> list[Window]:
        """The unit behind one that is a question, below the same headings, and the next one if it is as short as "No.".
        Empty if the unit is no question, or nothing replies to it."""
        reply: list[Window] = []
        beside = [window for window in self._windows if window.passage == asked.passage]
        behind = beside[beside.index(asked) + 1 :] if asked.unit.text.endswith("?") else []
        for window in behind:
            is_question = window.unit.text.endswith("?")
            if window.unit.heading != asked.unit.heading or (is_question and reply):
                break
            if is_question:
                continue
            reply.append(window)
            if len(WORD.findall(window.unit.text)) >= FEW_WORDS:
                break
        return reply

    def _rest_of_line(self, first: Window) -> list[Window]:
        """The other units on the line of a short unit, in their order, without questions; none if the line is long."""
        text, unit = self._texts[first.passage], first.unit
        if first.value > 0 or len(unit.text.split()) > _SHORT:
            return []
        start, end = text.rfind("\n", 0, unit.start) + 1, text.find("\n", unit.end)
        end = len(text) if end < 0 else end
        if len(text[start:end].split()) > _LINE:
            return []
        beside = [w for w in self._windows if w.passage == first.passage and w is not first]
        return [w for w in beside if start <= w.unit.start < end and not w.unit.text.endswith("?")]

    def _value_near(self, first: Window) -> Window | None:
        """The best unit near `first`, below the same headings, that holds the value that the question asks for; None if
        `first` holds it, or no unit does."""
        if first.value >= 0:
            return None
        beside = [w for w in self._windows if w.passage == first.passage]
        place = beside.index(first)
        near = [
            window
            for window in beside[max(0, place - _BEFORE) : place + 1 + _BEHIND]
            if window.unit.heading == first.unit.heading and window.value > 0
        ]
        return max(near, key=standing, default=None)
