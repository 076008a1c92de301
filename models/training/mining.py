"""Candidate pools as data, and BM25 over one collection (Robertson & Zaragoza, "The Probabilistic Relevance
Framework", 2009; k1 1.2, b 0.75)."""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
_WORD = re.compile(r"[^\W_]+")


class BM25:
    """Lexical scores of every document for a query, over an inverted index held in arrays."""

    def __init__(self, documents: Sequence[str], k1: float = 1.2, b: float = 0.75) -> None:
        counts = [Counter(words(text)) for text in documents]
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
        for word in words(query):
            if word in self._postings:
                where, weight = self._postings[word]
                total[where] += weight
        return total


def words(text: str) -> list[str]:
    """Lower-case words without the plural s. So simple a stemmer can be described exactly."""
    found = (word.lower() for word in _WORD.findall(text))
    return [w[:-1] if len(w) > 3 and w.endswith("s") and not w.endswith("ss") else w for w in found]


@dataclass(frozen=True)
class Candidates:
    """One query with its pool: document rows, the relevant rows among them, and the retrievers' mixed scores.

    ``teacher`` is a weighted mean of the two standardized scores over the pool, aligned with ``rows``.
    ``certain`` means that the positive is a human judgement, and was not derived from the document's form.
    ``bare`` means that documents are shown without their titles, because the query is a title. ``replaced`` is shown
    in place of the positive's text, because the query was cut out of it; empty if the whole text is shown.
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
class Request:
    """A query to mine for and the rows known to be relevant. The other fields are those of `Candidates`."""

    query: str
    positive: tuple[int, ...]
    certain: bool = True
    answers: tuple[str, ...] = ()
    bare: bool = False
    replaced: str = ""


class PackedLists(Sequence[Candidates]):
    """Lists in arrays, so that millions of them fit into memory and forked processes share them.

    ``rows``: document rows, lists x candidates, -1 for none. ``teacher``: scores, lists x candidates.
    """

    def __init__(self, requests: list[Request], rows: npt.NDArray[np.int32], teacher: npt.NDArray[np.float16]) -> None:
        self.requests, self.rows, self.teacher = requests, rows, teacher

    @classmethod
    def pack(cls, lists: Sequence[Candidates]) -> PackedLists:
        """The given lists as arrays."""
        width = max((len(c.rows) for c in lists), default=0)
        rows = np.full((len(lists), width), -1, np.int32)
        teacher = np.zeros((len(lists), width), np.float16)
        requests = []
        for n, c in enumerate(lists):
            rows[n, : len(c.rows)] = c.rows
            teacher[n, : len(c.rows)] = c.teacher
            requests.append(Request(c.query, tuple(c.positive), c.certain, c.answers, c.bare, c.replaced))
        return cls(requests, rows, teacher)

    def __len__(self) -> int:
        return len(self.requests)

    @overload
    def __getitem__(self, index: int) -> Candidates: ...
    @overload
    def __getitem__(self, index: slice) -> list[Candidates]: ...
    def __getitem__(self, index: int | slice) -> Candidates | list[Candidates]:
        if isinstance(index, slice):
            return [self[n] for n in range(*index.indices(len(self)))]
        request, shown = self.requests[index], self.rows[index] >= 0
        return Candidates(
            request.query,
            self.rows[index][shown].tolist(),
            list(request.positive),
            self.teacher[index][shown].tolist(),
            request.certain,
            request.answers,
            request.bare,
            request.replaced,
        )


@dataclass(frozen=True)
class Pool:
    """All lists over one collection of documents."""

    name: str
    titles: list[str]
    texts: list[str]
    lists: Sequence[Candidates]

    def save(self, path: Path) -> None:
        """Write a compressed .npz. The file gets its name only when it is complete."""
        packed = self.lists if isinstance(self.lists, PackedLists) else PackedLists.pack(self.lists)
        strings: dict[str, Any] = {"name": self.name, "titles": self.titles, "texts": self.texts}
        strings |= {"requests": [list(asdict(request).values()) for request in packed.requests]}
        written = io.BytesIO()
        text = np.frombuffer(json.dumps(strings).encode(), np.uint8)
        np.savez_compressed(written, rows=packed.rows, teacher=packed.teacher, strings=text)
        temporary = path.with_suffix(".tmp")
        temporary.write_bytes(written.getvalue())
        temporary.replace(path)

    @classmethod
    def open(cls, path: Path) -> Pool:
        with np.load(path) as data:
            strings = json.loads(data["strings"].tobytes())
            rows, teacher = data["rows"], data["teacher"]
        requests = [Request(q, tuple(p), c, tuple(a), b, r) for q, p, c, a, b, r in strings["requests"]]
        return cls(strings["name"], strings["titles"], strings["texts"], PackedLists(requests, rows, teacher))
