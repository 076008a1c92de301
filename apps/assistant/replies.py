"""Reading what a generator replied: verdicts, lists of questions. Models seldom keep to the form they were
asked for, so every reader takes the nearest meaning, and says None where there is none."""

from __future__ import annotations

import re

from edge.apps.assistant.prompts import REFUSAL

_WORD = re.compile(r"[^\W_]+")
_NUMBER = re.compile(r"\d+")
_BULLET = re.compile(r"^\s*(?:[-*•–]|\(?\d{1,2}[.):]|[a-z][.)])\s+", re.IGNORECASE)
_LABEL = re.compile(r"^\s*(?:sub-?question|question|query|q)\s*\d*\s*[:.)]\s*", re.IGNORECASE)

_YES = {"yes", "y", "true", "correct", "fully", "full", "completely", "sure"}
_NO = {"no", "n", "false", "not", "none", "never", "incorrect"}
_PARTLY = {"partly", "partially", "partial", "somewhat"}


def verdict(reply: str) -> bool | None:
    """Yes or no; None when the reply is neither."""
    for word in _words(reply)[:4]:
        if word in _YES:
            return True
        if word in _NO:
            return False
    return None


def support(reply: str) -> float | None:
    """1 for fully, 0.5 for partly, 0 for not supported; None when the reply is none of these."""
    for word in _words(reply)[:4]:
        for value, names in ((0.5, _PARTLY), (0.0, _NO), (1.0, _YES)):
            if word in names:
                return value
    return None


def grade(reply: str, *, least: int = 1, most: int = 5) -> int | None:
    """The first number of a reply if it lies within the range."""
    match = _NUMBER.search(reply)
    value = int(match[0]) if match else None
    return value if value is not None and least <= value <= most else None


def refused(reply: str) -> bool:
    """Whether a reply is the refusal that the generator was told to give."""
    return REFUSAL in " ".join(reply.split()).upper()


def questions(reply: str, most: int) -> list[str]:
    """The questions of a list, without numbers, bullets and repetitions; introductory lines are left out."""
    found: list[str] = []
    lines = [line for line in reply.splitlines() if line.strip()]
    asked = [line for line in lines if line.rstrip().endswith("?")] or [
        x for x in lines if not x.rstrip().endswith(":")
    ]
    for line in asked:
        text = _LABEL.sub("", _BULLET.sub("", line)).strip().strip('"*').strip()
        if _words(text) and text.casefold() not in {known.casefold() for known in found}:
            found.append(text)
    return found[:most]


def one_line(reply: str) -> str:
    """The first line with words in it, without a label or quotes: what was asked to be a single question."""
    for line in reply.splitlines():
        text = _LABEL.sub("", _BULLET.sub("", line)).strip().strip('"').strip()
        if _words(text):
            return text
    return ""


def _words(text: str) -> list[str]:
    return [word.casefold() for word in _WORD.findall(text)]
