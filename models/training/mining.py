"""Candidate pools: BM25 and a bi-encoder, fused; the same code gives training negatives and test pools.

BM25: Robertson & Zaragoza, "The Probabilistic Relevance Framework" (2009), k1 1.2, b 0.75. Reciprocal rank
fusion: Cormack, Clarke & Buettcher (SIGIR 2009), constant 60.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
RRF_CONSTANT = 60
_WORD = re.compile(r"[^\W_]+")


class BM25:
    """Lexical scores of every document for a query, over an inverted index held in arrays."""

    def __init__(self, documents: Sequence[str], k1: float = 1.2, b: float = 0.75) -> None:
        counts = [Counter(_words(text)) for text in documents]
        lengths = np.array([max(1, sum(c.values())) for c in counts], dtype=np.float32)
        penalty = k1 * (1 - b + b * lengths / max(float(lengths.mean()) if len(lengths) else 1.0, 1e-9))
        rows: dict[str, list[tuple[int, int]]] = {}
        for row, count in enumerate(counts):
            for word, frequency in count.items():
                rows.setdefault(word, []).append((row, frequency))
        self.size = len(documents)
        self._postings: dict[str, tuple[npt.NDArray[np.int64], Floats]] = {}
        for word, found in rows.items():
            where = np.array([row for row, _ in found], dtype=np.int64)
            frequencies = np.array([f for _, f in found], dtype=np.float32)
            idf = np.log1p((self.size - len(found) + 0.5) / (len(found) + 0.5))
            weight = idf * frequencies * (k1 + 1) / (frequencies + penalty[where])
            self._postings[word] = (where, weight.astype(np.float32))

    def scores(self, query: str) -> Floats:
        total = np.zeros(self.size, dtype=np.float32)
        for word in _words(query):
            if word in self._postings:
                where, weight = self._postings[word]
                total[where] += weight
        return total


def _words(text: str) -> list[str]:
    """Lower-case words with the plural s taken off: a stemmer small enough to be exact about."""
    found = (word.lower() for word in _WORD.findall(text))
    return [w[:-1] if len(w) > 3 and w.endswith("s") and not w.endswith("ss") else w for w in found]


def standardised(scores: Floats) -> Floats:
    """Mean 0, deviation 1 over the pool; all zeros where the pool does not vary."""
    spread = float(scores.std())
    return np.zeros_like(scores) if spread < 1e-9 else ((scores - scores.mean()) / spread).astype(np.float32)


def fused(first: Floats, second: Floats, depth: int = 100) -> npt.NDArray[np.int64]:
    """Rows by reciprocal rank fusion of two score vectors, best first; ties go to the lower row."""
    total = np.zeros(len(first))
    for scores in (first, second):
        order = np.argsort(-scores, kind="stable")[:depth]
        total[order] += 1.0 / (RRF_CONSTANT + 1 + np.arange(len(order)))
    ranked = np.argsort(-total, kind="stable")
    return ranked[total[ranked] > 0]


@dataclass(frozen=True)
class Candidates:
    """One query with its pool: document rows, which of them are relevant, the retrievers' mixed score.

    ``teacher`` is the mean of the two standardised scores over the pool, aligned with ``rows``.
    ``certain`` says that the positive is a human judgement rather than mined from the document's form.
    ``bare`` asks for documents without their titles (the query is one of them). ``replaced`` is the text to
    show for the positive in place of its own (the query was cut out of it); empty for the whole text.
    """

    query: str
    rows: list[int]
    positive: list[int]
    teacher: list[float]
    certain: bool = True
    answers: tuple[str, ...] = ()
    bare: bool = False
    replaced: str = ""


@dataclass(frozen=True)
class Pool:
    """All lists over one collection of documents."""

    name: str
    titles: list[str]
    texts: list[str]
    lists: list[Candidates]

    def save(self, path: Path) -> None:
        temporary = path.with_suffix(".tmp")
        with gzip.open(temporary, "wt", encoding="utf-8") as out:
            json.dump(asdict(self), out)
        temporary.replace(path)

    @classmethod
    def open(cls, path: Path) -> Pool:
        with gzip.open(path, "rt", encoding="utf-8") as source:
            data = json.load(source)
        lists = [Candidates(**{**row, "answers": tuple(row["answers"])}) for row in data["lists"]]
        return cls(data["name"], data["titles"], data["texts"], lists)


@dataclass(frozen=True)
class Request:
    """A query to mine for, the rows known to be relevant, and what `Candidates` should carry with them."""

    query: str
    positive: tuple[int, ...]
    certain: bool = True
    answers: tuple[str, ...] = ()
    bare: bool = False
    replaced: str = ""


def mine(
    requests: Iterable[Request],
    lexical: BM25,
    documents: Floats,
    queries: Floats,
    depth: int = 30,
) -> list[Candidates]:
    """The fused top ``depth`` of each request; its positives always take part and are never negatives.

    ``documents`` and ``queries`` are unit vectors, one row per document and per request.
    """
    found: list[Candidates] = []
    for request, vector in zip(requests, queries, strict=True):
        sparse = lexical.scores(request.query)
        dense = documents @ vector
        rows = [int(r) for r in fused(sparse, dense)[:depth]]
        rows += [p for p in request.positive if p not in rows]
        teacher = (standardised(sparse[rows]) + standardised(dense[rows])) / 2
        found.append(
            Candidates(
                request.query,
                rows,
                list(request.positive),
                [round(float(t), 4) for t in teacher],
                request.certain,
                request.answers,
                request.bare,
                request.replaced,
            )
        )
    return found
