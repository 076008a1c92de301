"""Self-RAG: decide whether to retrieve, answer from each passage, keep the answer that stands up to critique (Asai et
al. 2023). Its reflection tokens exist only in models trained for it; here the same is asked in words."""

from __future__ import annotations

from collections.abc import Iterator

from edge.apps.assistant import prompts, replies
from edge.apps.assistant.base import NotInDocuments
from edge.apps.assistant.steps import Steps
from edge.apps.collection.hits import Hit

_DRAFTS = 3
"""Passages that an answer is written from; each costs a generation and two judgements."""

_USEFUL_WEIGHT = 0.5
_UNJUDGED_SUPPORT = 0.5
_UNJUDGED_USE = 3


def self_rag(question: str, steps: Steps) -> Iterator[str]:
    """The best of the answers from the best passages; none if nothing supports any.

    IsRel is the reranker's relevance, IsSup and IsUse are judged by the generator; an answer's score is their sum with
    the paper's weights 1, 1 and 0.5. Clusters near the question are fetched while the need for documents is decided:
    the query will be the question itself.
    """
    needed = replies.verdict(steps.write(prompts.needs_documents(question), ahead=[question]))
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
    yield steps.shown(draft, [passage])


def _draft(question: str, passage: Hit, steps: Steps) -> str:
    """An answer from one passage; empty if it holds none."""
    text = steps.write(prompts.answer(question, name="draft"), [passage])
    steps.check_replied()
    return "" if replies.refused(text) else text


def _score(question: str, passage: Hit, draft: str, steps: Steps) -> float | None:
    """How good an answer is; None if its passage does not support it. Where the generator gives no verdict, the middle
    of the scale stands for it."""
    support = replies.support(steps.write(prompts.supported(question, draft), [passage]))
    if support == 0:
        return None
    use = replies.grade(steps.write(prompts.useful(question, draft)))
    relevance = passage.stages.relevance
    return (
        (passage.score if relevance is None else relevance)
        + (_UNJUDGED_SUPPORT if support is None else support)
        + _USEFUL_WEIGHT * ((_UNJUDGED_USE if use is None else use) - 1) / 4
    )
