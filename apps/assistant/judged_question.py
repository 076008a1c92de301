"""Finds the asking sentence of a question, by which passages are judged when a user pastes a text and asks about it."""

from __future__ import annotations

import re

from edge.apps.assistant.units import continues
from edge.apps.store.lexical import bounded_query
from edge.errors import InputError
from edge.sentences import sentences

_WORD = re.compile(r"[^\W_]+(?:'[a-z]+)?")
_POINTING = {
    "it", "its", "it's", "they", "them", "their", "theirs", "he", "him", "his", "she", "her", "hers", "this", "that",
    "these", "those", "there", "then", "one", "ones", "former", "latter", "same", "else",
}  # fmt: skip
"""Words that refer to something mentioned before."""

_CONTINUING = re.compile(
    r"^\s*(?:and|but|or|so|also|what about|how about|what if|why|how so|which one|when|where)\b", re.I
)
_ELLIPSIS = re.compile(r"^\s*(?:(?:and|but|or|so|also)\b[\s,]*)*(?:(?:what|how) about\b)?[\s,]*", re.I)
"""The beginning of a question that only names a new topic and leaves the rest to the question before it."""

_ASKING = {
    "what", "when", "where", "who", "whom", "whose", "which", "why", "how", "is", "are", "was", "were", "do", "does",
    "did", "can", "could", "may", "must", "will", "would", "should", "has", "have", "had",
}  # fmt: skip
_LINKING = {
    "and", "but", "or", "so", "also", "until", "till", "since", "from", "by", "for", "with", "at", "in", "on", "to",
    "of", "much", "many", "long", "often", "far", "early", "late", "soon", "old", "big", "large", "time", "day",
    "exactly",
}  # fmt: skip
"""A question that holds only these and asking words names no subject."""

_FEW_WORDS = 3
_SHORT_WORDS = 7
"""A sentence of more words than this is clear enough without the sentence before it, even if it has pronouns."""

_ASKS = re.compile(r"[?？؟][\"'”’»)\]」』）]*$")
LONGEST = 300
"""The most characters of a question that passages are judged by. The longest of 5,396 test questions of five judged
sets has 213."""


def judged_question(question: str) -> str:
    """The asking sentence of a question, by which passages are judged.

    In a text of several sentences it is the last sentence that ends with a question mark. If none does, it is the last
    sentence of more than three words, which skips thanks and names. A short sentence that refers back is joined with
    the sentence before it. A question of one sentence is returned unchanged.

    Rerankers are trained on single sentences, and their probability means little for longer texts. 60 to 70 test
    questions of squad11-dev were judged in each way. Their relevance was below 0.1 for 3 % of the questions alone, for
    75 % with 20 unrelated words before them, and for 55 % with 60; judged by the asking sentence, for 7 %. As many
    questions of nq-oracle were asked of the articles of squad11-dev. Passages were accepted for 10 % of the questions
    alone, for 77 % with 60 words of the passages' own text before them, and for 9 % by the asking sentence.

    >>> judged_question("We moved in May. The boiler is a Thermo 200. When is its next service due? Thanks, Bob")
    'The boiler is a Thermo 200. When is its next service due?'
    """
    found = _sentences(question)
    asking = [at for at, text in enumerate(found) if _ASKS.search(text)]
    asking = asking or [at for at, text in enumerate(found) if len(_WORD.findall(text)) > _FEW_WORDS]
    if len(found) < 2 or not asking:
        return question
    first = last = asking[-1]
    while first > 0 and refers_back(found[first]) and len(_WORD.findall(found[first])) <= _SHORT_WORDS:
        if len(" ".join(found[first - 1 : last + 1])) > LONGEST:
            break
        first -= 1
    return " ".join(found[first : last + 1])


def check_question(question: str, *, judged: bool) -> None:
    """Checks that a question can be searched for and judged by.

    Args:
        judged: whether passages are judged by the asking sentence.

    Raises:
        InputError: the question is too long to be a query, holds no word, or its asking sentence is longer than
            `LONGEST`.
    """
    bounded_query(question)
    if not question.strip():
        raise InputError("the question is empty")
    if not _WORD.search(question):
        raise InputError(f"the question holds no word, only {question.strip()[:20]!r}: say in words what to look for")
    if judged and (size := len(judged_question(question.strip()))) > LONGEST:
        raise InputError(
            f"what is asked has {size:,} characters, and passages can be judged by {LONGEST} at most: ask it in "
            f"one shorter sentence at the end of the text, or keep the retrieval order (--no-rerank)"
        )


def refers_back(question: str) -> bool:
    """Whether a question can be understood only together with the one before it, judged by its words.

    >>> refers_back("and how long does it last?"), refers_back("until when?"), refers_back("who is Ada?")
    (True, True, False)
    """
    words = [word.casefold() for word in _WORD.findall(question)]
    if any(word in _POINTING for word in words):
        return True
    if words and all(word in _ASKING or word in _LINKING for word in words):
        return True
    return len(words) <= _FEW_WORDS and _CONTINUING.match(question) is not None


def new_topic(question: str) -> str:
    """The new topic that a question without a verb names; empty if the question is complete in itself.

    >>> new_topic("and the deposit?"), new_topic("What about pets?"), new_topic("and how long does it last?")
    ('the deposit', 'pets', '')
    """
    begun = _ELLIPSIS.match(question)
    rest = question[begun.end() :].strip(" ?!.") if begun is not None and begun[0].strip() else ""
    words = [word.casefold() for word in _WORD.findall(rest)]
    if not words or any(word in _ASKING for word in words) or all(word in _POINTING for word in words):
        return ""
    return rest if len(words) <= _SHORT_WORDS else ""


def _sentences(text: str) -> list[str]:
    """The sentences of a text. A sentence may be wrapped over several lines, as in a mail."""
    units: list[str] = []
    last = ""
    for line in text.splitlines():
        if units and continues(last, line):
            units[-1] += f" {line.strip()}"
        else:
            units.append(line.strip())
        last = line.rstrip()
    return [sentence for unit in units for sentence in sentences(unit)]
