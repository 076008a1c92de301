"""Number formats of spreadsheets: a value as its sheet shows it (ECMA-376, part 1, 18.8.31)."""

from __future__ import annotations

import re
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from functools import lru_cache
from itertools import pairwise

BUILT_IN = {
    "1": "0", "2": "0.00", "3": "#,##0", "4": "#,##0.00", "9": "0%", "10": "0.00%", "11": "0.00E+00",
    "37": "#,##0 ;(#,##0)", "38": "#,##0 ;(#,##0)", "39": "#,##0.00;(#,##0.00)", "40": "#,##0.00;(#,##0.00)",
    "48": "##0.0E+0",
}  # fmt: skip
"""The formats that have a number and no code in the file. Formats of dates are not among them."""

_LITERAL = r"\"(?:[^\"]*)\"|\\."
_SECTIONS = re.compile(rf"((?:{_LITERAL}|[^;])*);?")
_TOKEN = re.compile(
    rf"(?P<literal>{_LITERAL})|_.|\*.|\[\$(?P<currency>[^\]-]*)[^\]]*\]|\[[^\]]*\]"
    r"|(?P<digits>[0#?][0#?,]*(?:\.[0#?]*)?|\.[0#?]+)|(?P<general>General)|(?P<other>.)",
    re.DOTALL,
)
_WHOLE = re.compile(r"-?[0-9]{1,30}")
_LONGEST_CODE = 255
"""Characters of the longest format that spreadsheet programs take. `_TOKEN` would be slow on much longer ones."""

_MOST_DIGITS = 16
"""Digits before the point of the largest number that is shown by its format."""


def shown(value: str, code: str) -> str:
    """A number as a format shows it. What no format of this kind means is shown in plain form.

    Args:
        value: as stored, such as `0.075` or `1.5E-2`.
        code: the format, such as `0.0%`; empty for none. Not one of dates.

    >>> shown("0.075", "0.0%"), shown("42", "00000"), shown("-1234.5", "[$€-407]#,##0.00;[Red]-[$€]#,##0.00")
    ('7.5%', '00042', '-€1,234.50')
    """
    try:
        if not code or len(code) > _LONGEST_CODE:
            return _plain(value)
        number = Decimal(value)
        if not number.is_finite() or number.adjusted() >= _MOST_DIGITS:
            return _plain(value)
        return _formatted(number, value, code)
    except (InvalidOperation, ValueError):  # not a number, or a format of absurd length
        return value


def _formatted(number: Decimal, value: str, code: str) -> str:
    sections = _sections(code)
    tokens = sections[0]
    if number < 0 and len(sections) > 1:
        tokens, number = sections[1], -number
    elif not number and len(sections) > 2:
        tokens = sections[2]
    runs = [token["digits"] for token in tokens if token["digits"]]
    letters = {token["other"] for token in tokens if token["other"]}
    if letters & set("Ee/@") or any(token["general"] for token in tokens):
        return _plain(value)
    number *= 100 ** sum(token["other"] == "%" for token in tokens)
    if len(runs) > 1 and all(set(run) == {"0"} for run in runs):  # a code in groups: 000-00-0000
        digits = str(abs(number).quantize(Decimal(1), ROUND_HALF_UP)).zfill(sum(map(len, runs)))
        cuts = [len(digits) - sum(map(len, runs[at:])) for at in range(1, len(runs))]
        filled = iter([digits[start:end] for start, end in pairwise([0, *cuts, len(digits)])])
    elif len(runs) > 1:
        return _plain(value)
    else:
        filled = iter([_digits(abs(number), run) for run in runs])
    pieces = []
    for token in tokens:
        if token["digits"]:
            pieces.append(next(filled))
        elif token["literal"]:
            pieces.append(token["literal"].strip('"').removeprefix("\\"))
        else:
            pieces.append(token["currency"] or token["other"] or "")
    text = " ".join("".join(pieces).split())
    return f"-{text}" if number < 0 and any(digit in text for digit in "123456789") else text


@lru_cache(64)
def _sections(code: str) -> list[list[re.Match[str]]]:
    """The tokens of each section of a format: for all numbers, or for positive ones, negative ones and zero."""
    return [list(_TOKEN.finditer(section)) for section in _SECTIONS.findall(code)[:-1]]


def _plain(value: str) -> str:
    """A number without a format: all digits of a whole number, 15 digits of another."""
    return value if _WHOLE.fullmatch(value) else f"{float(value):.15g}"


def _digits(number: Decimal, run: str) -> str:
    """A number, not negative, in the place of a run of `0`, `#` and `?`."""
    whole, _, decimals = run.partition(".")
    scaled = whole.rstrip(",") if not decimals else whole
    number = number.scaleb(-3 * (len(whole) - len(scaled)))
    rounded = number.quantize(Decimal(1).scaleb(-len(decimals)), ROUND_HALF_UP)
    before, _, behind = f"{rounded:f}".partition(".")
    while behind and behind[-1] == "0" and decimals[len(behind) - 1] != "0":
        behind = behind[:-1]
    if "," in scaled:
        before = f"{int(before):,}"
    return f"{before.zfill(scaled.count('0'))}{'.' if behind else ''}{behind}"
