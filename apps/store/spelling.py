"""Misspelled words: the words of an index that resemble a word which no row holds.

The vocabulary is that of the full-text index (SQLite's `fts5vocab`), so no dictionary is needed, and names, codes and
every language are covered. The index holds stems. Those that resemble the word lead to rows, and the word of these rows
that is nearest to the misspelled one is taken.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping

from edge.ivf.base import Connection

SHORTEST = 5
"""The fewest letters of a word that is looked up. Shorter words resemble too many others."""

_LONG = 7
"""From this length two letters may differ, otherwise one."""

_ENDING = 5
"""The most letters that the stem of a word is shorter."""

_FIRST = 500
"""Characters of a query whose words are looked up. A longer text is no question."""

_STEMS = 8
"""The most stems whose rows are read."""

_WORD = re.compile(r"[^\W\d_]+")


def unknown_words(query: str, ignored: Iterable[str] = ()) -> list[str]:
    """The first words of a query that are long enough to be looked up. A query with phrases in quotes has none: a
    phrase is searched as it is."""
    if '"' in query:
        return []
    return [word for word in words_of(query) if len(word) >= SHORTEST and word.casefold() not in ignored]


def words_of(query: str) -> list[str]:
    """The words of letters of a query, each once."""
    return list(dict.fromkeys(_WORD.findall(query[:_FIRST])))


def stems_like(db: Connection, table: str, word: str) -> dict[str, int]:
    """The stems in a full-text table that the beginning of a word resembles, each with the number of its rows, most
    similar first, of equal ones the most frequent. A stem begins with the word's first letter."""
    folded = folded_word(word)
    first, most = folded[0], _most(folded)
    db.execute(f"CREATE VIRTUAL TABLE IF NOT EXISTS temp.{table}_words USING fts5vocab(main, {table}, row)")
    rows = db.execute(
        f"SELECT term, doc FROM temp.{table}_words WHERE term >= ? AND term < ? AND length(term) BETWEEN ? AND ?",
        (first, chr(ord(first) + 1), len(folded) - _ENDING, len(folded) + most),
    )
    letters = set(folded)
    found = []
    for term, count in rows:
        if len(set(term) - letters) <= most and (least := min(_distances(term, folded))) <= most:
            found.append((least, -count, term))
    return {term: -count for _, count, term in sorted(found)[:_STEMS]}


def nearest_in(word: str, texts: Iterable[str]) -> str:
    """The word of some texts that is nearest to a misspelled word, as `nearest_word` chooses."""
    return nearest_word(word, Counter(other.lower() for text in texts for other in _WORD.findall(text)))


def nearest_word(word: str, counts: Mapping[str, int]) -> str:
    """The word that is nearest to a misspelled word; empty if too many letters differ. Of equally near ones, the most
    frequent is taken.

    Args:
        counts: words in lower case, with the number of times that each occurs.
    """
    folded = folded_word(word)
    best = min(
        (
            (distance, -count, other)
            for other, count in counts.items()
            if other[0] == folded[0]
            and abs(len(other) - len(folded)) <= _most(folded)
            and (distance := _distances(folded_word(other), folded)[-1]) <= _most(folded)
        ),
        default=(0, 0, ""),
    )
    return best[2]


def respelled(query: str, words: Mapping[str, str]) -> str:
    """A query with other words in place of some."""
    return _WORD.sub(lambda match: words.get(match[0], match[0]), query) if words else query


def folded_word(word: str) -> str:
    """A word in lower case without accents, as the index holds it."""
    plain = unicodedata.normalize("NFKD", word.lower())
    return "".join(char for char in plain if not unicodedata.combining(char))


def _most(word: str) -> int:
    return 2 if len(word) >= _LONG else 1


def _distances(word: str, other: str) -> list[int]:
    """The number of letters to insert, delete, replace or exchange with their neighbours between a word and each
    beginning of another (Damerau 1964, optimal string alignment)."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for at, letter in enumerate(word, 1):
        before, last, row = row, before, [at]
        for column, with_letter in enumerate(other, 1):
            cost = min(before[column] + 1, row[-1] + 1, before[column - 1] + (letter != with_letter))
            if at > 1 and column > 1 and letter == other[column - 2] and word[at - 2] == with_letter:
                cost = min(cost, last[column - 2] + 1)
            row.append(cost)
    return row
