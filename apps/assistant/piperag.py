"""PipeRAG: the next passages are retrieved while the answer is being written (Jiang et al. 2024).

The paper's model attends to retrieved text chunk by chunk, and shifts the text by the staleness of its query. Here the
prompt holds whole passages, which are not aligned with the answer's position. A stale result is therefore used
unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator

from edge.apps.assistant import prompts
from edge.apps.assistant.judged_question import judged_question
from edge.apps.assistant.passages import merge_passages
from edge.apps.assistant.prefetching import Query
from edge.apps.assistant.steps import Steps
from edge.apps.collection.hits import Hit
from edge.scheduling.pipelining import RetrievalPipeline
from edge.sentences import sentences

INTERVAL = 32
"""Tokens between retrievals (m'). Shorter intervals mean fresher queries and more prompts."""

_WINDOW_WORDS = 48
"""The number of the answer's last words that form the query: about the 64 tokens of the paper."""


def piperag(question: str, steps: Steps) -> Iterator[str]:
    """Answers in intervals. Each interval from the second on starts a search with the text so far, whose result is used
    one interval later. The search is as wide as the interval's time allows (S1 to S3)."""
    passages = steps.retrieve(question)
    said = ""
    left = steps.options.max_tokens

    def search(query: str, seconds: float) -> list[Hit]:
        recent = sentences(query)[-1:]
        rank_by = " ".join([judged_question(question), *recent])
        return steps.retrieve(question, [Query(query, (question, query))], seconds=seconds, rank_by=rank_by)

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
