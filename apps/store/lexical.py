"""`LexicalIndex`: BM25 over texts through SQLite's FTS5; and the longest query of any search.

The table is contentless: the texts are stored elsewhere in the database, and a caller that deletes a row passes its
text.
"""

from __future__ import annotations

import math
import re
import threading
import unicodedata
from collections.abc import Iterable, Iterator, Sequence

from edge.errors import InputError
from edge.ivf.storage.connection import Connection

LONGEST_QUERY = 100_000
"""The most characters of a query. Its words are held several times while passages are looked for and shown."""

_TOKENIZER = "porter unicode61 remove_diacritics 2"

_PAGE_NBYTES = 4000
"""Bytes of a page of the index."""

_POSTINGS = 100_000
"""Rows that a query may score, about a tenth of a second. The rarest terms come first; later terms are left out."""

_COMMON = 0.5
"""Terms in more than this share of the rows are ignored: FTS5's BM25 gives them no weight."""

_REMEMBERED = 4_096
"""Terms whose row count is cached."""

_PART = re.compile(r'"([^"]+)"|([^"]+)')
_WORD = re.compile(r"[^\W_]+")
_UNSPACED = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")
"""Characters of scripts written without spaces (Chinese, Japanese): each becomes a token of its own."""


class LexicalIndex:
    """Full-text index of one table. Holds no connection; thread-safe.

    >>> lexical = LexicalIndex("notes_fts")
    >>> with database.write() as db:
    ...     lexical.add(db, [1, 2], ["the river floods", "bread needs time"])
    ...     lexical.search(db, "when does the river flood?", 10)  # [(1, 0.7...)]
    """

    def __init__(self, table: str, *, ignored: frozenset[str] = frozenset()) -> None:
        """Opens the index.

        Args:
            table: the name that was passed to `create`.
            ignored: words in lower case that are left out of a query, unless it consists of them alone. Phrases in
                quotes stay, and so do words with other capitals than a sentence's first one: "May", "WHO" and "IT" are
                names.
        """
        self.table = table
        self._ignored = ignored
        self._counts: dict[str, int] = {}
        self._counted_rows = 0
        self._lock = threading.Lock()

    @staticmethod
    def create(table: str) -> str:
        """The statement that makes the table, for a migration."""
        return f"CREATE VIRTUAL TABLE {table} USING fts5(text, content='', tokenize='{_TOKENIZER}');\n"

    @staticmethod
    def keep_pages_whole(table: str) -> str:
        """The statement, for a migration, that makes new pages of the index small enough to fit in one page of the
        database. Then the loss of a whole page is detected, even if it became a page of zeros."""
        return f"INSERT INTO {table}({table}, rank) VALUES ('pgsz', {_PAGE_NBYTES});"

    def add(self, db: Connection, ids: Sequence[int], texts: Sequence[str]) -> None:
        """Adds rows; an id must not be there yet."""
        rows = zip(ids, map(_spaced, texts), strict=True)
        db.executemany(f"INSERT INTO {self.table}(rowid, text) VALUES (?, ?)", rows)

    def delete(self, db: Connection, ids: Sequence[int], texts: Sequence[str]) -> None:
        """Deletes rows; `texts` must be exactly the texts that were added."""
        rows = zip(ids, map(_spaced, texts), strict=True)
        db.executemany(f"INSERT INTO {self.table}({self.table}, rowid, text) VALUES ('delete', ?, ?)", rows)

    def search(
        self, db: Connection, query: str, k: int, *, where: str = "", params: Sequence[object] = ()
    ) -> list[tuple[int, float]]:
        """The `k` best rows as (id, BM25 score), best first; higher is better.

        Any text is a valid query. A row matches if it holds one of its words, or one of its phrases in double quotes.

        Args:
            where: an SQL condition on `rowid` with its `params`, such as `rowid IN (SELECT ...)`.
        """
        terms = self._weighty(db, self._terms(query))
        if not terms or k <= 0:
            return []
        condition = f"AND ({where})" if where else ""
        found = db.execute(
            f"SELECT rowid, -rank FROM {self.table} WHERE {self.table} MATCH ? {condition} ORDER BY rank LIMIT ?",
            (" OR ".join(terms), *params, k),
        )
        return [(int(identifier), float(score)) for identifier, score in found]

    def whole_score(self, db: Connection, query: str) -> float:
        """The BM25 score of a row of average length that holds every word and phrase of the query once. The weights of
        words are those of FTS5; a word that no row holds has the largest weight."""
        terms = self._terms(query)
        counts = self._frequencies(db, terms)
        with self._lock:
            rows = self._counted_rows
        return sum(math.log(max(1.0, (rows - counts[term] + 0.5) / (counts[term] + 0.5))) for term in terms)

    def weights(self, db: Connection, query: str) -> dict[str, float]:
        """The query's significant words with their inverse document frequencies. Snippets are chosen by them."""
        words = {word: f'"{word}"' for word in _WORD.findall(unicodedata.normalize("NFC", query))}
        chosen = self._weighty(db, list(words.values()))
        with self._lock:
            counts, rows = dict(self._counts), self._counted_rows
        return {
            word: math.log(1 + rows / max(1, counts.get(term, 0))) for word, term in words.items() if term in chosen
        }

    def optimize(self, db: Connection) -> None:
        """Merges the index into one b-tree. This frees the space of deleted rows."""
        db.execute(f"INSERT INTO {self.table}({self.table}) VALUES ('optimize')")

    def _terms(self, query: str) -> list[str]:
        """The different words and phrases of a query, as FTS5 strings."""
        return list(dict.fromkeys(_terms(query, self._ignored))) or list(dict.fromkeys(_terms(query)))

    def _weighty(self, db: Connection, terms: list[str]) -> list[str]:
        """The significant terms, rarest first, as many as may be scored; the rarest term if none is significant."""
        counts = self._frequencies(db, terms)
        present = sorted((term for term in terms if counts[term]), key=lambda term: counts[term])
        chosen: list[str] = []
        postings = 0
        for term in present:
            postings += counts[term]
            if chosen and (postings > _POSTINGS or counts[term] > _COMMON * self._counted_rows):
                break
            chosen.append(term)
        return chosen

    def _frequencies(self, db: Connection, terms: Iterable[str]) -> dict[str, int]:
        """How many rows hold each term. Counts are cached until the number of rows has changed by a tenth."""
        rows = int(db.execute(f"SELECT count(*) FROM {self.table}_docsize").fetchone()[0])
        with self._lock:
            if abs(rows - self._counted_rows) > self._counted_rows // 10 or len(self._counts) > _REMEMBERED:
                self._counts.clear()
                self._counted_rows = rows
            known = dict(self._counts)
        statement = f"SELECT count(*) FROM {self.table} WHERE {self.table} MATCH ?"
        # A term that was absent may have been added since, so only counts above zero are reused.
        counts = {term: known.get(term) or int(db.execute(statement, (term,)).fetchone()[0]) for term in terms}
        with self._lock:
            self._counts.update(counts)
        return counts


def bounded_query(text: str) -> str:
    """Returns the text of a query.

    Raises:
        InputError: it is longer than `LONGEST_QUERY`.
    """
    if len(text) > LONGEST_QUERY:
        raise InputError(f"the query has {len(text):,} characters, and {LONGEST_QUERY:,} are the most")
    return text


def _spaced(text: str) -> str:
    return _UNSPACED.sub(r" \g<0> ", text)


def _terms(query: str, ignored: frozenset[str] = frozenset()) -> Iterator[str]:
    """Phrases and words of a query as FTS5 strings, without the `ignored` words. The query's text can never act as an
    operator."""
    query = unicodedata.normalize("NFC", query).strip()
    query = query[:1].lower() + query[1:] if query[1:2].islower() else query
    for phrase, free in _PART.findall(query):
        if phrase:
            words = _WORD.findall(_spaced(phrase))
            if words:
                yield _quoted(words)
        for word in _WORD.findall(free):
            if word in ignored or (word == "I" and "i" in ignored):
                continue
            parts = _spaced(word).split()
            if len(parts) <= 2:
                yield _quoted(parts)
            else:  # a run of characters without spaces: two neighbours are about one word
                yield from (_quoted(parts[i : i + 2]) for i in range(len(parts) - 1))


def _quoted(words: Sequence[str]) -> str:
    return '"' + " ".join(words) + '"'
