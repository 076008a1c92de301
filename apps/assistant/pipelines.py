"""The pipelines, which turn a question into retrievals and generations. Each is a function over the same few steps.

A pipeline takes a question and `Steps`, and yields the answer's text. Before each intermediate generation it names, as
`ahead`, the texts that most resemble its next query, so that clusters are fetched meanwhile (TeleRAG, figure 8).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from edge.apps.assistant import prompts, replies
from edge.apps.assistant.flare import flare
from edge.apps.assistant.passages import dealt, merge_passages
from edge.apps.assistant.piperag import piperag
from edge.apps.assistant.prefetching import Query
from edge.apps.assistant.self_rag import self_rag
from edge.apps.assistant.steps import Steps
from edge.apps.collection.hits import Hit

Pipeline = Callable[[str, Steps], Iterator[str]]

_SUB_QUESTIONS = 4


def plain(question: str, steps: Steps) -> Iterator[str]:
    """Retrieves once, then answers."""
    passages = steps.retrieve(question)
    yield from steps.answer(prompts.answer(question), passages)


def hyde(question: str, steps: Steps) -> Iterator[str]:
    """Retrieves passages near a generated passage that might hold the answer.

    The query vector is the mean of that passage's vector and the question's (HyDE: Gao et al. 2022, equation 8). The
    full-text search uses the question's own words.
    """

    def query(passage: str) -> list[Query]:
        return [Query(question, (question, passage) if passage.strip() else (question,))]

    passage = steps.write(prompts.hypothetical(question), ahead=[question], becoming=query)
    passages = steps.retrieve(question, query(passage))
    yield from steps.answer(prompts.answer(question), passages)


def subquestion(question: str, steps: Steps) -> Iterator[str]:
    """Retrieves for up to four simpler questions in one batch, then answers from all passages found."""

    def queries(reply: str) -> list[Query]:
        return [Query.of(part) for part in replies.questions(reply, _SUB_QUESTIONS)]

    reply = steps.write(prompts.sub_questions(question, _SUB_QUESTIONS), ahead=[question], becoming=queries)
    parts = replies.questions(reply, _SUB_QUESTIONS) or [question]
    passages = dealt(steps.most, steps.retrieve_each(parts))
    yield from steps.answer(prompts.answer(question), passages)


def iterative(question: str, steps: Steps) -> Iterator[str]:
    """Looks up one narrower question after another, each chosen after the findings so far, until the generator judges
    that the findings are enough."""
    findings: list[tuple[str, str]] = []
    passages: list[Hit] = []
    narrower = question
    for _ in range(steps.options.rounds):
        prompt = prompts.narrower(question, findings)
        narrower = replies.one_line(steps.write(prompt, ahead=[question, narrower], becoming=_one_line)) or question
        found = steps.retrieve(narrower)
        passages = merge_passages(steps.most, passages, found)
        finding = steps.write(prompts.answer(narrower, name="finding", max_tokens=96), found, ahead=[question])
        findings.append((narrower, finding))
        if replies.verdict(steps.write(prompts.enough(question, findings), ahead=[question])):
            break
    yield from steps.answer(prompts.combined(question, findings), passages)


def iter_retgen(question: str, steps: Steps) -> Iterator[str]:
    """Drafts an answer, retrieves passages near the question and the draft together, and answers again (Iter-RetGen:
    Shao et al. 2023). While a draft is written, clusters for the next retrieval are fetched."""

    def query(draft: str) -> list[Query]:
        return [Query.of(f"{question} {draft}")]

    passages = steps.retrieve(question)
    for _ in range(steps.options.rounds - 1):
        if not passages:
            break
        prompt = prompts.answer(question, name="draft")
        draft = steps.write(prompt, passages, ahead=[question], becoming=query)
        passages = merge_passages(steps.most, passages, steps.retrieve(question, query(draft)))
    yield from steps.answer(prompts.answer(question), passages)


def _one_line(reply: str) -> list[Query]:
    line = replies.one_line(reply)
    return [Query.of(line)] if line else []


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
