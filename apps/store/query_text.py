"""The longest query, the same for collections, memories and questions."""

from __future__ import annotations

from edge.errors import InputError

LONGEST_QUERY = 100_000
"""The most characters of a query. Its words are held several times while passages are looked for and shown."""


def bounded_query(text: str) -> str:
    """Returns the text of a query.

    Raises:
        InputError: it is longer than `LONGEST_QUERY`.
    """
    if len(text) > LONGEST_QUERY:
        raise InputError(f"the query has {len(text):,} characters, and {LONGEST_QUERY:,} are the most")
    return text
