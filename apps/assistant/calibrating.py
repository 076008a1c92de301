"""Fits when passages count as an answer, and how probable it is that a result answers, for one pair of an embedder and
a reranker.

Each question is asked with the passages that answer it and without them. The signals of both (see `evidence`) tell how
likely it is that their best quotation answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from edge.apps.assistant.evidence import SIGNALS, UnitJudge, UnitReading, document_of, pair_name
from edge.apps.assistant.generator import PickedSentences
from edge.apps.assistant.question import judged_question
from edge.apps.collection.collection import Collection
from edge.apps.collection.hits import Hit, merge
from edge.apps.verbs.requests import AskOptions
from edge.errors import InputError
from edge.models.evidence import RESULT_SIGNALS, Evidence, fit, result_signals, results_name
from edge.runtimes.generation.base import Message, Sampling
from edge.runtimes.generation.extractive import Quoted

_LEAST, _CERTAIN = 0.15, 0.8
"""The probability that the best quotation is right, from which the closest passages are shown, and from which the
quotation is shown as the answer. A refusal hides a passage that the user could have judged. Chosen on the halves
`choose` of the benchmarks `answers` and `household` with both known embedders, each question judged by a model that was
fitted on other files."""

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
        results: the blended score of each passage, best first, and whether it answers.
    """

    kind: str
    there: bool
    right: bool
    reading: UnitReading
    results: tuple[tuple[float, bool], ...]


def fitted_pair(
    collection: Collection, asked: Sequence[tuple[str, frozenset[str]]], progress: Callable[[int, int], None] | None
) -> dict[str, Evidence]:
    """The models fitted for the collection's embedder and reranker, by the names under which they are stored.

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
    yield example_of(collection, judge, question, hits, "there", lambda text, best: best in right)
    gone = [hit for hit in hits if hit.path not in right]
    yield example_of(collection, judge, question, gone, "gone", None)


def fitted_on(examples: Sequence[JudgedUnit], embedder: str) -> dict[str, Evidence]:
    """Fits the probability that a quotation is right, and that a result answers. Returns both models by the names under
    which they are stored. A quotation of the right passages may be wrong, too."""
    # The signals do not tell one name from another. Questions that their names decide would only blur the fit.
    told = [example for example in examples if example.reading.most == 1.0]
    values = np.array([example.reading.signals for example in told])
    model = fit(values, np.array([example.right for example in told]), ridge=_RIDGE)
    found = [example.results for example in examples]
    blended = [values for results in found for values in result_signals([score for score, _ in results])]
    answers = np.array([right for results in found for _, right in results])
    result = fit(np.array(blended), answers, ridge=_RIDGE)
    return {
        pair_name(embedder): Evidence(SIGNALS, model, _LEAST, embedder, len(examples), _CERTAIN),
        results_name(embedder): Evidence(RESULT_SIGNALS, result, 0.0, embedder, len(answers)),
    }


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
        hits: twice as many as are judged.
        right: tells by the text and the path of a passage or of a quotation's first one whether it is right; None if
            nothing is.
    """
    read, pool = AskOptions().read, AskOptions().pool
    asked = judged_question(question)
    ranked = merge(collection.rerank(asked, hits, read, judged=pool), read)
    reading = judge.reading(asked, ranked)
    documents = [document_of(hit) for hit in ranked]
    pieces = list(PickedSentences(judge).stream([Message("user", asked)], Sampling(), documents=documents))
    cited = [int(piece.text.strip(" []")) for piece in pieces if not isinstance(piece, Quoted)]
    text = "".join(piece.text for piece in pieces)
    answers = right is not None and bool(cited) and right(text, ranked[cited[0] - 1].path)
    results = tuple((hit.stages.blend or 0.0, right is not None and right(hit.text, hit.path)) for hit in ranked)
    return JudgedUnit(kind, right is not None, answers, reading, results)
