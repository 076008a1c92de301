"""Fits when passages count as an answer, for one pair of an embedder and a reranker.

Each question is asked with the passages that answer it and without them. The signals of both (see `evidence`) tell how
likely it is that passages answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from edge.apps.assistant.evidence import FITTED, SIGNALS, UnitJudge, UnitReading
from edge.apps.assistant.question import judged_question
from edge.apps.collection.collection import Collection
from edge.apps.collection.hits import Hit, merge
from edge.apps.requests import AskOptions
from edge.errors import InputError
from edge.models.evidence import Evidence, fit

PLAIN_FLOOR = 0.1
"""The former threshold on the reranker's relevance. The fitted model may give no more false answers than this one."""

_LEAST = 0.38
"""The least threshold. At one half, refusals and false answers would have the same weight. An answer is shown with its
quotation, which the user can judge, and with a warning below `CERTAIN`, so a refusal is worse. The value was chosen on
the half `choose` and on train questions of judged sets. It is lower for questions that the passages word differently
(`UnitReading.enough`)."""

_CERTAIN = 0.65
"""The probability from which an answer is shown without a warning. Chosen on the half `choose` of the benchmark
`household` with a multilingual embedder."""

_FEWEST = 8
"""The fewest questions to fit a pair on."""

_RIDGE = 2.0


@dataclass(frozen=True, slots=True)
class JudgedUnit:
    """A question.

    Attributes:
        kind: the kind of the question.
        there: whether its answer was in the documents.
        reading: what the units of the passages tell.
        relevance: the reranker's probability of the best passage.
    """

    kind: str
    there: bool
    reading: UnitReading
    relevance: float


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
    yield example_of(collection, judge, question, hits[:pool], "there", True)
    gone = [hit for hit in hits if hit.path not in right]
    yield example_of(collection, judge, question, gone[:pool], "gone", False)


def fitted_on(examples: Sequence[JudgedUnit], embedder: str) -> Evidence:
    """Fits a model. All kinds of questions have the same weight, and so have questions with and without an answer.

    The threshold is `_LEAST`. It is higher if `_LEAST` would answer more unanswerable questions than the reranker's
    relevance alone does, over all their kinds together.
    """
    # The signals do not tell one name from another. Questions that their names decide would only blur the fit.
    told = [example for example in examples if example.reading.most == 1.0]
    places = [SIGNALS.index(name) for name in FITTED]
    values = np.array([[example.reading.signals[place] for place in places] for example in told])
    model = fit(values, np.array([example.there for example in told]), counts=_balanced(told), ridge=_RIDGE)
    fitted = Evidence(FITTED, model, _LEAST, embedder, len(examples), _CERTAIN)
    # What is enough depends on the question, so the difference to it is compared.
    chance = np.array([e.reading.probability(fitted) - e.reading.enough(_LEAST) + _LEAST for e in examples])
    right = np.array([example.there for example in examples])
    counts = _balanced(examples)
    before = np.array([example.relevance >= PLAIN_FLOOR for example in examples])
    allowed = counts[~right & before].sum()
    order = np.argsort(-chance[~right], kind="stable")
    passed = np.cumsum(counts[~right][order])
    first_over = int(np.searchsorted(passed, allowed, side="right"))
    falling = chance[~right][order]
    least = float(falling[first_over]) + 1e-4 if first_over < len(falling) else 0.0
    return replace(fitted, threshold=max(_LEAST, least))


def _balanced(examples: Sequence[JudgedUnit]) -> npt.NDArray[np.float64]:
    """Weights by which all kinds of questions count the same, and so do questions with and without an answer."""
    sizes = Counter(example.kind for example in examples)
    groups = Counter(there for _, there in {(example.kind, example.there) for example in examples})
    counts = np.array([1 / (sizes[example.kind] * groups[example.there]) for example in examples])
    balanced: npt.NDArray[np.float64] = counts * len(counts) / counts.sum()
    return balanced


def example_of(
    collection: Collection, judge: UnitJudge, question: str, hits: Sequence[Hit], kind: str, there: object
) -> JudgedUnit:
    """The example of a question and its candidates, with the signals that the assistant would compute."""
    read = AskOptions().read
    ranked = merge(collection.rerank(judged_question(question), hits, read), read)
    reading = judge.reading(judged_question(question), ranked)
    relevance = max((hit.stages.relevance or 0.0 for hit in ranked), default=0.0)
    return JudgedUnit(kind, bool(there), reading, relevance)
