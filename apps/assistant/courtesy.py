"""Courtesy: replies to texts that ask nothing, such as a greeting or thanks."""

from __future__ import annotations

import re

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)?")

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

_ASK = "Ask a question about your documents, for example when or how much something is."


def courtesy(text: str) -> str:
    """The reply to a text that asks nothing; empty if it may be a question.

    >>> courtesy("Thanks a lot!"), courtesy("thanks, and the deposit?")
    ('You are welcome.', '')
    """
    words = {word.casefold() for word in _WORD.findall(text)}
    if not words or words - _FILLING - _THANKS - _GREETINGS - _PARTINGS:
        return ""
    if words & _THANKS:
        return "You are welcome."
    if words & _PARTINGS:
        return "Goodbye."
    return f"Hello. {_ASK}" if words & _GREETINGS else _ASK
