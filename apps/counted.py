"""`counted`: a number with its noun."""

from __future__ import annotations


def counted(count: int, noun: str, nouns: str = "") -> str:
    """A number and the form of the noun that goes with it: `1 file`, `2,000 files`.

    Args:
        noun: the singular.
        nouns: the plural, if it is not the singular with an s.
    """
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"
