"""The pipelines: how a question becomes retrievals and generations. Each is a function over the same few steps.

A pipeline takes a question and `Steps`, and yields the answer's text. What it writes on the way is asked for with
`ahead`, the text nearest to what it will retrieve next, so that clusters are fetched meanwhile (TeleRAG, figure 8).
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
    """Retrieve once, answer."""
    passages = steps.retrieve(question)
    yield from steps.answer(prompts.answer(question), passages)


def hyde(question: str, steps: Steps) -> Iterator[str]:
    """Retrieve what is near to a passage that might hold the answer (HyDE: Gao et al. 2022, equation 8: the mean of its
    vector and the question's); words are looked for as they were asked."""

    def query(passage: str) -> list[Query]:
        return [Query(question, (question, passage) if passage.strip() else (question,))]

    passage = steps.write(prompts.hypothetical(question), ahead=[question], becoming=query)
    passages = steps.retrieve(question, query(passage))
    yield from steps.answer(prompts.answer(question), passages)


def subquestion(question: str, steps: Steps) -> Iterator[str]:
    """Retrieve for each of up to four simpler questions in one batch, answer from all that was found."""

    def queries(reply: str) -> list[Query]:
        return [Query.of(part) for part in replies.questions(reply, _SUB_QUESTIONS)]

    reply = steps.write(prompts.sub_questions(question, _SUB_QUESTIONS), ahead=[question], becoming=queries)
    parts = replies.questions(reply, _SUB_QUESTIONS) or [question]
    passages = dealt(steps.options.passages, steps.retrieve_each(parts))
    yield from steps.answer(prompts.answer(question), passages)


def iterative(question: str, steps: Steps) -> Iterator[str]:
    """Look up one narrower question after the other, each chosen after what the ones before it brought, until that is
    judged to be enough."""
    findings: list[tuple[str, str]] = []
    passages: list[Hit] = []
    narrower = question
    for _ in range(steps.options.rounds):
        prompt = prompts.narrower(question, findings)
        narrower = replies.one_line(steps.write(prompt, ahead=[question, narrower], becoming=_one_line)) or question
        found = steps.retrieve(narrower)
        passages = merge_passages(steps.options.passages, passages, found)
        finding = steps.write(prompts.answer(narrower, name="finding", max_tokens=96), found, ahead=[question])
        findings.append((narrower, finding))
        if replies.verdict(steps.write(prompts.enough(question, findings), ahead=[question])):
            break
    yield from steps.answer(prompts.combined(question, findings), passages)


def iter_retgen(question: str, steps: Steps) -> Iterator[str]:
    """Answer, retrieve what is near to question and answer, answer again (Iter-RetGen: Shao et al. 2023); while one
    answer is written, clusters for the next retrieval are fetched."""

    def query(draft: str) -> list[Query]:
        return [Query.of(f"{question} {draft}")]

    passages = steps.retrieve(question)
    for _ in range(steps.options.rounds - 1):
        if not passages:
            break
        prompt = prompts.answer(question, name="draft")
        draft = steps.write(prompt, passages, ahead=[question], becoming=query)
        passages = merge_passages(steps.options.passages, passages, steps.retrieve(question, query(draft)))
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
"""By the name that `--pipeline` takes. All but `plain` need a generator that follows instructions."""
