"""How many tokens texts have for the tokenizers of common language models, without any of their vocabularies."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Sequence

_COMMON = frozenset(re.findall(
    r"\w+",
    "the of and in to was he is as for on with that it his by at from her she you had an were but be this are not my "
    "they one which or have him me first all also their has up who out been when after there into new two its time "
    "would no what about said we over then other so more can if like back them only some could where just during "
    "before do made school through than now years most world may between down well three year while will later city "
    "under around did such being used state people part know against your many second both national these don off way "
    "until re how even get head didn team because film since still long work us any high again day family see right "
    "man house season war including took life same each called name much",
))  # fmt: skip
"""The most frequent English words that are one token for each of the tokenizers in docs/decisions/search.md."""

_ENGLISH = (0.2, 0.32)
"""The shares of `_COMMON` among a text's words from which others count more, and wholly, as English."""

_SCRIPTS = (0x80, 0x370, 0x590, 0x780, 0xE80, 0x2000, 0x2070, 0x3000, 0xA000, 0x10000)
_PER_CHARACTER = (2.0, 1.35, 1.5, 2.2, 2.85, 2.0, 2.85, 2.2, 2.85, 3.8)
"""The tokens of a character from each of `_SCRIPTS` on. A capital letter has more."""

_CAPITAL = 0.8
_CODED = 0.95
"""The tokens of a letter of words in capitals, and of a character of codes such as hashes."""

_SPREAD = 2.0
"""The standard deviations between the expected number n of tokens and the bound, if one is the square root of n."""

_PIECES = re.compile(r"(?P<run>[0-9A-Za-z]+)|(?P<space>\s+)|(?P<other>[^\x00-\x7f]+)|(?P<mark>.)", re.DOTALL)
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_CLUSTER = re.compile(r"[^aeiouyAEIOUY]{3,}")


def expected_tokens(text: str) -> float:
    """A text's tokens for the tokenizer that makes the most of it. Sum them before `most_tokens`."""
    tokens = english = other = 0.0
    common = words = 0
    for match in _PIECES.finditer(text):
        kind, piece = match.lastgroup, match[0]
        if kind == "space":
            lines, starts_number = piece.count("\n"), text[match.end() : match.end() + 1].isdigit()
            tokens += lines + (starts_number if piece == " " else len(piece) - lines > 1)
        elif kind == "other":
            tokens += sum(_PER_CHARACTER[bisect_right(_SCRIPTS, ord(c)) - 1] + _CAPITAL * c.isupper() for c in piece)
        elif not piece.isalpha():
            tokens += len(piece) if kind == "mark" or piece.isdigit() else 1 + _CODED * len(piece)
        else:
            for word in _WORDS.findall(piece):
                size = len(word)
                known, words = word.lower() in _COMMON, words + (size > 1)
                common += known
                if known or size == 1 or word.isupper():
                    tokens += 1 if known else max(1, _CAPITAL * size)
                else:
                    hard = sum(len(cluster) - 2 for cluster in _CLUSTER.findall(word))
                    english += 1.12 + 0.22 * max(0, size - 4) + 0.35 * hard
                    other += 1.0 + 0.42 * (size - 2) + 0.9 * hard
    least, most = _ENGLISH
    share = min(1.0, max(0.0, (common / max(1, words) - least) / (most - least)))
    return tokens + share * english + (1 - share) * other


def most_tokens(expected: float) -> int:
    """A bound of tokens from the sum of `expected_tokens`; docs/decisions/search.md says where it holds."""
    return math.ceil(expected + _SPREAD * math.sqrt(expected))


def fit(expected: Sequence[float], room: int) -> list[bool]:
    """Whether each of some texts, best first, is taken: each one that still fits beside those before it."""
    taken: list[bool] = []
    spent = 0.0
    for tokens in expected:
        taken.append(most_tokens(spent + tokens) <= room)
        spent += tokens * taken[-1]
    return taken
