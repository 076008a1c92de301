"""The few steps that every pipeline is made of: write, retrieve, answer; and look ahead while writing."""

from __future__ import annotations

import threading
import time
from collections import abc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from edge.apps.assistant.answer import Round
from edge.apps.assistant.base import MIN_RELEVANCE, AskOptions, Cancelled, Library, NotInDocuments, Vectors
from edge.apps.assistant.citations import Citations
from edge.apps.assistant.evidence import title_of
from edge.apps.assistant.grounding import Grounding, Unsupported
from edge.apps.assistant.judged_question import judged_question
from edge.apps.assistant.marks import MarkReader
from edge.apps.assistant.passages import cached_first, documents_read, fused
from edge.apps.assistant.prefetching import Becoming, Prefetcher, Query
from edge.apps.assistant.prompts import Prompt
from edge.apps.assistant.query_vectors import QueryVectors
from edge.apps.assistant.replies import Refusal, Thinking
from edge.apps.assistant.timing import GeneratorClock
from edge.apps.collection.hits import Hit
from edge.benefit import BenefitGate
from edge.predictor import PromptWork, Seconds, TimePredictor
from edge.runtimes.generation.base import (
    Document,
    GenerationStats,
    Generator,
    Message,
    Piece,
    ReusesStates,
    Sampling,
    numbered,
)
from edge.runtimes.generation.extractive import Quoted

_RERANKING = "reranking"
"""A kind of work, as the predictor knows it: in passages."""


class Steps:
    """The steps of one answer.

    Counters (in `trace`): `assistant.generations`, `.generate_s`, `.prompt_tokens`, `.cached_tokens`, `.new_tokens`,
    `.dropped` (passages), `.rounds`, `.queries`, `.embed_s`, `.search_s`, `.rerank_s`.

    Attributes:
        options: how the question is to be answered.
        citations: passages the answer refers to so far.
        rounds: retrievals so far.
        given: passages that the last generation was given: those its context holds.
        cancel: set, it ends the answer at the next step or token.
        checks: of the answer's sentences, one for each generation.
        needed: the relevance that was needed in the last round; None before there was one.
    """

    def __init__(
        self,
        library: Library,
        generator: Generator,
        options: AskOptions,
        *,
        pipeline: str,
        predictor: TimePredictor,
    ) -> None:
        """
        Args:
            predictor: of what each step takes, from earlier answers; learns from this one.
        """
        self.library = library
        self.generator = generator
        self.options = options
        self.citations = Citations()
        self.rounds: list[Round] = []
        self.given: Sequence[Hit] = ()
        self.cancel = threading.Event()
        self.needed: float | None = None
        self.checks: list[Grounding] = []
        self._question = ""
        self.trace = library.trace
        self.pipeline = pipeline
        self._predictor = predictor
        self._vectors = QueryVectors(self._embed, predictor)
        self._prefetcher = Prefetcher(library, self._vectors, BenefitGate(predictor, library.trace))
        self._thinking = Thinking()
        self._longest = options.max_tokens

    def write(
        self,
        prompt: Prompt,
        passages: Sequence[Hit] = (),
        *,
        ahead: Sequence[str] = (),
        becoming: Becoming | None = None,
    ) -> str:
        """The whole reply to a prompt; arguments as for `stream`."""
        pieces = self.stream(prompt, passages, ahead=ahead, becoming=becoming)
        return "".join(piece.text for piece in pieces).strip()

    def stream(
        self,
        prompt: Prompt,
        passages: Sequence[Hit] = (),
        *,
        ahead: Sequence[str] = (),
        becoming: Becoming | None = None,
        sampling: Sampling | None = None,
    ) -> abc.Generator[Piece, None, None]:
        """The reply to a prompt, token by token. Closing the iterator early ends the generation.

        Args:
            passages: what to answer from, best first.
            ahead: texts near to what will be retrieved next: clusters near them are fetched meanwhile (TeleRAG,
                section 4.1).
            becoming: what will be retrieved if the reply ends where it is: the prediction follows the text.
            sampling: greedy if not given.

        Raises:
            Cancelled: the question was withdrawn; pieces written before have been handed over.
            InputError: none of the passages fits the context.
        """
        self._go_on()
        sampling = sampling or Sampling(stop=prompt.stop, max_tokens=prompt.max_tokens or self.options.max_tokens)
        documents = [_document(hit) for hit in passages]
        order = cached_first(
            self.generator, prompt.messages, passages, documents, sampling, self.options.order_tolerance
        )
        passages, documents = [passages[i] for i in order], [documents[i] for i in order]
        self.given = passages[: documents_read(self.generator, prompt.messages, documents, sampling)]
        if looking := bool(ahead) and self.options.lookahead:
            work = self._prompt_work(prompt.messages, documents, sampling)
            self._prefetcher.begin(
                f"{self.pipeline}/{prompt.name}", ahead, partial(self._left, prompt, work, sampling.max_tokens)
            )
        written: list[str] = []
        self._longest = sampling.max_tokens
        self._thinking = thinking = Thinking()
        before = self.generator.stats
        clock = GeneratorClock()
        try:
            with self._timed("generate", prompt.name, "generation"):
                answer = self.generator.stream(prompt.messages, sampling, documents=documents, cancel=self.cancel)
                for token in clock.timed(answer):
                    for piece in [token] if isinstance(token, Quoted) else thinking.feed(token):
                        yield piece
                        written.append(piece.text)
                    if looking:
                        self._prefetcher.follow(becoming, "".join(written), clock.count)
                yield from thinking.finish()
        finally:
            stats = self.generator.stats
            self._record(prompt, stats if stats is not before else None, clock)
            if stats is not None and stats is not before:
                self.given = passages[: len(passages) - stats.dropped_documents]
            self.trace.count("assistant.dropped", len(passages) - len(self.given))
        self._go_on()

    def check_replied(self) -> None:
        """Checks that the last reply was not all thinking. Raises as `Thinking.check_ended` does."""
        longest = None if self.finished else self._longest
        self._thinking.check_ended(self.generator.name, longest=longest, most=self.options.max_tokens)

    @property
    def finished(self) -> bool:
        """Whether the last reply ended by itself, and not because it may be no longer or nobody wanted more."""
        return self.generator.stats is None or self.generator.stats.finish == "stop"

    def expect(self, prompt: Prompt, passages: Sequence[Hit] = ()) -> Seconds | None:
        """What the reply to a prompt should take; None before there was one like it."""
        sampling = self.sampling(prompt)
        work = self._prompt_work(prompt.messages, [_document(hit) for hit in passages], sampling)
        return self._left(prompt, work, sampling.max_tokens, 0)

    def _left(self, prompt: Prompt, work: PromptWork, most: int, written: int) -> Seconds | None:
        """What a reply still takes when so many of its tokens are written."""
        step = f"{self.pipeline}/{prompt.name}"
        read = None if written else work
        return self._predictor.reply(self.generator.name, step, prompt=read, written=written, most=most)

    def _prompt_work(
        self, messages: Sequence[Message], documents: Sequence[Document], sampling: Sampling
    ) -> PromptWork:
        """What reading a prompt takes; where the generator cannot tell what it will reuse, in tokens of the prompt."""
        if isinstance(self.generator, ReusesStates):
            return self.generator.prompt_work(messages, documents, sampling)
        tokens = sum(self.generator.count(message.content) for message in messages)
        return PromptWork(tokens + sum(self.generator.count(numbered(d, i)) for i, d in enumerate(documents, 1)))

    def shown(self, text: str, passages: Sequence[Hit]) -> str:
        """A whole reply as it is shown: with the answer's own citation numbers.

        Args:
            passages: what it was written from: `given`, unless something else was written since.
        """
        self.given = passages
        if self.options.check and passages:
            grounding = Grounding(self._question, passages)
            self.checks.append(grounding)
            text = grounding.feed(text) + grounding.finish()
        reader = self.citations.reader(passages)
        return reader.feed(text) + reader.finish()

    def answer(self, prompt: Prompt, passages: Sequence[Hit], *, ahead: Sequence[str] = ()) -> Iterator[str]:
        """An answer's text, as it is shown: with the answer's own citation numbers.

        Raises:
            NotInDocuments: there are no passages, or the generator finds no answer in them.
            InputError: none of the passages fits the context, or the generator only thought.
        """
        if not passages:
            raise NotInDocuments
        reader: MarkReader | None = None
        refusal = Refusal()
        grounding: Grounding | None = None
        for piece in self.stream(prompt, passages, ahead=ahead, sampling=self.sampling(prompt)):
            if reader is None:  # what was given is known when the generation has begun
                reader, grounding = self.citations.reader(self.given), self._grounding(prompt)
            quoted = isinstance(piece, Quoted)
            text = piece.text if quoted else refusal.feed(piece.text)
            if grounding is not None and not quoted:
                text = grounding.feed(text)
            if text := reader.feed(text, quoted=quoted):
                yield text
        self.check_replied()
        if refusal.said or reader is None:
            raise NotInDocuments
        text = refusal.finish()
        if text := reader.feed(text if grounding is None else grounding.feed(text) + grounding.finish()):
            yield text
        if self.finished and (text := reader.finish()):  # a mark that was cut off is worth nothing
            yield text

    def _grounding(self, prompt: Prompt) -> Grounding | None:
        """Checks an answer's sentences; None where nothing is written that the documents do not hold."""
        if not self.options.check or not self.generator.follows_instructions:
            return None
        question = next(message.content for message in reversed(prompt.messages) if message.role == "user")
        grounding = Grounding(question, self.given)
        self.checks.append(grounding)
        return grounding

    @property
    def unsupported(self) -> tuple[Unsupported, ...]:
        """The sentences written so far that say more than the passages."""
        return tuple(found for check in self.checks for found in check.unsupported)

    def sampling(self, prompt: Prompt) -> Sampling:
        """How an answer's tokens are chosen: as the user wants."""
        options = self.options
        longest = min(prompt.max_tokens or options.max_tokens, options.max_tokens)
        return Sampling(temperature=options.temperature, seed=options.seed, stop=prompt.stop, max_tokens=longest)

    def retrieve(
        self, question: str, queries: Sequence[Query] = (), *, seconds: float | None = None, rank_by: str | None = None
    ) -> list[Hit]:
        """The passages that answer a question best, best first; none if they do not answer it. One round.

        Args:
            queries: what to look for, the question if not given; the results of several are fused.
            seconds: it may take; as many lists are searched as fit, instead of those the recall target asks for.
            rank_by: what passages are judged by instead of the question's asking sentence.
        """
        self._question = question
        queries = queries or [Query.asked(question)]
        rank_by = rank_by or judged_question(question)
        self._begin_round(queries)
        started = time.perf_counter()
        reranking = self._predictor.seconds(_RERANKING, self.options.pool) if self.options.rerank else None
        left = None if seconds is None else seconds - (reranking.upper if reranking else 0.0)
        pools = self._search(queries, self.options.pool, left)
        searched = time.perf_counter()
        hits = self._rank(rank_by, fused(pools)[: self.options.pool])
        return self._keep(queries, rank_by, hits, searched - started, time.perf_counter() - searched)

    def retrieve_each(self, questions: Sequence[str]) -> list[list[Hit]]:
        """The passages that answer each of some questions best: searched as one batch, reranked each by its own
        question's asking sentence, with a share of the pool each. One round."""
        queries = [Query.asked(question) for question in questions]
        share = max(self.options.passages, self.options.pool // len(queries))
        self._begin_round(queries)
        started = time.perf_counter()
        pools = self._search(queries, share, None)
        search_s = (time.perf_counter() - started) / len(queries)
        found = []
        for query, question, pool in zip(queries, map(judged_question, questions), pools, strict=True):
            started = time.perf_counter()
            hits = self._rank(question, pool)
            found.append(self._keep([query], question, hits, search_s, time.perf_counter() - started))
        return found

    def _go_on(self) -> None:
        if self.cancel.is_set():
            raise Cancelled

    def close(self) -> None:
        """Ends what still looks ahead."""
        self._prefetcher.close()

    def _search(self, queries: Sequence[Query], k: int, seconds: float | None) -> list[list[Hit]]:
        started = time.perf_counter()
        vectors = self._vectors.of(queries)
        if seconds is not None:
            seconds = max(0.0, seconds - (time.perf_counter() - started))
        with self._timed("search", "search" if len(queries) == 1 else f"search, {len(queries)} queries", "retrieval"):
            found = self.library.candidates(
                [query.words for query in queries],
                vectors,
                k,
                where=self.options.where,
                seconds=seconds,
                window=self._prefetcher.window,
            )
        self.close()
        return found

    def _embed(self, texts: Sequence[str]) -> Vectors:
        self._go_on()
        with self._timed("embed", "embed", "retrieval"):
            return self.library.embed_queries(texts)

    def _rank(self, question: str, hits: Sequence[Hit]) -> list[Hit]:
        self._go_on()
        if not hits or not self.options.rerank:
            return list(hits[: self.options.passages])
        started = time.perf_counter()
        with self._timed("rerank", "rerank", "retrieval"):
            ranked = self.library.rerank(question, hits, self.options.passages)
        self._predictor.learn(_RERANKING, len(hits), time.perf_counter() - started)
        return ranked

    def _keep(
        self, queries: Sequence[Query], question: str, hits: list[Hit], search_s: float, rerank_s: float
    ) -> list[Hit]:
        """Notes a round; returns its passages, none if they do not answer the question."""
        started = time.perf_counter()
        kept, best = self._answering(question, hits)
        rerank_s += time.perf_counter() - started
        asked = tuple(" + ".join(query.near) for query in queries)
        self.rounds.append(Round(asked, question, tuple(kept), len(hits) - len(kept), best, search_s, rerank_s))
        self._go_on()
        return kept

    def _answering(self, question: str, hits: list[Hit]) -> tuple[list[Hit], float | None]:
        """The passages that count, and how sure that is: by what was fitted for the models, or by each passage's own
        relevance. None of them counts where the whole is not sure enough."""
        if not hits or not self.options.rerank:
            return hits, None
        with self._timed("rerank", "judge", "retrieval"):
            judged = self.library.answered(question, hits)
        if judged is None:
            least = MIN_RELEVANCE if self.options.min_relevance is None else self.options.min_relevance
            relevance = [hit.stages.relevance for hit in hits if hit.stages.relevance is not None]
            kept = [hit for hit in hits if hit.stages.relevance is None or hit.stages.relevance >= least]
            self.needed = least
            return kept, max(relevance, default=None)
        found, enough = judged
        self.needed = enough if self.options.min_relevance is None else self.options.min_relevance
        return (hits if found >= self.needed else []), found

    def _begin_round(self, queries: Sequence[Query]) -> None:
        self._go_on()
        self.trace.count("assistant.rounds")
        self.trace.count("assistant.queries", len(queries))

    def _record(self, prompt: Prompt, stats: GenerationStats | None, clock: GeneratorClock) -> None:
        self.trace.count("assistant.generations")
        self.trace.count("assistant.new_tokens", clock.count)
        if stats is None:
            return
        self.trace.count("assistant.prompt_tokens", stats.prompt_tokens)
        self.trace.count("assistant.cached_tokens", stats.cached_tokens)
        if self.cancel.is_set():  # one that was cut short says nothing about lengths
            return
        reuses = isinstance(self.generator, ReusesStates)
        self._predictor.learn_reply(
            self.generator.name,
            f"{self.pipeline}/{prompt.name}",
            stats.work if reuses else PromptWork(stats.prompt_tokens),
            new=clock.count,
            ttft_s=clock.first,
            restore_s=min(stats.restore_s, clock.first),
            seconds=clock.seconds,
        )

    @contextmanager
    def _timed(self, what: str, label: str, track: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - started
            self.trace.count(f"assistant.{what}_s", seconds)
            self.trace.event(label, track, started, seconds)


def _document(hit: Hit) -> Document:
    return Document(str(hit.id), hit.text, title_of(hit))
