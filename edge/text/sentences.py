"""Splits text into sentences: the one splitter for documents, questions, replies, quotations and memories."""

from __future__ import annotations

import re
from collections.abc import Iterator

_STOP = re.compile(
    "(?P<stop>(?<=\\S)[.!?…]{1,9}(?P<closed>[\"'”’)\\]»*_]{0,4}))\\s+"
    # Scripts without spaces between sentences have their own full stops.
    '|(?P<wide>[。！？]{1,9}[”’」』）)"]{0,4})\\s*'
    "|(?<!\\s)\\s*\\n[^\\S\\n]*\\n\\s*"  # from the first of several, or it takes time in their square
)
_WORD = re.compile(r"[\w.]{1,12}$")
_MONTH = re.compile(r"(?:Jan|Feb|Mär|Mar|Apr|Mai|May|Jun|Jul|Aug|Sep|Okt|Oct|Nov|Dez|Dec)\w*")
_LETTERS = re.compile(r"\w")
_ABBREVIATIONS = frozenset({
    "e.g", "i.e", "cf", "vs", "etc", "al", "dr", "mr", "mrs", "ms", "prof", "st", "fig", "figs", "eq", "eqs",
    "sec", "sect", "ch", "vol", "no", "nos", "pp", "p", "ed", "eds", "inc", "ltd", "co", "corp", "jr", "sr", "dept",
    "approx", "resp", "jan", "feb", "mar", "apr", "jun", "jul", "aug", "sep", "sept", "oct", "nov", "dec",
    "z.b", "d.h", "bzw", "usw", "ca", "nr", "vgl", "bspw", "u.a", "p.m", "a.m", "u.s", "u.k",
})  # fmt: skip
_MAY_END = frozenset({"etc", "al", "inc", "ltd", "co", "corp", "jr", "sr", "usw", "p.m", "a.m", "u.s", "u.k"})
"""Abbreviations that often end a sentence: a capital letter after them begins a new one."""


def boundaries(text: str) -> Iterator[tuple[int, int]]:
    """The boundaries of sentences, in order: (end of one with its closing marks, beginning of the next). An empty line
    always is one."""
    for match in _STOP.finditer(text):
        if match["wide"] is not None:
            yield match.end("wide"), match.end()
        elif match["stop"] is None or "\n\n" in _spaces(match[0]):
            yield (match.start() if match["stop"] is None else match.end("stop")), match.end()
        elif not _goes_on(text, match):
            yield match.end("stop"), match.end()


def spans(text: str) -> list[tuple[int, int]]:
    """The sentences of `text` as (start, end), without surrounding white space and those without a letter or digit."""
    found: list[tuple[int, int]] = []
    start = 0
    for end, begin in boundaries(text):
        found.append((start, end))
        start = begin
    found.append((start, len(text)))
    return [_stripped(text, *span) for span in found if _LETTERS.search(text, *span)]


def sentences(text: str) -> list[str]:
    """The sentences of a text in order, each on one line. The last may be unfinished.

    >>> sentences("It rains. Dr. Who, e.g., knows\\nwhy.")
    ['It rains.', 'Dr. Who, e.g., knows why.']
    """
    return [" ".join(text[start:end].split()) for start, end in spans(text)]


def abbreviated(word: str) -> bool:
    """Whether a full stop after a word usually does not end a sentence: an initial, or a short form such as `Fig`."""
    word = word.strip(".").casefold()
    return word in _ABBREVIATIONS or (len(word) == 1 and word.isalpha())


def _goes_on(text: str, match: re.Match[str]) -> bool:
    """Whether the sentence continues after a stop."""
    if match["closed"]:  # the end of a quotation or of a bracket
        return text[match.end() : match.end() + 1].islower()
    if match["stop"] != ".":
        return False
    word = _WORD.search(text, max(0, match.start() - 12), match.start())
    following = text[match.end() : match.end() + 1]
    if word is not None and word[0].isdigit() and len(word[0]) < 3:  # the number of an item, or an ordinal as in German
        item = not text[: word.start()].rpartition("\n")[2].strip()
        return item or following.islower() or _MONTH.match(text, match.end()) is not None
    if word is None or not abbreviated(word[0]):
        return False
    short = word[0].strip(".").casefold()
    if short == "no":  # an abbreviation of "number", or the word "no"
        return following.isdigit()
    return short not in _MAY_END or not following.isupper()


def _spaces(text: str) -> str:
    return "".join(char for char in text if char.isspace() and char not in " \t")


def _stripped(text: str, start: int, end: int) -> tuple[int, int]:
    """A span without the white space around it. The span must not be blank."""
    part = text[start:end]
    return start + len(part) - len(part.lstrip()), end - len(part) + len(part.rstrip())
