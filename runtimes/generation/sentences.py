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
    found: list[str] = []
    start = 0
    for boundary in _BOUNDARY.finditer(text):
        before = text[start : boundary.start()]
        if "\n\n" not in boundary.group().replace(" ", "") and _SHORT.search(before):
            continue
        found.append(text[start : boundary.end()])
        start = boundary.end()
    found.append(text[start:])
    return [" ".join(part.split()) for part in found if _LETTERS.search(part)]
