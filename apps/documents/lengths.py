"""How many word pieces a text will be, without a tokenizer: cheap enough to ask for every sentence.

The rule is fitted to the 30,000-piece vocabularies of BERT models on English prose, source code, HTML and JSON: a word
of up to three letters is one piece, longer ones 0.12 pieces more per letter up to ten and 0.5 beyond; digits are half a
piece each; punctuation and every letter outside ASCII are one. Accented Latin letters count three, because the words
around them are split more often too; Hangul syllables count two, being taken apart into letters.
"""

from __future__ import annotations

import re

_WORD = re.compile("[A-Za-z]{1,24}")
_DIGITS = re.compile("[0-9]{1,24}")
_SINGLE = re.compile("[!-/:-@\\[-`{-~]|[^\\x00-\\x7f]")
_HANGUL = re.compile("[\uac00-\ud7a3]")
_ACCENTED = re.compile("[\u00c0-\u024f]")
_WORD_PIECES = [0.0] + [1.0 + 0.12 * min(max(n - 3, 0), 7) + 0.5 * max(n - 10, 0) for n in range(1, 25)]
_DIGIT_PIECES = [0.0] + [max(1.0, 0.5 * n) for n in range(1, 25)]

MOST_PER_CHARACTER = 3
"""No text has more pieces than this times its characters."""


def estimate_pieces(text: str) -> float:
    """Word pieces of a text, estimated. Additive over texts that are cut at white space."""
    pieces = (
        sum(map(_WORD_PIECES.__getitem__, map(len, _WORD.findall(text))))
        + sum(map(_DIGIT_PIECES.__getitem__, map(len, _DIGITS.findall(text))))
        + len(_SINGLE.findall(text))
    )
    if not text.isascii():
        pieces += len(_HANGUL.findall(text)) + 2 * len(_ACCENTED.findall(text))
    return pieces
