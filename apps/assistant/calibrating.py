"""Fits how probable it is that a result of a search answers, for one pair of an embedder and a reranker."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from edge.apps.assistant.question import judged_question
from edge.apps.collection.collection import Collection
from edge.apps.collection.hits import merge
from edge.apps.verbs.requests import AskOptions
from edge.errors import InputError
from edge.models.evidence import RESULT_SIGNALS, Evidence, fit, result_signals, results_name

_FEWEST = 8
"""The fewest questions to fit a pair on."""

_RIDGE = 2.0

Results = Sequence[tuple[float, bool]]
"""The blended score of each result of a search, best first, and whether it answers."""


def fitted_pair(
    collection: Collection, asked: Sequence[tuple[str, frozenset[str]]], progress: Callable[[int, int], None] | None
) -> dict[str, Evidence]:
    """The model fitted for the collection's embedder and reranker, by the name under which it is stored. `asked`:
    questions with the paths that answer them; each is asked with these passages and without them."""
    if len(asked) < _FEWEST:
        raise InputError(
            f"probabilities are fitted on at least {_FEWEST} queries with relevant documents, not {len(asked)}"
        )
    found: list[Results] = []
    for number, (question, right) in enumerate(asked, 1):
        hits = collection.candidates(question, k=2 * AskOptions().pool)
        for pool in (hits, [hit for hit in hits if hit.path not in right]):
            ranked = merge(
                collection.rerank(judged_question(question), pool, AskOptions().read, judged=AskOptions().pool),
                AskOptions().read,
            )
            found.append([(hit.stages.blend or 0.0, hit.path in right) for hit in ranked])
        if progress is not None:
            progress(number, len(asked))
    return fitted_on(found, collection.embedder.model.name)


def fitted_on(found: Sequence[Results], embedder: str) -> dict[str, Evidence]:
    blended = [values for results in found for values in result_signals([score for score, _ in results])]
    answers = np.array([right for results in found for _, right in results])
    model = fit(np.array(blended), answers, ridge=_RIDGE)
    return {results_name(embedder): Evidence(RESULT_SIGNALS, model, 0.0, embedder, len(answers))}
