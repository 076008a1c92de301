"""Characters that have no place in what is shown: they steer a terminal, break a line, or turn the order of reading.

One place knows them all: the controls of ASCII and Latin-1 (C0, DEL, C1), the separators of lines and paragraphs, the
bidirectional controls of Unicode (UAX #9), by which a text can look like another one, tag characters, which say to a
model what people cannot see, and lone surrogates, which no encoding can carry.
"""

from __future__ import annotations

import re

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""One control character other than TAB and LF: escapes, bells, and what else a terminal obeys instead of showing it."""

STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)
"""One character that is never shown as it is, in text of several lines: all of the above but TAB and LF."""

_IN_A_LINE = re.compile(f"[\t\n]|{STEERING.pattern}")


_SHORT = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}


def harmless(text: str) -> str:
    """Text of several lines with every steering character as an escape such as `\\u202e`; TAB and LF stay.

    The escapes are those of JSON, so that JSON stays JSON.
    """
    return STEERING.sub(escape, text)


def escaped(text: str) -> str:
    """Text as part of one line: every steering character, TAB and LF as escapes such as `\\n` and `\\u001b`."""
    return _IN_A_LINE.sub(escape, text)


def escape(found: re.Match[str]) -> str:
    """The escape of a character that was found."""
    char = found[0]
    units = char.encode("utf-16-be", "surrogatepass")
    return _SHORT.get(char) or "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
