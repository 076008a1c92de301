"""The pipelines, which turn a question into retrievals and generations: each takes a question and `Steps`, and yields
the answer's text. `ahead` are texts that resemble the next query, so that clusters are fetched meanwhile (TeleRAG,
figure 8)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress

from edge.apps.assistant import prompts
from edge.apps.assistant.answer import NotInDocuments
from edge.apps.assistant.question import asked_parts, judged_question
from edge.apps.assistant.retrieval import Retrieval
from edge.apps.assistant.steps import Steps, dealt, merge_passages
from edge.apps.collection.hits import Hit
from edge.errors import CapabilityError
from edge.runtimes.generation.base import Piece
from edge.scheduling.background import RetrievalPipeline
from edge.text.sentences import sentences

Pipeline = Callable[[str, Steps], Iterator[str]]

_SUB_QUESTIONS = 4


def plain(question: str, steps: Steps) -> Iterator[str]:
    """Retrieves once, then answers. The two parts of a question are looked up each for itself (see `asked_parts`)."""
    parts = asked_parts(question)
    found = steps.retrieve_parts(parts) if len(parts) > 1 else []
    if not found:
        yield from steps.answer(prompts.answer(question), steps.retrieve(question))
    elif steps.writes:
        yield from steps.answer(prompts.answer(question), dealt(steps.most, found))
    else:
        for part, passages in zip(parts, found, strict=True):
            yield "\n" if part != parts[0] else ""
            with suppress(NotInDocuments):
                yield from steps.answer(prompts.answer(part), passages)


def hyde(question: str, steps: Steps) -> Iterator[str]:
    """Retrieves near the mean of the question's vector and that of a generated passage (HyDE: Gao et al. 2022, equation
    8)."""

    def query(passage: str) -> list[Retrieval]:
        return [Retrieval(question, (question, passage) if passage.strip() else (question,))]

    passage = steps.write(prompts.hypothetical(question), ahead=[question], becoming=query)
    passages = steps.retrieve(question, query(passage))
    yield from steps.answer(prompts.answer(question), passages)


def subquestion(question: str, steps: Steps) -> Iterator[str]:
    """Retrieves for up to four simpler questions in one batch, then answers from all passages found."""

    def queries(reply: str) -> list[Retrieval]:
        return [Retrieval.of(part) for part in prompts.read_questions(reply, _SUB_QUESTIONS)]

    reply = steps.write(prompts.sub_questions(question, _SUB_QUESTIONS), ahead=[question], becoming=queries)
    parts = prompts.read_questions(reply, _SUB_QUESTIONS) or [question]
    passages = dealt(steps.most, steps.retrieve_each(parts))
    yield from steps.answer(prompts.answer(question), passages)


def iterative(question: str, steps: Steps) -> Iterator[str]:
    """Looks up one narrower question after another, until the generator judges that the findings are enough."""
    findings: list[tuple[str, str]] = []
    passages: list[Hit] = []
    narrower = question
    for _ in range(steps.options.rounds):
        prompt = prompts.narrower(question, findings)
        narrower = prompts.read_line(steps.write(prompt, ahead=[question, narrower], becoming=_one_line)) or question
        found = steps.retrieve(narrower)
        passages = merge_passages(steps.most, passages, found)
        finding = steps.write(prompts.answer(narrower, name="finding", max_tokens=96), found, ahead=[question])
        findings.append((narrower, finding))
        if prompts.read_verdict(steps.write(prompts.enough(question, findings), ahead=[question])):
            break
    yield from steps.answer(prompts.combined(question, findings), passages)


def iter_retgen(question: str, steps: Steps) -> Iterator[str]:
    """Drafts an answer, retrieves near the question and the draft, and answers again (Iter-RetGen: Shao et al.
    2023)."""

    def query(draft: str) -> list[Retrieval]:
        return [Retrieval.of(f"{question} {draft}")]

    passages = steps.retrieve(question)
    for _ in range(steps.options.rounds - 1):
        if not passages:
            break
        prompt = prompts.answer(question, name="draft")
        draft = steps.write(prompt, passages, ahead=[question], becoming=query, rank_by=question)
        passages = merge_passages(steps.most, passages, steps.retrieve(question, query(draft)))
    yield from steps.answer(prompts.answer(question), passages)


def _one_line(reply: str) -> list[Retrieval]:
    line = prompts.read_line(reply)
    return [Retrieval.of(line)] if line else []


INTERVAL = 32
"""Tokens between PipeRAG's retrievals (m'). Shorter intervals mean fresher queries and more prompts."""

_WINDOW_WORDS = 48
"""The number of the answer's last words that form the query: about the 64 tokens of the paper."""


def piperag(question: str, steps: Steps) -> Iterator[str]:
    """Answers in intervals. Each from the second on starts a search with the text so far, whose result is used one
    interval later, and which is as wide as the interval's time allows (PipeRAG: Jiang et al. 2024, S1 to S3). The paper
    shifts retrieved text by the staleness of its query; passages of a prompt are not aligned with the answer, so they
    are used unchanged."""
    passages = steps.retrieve(question)
    said = ""
    left = steps.options.max_tokens

    def search(query: str, seconds: float) -> list[Hit]:
        recent = sentences(query)[-1:]
        rank_by = " ".join([judged_question(question), *recent])
        return steps.retrieve(question, [Retrieval(query, (question, query))], seconds=seconds, rank_by=rank_by)

    with RetrievalPipeline(search, trace=steps.trace) as pipeline:
        while left > 0:
            begun = steps.showing.citations.prompted(said, passages)
            prompt = prompts.answer(question, name="interval", begun=begun, max_tokens=min(INTERVAL, left))
            slack = steps.expect(prompt, passages) if said else None
            if slack is not None:
                pipeline.ask(" ".join(said.split()[-_WINDOW_WORDS:]), slack.mean)
            for text in steps.answer(prompt, passages):
                said += text
                yield text
            left -= INTERVAL
            if steps.finished:
                return
            if slack is not None:
                passages = merge_passages(steps.most, passages, pipeline.take())


_DRAFTS = 3
"""The number of passages for which an answer is drafted; each costs a generation and two judgements."""

_USEFUL_WEIGHT = 0.5
_UNJUDGED_SUPPORT = 0.5
_UNJUDGED_USE = 3


def self_rag(question: str, steps: Steps) -> Iterator[str]:
    """Decides whether to retrieve, and yields the best of the answers drafted from the best passages (Self-RAG: Asai et
    al. 2023). The critique is asked for in words. IsRel is the reranker's relevance; the generator judges IsSup and
    IsUse; the weights are the paper's 1, 1 and 0.5."""
    needed = prompts.read_verdict(steps.write(prompts.needs_documents(question), ahead=[question]))
    if needed is False:
        for piece in steps.stream(prompts.small_talk(question)):
            yield piece.text
        return
    drafts = [(passage, _draft(question, passage, steps)) for passage in steps.retrieve(question)[:_DRAFTS]]
    judged = [(_score(question, passage, draft, steps), passage, draft) for passage, draft in drafts if draft]
    supported = [(score, passage, draft) for score, passage, draft in judged if score is not None]
    if not supported:
        raise NotInDocuments
    _, passage, draft = max(supported, key=lambda entry: entry[0])
    yield steps.shown(draft, [passage], question)


def _draft(question: str, passage: Hit, steps: Steps) -> str:
    text = steps.write(prompts.answer(question, name="draft"), [passage])
    steps.check_replied()
    return "" if prompts.is_refusal(text) else text


def _score(question: str, passage: Hit, draft: str, steps: Steps) -> float | None:
    """The score of an answer; None if its passage does not support it. A missing verdict counts as the middle of the
    scale."""
    support = prompts.read_support(steps.write(prompts.supported(question, draft), [passage]))
    if support == 0:
        return None
    use = prompts.read_grade(steps.write(prompts.useful(question, draft)))
    return (
        passage.score
        + (_UNJUDGED_SUPPORT if support is None else support)
        + _USEFUL_WEIGHT * ((_UNJUDGED_USE if use is None else use) - 1) / 4
    )


UNSURE = 0.8
"""A sentence with a token less probable than this is looked up and written anew (theta)."""

_MASKED = 0.4
"""Tokens less probable than this are left out of the query, because they may be wrong (beta)."""

_SENTENCE_TOKENS = 64
_MARKS = ("[", "]")


def flare(question: str, steps: Steps) -> Iterator[str]:
    """Writes an answer sentence by sentence. Of one with an improbable token, the other tokens are the query of a
    retrieval, and it is written again (FLARE: Jiang et al. 2023). It ends when a sentence is repeated: some servers do
    not continue a message but begin anew. `CapabilityError` if the generator reports no probabilities."""
    passages = steps.retrieve(question)
    if not passages:
        yield from steps.answer(prompts.answer(question), passages)
    said = ""
    last = ""
    retrievals = 1
    left = steps.options.max_tokens
    while passages and left > 0:
        draft = _sentence(question, said, passages, steps, left, ahead=[question, last] if last else [question])
        if not _text(draft).strip():
            steps.check_replied()
            return
        if retrievals <= steps.options.rounds and (query := _doubt(draft)) is not None:
            retrievals += 1
            rank_by = f"{judged_question(question)} {query}".strip()
            found = steps.retrieve(question, [Retrieval.of(query or question)], rank_by=rank_by)
            passages = merge_passages(steps.most, found, passages)
            draft = _sentence(question, said, passages, steps, left)
        left -= len(draft)
        ended = steps.finished
        before, last = last, steps.shown(_text(draft), steps.given, question)
        if prompts.is_refusal(last):
            raise NotInDocuments
        # A reply that holds only marks of passages that do not exist would repeat for ever, too.
        if last.strip() in ("", before.strip()):
            return
        shown = f" {last.lstrip()}" if said and not said[-1].isspace() and not last[:1].isspace() else last
        said += shown
        yield shown
        if ended:
            return


def _sentence(
    question: str, said: str, passages: Sequence[Hit], steps: Steps, left: int, ahead: Sequence[str] = ()
) -> list[Piece]:
    """The tokens of the next sentence, at most `left`; empty when the answer has ended."""
    begun = steps.showing.citations.prompted(said, passages)
    prompt = prompts.answer(question, name="sentence", begun=begun, max_tokens=min(_SENTENCE_TOKENS, left))
    pieces: list[Piece] = []
    sampling = steps.sampling(prompt)
    with closing(steps.stream(prompt, passages, ahead=ahead, becoming=_so_far, sampling=sampling)) as stream:
        for piece in stream:
            if piece.logprob is None:
                raise CapabilityError(
                    f"flare asks how probable each token was, and {steps.generator.name} does not tell: "
                    f"use another pipeline, or a GGUF model"
                )
            pieces.append(piece)
            if len(pieces) > 1 and len(sentences(_text(pieces))) > 1:
                pieces.pop()  # the token that begins the following sentence
                break
    return pieces


def _so_far(written: str) -> list[Retrieval]:
    return [Retrieval.of(written.strip())] if written.strip() else []


def _doubt(sentence: Sequence[Piece]) -> str | None:
    """The query of an uncertain sentence: its tokens without the improbable ones. None if all tokens are certain."""
    spoken = [piece for piece in sentence if piece.text.strip() and not piece.text.strip().startswith(_MARKS)]
    if all(_sure(piece, UNSURE) for piece in spoken):
        return None
    return _text([piece for piece in sentence if _sure(piece, _MASKED)]).strip()


def _sure(piece: Piece, least: float) -> bool:
    return (piece.logprob or 0.0) >= math.log(least)


def _text(pieces: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


PIPELINES: Mapping[str, Pipeline] = {
    "plain": plain,
    "hyde": hyde,
    "subquestion": subquestion,
    "iterative": iterative,
    "iter-retgen": iter_retgen,
    "flare": flare,
    "self-rag": self_rag,
    "piperag": piperag,
}
"""The pipelines by their `--pipeline` names. All but `plain` need a generator that follows instructions."""
