"""Guesses the encoding of Latin-script text that is not UTF-8, by the language that its accented letters suggest.

A byte is a letter in all of these encodings, so no encoding is impossible. But à, è and ù suggest Italian, and no
language has ŕ, č and ů. An encoding's score comes from the language that fits it best, by the frequency of each letter
in that language.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import cache
from math import inf, log
from unicodedata import combining

_WESTERN = (
    "éèàêçâîôùûïëœü",  # French
    "ãçáéíóêõâúàô",  # Portuguese
    "óáíéñúü",  # Spanish
    "èàòùìé",  # Italian
    "àéèóíçòúïü",  # Catalan
    "üäößé",  # German
    "ëéïèöüêó",  # Dutch
    "äåöé",  # Swedish
    "åøæéò",  # Danish, Norwegian
    "áíéúó",  # Irish
    "ðáíéóöþæúý",  # Icelandic
    "äöåšž",  # Finnish
    "äõüöšž",  # Estonian
    "ëç",  # Albanian
)
_CENTRAL = (
    "íáěéřčšžýůúňďťó",  # Czech
    "áíéčýšúžôľťňäďóĺŕ",  # Slovak
    "łęąóżśćńź",  # Polish
    "áéöőóíüúű",  # Hungarian
    "ăîâşţ",  # Romanian
    "čšžćđ",  # Croatian, Slovenian
)
_TURKISH = ("ıüşğçöİâîû",)
_BALTIC = (
    "ėšįųžūąčę",  # Lithuanian
    "āīēšūņļžčģķ",  # Latvian
    _WESTERN[12],
)
_VIETNAMESE = ("\u0301\u0300đ\u0323ưôơêâ\u0309\u0303ăáàóíéúòìèùý",)

_ENCODINGS = (
    ("cp1252", 0.0, _WESTERN),
    ("cp1250", -3.5, _CENTRAL),
    ("cp1254", -4.0, _TURKISH),
    ("cp1257", -6.0, _BALTIC),
    ("iso8859_15", -4.0, _WESTERN),
    ("iso8859_2", -5.0, _CENTRAL),
    ("cp1258", -8.0, _VIETNAMESE),
    ("cp850", -10.0, _WESTERN),
    ("cp437", -10.0, _WESTERN),
    ("mac_roman", -10.0, _WESTERN),
)
"""Encodings; the logarithm of their frequency relative to cp1252; and the accented letters of their languages, the most
frequent letters first."""

_FOREIGN = -6.0
"""Logarithm of the frequency of a letter that does not occur in a language."""

_MISPLACED = -9.0
"""Logarithm for characters that no language has at their place: a sign inside a word, or an undefined byte."""

_COMMON = frozenset("€£§©®°«»‹›“”„‚…•™²³½¼¾±×÷ªºµ¿¡")
"""Signs beside a word that cost nothing in any language; other signs cost as much as a foreign letter."""

_ALONE = frozenset("£½¼¾±×÷")
"""Those of `_COMMON` that occur beside digits and not beside letters."""

_MOST_MISPLACED = 0.25
"""Share of misplaced characters above which the text is not in Latin letters."""

_LONG = 3
"""No word this long consists of accented letters alone. Words in other scripts seem to."""

_OPENING = frozenset("„‚¿¡")
"""Signs that occur before a word and not after it."""

_SPELT = frozenset("ªºµˆ")
"""Signs that Unicode classifies as letters."""

_REPLACED = "\ufffd"
_PIECE = re.compile(rb"[A-Za-z]*[\x80-\xff][A-Za-z\x80-\xff]*")
_WORD = re.compile("[A-Za-z]*[^\x00-\x7f\xa0\xad’‘–—·](?:[A-Za-z]|[^\x00-\x7f\xa0\xad’‘–—·])*")
"""A word with at least one non-ASCII character. Spaces, dashes and apostrophes end it in every language."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """Counts of a text's non-ASCII characters: each letter at a possible place, rare signs, and misplaced
    characters."""

    letters: Counter[str]
    rare: int
    misplaced: int

    def likelihood(self, frequencies: dict[str, float]) -> float:
        """Log-likelihood of the text in a language, given the log-frequencies of its letters."""
        letters = sum(count * frequencies.get(letter, _FOREIGN) for letter, count in self.letters.items())
        return letters + _FOREIGN * self.rare + _MISPLACED * self.misplaced


def likeliest(data: bytes) -> str | None:
    """The most likely encoding of bytes as Latin-script text; None if they are not such text in any encoding."""
    # Repeated words count once. Otherwise, a name in every line would outweigh the frequencies of encodings.
    pieces = list(dict.fromkeys(_PIECE.findall(data)))
    most = _MOST_MISPLACED * sum(map(_accented, pieces))
    if sum(len(piece) for piece in pieces if len(piece) == _accented(piece) >= _LONG) > most:
        return None
    chosen, best, misplaced = "", -inf, 0
    for encoding, prior, alphabets in _ENCODINGS:
        reading = _read(b"\n".join(pieces).decode(encoding, "replace"))
        languages = [_frequencies(alphabet) for alphabet in alphabets]
        if encoding == "cp1252":  # lists of names are most often in this encoding
            languages.append(_of_any(alphabets))
        score = prior + max(map(reading.likelihood, languages))
        if score > best:
            chosen, best, misplaced = encoding, score, reading.misplaced
    return chosen if misplaced <= most else None


def _read(text: str) -> _Reading:
    """Counts the non-ASCII characters of a text."""
    letters: Counter[str] = Counter()
    rare = misplaced = 0
    for word in _WORD.findall(text):
        first, end = 0, len(word)
        while first < end and not _is_letter(word[first]):
            first += 1
        while end > first and not _is_letter(word[end - 1]):
            end -= 1
        inner = word[first:end]
        for sign in word[:first] + word[end:]:
            rare += sign not in _COMMON or (sign in _ALONE and inner != "")
            misplaced += sign == _REPLACED or not sign.isprintable()
        misplaced += sum(sign in _OPENING for sign in word[end:])
        previous = ""
        for char in inner:
            if not char.isascii():
                if _is_letter(char) and not (char.isupper() and previous.islower()):
                    letters[char.lower()] += 1
                else:
                    misplaced += 1
            previous = char
    return _Reading(letters, rare, misplaced)


def _accented(piece: bytes) -> int:
    """The number of non-ASCII bytes."""
    return sum(byte > 0x7F for byte in piece)


def _is_letter(char: str) -> bool:
    return (char.isalpha() and char not in _SPELT) or combining(char) != 0


@cache
def _frequencies(alphabet: str) -> dict[str, float]:
    """Log-frequencies of letters by Zipf's law; `alphabet` is in order of frequency."""
    whole = sum(1 / rank for rank in range(1, len(alphabet) + 1))
    return {letter: -log(rank * whole) for rank, letter in enumerate(alphabet, 1)}


@cache
def _of_any(alphabets: tuple[str, ...]) -> dict[str, float]:
    """Log-frequencies without a particular language, for lists of names and for languages that are missing here."""
    union = set("".join(alphabets))
    return dict.fromkeys(union, -log(len(union)))
