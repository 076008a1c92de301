"""Text in Latin letters from before UTF-8: in which encoding its accented letters make the likeliest language.

A byte is a letter in all of these encodings, so that nothing is ever impossible; but à, è and ù are Italian, and ŕ, č
and ů nobody's. Every encoding is judged by the language that fits it best, from how often a language has each letter.
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
"""Encodings, about how much rarer files in them are than those in cp1252, as a logarithm, and the accented letters of
their languages, the commonest first."""

_FOREIGN = -6.0
"""Logarithm of the frequency of a letter that a language does not have."""

_MISPLACED = -9.0
"""The same of what no language has there: a sign inside a word, or a byte without a meaning."""

_COMMON = frozenset("€£§©®°«»‹›“”„‚…•™²³½¼¾±×÷ªºµ¿¡")
"""Signs that may stand beside a word in any language, at no cost; others cost as much as a foreign letter."""

_ALONE = frozenset("£½¼¾±×÷")
"""Of these, those that stand beside figures and not beside letters."""

_MOST_MISPLACED = 0.25
"""More than this share out of place, and it is no text in Latin letters."""

_LONG = 3
"""Words as long as this are never of accented letters alone; in other scripts they look as if they were."""

_OPENING = frozenset("„‚¿¡")
"""Signs that stand before a word and not behind it."""

_SPELT = frozenset("ªºµˆ")
"""Signs that Unicode takes for letters."""

_REPLACED = "\ufffd"
_PIECE = re.compile(rb"[A-Za-z]*[\x80-\xff][A-Za-z\x80-\xff]*")
_WORD = re.compile("[A-Za-z]*[^\x00-\x7f\xa0\xad’‘–—·](?:[A-Za-z]|[^\x00-\x7f\xa0\xad’‘–—·])*")
"""A word with something in it that is not ASCII; spaces, dashes and apostrophes may be anywhere, and end it."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """What is not ASCII in a text: how often it has each letter where a letter may be, how many rare signs, and how
    many characters where they cannot be."""

    letters: Counter[str]
    rare: int
    misplaced: int

    def likelihood(self, frequencies: dict[str, float]) -> float:
        """Logarithm of how likely the text is in a language, given those of its letters."""
        letters = sum(count * frequencies.get(letter, _FOREIGN) for letter, count in self.letters.items())
        return letters + _FOREIGN * self.rare + _MISPLACED * self.misplaced


def likeliest(data: bytes) -> str | None:
    """The encoding in which bytes are likeliest as text in Latin letters; None if they are none in any."""
    # A word that comes again says nothing new: a name in every line would outweigh all that is known of encodings.
    pieces = list(dict.fromkeys(_PIECE.findall(data)))
    most = _MOST_MISPLACED * sum(map(_accented, pieces))
    if sum(len(piece) for piece in pieces if len(piece) == _accented(piece) >= _LONG) > most:
        return None
    chosen, best, misplaced = "", -inf, 0
    for encoding, prior, alphabets in _ENCODINGS:
        reading = _read(b"\n".join(pieces).decode(encoding, "replace"))
        languages = [_frequencies(alphabet) for alphabet in alphabets]
        if encoding == "cp1252":  # the one that lists of names are in, too
            languages.append(_of_any(alphabets))
        score = prior + max(map(reading.likelihood, languages))
        if score > best:
            chosen, best, misplaced = encoding, score, reading.misplaced
    return chosen if misplaced <= most else None


def _read(text: str) -> _Reading:
    """Sorts what is not ASCII in a text."""
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
    """How many bytes are not ASCII."""
    return sum(byte > 0x7F for byte in piece)


def _is_letter(char: str) -> bool:
    return (char.isalpha() and char not in _SPELT) or combining(char) != 0


@cache
def _frequencies(alphabet: str) -> dict[str, float]:
    """Logarithms of how frequent letters are, by Zipf's law."""
    whole = sum(1 / rank for rank in range(1, len(alphabet) + 1))
    return {letter: -log(rank * whole) for rank, letter in enumerate(alphabet, 1)}


@cache
def _of_any(alphabets: tuple[str, ...]) -> dict[str, float]:
    """The same of no language in particular: a list of names, or a language that is missing here."""
    union = set("".join(alphabets))
    return dict.fromkeys(union, -log(len(union)))
