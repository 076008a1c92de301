"""Text cut into sentences, for picking the ones that answer."""

from __future__ import annotations

import re

# A full stop, or its like, with closing marks, before space; or an empty line. Scripts that write no spaces between
# sentences have stops of their own.
_BOUNDARY = re.compile(r"""(?<=[.!?…])["'”’)\]]*\s+|(?<=[。！？])["”’」』)]*|\s*\n\s*\n\s*""")
_LETTERS = re.compile(r"\w")

# What ends in a full stop without ending a sentence: single capitals and common short forms.
_SHORT = re.compile(r"(?:^|[\s(])(?:[A-Z]|Mr|Mrs|Ms|Dr|Prof|St|No|Nr|vs|etc|e\.g|i\.e|cf|Fig|al|approx|ca|bzw|z\.B)\.$")


def sentences(text: str) -> list[str]:
    """Sentences of a text in their order, each on one line; what has no letter or digit is left out."""
    return [" ".join(text[start:end].split()) for start, end in spans(text)]


def spans(text: str) -> list[tuple[int, int]]:
    """Where the sentences of `text` stand in it, as (start, end) without white space around them."""
    found: list[tuple[int, int]] = []
    start = 0
    for boundary in _BOUNDARY.finditer(text):
        before = text[start : boundary.start()]
        if "\n\n" not in boundary.group().replace(" ", "") and _SHORT.search(before):
            continue
        found.append((start, boundary.end()))
        start = boundary.end()
    found.append((start, len(text)))
    return [_stripped(text, *span) for span in found if _LETTERS.search(text, *span)]


def _stripped(text: str, start: int, end: int) -> tuple[int, int]:
    """A span that holds more than white space, without the white space around it."""
    part = text[start:end]
    return start + len(part) - len(part.lstrip()), end - len(part) + len(part.rstrip())
