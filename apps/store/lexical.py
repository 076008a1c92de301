"""`LexicalIndex`: BM25 over texts in SQLite's FTS5; `Statistics`: the figures that scores need; misspelled words. The
table is contentless: a caller that deletes a row passes its text. Scores are computed here, so that rows of several
tables are scored with the sum of their statistics."""

from __future__ import annotations

import json
import math
import re
import threading
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from edge.budget import MemoryBudget
from edge.config import counted
from edge.errors import InputError
from edge.ivf.base import Connection

LONGEST_QUERY = 100_000

Floats64 = npt.NDArray[np.float64]

FUNCTION_WORDS = frozenset({
    "a", "after", "all", "am", "an", "and", "any", "are", "as", "at", "be", "been", "before", "but", "by", "can",
    "could", "did", "do", "does", "each", "far", "for", "from", "had", "has", "have", "he", "her", "him", "his", "how",
    "i", "if", "in", "is", "it", "its", "long", "many", "may", "me", "might", "more", "much", "must", "my", "no", "not",
    "of", "often", "old", "on", "once", "or", "our", "shall", "she", "should", "so", "some", "than", "that", "the",
    "their", "them", "then", "there", "these", "they", "this", "those", "to", "too", "until", "us", "very", "was", "we",
    "were", "what", "when", "where", "which", "while", "who", "whom", "whose", "why", "will", "with", "would", "you",
    "your",
})  # fmt: skip
"""English function words and question words."""

_TOKENIZER = "porter unicode61 remove_diacritics 2"

_WIDE = 20  # Rows to look at, as a multiple of those wanted, before all are.
_PAGE_NBYTES = 4000

_POSTINGS = 100_000  # Rows that a query may score, about a tenth of a second; the terms of the rarest come first.
_MOST_WORDS = 500
"""Words of a query that are searched, the first ones: a model reads no more of it."""

_MOST_LEFT_OUT = 100

_COMMON = 0.5  # Terms in more than this share of the rows have no weight in BM25.
_LITTLE = 1e-3

_SATURATION, _LENGTH = 1.2, 0.75

_LEAST_WEIGHT = 1e-6  # Of a term in half of the rows or more, as in FTS5.
_REMEMBERED = 4_096

_MATCH = np.dtype([("id", np.int64), ("score", np.float64)])

_POSTING_NBYTES, _WORD_NBYTES = 120, 17_000
"""Memory that FTS5 takes for a row that a query scores, and for a word of the query."""

_PART = re.compile(r'"([^"]+)"|([^"]+)')
_WORD = re.compile(r"[^\W_]+")
_BEGINNING = re.compile(r"(?<![\w*])([^\W_]{3,})\*(?![\w*])")
"""The beginning of a word with a star behind it: `gann*` stands for every word that begins so."""

_NAME = re.compile(
    r"(?<![A-Za-z0-9_+#])(?:[A-Za-z][A-Za-z0-9]{0,9}\+\+|[A-Za-z]#)(?![A-Za-z_+#])"
    r"|(?<![A-Za-z0-9_.])\.(?:NET|Net|net)(?![A-Za-z_])|(?<=[A-Za-z])\.NET(?![A-Za-z_])"
)
"""Names with signs that FTS5 takes for gaps."""

_NUMBER = re.compile(
    "(?<![A-Za-z0-9_.,'\u2019])[1-9][0-9]{0,2}"
    "(?:(?P<apart>[,'\u2019\u00a0\u2009\u202f])[0-9]{3}(?:(?P=apart)[0-9]{3}){0,4}(?!(?P=apart)?[0-9])"
    "|(?:\\.[0-9]{3}){1,5}(?=,[0-9]{1,2}(?![0-9])))"
)
"""A number whose thousands are apart: `1,200`, `1'200`, `1.200,50`."""

_DIGIT = re.compile("[0-9][,.'\u2019\u00a0\u2009\u202f][0-9]{3}")
_SIGN_OF_NAME = re.compile(r"\+\+|[A-Za-z]#|\.[Nn]")

_SIGNED = re.compile(f"{_NUMBER.pattern}|{_NAME.pattern}")
_SHOWN = re.compile(rf"{_SIGNED.pattern}|[^\W_]+")
_ASKED = re.compile(rf"{_BEGINNING.pattern}|{_SIGNED.pattern}|[^\W_]+")
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0002fa1f](?:q[0-9]{4})*"
)
"""A character of a script without spaces between words (Chinese, Japanese, Thai, Lao, Khmer, Burmese)."""

_OPTIONAL = re.compile(
    "[\u00ad\u0300-\u036f\u0591-\u05c7\u0610-\u061a\u0640\u064b-\u065f\u0670\u06d6-\u06ed\u200b-\u200d\u2060\ufe00-\ufe0f]"
)
"""Accents, vowel signs of Hebrew and Arabic, and characters that are not seen: writers may leave them out."""

_SIGN = re.compile(r"(?![\w\s])[^\x00-\x7f]")
_SAME = str.maketrans({"ß": "ss", "ẞ": "ss", "ё": "е", "Ё": "е", "ς": "σ"})
_CAMEL = re.compile(
    r"(?<![A-Za-z0-9])(?=[A-Za-z0-9]{3,60}(?![A-Za-z0-9]))(?=[A-Za-z0-9]*?(?:[a-z0-9][A-Z]|[A-Z]{2}[a-z]{2}))[A-Za-z0-9]+"
)
_HUMP = re.compile("(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


@dataclass(frozen=True, slots=True)
class Statistics:
    """The figures of all rows that BM25 needs. The sum of two stands for the rows of both."""

    rows: int = 0
    words: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, other: Statistics) -> Statistics:
        counts = Counter(self.counts)
        counts.update(other.counts)
        return Statistics(self.rows + other.rows, self.words + other.words, counts)

    def rarity(self, term: str) -> float:
        count = self.counts[term]
        return math.log((self.rows - count + 0.5) / (count + 0.5))

    def weight(self, term: str) -> float:
        rarity = self.rarity(term)
        return rarity if rarity > 0 else _LEAST_WEIGHT

    def damping(self, lengths: Floats64) -> Floats64:
        """The number of occurrences at which a term's score reaches half of its bound, for lengths [n]."""
        return _SATURATION * (1 - _LENGTH + _LENGTH * lengths / (self.words / self.rows))

    def whole_score(self, terms: Iterable[str]) -> float:
        """The score of a row of average length that holds every term once."""
        return sum(max(0.0, self.rarity(term)) for term in terms)

    def significant(self, terms: Iterable[str]) -> list[str]:
        """The terms that count, rarest first, as many as may be scored; the rarest term if none is significant."""
        chosen: list[str] = []
        postings = 0
        for term in sorted((term for term in terms if self.counts[term]), key=lambda term: (self.counts[term], term)):
            postings += self.counts[term]
            if chosen and (postings > _POSTINGS or self.counts[term] > _COMMON * self.rows):
                break
            chosen.append(term)
        return chosen


class LexicalIndex:
    """Full-text index of one table. Holds no connection; thread-safe.

    >>> lexical = LexicalIndex("notes_fts")
    >>> with database.write() as db:
    ...     lexical.add(db, [1, 2], ["the river floods", "bread needs time"])
    ...     lexical.search(db, "when does the river flood?", 10)  # [(1, 0.7...)]
    """

    def __init__(self, table: str) -> None:
        """Function words are left out of a query, unless it consists of them alone; phrases stay, and words with other
        capitals than a sentence's first one ("May", "IT"). `C++`, `C#` and `.NET` are words, and `1,200` is 1200."""
        self.table = table
        self._state: list[bytes] = []
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()

    @staticmethod
    def create(table: str) -> str:
        """The statements that make the table. A page of the index fits in one page of the database, so that the loss of
        a whole page is detected."""
        return (
            f"CREATE VIRTUAL TABLE {table} USING fts5(text, content='', tokenize='{_TOKENIZER}');\n"
            f"INSERT INTO {table}({table}, rank) VALUES ('pgsz', {_PAGE_NBYTES});\n"
        )

    def add(self, db: Connection, ids: Sequence[int], texts: Sequence[str]) -> None:
        rows = zip(ids, map(_spaced, texts), strict=True)
        db.executemany(f"INSERT INTO {self.table}(rowid, text) VALUES (?, ?)", rows)

    def delete(self, db: Connection, ids: Sequence[int], texts: Sequence[str]) -> None:
        """Deletes rows; `texts` must be exactly the texts that were added."""
        rows = zip(ids, map(_spaced, texts), strict=True)
        db.executemany(f"INSERT INTO {self.table}({self.table}, rowid, text) VALUES ('delete', ?, ?)", rows)

    def clear(self, db: Connection) -> None:
        db.execute(f"INSERT INTO {self.table}({self.table}) VALUES ('delete-all')")

    def terms(self, query: str) -> list[str]:
        """Raises `InputError` for a phrase that is longer than all words that are searched."""
        found = _every_term(query)
        sizes = [_words_in(term) for term in found]
        if max(sizes, default=0) > _MOST_WORDS:
            raise InputError(f"a phrase of the query has {counted(max(sizes), 'word')}, and it may have {_MOST_WORDS}")
        return [term for term, size in zip(found, accumulate(sizes), strict=True) if size <= _MOST_WORDS]

    def left_out(self, texts: Iterable[str]) -> str:
        """The FTS5 expression of the rows that hold a word or phrase of some texts; empty without one."""
        found = [term for text in texts for term in _every_term(text)]
        if (count := sum(map(_words_in, found))) > _MOST_LEFT_OUT:
            raise InputError(f"the query leaves out {counted(count, 'word')}, and {_MOST_LEFT_OUT} are possible")
        return " OR ".join(found)

    def statistics(self, db: Connection, terms: Iterable[str]) -> Statistics:
        wanted = dict.fromkeys(terms)
        # FTS5's totals and its list of segments. The list changes with every change of a row.
        blocks = db.execute(f"SELECT block FROM {self.table}_data WHERE id IN (1, 10) ORDER BY id").fetchall()
        state = [block for (block,) in blocks]
        rows, words = (*_integers(state[0] if state else b""), 0, 0)[:2]
        with self._lock:
            counts = dict(self._counts) if state == self._state else {}
        statement = f"SELECT count(*) FROM {self.table} WHERE {self.table} MATCH ?"
        for term in wanted:
            if term not in counts:
                counts[term] = int(db.execute(statement, (term,)).fetchone()[0])
        with self._lock:
            if len(counts) <= _REMEMBERED:
                self._state, self._counts = state, counts
        return Statistics(rows, words, {term: counts[term] for term in wanted})

    def search(
        self,
        db: Connection,
        query: str,
        k: int,
        *,
        whole: Statistics | None = None,
        own: Statistics | None = None,
        where: str = "",
        params: Sequence[object] = (),
        budget: MemoryBudget | None = None,
    ) -> list[tuple[int, float]]:
        """The `k` best rows as (id, BM25 score), best first, and those that equal the last of them; ties by id. A row
        matches if it holds one of the query's words, phrases in double quotes, or beginnings of words. `whole` has the
        statistics of all rows that compete, `own` those of this table's, counted here if not given; `where` is an SQL
        condition on `rowid` with its `params`. FTS5's memory is held of the `budget`."""
        own = own or self.statistics(db, self.terms(query))
        whole = whole or own
        if budget is not None:
            with budget.reserve("full text", search_nbytes(own, whole.significant(own.counts))):
                return self.search(db, query, k, whole=whole, own=own, where=where, params=params)
        terms = [term for term in whole.significant(own.counts) if own.counts[term]] if k > 0 else []
        if not terms:
            return []
        condition = f"AND ({where})" if where else ""
        matching = (
            f"SELECT rowid, -rank FROM {self.table} WHERE {self.table} MATCH ? {condition} ORDER BY rank, rowid LIMIT ?"
        )
        same = (own.rows, own.words) == (whole.rows, whole.words)
        # Scores with other statistics are at most `bound` times as high, so that no row far below is among the best.
        least, bound = (1.0, 1.0) if same else _bounds(terms, own, whole)
        for limit in (k + 1 if same else 2 * k, _WIDE * k, -1):
            best = db.execute(matching, (" OR ".join(terms), *params, limit)).fetchall()
            far = best[min(k, len(best)) - 1][1] * least / bound if best else 0.0
            if len(best) != limit or best[-1][1] < far:
                break
        rows = [row for row in best if row[1] >= far]
        return rows if same else self._rescored(db, terms, np.array(rows, _MATCH), own, whole, k)

    def _rescored(
        self, db: Connection, terms: Sequence[str], rows: npt.NDArray[np.void], own: Statistics, whole: Statistics,
        k: int,
    ) -> list[tuple[int, float]]:  # fmt: skip
        rows = rows[np.argsort(rows["id"])]
        among = "IN (SELECT value FROM json_each(?))"
        ids = json.dumps(rows["id"].tolist())
        sizes = db.execute(f"SELECT sz FROM {self.table}_docsize WHERE id {among} ORDER BY id", (ids,))
        lengths = np.fromiter((_integers(size)[0] for (size,) in sizes), np.float64, len(rows))
        # FTS5 reads all rows of a term for its part of the scores. The rest is the part of the most frequent one.
        statement = f"SELECT rowid, -rank FROM {self.table} WHERE {self.table} MATCH ? AND +rowid {among}"
        frequent = max(terms, key=lambda term: own.counts[term])
        parts = {frequent: rows["score"].copy()}
        for term in terms:
            if term != frequent:
                found = np.fromiter(db.execute(statement, (term, ids)), _MATCH)
                parts[term] = np.zeros(len(rows))
                parts[term][np.searchsorted(rows["id"], found["id"])] = found["score"]
                parts[frequent] -= parts[term]
        scores = np.zeros(len(rows))
        for term in terms:  # in the same order in every table
            scores += _score(parts[term], lengths, own.weight(term), own, whole.weight(term), whole)
        if len(scores) > k:
            enough = scores >= np.partition(scores, len(scores) - k)[len(scores) - k]
            rows, scores = rows[enough], scores[enough]
        order = np.lexsort((rows["id"], -scores))
        return list(zip(rows["id"][order].tolist(), scores[order].tolist(), strict=True))

    def whole_score(self, db: Connection, query: str) -> float:
        statistics = self.statistics(db, self.terms(query))
        return statistics.whole_score(statistics.counts)

    def optimize(self, db: Connection) -> None:
        db.execute(f"INSERT INTO {self.table}({self.table}) VALUES ('optimize')")


def search_nbytes(statistics: Statistics, terms: Sequence[str]) -> int:
    """Memory that FTS5 takes while it scores the rows of `terms`."""
    return sum(_POSTING_NBYTES * statistics.counts[term] + _WORD_NBYTES * _words_in(term) for term in terms)


def shown_terms(query: str) -> dict[str, str]:
    """Function words are left out beside others."""
    every = [word[0] for word in _ASKED.finditer(unicodedata.normalize("NFC", query))]
    told = ([word for word in every if word.lower() not in FUNCTION_WORDS] or every)[:_MOST_WORDS]
    return {word: next(_terms(word), '""') for word in told}


def shown_words(text: str, start: int = 0, end: int | None = None) -> Iterator[re.Match[str]]:
    return _SHOWN.finditer(text, start, len(text) if end is None else end)


def plain_word(word: str) -> str:
    """A name or number with signs as it is found; any other word unchanged."""
    return word if word.isalnum() else _SIGNED.sub(_letters, word)


def shown_weights(query: str, statistics: Statistics) -> dict[str, float]:
    """The query's words with their inverse document frequencies. Words that most rows have hardly count."""
    words = shown_terms(query)
    chosen = set(statistics.significant(dict.fromkeys(words.values())))
    return {
        word: math.log(1 + statistics.rows / count) * (1.0 if term in chosen else _LITTLE)
        for word, term in words.items()
        if (count := statistics.counts.get(term))
    }


def bounded_query(text: str) -> str:
    if len(text) > LONGEST_QUERY:
        raise InputError(f"the query has {len(text):,} characters, and {LONGEST_QUERY:,} are the most")
    return text


def _bounds(terms: Sequence[str], own: Statistics, whole: Statistics) -> tuple[float, float]:
    """By how much the statistics `whole` multiply the score of a row, at least and at most."""
    rarer = [whole.weight(term) / own.weight(term) for term in terms]
    longer = (whole.words / whole.rows) / (own.words / own.rows)
    return 0.999999 * min(rarer) * min(1.0, longer), 1.000001 * max(rarer) * max(1.0, longer)


def _score(
    scores: Floats64, lengths: Floats64, own_weight: float, own: Statistics, weight: float, whole: Statistics
) -> Floats64:
    """The part of BM25 that one term adds to the scores of rows [n]. How often a row holds it follows from FTS5's
    score."""
    share, damping = scores / own_weight, own.damping(lengths)
    count = np.rint(share * damping / (_SATURATION + 1 - share))
    return weight * (count * (_SATURATION + 1) / (count + whole.damping(lengths)))


def _integers(block: bytes) -> list[int]:
    """The integers in a record of FTS5: seven bits in a byte, the highest first; a last byte is below 128."""
    found = [0]
    for byte in block:
        found[-1] = found[-1] << 7 | byte & 127
        if byte < 128:
            found.append(0)
    return found[:-1]


def _spelled(text: str) -> str:
    """Letters and digits that FTS5 keeps together: one form of each character, no accents that it does not know, and
    numbers for marks and pictures, which it takes for gaps."""
    if text.isascii():
        return text
    return _SIGN.sub(_numbered, _OPTIONAL.sub("", unicodedata.normalize("NFKC", text)).translate(_SAME))


def _numbered(sign: re.Match[str]) -> str:
    kind, number = unicodedata.category(sign[0]), ord(sign[0])
    if kind in ("Mn", "Mc"):
        return f"q{number:04}"
    return f" u{number} " if kind == "So" and (0x2600 <= number < 0x2C00 or number >= 0x1F000) else sign[0]


def _letters(sign: re.Match[str]) -> str:
    """As people write a name where they cannot write the sign; a number as its digits."""
    if sign[0][0].isdigit():
        return "".join(filter(str.isdigit, sign[0]))
    return sign[0].lower().replace("+", "plus").replace("#", "sharp").replace(".", "dot")


def _spaced(text: str) -> str:
    """As a text is indexed: spaces around characters that are words, and behind them the parts of `CamelCase`, the
    letters of `C++` and the digits of `1,200`."""
    for written, pattern in ((_DIGIT, _NUMBER), (_SIGN_OF_NAME, _NAME)):
        if written.search(text):  # which most texts end with
            text = pattern.sub(lambda sign: f"{sign[0]} {_letters(sign)} ", text)
    text = _CAMEL.sub(lambda word: f"{word[0]} {_HUMP.sub(' ', word[0])}", _spelled(text))
    return text if text.isascii() else _UNSPACED.sub(r" \g<0> ", text)


def _every_term(text: str) -> list[str]:
    return list(dict.fromkeys(_terms(text, FUNCTION_WORDS)) or dict.fromkeys(_terms(text)))


def _terms(query: str, ignored: frozenset[str] = frozenset()) -> Iterator[str]:
    """Phrases, words and beginnings of words of a query as FTS5 strings, which can never act as operators."""
    query = _spelled(query).strip()
    query = query[:1].lower() + query[1:] if query[1:2].islower() else query
    for phrase, free in _PART.findall(query):
        if phrase:
            words = _WORD.findall(_spaced(phrase))
            if words:
                yield _quoted(words)
        free = _SIGNED.sub(_letters, free)
        begun = [f"{_quoted([word])} *" for word in _BEGINNING.findall(free)]
        for word in _WORD.findall(_BEGINNING.sub(" ", free)):
            if word in ignored or (word == "I" and "i" in ignored):
                continue
            yield from _written(word)
        yield from begun


def _words_in(term: str) -> int:
    return 1 + term.count(" ")


def _written(word: str) -> Iterator[str]:
    parts = _spaced(word).split()
    if _CAMEL.fullmatch(word):
        yield from (_quoted(parts[:1]), _quoted(parts[1:]))
    elif len(parts) <= 2:
        yield _quoted(parts)
    else:  # a run of characters without spaces: two neighbours are about one word
        yield from (_quoted(parts[i : i + 2]) for i in range(len(parts) - 1))


def _quoted(words: Sequence[str]) -> str:
    return '"' + " ".join(words) + '"'


SHORTEST = 5
"""Letters of a word that is looked up. Shorter words resemble too many others."""

_LONG = 7  # From this length two letters may differ.
_ENDING = 5

_FIRST = 500  # Characters of a query whose words are looked up.
_STEMS = 8

_LETTERS = re.compile(r"[^\W\d_]+")


def unknown_words(query: str, ignored: Iterable[str] = ()) -> list[str]:
    """A query with phrases in quotes has none."""
    if '"' in query:
        return []
    return [word for word in words_of(query) if len(word) >= SHORTEST and word.casefold() not in ignored]


def words_of(query: str) -> list[str]:
    return list(dict.fromkeys(_LETTERS.findall(query[:_FIRST])))


def stems_like(db: Connection, table: str, word: str) -> dict[str, int]:
    """The stems in a full-text table that the beginning of a word resembles, each with the number of its rows, most
    similar first, then most frequent. A stem begins with the word's first letter."""
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
    return nearest_word(word, Counter(other.lower() for text in texts for other in _LETTERS.findall(text)))


def nearest_word(word: str, counts: Mapping[str, int]) -> str:
    """Empty if too many letters differ; of equally near words the most frequent."""
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
    return _LETTERS.sub(lambda match: words.get(match[0], match[0]), query) if words else query


def folded_word(word: str) -> str:
    plain = unicodedata.normalize("NFKD", word.lower())
    return "".join(char for char in plain if not unicodedata.combining(char))


def _most(word: str) -> int:
    return 2 if len(word) >= _LONG else 1


def _distances(word: str, other: str) -> list[int]:
    """Letters to insert, delete, replace or exchange with their neighbours between a word and each beginning of another
    (Damerau 1964, optimal string alignment)."""
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
