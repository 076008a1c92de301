"""Self-RAG: decides whether to retrieve, answers from each passage, and keeps the answer with the best critique (Asai
et al. 2023). Its reflection tokens exist only in models trained for it, so the critique is requested in words here."""

from __future__ import annotations

from collections.abc import Iterator

from edge.apps.assistant import prompts, replies
from edge.apps.assistant.base import NotInDocuments
from edge.apps.assistant.steps import Steps
from edge.apps.collection.hits import Hit

_DRAFTS = 3
"""The number of passages for which an answer is drafted; each costs a generation and two judgements."""

_USEFUL_WEIGHT = 0.5
_UNJUDGED_SUPPORT = 0.5
_UNJUDGED_USE = 3


def self_rag(question: str, steps: Steps) -> Iterator[str]:
    """Yields the best of the answers drafted from the best passages.

    IsRel is the reranker's relevance; the generator judges IsSup and IsUse. An answer's score is their sum with the
    paper's weights 1, 1 and 0.5. While the need for documents is decided, clusters near the question are fetched,
    because the question itself will be the query.

    Raises:
        NotInDocuments: no passage supports an answer.
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
    """An answer from one passage; empty if the passage holds none."""
    text = steps.write(prompts.answer(question, name="draft"), [passage])
    steps.check_replied()
    return "" if replies.refused(text) else text


def _score(question: str, passage: Hit, draft: str, steps: Steps) -> float | None:
    """The score of an answer; None if its passage does not support it. A missing verdict of the generator counts as
    the middle of the scale."""
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
