"""The confidence of the action cache that a stored trajectory solves a task: a logistic model of a few signals, fitted
on labelled pairs, with a threshold above which wrong hits are rare."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.models import evidence
from edge.models.evidence import Logistic, log_odds

Floats = npt.NDArray[np.float64]

SIGNALS = ("similarity", "lead", "overlap", "state_overlap", "details_differ", "relevance", "relevance_lead")
"""The signals of the chosen trajectory: its cosine with the task, and the lead over the next one's; the overlap of the
words of task and state; whether numbers, quoted texts or names differ; the reranker's log-odds, and the lead of its
probability (0 without reranking)."""

_WORD = re.compile(r"\w+")
_DETAIL = re.compile(r"\d+(?:[.:,]\d+)*|\"[^\"]+\"|'[^']{2,}'|(?<![.!?]\s)(?<!^)\b[A-Z]\w+")
_FOLDS = 5


@dataclass(frozen=True, slots=True)
class Confidence:
    """A fitted model.

    Attributes:
        weights: the weight of each standardized signal, then the constant.
        mean, scale: the mean and scale of each signal, for standardizing.
        threshold: the confidence from which a lookup is a hit; above 1 if no confidence was safe enough.
        examples: the number of labelled pairs that the model was fitted on.
        hit_rate, wrong_rate: in cross-validation, the share of the examples that were hits, and the share of the hits
            that were wrong.
        models: the fingerprints of the embedder and the reranker that the model was fitted with.
    """

    weights: tuple[float, ...]
    mean: tuple[float, ...]
    scale: tuple[float, ...]
    threshold: float
    examples: int
    hit_rate: float
    wrong_rate: float
    models: tuple[str, str]

    def of(self, signals: Floats) -> float:
        """The probability that the trajectory with these signals, [len(SIGNALS)], is right."""
        return float(Logistic(self.weights, self.mean, self.scale).probability(signals[None])[0])

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Confidence:
        values: dict[str, Any] = json.loads(text)
        lists: dict[str, Any] = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        return cls(**values | lists)


def fit(signals: Floats, right: npt.NDArray[np.bool_], most_wrong: float, models: tuple[str, str]) -> Confidence:
    """Fits a ridge logistic regression, and chooses the lowest threshold with a wrong share of at most `most_wrong`.

    The threshold is chosen on held-out predictions of a 5-fold cross-validation. One wrong hit is added to those
    observed, so that the threshold is higher with few examples.

    Args:
        signals: the signals of each example, [n, len(SIGNALS)].
        right: [n], whether the chosen trajectory was the right one.
        most_wrong: the share of hits that may be wrong, in (0, 1).
        models: the fingerprints of the embedder and the reranker.
    """
    held_out = np.empty(len(signals))
    folds = np.arange(len(signals)) % _FOLDS
    for fold in range(_FOLDS):
        inside = folds == fold
        held_out[inside] = evidence.fit(signals[~inside], right[~inside]).probability(signals[inside])
    threshold = _threshold(held_out, right, most_wrong)
    hits = held_out >= threshold
    wrong = float((hits & ~right).sum() / hits.sum()) if hits.any() else 0.0
    model = evidence.fit(signals, right)
    return Confidence(
        weights=model.weights, mean=model.mean, scale=model.scale, threshold=threshold, examples=len(signals),
        hit_rate=float(hits.mean()), wrong_rate=wrong, models=models,
    )  # fmt: skip


def describe(
    task: str, state: str, other_task: str, other_state: str, *, similarity: float, lead: float,
    relevance: float = 0.5, relevance_lead: float = 0.0,
) -> Floats:  # fmt: skip
    """The signals that compare a stored (task, state) with the requested one, in the order of `SIGNALS`."""
    return np.array([
        similarity, lead, _overlap(task, other_task), _overlap(state, other_state),
        float(details(task) != details(other_task)), log_odds(relevance), relevance_lead,
    ])  # fmt: skip


def details(text: str) -> frozenset[str]:
    """The details that a paraphrase keeps: numbers, quoted texts, and capitalized words that do not begin a
    sentence."""
    return frozenset(match.strip("\"'").casefold() for match in _DETAIL.findall(text))


def _overlap(one: str, other: str) -> float:
    """The Jaccard similarity of the texts' words; 1 if both have none."""
    a, b = set(_WORD.findall(one.casefold())), set(_WORD.findall(other.casefold()))
    return len(a & b) / len(a | b) if a | b else 1.0


def _threshold(confidence: Floats, right: npt.NDArray[np.bool_], most_wrong: float) -> float:
    order = np.argsort(-confidence, kind="stable")
    wrong = np.cumsum(~right[order])
    rates = (wrong + 1) / (np.arange(len(order)) + 2)
    last = np.append(confidence[order][1:] < confidence[order][:-1], True)  # equal confidences are hits together
    safe = np.flatnonzero((rates <= most_wrong) & last)
    return float(confidence[order[safe[-1]]]) if len(safe) else 2.0
