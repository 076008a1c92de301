"""Mails and notes that contradict each other: the newer one answers, and the older one is named with its value.

Two statements contradict each other if they have the same words except for one value: "The door code is 1234" and "The
door code is now 5678". A value is a number, a day of the week or a name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from edge.apps.assistant.grounding import NUMBERS
from edge.apps.assistant.units import Unit, quotable
from edge.apps.collection.hits import Hit
from edge.apps.collection.snippets import stem
from edge.apps.store.lexical import FUNCTION_WORDS

KINDS = frozenset({"mail", "text", "markdown"})
"""Kinds of files whose later statements replace earlier ones. Reports of two years hold both."""

_LEAST_SHARED = 2
"""The fewest words that two statements about one thing have in common."""

_WORD = re.compile(r"[^\W_]+(?:[.:,-][0-9]+)*")
_DAY = re.compile(r"(?:mon|tues|wednes|thurs|fri|satur|sun)day|(?:mon|diens|donners|frei|sams|sonn)tag|mittwoch", re.I)
_FILLING = frozenset({stem(word) for word in (
    *FUNCTION_WORDS, "now", "new", "currently", "again", "changed", "today", "please", "note", "ab", "der", "das",
    "den", "die", "dem", "ein", "eine", "ist", "jetzt", "neu", "neue", "nun", "sind", "war", "wird",
)})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Contradiction:
    """A passage whose statement a newer one replaces.

    Attributes:
        newer, older: the passages.
        statement: the older statement.
        since: the day of the newer one.
    """

    newer: Hit
    older: Hit
    statement: str
    since: date

    @property
    def text(self) -> str:
        """The older statement in a sentence."""
        return f"Until {self.since.day} {self.since:%B} {self.since.year}: “{self.statement}”"


def contradictions(question: str, passages: Sequence[Hit]) -> list[Contradiction]:
    """The contradictions among passages in what a question asks for, one for each older passage: the last that was
    said before comes first."""
    asked = {stem(word) for word in _WORD.findall(question)} - _FILLING
    stated = [(hit, when, _statements(hit, asked)) for hit in passages if (when := _day(hit)) is not None]
    newest_first = sorted(stated, key=lambda each: each[1], reverse=True)
    found: dict[str, Contradiction] = {}
    for at, (newer, since, own) in enumerate(newest_first):
        for older, when, earlier in newest_first[at + 1 :]:
            if when == since or older.key in found or newer.key in found:
                continue
            old = next((unit for words, unit in earlier if any(_exclude(words, other) for other, _ in own)), None)
            if old is not None:
                found[older.key] = Contradiction(newer, older, old.text, since)
    return list(found.values())


def _day(hit: Hit) -> date | None:
    when = hit.mail.sent if hit.mail is not None and hit.mail.sent else hit.modified
    return date.fromisoformat(when[:10]) if when and hit.kind in KINDS else None


def _statements(hit: Hit, asked: set[str]) -> list[tuple[dict[str, str], Unit]]:
    """The statements of a passage about what is asked for, with their words by stem."""
    return [(words, unit) for unit in quotable(hit.text, hit.kinds) if asked & (words := _words(unit.text)).keys()]


def _words(text: str) -> dict[str, str]:
    """The words of a statement by stem. A capital tells of a name, except that of the first word."""
    found = _WORD.findall(text[:1].lower() + text[1:])
    return {form: word for word in found if (form := stem(word)) not in _FILLING}


def _exclude(one: dict[str, str], other: dict[str, str]) -> bool:
    """Whether two statements have the same words except for one value each."""
    apart = [[words[form] for form in words.keys() - than.keys()] for words, than in ((one, other), (other, one))]
    shared = len(one.keys() & other.keys())
    return shared >= _LEAST_SHARED and all(len(words) == 1 and _is_value(words[0]) for words in apart)


def _is_value(word: str) -> bool:
    return not word.isalpha() or word[0].isupper() or word.lower() in NUMBERS or _DAY.match(word) is not None
