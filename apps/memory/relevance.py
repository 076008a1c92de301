"""The relevance of a memory: the probability that it helps to answer a question, for short first-person texts.

A reranker trained on passages gives "I am allergic to peanuts" little relevance for "what can Ada eat?". People speak
of themselves as "I" but are asked about by name. The question in the first person, "what can I eat?", has a vector near
that of the memory. `edge bench memory-relevance` fits the weight of each signal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from edge.models.evidence import Evidence
from edge.models.logistic import log_odds

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
