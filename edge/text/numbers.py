"""Numbers in texts, by their value: 70, seventy and 70.0 are one number, and so are 2 million and 2,000,000."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal

_UNITS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_TENS = {
    word: 10 * number
    for number, word in enumerate(["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"], 2)
}
_SCALES = {"hundred": 100, "thousand": 1_000, "million": 10**6, "billion": 10**9, "dozen": 12}
NUMBER_WORDS: dict[str, Decimal] = {
    **{word: Decimal(number) for number, word in enumerate(_UNITS.split())},
    **{word: Decimal(number) for word, number in (_TENS | _SCALES).items()},
    "half": Decimal("0.5"), "quarter": Decimal("0.25"), "once": Decimal(1), "twice": Decimal(2), "thrice": Decimal(3),
}  # fmt: skip
"""Number words of English, and their values."""

_SEPARATOR = re.compile(r"[,.](?=\d{3}(?:\D|$))")


def number_at(words: Sequence[str], at: int) -> tuple[str, int] | None:
    """The number that begins at a word, in a normal form, and how many words it has; None if none begins there.

    >>> number_at(["2", "million", "euros"], 0), number_at(["Seventy", "five"], 0), number_at(["3.0"], 0)
    (('2000000', 2), ('75', 2), ('3', 1))
    """
    value = _value(words[at])
    if value is None:
        # A time, or a number of several parts, is only itself.
        return (words[at].lstrip("0") or "0", 1) if words[at][:1].isdigit() else None
    end = at + 1
    if words[at].casefold() in _TENS and end < len(words) and _UNITS.split().count(words[end].casefold()):
        value, end = value + NUMBER_WORDS[words[end].casefold()], end + 1
    while end < len(words) and words[end].casefold() in _SCALES:
        value, end = value * _SCALES[words[end].casefold()], end + 1
    return normal(value), end - at


def normal(value: Decimal) -> str:
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _value(word: str) -> Decimal | None:
    """The value of one word. A comma or a point before three digits separates thousands."""
    if word.casefold() in NUMBER_WORDS:
        return NUMBER_WORDS[word.casefold()]
    if not word[:1].isdigit():
        return None
    digits = _SEPARATOR.sub("", word).replace(",", ".")
    return Decimal(digits) if re.fullmatch(r"[0-9]+(?:\.[0-9]+)?", digits) else None
