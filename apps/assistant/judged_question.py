"""What a question asks: the sentence that passages are judged by, where somebody pastes a text and asks at its end."""

from __future__ import annotations

import re

from edge.apps.assistant.line_kinds import continues
from edge.errors import InputError
from edge.sentences import sentences

_WORD = re.compile(r"[^\W_]+(?:'[a-z]+)?")
_POINTING = {
    "it", "its", "it's", "they", "them", "their", "theirs", "he", "him", "his", "she", "her", "hers", "this", "that",
    "these", "those", "there", "then", "one", "ones", "former", "latter", "same", "else",
}  # fmt: skip
"""Words that stand for something said before."""

_CONTINUING = re.compile(
    r"^\s*(?:and|but|or|so|also|what about|how about|what if|why|how so|which one|when|where)\b", re.I
)
_ELLIPSIS = re.compile(r"^\s*(?:(?:and|but|or|so|also)\b[\s,]*)*(?:(?:what|how) about\b)?[\s,]*", re.I)
"""What a question begins with that names something new and leaves the rest to what was asked before."""

_ASKING = {
    "what", "when", "where", "who", "whom", "whose", "which", "why", "how", "is", "are", "was", "were", "do", "does",
    "did", "can", "could", "may", "must", "will", "would", "should", "has", "have", "had",
}  # fmt: skip
_FEW_WORDS = 3
_SHORT_WORDS = 7
"""A sentence of more words says what it is about, whatever its pronouns stand for."""

_ASKS = re.compile(r"[?？؟][\"'”’»)\]」』）]*$")
LONGEST = 300
"""Characters that passages can be judged by; the longest of 5,396 test questions of five judged sets has 213."""


def judged_question(question: str) -> str:
    """What passages are judged by: of a text of several sentences the last one that ends with a question mark, or, if
    none does, the last of more than three words, which leaves out thanks and names. A sentence that refers back takes
    the one before it along. A question of one sentence is judged as it is.

    Rerankers are trained on single sentences, and their probability means little for others. Of 60 to 70 test questions
    of squad11-dev each, 3 % are below a relevance of 0.1 alone, 75 % behind 20 words about something else and 55 %
    behind 60; by that sentence 7 %. Of as many questions of nq-oracle, asked of the same articles, 10 % are let pass
    alone, 77 % behind 60 words of their own text, 9 % by that sentence.

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
    """Checks that passages can answer a question.

    Args:
        judged: passages are judged by the sentence that asks.

    Raises:
        InputError: it holds no word, or the sentence that asks is longer than `LONGEST`.
    """
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
    """Whether a question can be understood only after what was said before, judged by its words.

    >>> refers_back("and how long does it last?"), refers_back("how long does the warranty last?")
    (True, False)
    """
    words = [word.casefold() for word in _WORD.findall(question)]
    if any(word in _POINTING for word in words):
        return True
    return len(words) <= _FEW_WORDS and _CONTINUING.match(question) is not None


def new_topic(question: str) -> str:
    """What a question without a verb asks about, instead of what was asked before; empty if it is a question of its
    own.

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
    """A text's sentences; one may go over lines, as in a mail."""
    units: list[str] = []
    last = ""
    for line in text.splitlines():
        if units and continues(last, line):
            units[-1] += f" {line.strip()}"
        else:
            units.append(line.strip())
        last = line.rstrip()
    return [sentence for unit in units for sentence in sentences(unit)]
