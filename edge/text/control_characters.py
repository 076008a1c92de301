"""Characters that must not be shown: they control a terminal, break a line, or change the reading order: C0, DEL, C1,
line and paragraph separators, bidirectional controls (UAX #9), tag characters (hidden instructions), lone
surrogates."""

from __future__ import annotations

import re

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""One control character other than TAB and LF. A terminal obeys it instead of showing it."""

STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)
"""One character that is never shown unescaped in text of several lines: all of the above but TAB and LF."""

_IN_A_LINE = re.compile(f"[\t\n]|{STEERING.pattern}")


_SHORT = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}


def harmless(text: str) -> str:
    """Text of several lines with each such character as JSON's escape such as `\\u202e`; TAB and LF stay."""
    return STEERING.sub(escape, text)


def escaped(text: str) -> str:
    """Text for a part of one line: each such character, TAB and LF as an escape such as `\\n` or `\\u001b`."""
    return _IN_A_LINE.sub(escape, text)


def escape(found: re.Match[str]) -> str:
    char = found[0]
    units = char.encode("utf-16-be", "surrogatepass")
    return _SHORT.get(char) or "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
