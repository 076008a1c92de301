"""A question by its words: its asking sentence, its parts, and whether it refers back."""

from __future__ import annotations

import re

from edge.apps.assistant.grounding import ASKING_WORDS
from edge.apps.documents.kinds import continues
from edge.apps.store.lexical import FUNCTION_WORDS, bounded_query
from edge.errors import InputError
from edge.text.sentences import sentences

_WORD = re.compile(r"[^\W_]+(?:'[a-z]+)?")
_HYPHENED = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
_POINTING = {
    "it", "its", "it's", "they", "them", "their", "theirs", "he", "him", "his", "she", "her", "hers", "this", "that",
    "these", "those", "there", "then", "one", "ones", "former", "latter", "same", "else",
}  # fmt: skip
"""Words that refer to something mentioned before."""

_JOINED = re.compile(rf",? (?:and|und|et|y|e) (?=(?:[^\W\d_]{{1,5}} )?¿?(?:{ASKING_WORDS})\b)", re.IGNORECASE)
"""Between two questions. One short word may come before the asking word: until when."""

_BEGINS = re.compile(rf"¿?(?:[^\W\d_]{{1,5}} )?(?:{ASKING_WORDS})\b", re.IGNORECASE)
_THAN = re.compile(r" (?:than|als) ", re.IGNORECASE)
_HOW = re.compile(r"(?:how|wie) ", re.IGNORECASE)
_LEAST_WORDS = 2
_FEW_WORDS = 3
_SHORT_WORDS = 7
"""A sentence of more words than this is clear enough without the sentence before it, even if it has pronouns."""

_ASKS = re.compile(r"[?？؟][\"'”’»)\]」』）]*$")
LONGEST = 300
"""The most characters of a question that passages are judged by."""

_SPOKEN = re.compile(r"[^\W_]+(?:['’][^\W_]+)?")
_THANKS = frozenset({"thanks", "thank", "thx", "cheers", "danke", "dank"})
_GREETINGS = frozenset({"hello", "hi", "hey", "hallo", "moin"})
_PARTINGS = frozenset({"bye", "goodbye", "tschüss"})
_FILLING = frozenset({
    "a", "abend", "afternoon", "again", "all", "alright", "bitte", "cool", "day", "evening", "everybody", "fine", "for",
    "good", "got", "great", "gut", "guten", "help", "hilfe", "i", "it", "ja", "lot", "lots", "me", "morgen", "morning",
    "much", "my", "nein", "nice", "night", "no", "of", "oh", "ok", "okay", "perfect", "please", "sehr", "so", "super",
    "sure", "tag", "that's", "there", "very", "vielen", "well", "yes", "you", "your",
})  # fmt: skip
"""Words that ask nothing beside those above, or alone."""

_INVITATION = "Ask a question about your documents, for example when or how much something is."


def judged_question(question: str) -> str:
    """The asking sentence of a question, by which passages are judged.

    In a text of several sentences it is the last sentence that ends with a question mark. If none does, it is the last
    sentence of more than three words, which skips thanks and names. A short sentence that refers back is joined with
    the sentence before it. A question of one sentence is returned unchanged.

    Rerankers are trained on single sentences, and their probability means little for longer texts: of questions of
    squad11-dev behind 20 unrelated words 75 % had a relevance below 0.1, judged by the asking sentence 7 %.

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
    """Checks that a question can be searched for and, if `judged`, that its asking sentence has at most `LONGEST`
    characters."""
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
    """Whether a sentence may be understood only together with the one before it: it points there, or names nothing.

    >>> refers_back("and how long does it last?"), refers_back("until when?"), refers_back("when do the bins go out?")
    (True, True, False)
    """
    words = [word.casefold() for word in _WORD.findall(question)]
    return any(word in _POINTING for word in words) or (bool(words) and not content_words(question))


def continued(question: str, last: str) -> str:
    """A question as the continuation of the one before it; only the question if both are too long to judge passages by.

    >>> continued("and the deposit?", "How much is the rent?")
    'How much is the rent, and the deposit?'
    """
    both = f"{judged_question(last).rstrip(' ?？.!')}, {question}"
    return both if len(judged_question(both)) <= LONGEST else question


def content_words(text: str) -> list[str]:
    """The content words of a text, in lower case and in their order.

    >>> content_words("How much is the monthly rent?")
    ['monthly', 'rent']
    """
    return [word for match in _HYPHENED.finditer(text) if (word := match[0].lower()) not in FUNCTION_WORDS]


def asked_parts(question: str) -> list[str]:
    """The parts of a question that may be answered in two places: two questions joined by "and", or the two sides of a
    comparison. Any other question is its only part.

    >>> asked_parts("Who has the spare key and when do the bins go out?")
    ['Who has the spare key?', 'when do the bins go out?']
    >>> asked_parts("How much more is the car insurance than the dental cover?")
    ['How much more is the car insurance?', 'How much the dental cover?']
    >>> asked_parts("When was the trip planned, and when will it be now?")
    ['When was the trip planned, and when will it be now?']
    >>> asked_parts("The Rhine is the border between Austria and what other country?")
    ['The Rhine is the border between Austria and what other country?']
    """
    asked = " ".join(question.split()).rstrip("?？ ")
    sides = _THAN.split(asked, 1) if _HOW.match(asked) else [asked]
    if len(sides) == 2:
        parts = [sides[0], " ".join([*asked.split()[:2], sides[1]])]
    else:
        parts = sides = _JOINED.split(asked, 1)
    # Without this, 23 of the 28 of 17,029 public questions that were parted named one thing "and what other".
    whole = (
        len(parts) == 2 and _BEGINS.match(sides[0]) and all(len(content_words(side)) >= _LEAST_WORDS for side in sides)
    )
    return [f"{part}?" for part in parts] if whole and not refers_back(parts[1]) else [question]


def courtesy(text: str) -> str:
    """The reply to a text that asks nothing; empty if it may be a question.

    >>> courtesy("Thanks a lot!"), courtesy("thanks, and the deposit?")
    ('You are welcome.', '')
    """
    words = {word.casefold() for word in _SPOKEN.findall(text)}
    if not words or words - _FILLING - _THANKS - _GREETINGS - _PARTINGS:
        return ""
    if words & _THANKS:
        return "You are welcome."
    if words & _PARTINGS:
        return "Goodbye."
    return f"Hello. {_INVITATION}" if words & _GREETINGS else _INVITATION


def _sentences(text: str) -> list[str]:
    units: list[str] = []
    last = ""
    for line in text.splitlines():
        if units and continues(last, line):
            units[-1] += f" {line.strip()}"
        else:
            units.append(line.strip())
        last = line.rstrip()
    return [sentence for unit in units for sentence in sentences(unit)]
