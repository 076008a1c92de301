"""The ranking of memories: their relevance, which is the probability that they help to answer, and their recency and
importance.

A reranker trained on passages gives "I am allergic to peanuts" little relevance for "what can Ada eat?". People speak
of themselves as "I" but are asked about by name. The question in the first person, "what can I eat?", has a vector near
that of the memory. The benchmark `memory-relevance` fits the weight of each signal.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from edge.apps.memory.arguments import check_share
from edge.apps.memory.moments import age_days
from edge.apps.memory.records import Record
from edge.errors import InputError
from edge.models.evidence import Evidence, log_odds

NAME = "memories"
"""The name under which the fitted model is stored."""

SIGNALS = ("reranker", "cosine", "first_person_cosine")
"""The reranker's log-odds, and the memory's cosines with the question and with the question in the first person."""

_ALWAYS = ("the user",)
_VERBS = {"does": "do", "is": "am", "has": "have"}


def first_person(question: str, names: Iterable[str | None]) -> str:
    """A question about a person, rewritten in the first person.

    >>> first_person("what can Ada eat?", ["ada"]), first_person("who is Ada's boss?", ["ada"])
    ('what can I eat?', 'who is my boss?')
    """
    known = [name for name in (*names, *_ALWAYS) if name and re.search(r"[^\W\d_]", name)]
    person = "|".join(re.escape(name) for name in sorted(known, key=len, reverse=True))
    named = re.compile(rf"(?<!\w)(?:{person})(?P<owner>['’]s?)?(?!\w)", re.IGNORECASE)
    asked = re.sub(
        rf"\b(?P<verb>does|is|has)\s+(?P<name>{person})(?!['’\w])",
        lambda match: f"{_VERBS[match['verb'].lower()]} {match['name']}", question, flags=re.IGNORECASE,
    )  # fmt: skip
    return named.sub(lambda match: "my" if match["owner"] else "I", asked)


def signals(reranker: float, cosine: float, personal: float) -> list[float]:
    """The values of `SIGNALS` for one memory: the reranker's probability and the two cosines."""
    return [log_odds(reranker), cosine, max(cosine, personal)]


def relevance(fitted: Evidence | None, reranker: float, cosine: float, personal: float) -> float:
    """The probability that a memory helps to answer; the reranker's own probability if no model was fitted for the
    models in use."""
    return reranker if fitted is None else fitted.probability(signals(reranker, cosine, personal))


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of recency and importance beside relevance; both are 0 by default.

    The score becomes `(1 - recency - importance) * score + recency * 0.5 ** (age / half_life) + importance * value`.
    All three parts lie in 0 ... 1. The age is counted from a memory's timestamp, or from its creation if it has none;
    pinned memories do not age. The importance of a memory without a value counts as 0.5, that of a pinned memory as 1.

    Attributes:
        half_life: the days after which recency has halved.
    """

    recency: float = 0.0
    importance: float = 0.0
    half_life: float = 30.0

    def __post_init__(self) -> None:
        for name in ("recency", "importance"):
            if check_share(getattr(self, name), name) is None:
                raise InputError(f"{name} is a number from 0 to 1, not None")
        if self.recency + self.importance > 1:
            raise InputError(
                f"recency and importance weigh {self.recency + self.importance:g} together; 1 is all there is"
            )
        days = self.half_life
        if isinstance(days, bool) or not isinstance(days, int | float) or not 0 < days < math.inf:
            raise InputError(f"half_life is a positive number of days, not {days!r}")

    def __bool__(self) -> bool:
        return self.recency > 0 or self.importance > 0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A memory that passes through the stages of a search.

    Attributes:
        score: the score that orders the results, in 0 ... 1.
        relevance: a judgement of this memory that does not depend on the other results: the cosine or, with
            reranking, the probability that the memory helps to answer (see `relevance`).
        details: the score and rank of each stage, by name.
    """

    record: Record
    score: float
    relevance: float
    details: Mapping[str, float | int] = field(default_factory=dict)

    def to_json(self, *, explain: bool) -> dict[str, Any]:
        """mem0's form of a result: the memory with `score` and `relevance`, and with `explain` its `score_details`."""
        document = {**self.record.to_json(), "score": self.score, "relevance": self.relevance}
        if explain:
            document["score_details"] = dict(self.details)
        return document


def weigh(candidates: Sequence[Candidate], weights: Weights, now: datetime) -> list[Candidate]:
    """The candidates ordered by score, recency and importance together, best first."""
    weighed = []
    for candidate in candidates:
        record = candidate.record
        age = 0.0 if record.pinned else age_days(record.timestamp or record.created_at, now)
        recency = 0.5 ** (age / weights.half_life)
        importance = 1.0 if record.pinned else 0.5 if record.importance is None else record.importance
        rest = 1.0 - weights.recency - weights.importance
        score = rest * candidate.score + weights.recency * recency + weights.importance * importance
        details = {**candidate.details, "recency": recency, "importance": importance}
        weighed.append(replace(candidate, score=score, details=details))
    return sorted(weighed, key=lambda candidate: -candidate.score)
