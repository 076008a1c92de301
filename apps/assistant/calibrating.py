"""Fits when passages count as an answer, for one pair of an embedder and a reranker.

Each question is asked with the passages that answer it and without them. The signals of both (see `evidence`) tell how
likely it is that their best quotation answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from edge.apps.assistant.evidence import FITTED, SIGNALS, UnitJudge, UnitReading, document_of
from edge.apps.assistant.generator import PickedSentences
from edge.apps.assistant.question import judged_question
from edge.apps.collection.collection import Collection
from edge.apps.collection.hits import Hit, merge
from edge.apps.requests import AskOptions
from edge.errors import InputError
from edge.models.evidence import Evidence, fit
from edge.runtimes.generation.base import Message, Sampling
from edge.runtimes.generation.extractive import Quoted

_LEAST, _CERTAIN = 0.15, 0.7
"""The probability that the best quotation is right, from which the closest passages are shown, and from which the
quotation is shown as the answer. A refusal hides a passage that the user could have judged. Chosen on the halves
`choose` of the benchmarks `answers` and `household` with both known embedders."""

_FEWEST = 8
"""The fewest questions to fit a pair on."""

_RIDGE = 2.0


@dataclass(frozen=True, slots=True)
class JudgedUnit:
    """A question.

    Attributes:
        kind: the kind of the question.
        there: whether its answer was in the documents.
        right: whether the quotation of the passages is right.
        reading: what the units of the passages tell.
    """

    kind: str
    there: bool
    right: bool
    reading: UnitReading


def fitted_pair(
    collection: Collection, asked: Sequence[tuple[str, frozenset[str]]], progress: Callable[[int, int], None] | None
) -> Evidence:
    """Fits the collection's embedder and reranker.

    Args:
        asked: questions, each with the paths of the texts of the collection that answer it.
        progress: called with (questions done, questions in all).

    Raises:
        InputError: there are too few questions.
        The errors of `Collection.search`.
    """
    if len(asked) < _FEWEST:
        raise InputError(f"refusal is fitted on at least {_FEWEST} queries with relevant documents, not {len(asked)}")

    def examples() -> Iterator[JudgedUnit]:
        judge = UnitJudge(collection)
        for number, (question, right) in enumerate(asked, 1):
            yield from with_and_without(collection, judge, question, right)
            if progress is not None:
                progress(number, len(asked))

    return fitted_on(list(examples()), collection.embedder.model.name)


def with_and_without(
    collection: Collection, judge: UnitJudge, question: str, right: frozenset[str]
) -> Iterator[JudgedUnit]:
    """The examples of a question asked with the passages that answer it, whose paths are `right`, and without them."""
    pool = AskOptions().pool
    hits = collection.candidates(question, k=2 * pool)
    yield example_of(collection, judge, question, hits[:pool], "there", lambda text, best: best in right)
    gone = [hit for hit in hits if hit.path not in right]
    yield example_of(collection, judge, question, gone[:pool], "gone", None)


def fitted_on(examples: Sequence[JudgedUnit], embedder: str) -> Evidence:
    """Fits the probability that a quotation is right. A quotation of the right passages may be wrong, too."""
    # The signals do not tell one name from another. Questions that their names decide would only blur the fit.
    told = [example for example in examples if example.reading.most == 1.0]
    places = [SIGNALS.index(name) for name in FITTED]
    values = np.array([[example.reading.signals[place] for place in places] for example in told])
    model = fit(values, np.array([example.right for example in told]), ridge=_RIDGE)
    return Evidence(FITTED, model, _LEAST, embedder, len(examples), _CERTAIN)


def example_of(
    collection: Collection,
    judge: UnitJudge,
    question: str,
    hits: Sequence[Hit],
    kind: str,
    right: Callable[[str, str], bool] | None,
) -> JudgedUnit:
    """The example of a question and its candidates, with the signals that the assistant would compute.

    Args:
        right: tells by the quotation and the path of its first passage whether it is right; None if nothing is.
    """
    read = AskOptions().read
    asked = judged_question(question)
    ranked = merge(collection.rerank(asked, hits, read), read)
    reading = judge.reading(asked, ranked)
    documents = [document_of(hit) for hit in ranked]
    pieces = list(PickedSentences(judge).stream([Message("user", asked)], Sampling(), documents=documents))
    cited = [int(piece.text.strip(" []")) for piece in pieces if not isinstance(piece, Quoted)]
    text = "".join(piece.text for piece in pieces)
    answers = right is not None and bool(cited) and right(text, ranked[cited[0] - 1].path)
    return JudgedUnit(kind, right is not None, answers, reading)
