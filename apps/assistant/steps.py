"""The steps that every pipeline is made of: write, retrieve and answer, with lookahead while a reply is written."""

from __future__ import annotations

import threading
import time
from collections import abc
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import zip_longest

from edge.apps.assistant.answer import Cancelled, NotInDocuments, Round
from edge.apps.assistant.grounding import Judge
from edge.apps.assistant.prompts import StepPrompt
from edge.apps.assistant.question import judged_question
from edge.apps.assistant.reading import NEAREST, document_of
from edge.apps.assistant.rehearsal import Rehearsal
from edge.apps.assistant.replies import GeneratorClock, GrowingText, Showing, Thinking
from edge.apps.assistant.retrieval import Becoming, CollectionLibrary, Prefetcher, QueryVectors, Retrieval, Vectors
from edge.apps.collection.hits import Hit
from edge.apps.verbs.requests import AskOptions
from edge.errors import InputError
from edge.models.blending import reciprocal_rank_fusion
from edge.runtimes.generation.base import (
    Document,
    GenerationStats,
    Generator,
    Message,
    Piece,
    ReusesStates,
    Sampling,
    WritesElsewhere,
    answer_room,
    numbered,
)
from edge.runtimes.generation.extractive import Quoted
from edge.runtimes.generation.llama_cpp import LlamaGenerator
from edge.scheduling.predictor import BenefitGate, PromptWork, Seconds, TimePredictor

SMALL_MODEL = 600_000_000
"""Bytes of a language model's weights below which only sentences that it copies from passages are shown
(`Grounding`)."""

_RERANKING = "reranking"


class Steps:
    """The steps of one answer, counted in `trace` as `assistant.generations` and so on. `small`: the language model is
    too small to say anything itself; `most`: passages that a generation is given; `given`: those of the last one that
    fitted; `needed`: the relevance that the last round required; `probability`: the highest of all rounds, `certain`
    what is shown without a warning; `span`: the words of a passage that answer; `looked_up`: the text by which a
    question is looked up that only continues another."""

    def __init__(
        self,
        library: CollectionLibrary,
        generator: Generator,
        options: AskOptions,
        *,
        pipeline: str,
        predictor: TimePredictor,
    ) -> None:
        self.library = library
        self.generator = generator
        self.options = options
        self.most = options.given(writes=generator.follows_instructions)
        self.rounds: list[Round] = []
        self.small = isinstance(generator, LlamaGenerator) and generator.memory.weights < SMALL_MODEL
        self.showing = Showing(copied=self.small)
        self.given: Sequence[Hit] = ()
        self.cancel = threading.Event()
        self.needed: float | None = None
        self.certain = 0.0
        self.probability: float | None = None
        self.span = ""
        self.looked_up: dict[str, str] = {}
        self.trace = library.trace.branch()  # other answers may be counted at the same time
        self.pipeline = pipeline
        self._predictor = predictor
        self._vectors = QueryVectors(self._embed, predictor)
        gate = BenefitGate(predictor, self.trace)
        self._prefetcher = Prefetcher(library, self._vectors, gate)
        elsewhere = isinstance(generator, WritesElsewhere) and generator.elsewhere
        self._rehearsal = Rehearsal(self._rehearse, gate) if elsewhere and options.lookahead else None
        self._thinking = Thinking()
        self._longest = options.max_tokens
        self._stats: GenerationStats | None = None

    @property
    def writes(self) -> bool:
        """Whether the generator says something in its own words."""
        return self.generator.follows_instructions and not self.small

    def write(
        self, prompt: StepPrompt, passages: Sequence[Hit] = (), *, ahead: Sequence[str] = (),
        becoming: Becoming | None = None, rank_by: str = "",
    ) -> str:  # fmt: skip
        pieces = self.stream(prompt, passages, ahead=ahead, becoming=becoming, rank_by=rank_by)
        return "".join(piece.text for piece in pieces).strip()

    def stream(
        self,
        prompt: StepPrompt,
        passages: Sequence[Hit] = (),
        *,
        ahead: Sequence[str] = (),
        becoming: Becoming | None = None,
        rank_by: str = "",
        sampling: Sampling | None = None,
    ) -> abc.Generator[Piece, None, None]:
        """The reply to a prompt, token by token; closing it ends the generation. `ahead`: texts that resemble the
        next query, near which clusters are fetched meanwhile (TeleRAG, section 4.1); `becoming`: the queries to
        which the reply so far would lead, and `rank_by` the question that their passages are ranked by, if it is not
        their words. `InputError` if no passage fits the context, `Cancelled` if the question was withdrawn."""
        self._go_on()
        sampling = sampling or Sampling(stop=prompt.stop, max_tokens=prompt.max_tokens or self.options.max_tokens)
        documents = [document_of(hit) for hit in passages]
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
        rehearsal = self._rehearsal if looking and becoming is not None else None
        if rehearsal is not None and becoming is not None:
            rehearsal.begin(f"{self.pipeline}/{prompt.name}", becoming, rank_by)
        written: list[str] = []
        self._longest = sampling.max_tokens
        self._thinking = thinking = Thinking()
        self._stats = None
        before = self.generator.stats
        clock = GeneratorClock()
        try:
            with self.trace.timed("assistant.generate_s", prompt.name, "generation"):
                answer = self.generator.stream(prompt.messages, sampling, documents=documents, cancel=self.cancel)
                for token in clock.timed(answer):
                    for piece in [token] if thinking.replying or isinstance(token, Quoted) else thinking.feed(token):
                        yield piece
                        written.append(piece.text)
                    if looking:
                        self._prefetcher.follow(becoming, "".join(written), clock.count)
                    if rehearsal is not None and becoming is not None:
                        rehearsal.follow(becoming, "".join(written))
                yield from thinking.finish()
        finally:
            if (stats := self.generator.stats) is not before:
                self._stats = stats
            self._record(prompt, clock)
            if self._stats is not None:
                self.given = passages[: len(passages) - self._stats.dropped_documents]
            self.trace.count("assistant.dropped", len(passages) - len(self.given))
        self._go_on()

    def check_replied(self) -> None:
        longest = None if self.finished else self._longest
        self._thinking.check_ended(self.generator.name, longest=longest, most=self.options.max_tokens)

    @property
    def finished(self) -> bool:
        """Whether the last reply ended by itself, and not at its length limit or because the caller stopped it."""
        return self._stats is None or self._stats.finish == "stop"

    @property
    def cut(self) -> bool:
        return self._stats is not None and self._stats.finish == "length"

    def expect(self, prompt: StepPrompt, passages: Sequence[Hit] = ()) -> Seconds | None:
        """The predicted duration of the reply to a prompt; None if no similar one was seen."""
        sampling = self.sampling(prompt)
        documents = [document_of(hit) for hit in passages]
        return self._left(prompt, self._prompt_work(prompt.messages, documents, sampling), sampling.max_tokens, 0)

    def _left(self, prompt: StepPrompt, work: PromptWork, most: int, written: int) -> Seconds | None:
        step = f"{self.pipeline}/{prompt.name}"
        read = None if written else work
        return self._predictor.reply(self.generator.name, step, prompt=read, written=written, most=most)

    def _prompt_work(
        self, messages: Sequence[Message], documents: Sequence[Document], sampling: Sampling
    ) -> PromptWork:
        if isinstance(self.generator, ReusesStates):
            return self.generator.prompt_work(messages, documents, sampling)
        tokens = sum(self.generator.count(message.content) for message in messages)
        return PromptWork(tokens + sum(self.generator.count(numbered(d, i)) for i, d in enumerate(documents, 1)))

    def shown(self, text: str, passages: Sequence[Hit], question: str) -> str:
        """A whole reply in the form in which it is shown; `passages` are those that it was written from."""
        self.given = passages
        checked = question if self.options.check and passages else None
        return self.showing.whole(text, passages, question=checked, judge=self._judge(question, passages))

    def answer(self, prompt: StepPrompt, passages: Sequence[Hit]) -> Iterator[str]:
        """Yields an answer piece by piece, as it is shown. `NotInDocuments` without passages, or if the generator finds
        no answer; `InputError` if none fits the context, or the reply was nothing but thinking."""
        if not passages:
            raise NotInDocuments
        text: GrowingText | None = None
        if self.generator.follows_instructions:
            passages = newest_first(passages)
        with closing(self.stream(prompt, passages, sampling=self.sampling(prompt))) as pieces:
            for piece in pieces:
                if text is None:  # `given` is known only once the generation has begun
                    judge = self._judge(prompt.question, self.given)
                    text = self.showing.begin(self.given, question=self._checked(prompt), judge=judge)
                if more := text.feed(piece):
                    yield more
                if text.loops:
                    break
        self.check_replied()
        if text is None or text.refused:
            raise NotInDocuments
        yield from text.finish(complete=self.finished)

    def _judge(self, question: str, passages: Sequence[Hit]) -> Judge | None:
        if self.probability is None:
            return None
        return Judge(partial(self.library.best_unit, judged_question(question), passages), self.library.related)

    def _checked(self, prompt: StepPrompt) -> str | None:
        """The question that sentences are checked against; None without checking, or if the generator only quotes."""
        return prompt.question if self.options.check and self.generator.follows_instructions else None

    def sampling(self, prompt: StepPrompt) -> Sampling:
        options = self.options
        longest = min(prompt.max_tokens or options.max_tokens, options.max_tokens)
        return Sampling(temperature=options.temperature, seed=options.seed, stop=prompt.stop, max_tokens=longest)

    def retrieve(
        self,
        question: str,
        queries: Sequence[Retrieval] = (),
        *,
        seconds: float | None = None,
        rank_by: str | None = None,
    ) -> list[Hit]:
        """The passages that answer a question best; none if no passage does. One round. The results of several
        `queries` are fused. `seconds`: as many lists are searched as fit in; `rank_by`: what passages are ranked by,
        the asking sentence if not given."""
        looked_up = self.looked_up.get(question, question)
        queries = queries or [Retrieval.asked(looked_up)]
        read_by, rank_by = rank_by or judged_question(question), rank_by or judged_question(looked_up)
        self._begin_round(queries)
        started = time.perf_counter()
        reranking = self._predictor.seconds(_RERANKING, self.options.pool) if self.options.rerank else None
        left = None if seconds is None else seconds - (reranking.upper if reranking else 0.0)
        pools = self._search(queries, 2 * self.options.pool, left)
        searched = time.perf_counter()
        pool = fused(pools)[: 2 * self.options.pool]
        if self.options.rerank and isinstance(self.generator, ReusesStates):
            # Most of the best found passages will be in the prompt. Their states are read while the reranker computes.
            self.generator.read_ahead([hit.key for hit in pool[: self.most]])
        hits = self._rank(rank_by, pool, self.options.pool)
        self._retrieved(started)
        return self._keep(queries, read_by, hits, searched - started, time.perf_counter() - searched)

    def retrieve_each(self, questions: Sequence[str]) -> list[list[Hit]]:
        """The best passages for each of several questions, searched as one batch, in one round. Each gets an equal
        share of the pool."""
        queries = [Retrieval.asked(question) for question in questions]
        share = max(self.most, self.options.pool // len(queries))
        self._begin_round(queries)
        begun = time.perf_counter()
        pools = self._search(queries, 2 * share, None)
        search_s = (time.perf_counter() - begun) / len(queries)
        found = []
        for query, question, pool in zip(queries, map(judged_question, questions), pools, strict=True):
            started = time.perf_counter()
            hits = self._rank(question, pool, share)
            found.append(self._keep([query], question, hits, search_s, time.perf_counter() - started))
        self._retrieved(begun)
        return found

    def relevance(self, question: str) -> float:
        """That of the passage which answers a question best; 0 if none is ranked."""
        queries = [Retrieval.asked(question)]
        found = self._rank(
            judged_question(question), self._search(queries, 2 * self.options.pool, None)[0], self.options.pool
        )
        return found[0].relevance or 0.0 if found else 0.0

    def retrieve_parts(self, parts: Sequence[str]) -> list[list[Hit]]:
        """The best passages for each part of a question (see `retrieve_each`); empty if a part has no answer."""
        found = self.retrieve_each(parts)
        answered = [entry.best for entry in self.rounds[-len(parts) :] if entry.best is not None]
        if all(found):
            self.probability = min(answered, default=None)
            return found
        self.probability = None
        return []

    def _retrieved(self, started: float) -> None:
        if self._rehearsal is not None:
            self._rehearsal.judge(time.perf_counter() - started)

    def _rehearse(self, queries: Sequence[Retrieval], rank_by: str) -> None:
        share = max(self.most, self.options.pool // len(queries))
        pools = self.library.candidates(queries, self._vectors.of(queries), 2 * share, where=self.options.filters)
        for query, pool in zip(queries, pools, strict=True):
            self._go_on()
            if self.options.rerank and pool:
                question = judged_question(rank_by or query.words)
                self.library.rerank(question, pool, self.options.read, share)

    def _go_on(self) -> None:
        if self.cancel.is_set():
            raise Cancelled

    def close(self) -> None:
        self._prefetcher.close()
        if self._rehearsal is not None:
            self._rehearsal.ready()

    def _search(self, queries: Sequence[Retrieval], k: int, seconds: float | None) -> list[list[Hit]]:
        started = time.perf_counter()
        if self._rehearsal is not None:
            self._rehearsal.ready()
        window = self._prefetcher.ready()
        vectors = self._vectors.of(queries)
        seconds = None if seconds is None else max(0.0, seconds - (time.perf_counter() - started))
        with self.trace.timed(
            "assistant.search_s", "search" if len(queries) == 1 else f"search, {len(queries)} queries", "retrieval"
        ):
            found = self.library.candidates(
                queries, vectors, k, where=self.options.filters, seconds=seconds, window=window
            )
        self.close()
        return found

    def _embed(self, texts: Sequence[str]) -> Vectors:
        self._go_on()
        with self.trace.timed("assistant.embed_s", "embed", "retrieval"):
            return self.library.embed_queries(texts)

    def _rank(self, question: str, hits: Sequence[Hit], judged: int) -> list[Hit]:
        """The best of the first `judged` of `hits`; the others show how good the scores of these are."""
        self._go_on()
        if not hits or not self.options.rerank:
            return list(hits[: self.options.read])
        started = time.perf_counter()
        with self.trace.timed("assistant.rerank_s", "rerank", "retrieval"):
            ranked = self.library.rerank(question, hits, self.options.read, judged)
        self._predictor.learn(_RERANKING, min(len(hits), judged), time.perf_counter() - started)
        return ranked

    def _keep(
        self, queries: Sequence[Retrieval], question: str, hits: list[Hit], search_s: float, rerank_s: float
    ) -> list[Hit]:
        started = time.perf_counter()
        kept, best = self._answering(question, hits)
        rerank_s += time.perf_counter() - started
        asked = tuple(" + ".join(query.near) for query in queries)
        below, kept = len(hits) - len(kept), kept[: self.most]
        nearest = () if kept else tuple(hit.citation for hit in hits[: self.most])
        self.rounds.append(Round(asked, question, tuple(kept), below, best, search_s, rerank_s, nearest))
        self._go_on()
        return kept

    def _answering(self, question: str, hits: list[Hit]) -> tuple[list[Hit], float | None]:
        if not hits or not self.options.rerank:
            return hits, None
        with self.trace.timed("assistant.rerank_s", "read", "retrieval"):
            reading = self.library.read(question, hits)
        self.certain = reading.certain
        self.probability = max(reading.probability, self.probability or 0.0)
        if reading.exact:
            self.span = reading.answers[0].span
        self.needed = NEAREST if self.options.min_relevance is None else self.options.min_relevance
        return (hits if reading.probability >= self.needed else []), reading.probability

    def _begin_round(self, queries: Sequence[Retrieval]) -> None:
        self._go_on()
        self.trace.count("assistant.rounds")
        self.trace.count("assistant.queries", len(queries))

    def _record(self, prompt: StepPrompt, clock: GeneratorClock) -> None:
        stats = self._stats
        self.trace.count("assistant.generations")
        self.trace.count("assistant.new_tokens", clock.count)
        if stats is None:
            return
        self.trace.count("assistant.prompt_tokens", stats.prompt_tokens)
        self.trace.count("assistant.cached_tokens", stats.cached_tokens)
        if self.cancel.is_set():  # the length of a reply that was cut short teaches the predictor nothing
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


def fused(pools: Sequence[Sequence[Hit]]) -> list[Hit]:
    if len(pools) == 1:
        return list(pools[0])
    hits = {(hit.collection, hit.id): hit for pool in pools for hit in pool}
    ranks = [[(hit.collection, hit.id) for hit in pool] for pool in pools]
    return [hits[key] for key, _ in reciprocal_rank_fusion(ranks)]


def merge_passages(most: int, *sets: Sequence[Hit]) -> list[Hit]:
    """The `most` most relevant passages of several sets. Those of earlier sets keep their places, so that KV states are
    reused."""
    seen: dict[str, Hit] = {}
    for hit in (hit for hits in sets for hit in hits):
        if hit.key not in seen or hit.score > seen[hit.key].score:
            seen[hit.key] = hit
    kept = sorted(seen.values(), key=lambda hit: hit.score, reverse=True)[:most]
    return [hit for hit in seen.values() if hit in kept]


def newest_first(passages: Sequence[Hit]) -> list[Hit]:
    """Passages in their order, but mails of one thread newest first: a newer one may correct an older one."""
    order = list(passages)
    threads: dict[str, list[int]] = {}
    for place, hit in enumerate(passages):
        if hit.mail is not None and hit.mail.thread and hit.mail.sent:
            threads.setdefault(hit.mail.thread, []).append(place)
    for places in threads.values():
        newest = sorted((passages[place] for place in places), key=lambda hit: hit.mail.sent, reverse=True)  # type: ignore[union-attr]
        for place, hit in zip(places, newest, strict=True):
            order[place] = hit
    return order


def dealt(most: int, sets: Sequence[Sequence[Hit]]) -> list[Hit]:
    """The best passage of each set, then the second best of each, and so on, `most` in all."""
    turns = (hit for turn in zip_longest(*sets) for hit in turn if hit is not None)
    return list({hit.key: hit for hit in turns}.values())[:most]


def documents_read(
    generator: Generator, messages: Sequence[Message], documents: Sequence[Document], sampling: Sampling
) -> int:
    """The number of documents, from the first, that fit the context beside an answer: exact for llama.cpp, for others
    as good as their `count`. `InputError` if none fits."""
    if not documents:
        return 0
    used = sum(generator.count(message.content) for message in messages)
    least = generator.count(numbered(documents[0], 1))
    answer = answer_room(generator.context, sampling.max_tokens)
    if isinstance(generator, LlamaGenerator):
        names = {document.id for document in documents}
        read = sum(segment.id in names for segment in generator.path(messages, documents, sampling))
    else:
        room = generator.context - used - answer
        read = 0
        for number, document in enumerate(documents, 1):
            room -= generator.count(numbered(document, number))
            if room < 0:
                break
            read = number
    if read == 0:
        raise InputError(
            f"none of the {len(documents)} passages fits the context of {generator.name}, so that nothing could be "
            f"answered from them: it holds {generator.context:,} tokens, the question and what is asked with it take "
            f"about {used:,}, the answer {answer:,} and the first passage {least:,}; take a larger "
            f"context (--context, EDGE_CONTEXT), or a model that has one"
        )
    return read


def cached_first(
    generator: Generator,
    messages: Sequence[Message],
    passages: Sequence[Hit],
    documents: Sequence[Document],
    sampling: Sampling,
    tolerance: float,
) -> list[int]:
    """The order, as indices, in which to give passages: those of about equal relevance change places so that KV states
    are reused."""
    scores = [hit.score for hit in passages]
    if not tolerance or not isinstance(generator, ReusesStates) or scores != sorted(scores, reverse=True):
        return list(range(len(passages)))
    return generator.cached_order(messages, documents, sampling, scores=scores, tolerance=tolerance)
