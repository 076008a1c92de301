"""PipeRAG: the next passages are retrieved while the answer goes on (Jiang et al. 2024).

There, retrieved text is attended to chunk by chunk and shifted by the staleness of its query. Here whole passages stand
in the prompt and begin nowhere in particular, so there is nothing to shift: a stale result is used as it is.
"""

from __future__ import annotations

from collections.abc import Iterator

from edge.apps.assistant import prompts
from edge.apps.assistant.judged_question import judged_question
from edge.apps.assistant.passages import merge_passages
from edge.apps.assistant.prefetching import Query
from edge.apps.assistant.steps import Steps
from edge.apps.collection.hits import Hit
from edge.pipelining import RetrievalPipeline
from edge.sentences import sentences

INTERVAL = 32
"""Tokens between retrievals (m'). Shorter ones mean fresher queries and more prompts."""

_WINDOW_WORDS = 48
"""The last words of the answer that are the query: about the 64 tokens of the paper."""


def piperag(question: str, steps: Steps) -> Iterator[str]:
    """Answer in intervals. From the second on, each begins by asking for what is near to the text so far; the result is
    used one interval later, and the search is as wide as its time allows (S1 to S3)."""
    passages = steps.retrieve(question)
    said = ""
    left = steps.options.max_tokens

    def search(query: str, seconds: float) -> list[Hit]:
        recent = sentences(query)[-1:]
        rank_by = " ".join([judged_question(question), *recent])
        return steps.retrieve(question, [Query(query, (question, query))], seconds=seconds, rank_by=rank_by)

    with RetrievalPipeline(search, trace=steps.trace) as pipeline:
        while left > 0:
            begun = steps.citations.prompted(said, passages)
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
                passages = merge_passages(steps.options.passages, passages, pipeline.take())
