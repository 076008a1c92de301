"""Names of files as a terminal may see them."""

from __future__ import annotations

from edge.control_characters import escaped


def shown(text: str) -> str:
    """A line that holds names, for people. A name may hold everything but a slash, line breaks and escapes included."""
    return escaped(text)
