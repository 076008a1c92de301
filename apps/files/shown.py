"""Names of files as a terminal may see them."""

from __future__ import annotations

from edge.apps.documents.decoding import clean


def shown(text: str) -> str:
    """A line that holds names, for people: what the text of a document is cleaned of, and what would break the line, is
    escaped, as ESC is to `\\x1b`. A name may hold everything but a slash."""
    pairs = zip(text, clean(text), strict=True)
    return "".join(one if one == kept and one not in "\t\n" else _escaped(one) for one, kept in pairs)


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
