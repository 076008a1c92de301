"""`most_tokens`: a bound of the tokens of a text that holds for the tokenizers of common language models."""

from __future__ import annotations

import re
from collections.abc import Sequence

_LETTERS = 3
"""Letters of a lower-case word that count as one token. Common words are one token; few words have more than one for
three letters."""

_AROUND = 3
"""Tokens that a text may have more because of what stands before and after it."""

_PIECES = re.compile(
    r"(?P<word> ?[A-Za-z]+(?![0-9A-Za-z+/=]))|(?P<coded> ?[0-9A-Za-z]+)|(?P<space>\s+)"
    r"|(?P<other>[^\x00-\x7f]+)|(?P<mark>.)",
    re.DOTALL,
)
_SEGMENT = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_CLUSTER = re.compile(r"[^aeiouAEIOU]{3,}")


def most_tokens(text: str) -> int:
    """At least as many tokens as common tokenizers make of a text, without marks of its beginning and its end.

    It needs no vocabulary. Digits, codes such as hashes, and punctuation count one for each character, and letters
    beyond ASCII their bytes in UTF-8, as if a vocabulary held none of them. The bound is loose for other scripts.
    """
    return sum(_count(match) for match in _PIECES.finditer(text)) + (_AROUND if text else 0)


def _count(match: re.Match[str]) -> int:
    piece = match[0]
    if match.lastgroup == "word":
        segments = _SEGMENT.findall(piece)
        return sum(_letters(segment, alone=len(segments) == 1) for segment in segments)
    if match.lastgroup == "space":
        return 0 if piece == " " else len(piece)
    return len(piece.encode()) if match.lastgroup == "other" else len(piece)


def _letters(segment: str, *, alone: bool) -> int:
    if (segment.isupper() and len(segment) > 1) or (not alone and len(segment) < _LETTERS):
        return len(segment)
    return -(-len(segment) // _LETTERS) + sum(len(cluster) - 2 for cluster in _CLUSTER.findall(segment))


def fit(tokens: Sequence[int], room: int) -> list[bool]:
    """Whether each of some texts, best first, is taken: each one that still fits beside those before it."""
    taken: list[bool] = []
    for count in tokens:
        taken.append(count <= room)
        room -= count * taken[-1]
    return taken
