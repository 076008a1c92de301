"""`Query`: the parts of a query. `Searcher`: fuses BM25 and vector search; a query sees one consistent view of the
collection."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from edge.apps.collection.catalog import Catalog, groups, verify_file, verify_place, verify_text
from edge.apps.collection.filters import Filters
from edge.apps.collection.hits import Hit, Stages
from edge.apps.collection.paths import checked
from edge.apps.collection.roots import description_of, read_descriptions
from edge.apps.collection.snippets import best_sentence, snippet
from edge.apps.documents.base import unpacked
from edge.apps.documents.kinds import unpacked_parts
from edge.apps.store.database import Database
from edge.apps.store.fusion import convex_combination
from edge.apps.store.lexical import bounded_query
from edge.apps.store.rebuilding import remedy
from edge.budget import MemoryBudget
from edge.errors import BudgetExceeded, InputError
from edge.ivf.base import Found
from edge.ivf.storage.connection import Connection
from edge.models.blending import BM25_WEIGHT
from edge.trace import Trace

DEPTH = 100
"""Results that each ranking contributes at first. More are fetched if too many have the same wording."""

_DEEPER = 4
"""Growth of the depth when the results with different wording are too few."""

_DEEPEST = 6_400
"""Largest depth for that purpose. Passages beyond it are not found by this query."""

Floats = npt.NDArray[np.float32]

_PASSING = "SELECT chunks.id FROM files CROSS JOIN chunks ON chunks.file = files.id WHERE {}"
"""Ids of the chunks of files that pass a filter. Its cost depends on the number of those files, not of all files."""

_KINDS = ("lex", "vec", "hyde")
_TYPED = re.compile(rf"\s*(?:{'|'.join(_KINDS)}):", re.IGNORECASE)
_PART = re.compile(rf"(?:^|(?<=\s))({'|'.join(_KINDS)}):", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Query:
    """A parsed query: its parts for BM25, the vectors and the reranker.

    Attributes:
        words: text for the full-text search; if empty, only the vectors are searched.
        questions: texts that are embedded as questions and searched among the vectors.
        passages: hypothetical answers (HyDE, Gao et al., 2022) that are embedded as passages.
        asked: the text that the reranker compares passages with.
    """

    words: str
    questions: tuple[str, ...]
    passages: tuple[str, ...]
    asked: str

    @classmethod
    def parse(cls, text: str) -> Query:
        """Parses a plain question, or a text that begins with `lex:`, `vec:` or `hyde:` and consists of such parts:
        `lex:` is searched by words, `vec:` by meaning, and `hyde:` is a hypothetical answer.

        Raises:
            InputError: the text or one of its parts is empty.
        """
        if not text.strip():
            raise InputError("the query is empty")
        if not _TYPED.match(text):
            return cls(text, (text,), (), text)
        _, *pieces = _PART.split(text)
        parts: dict[str, list[str]] = {kind: [] for kind in _KINDS}
        for kind, value in zip(pieces[::2], pieces[1::2], strict=True):
            if not value.strip():
                raise InputError(f"nothing follows {kind}: in the query")
            parts[kind.lower()].append(value.strip())
        asked = parts["vec"] or parts["lex"] or parts["hyde"]
        return cls(" ".join(parts["lex"]), tuple(parts["vec"]), tuple(parts["hyde"]), "\n".join(asked))

    @property
    def shown(self) -> str:
        """The words that snippets highlight."""
        return self.words or " ".join((*self.questions, *self.passages))


def checked_query(text: str) -> str:
    """Returns the text of a query.

    Raises:
        InputError: it is longer than `LONGEST_QUERY`, or not valid Unicode.
    """
    return checked(bounded_query(text), "the query")


class Index(Protocol):
    """The method of the vector index that a searcher calls."""

    def search(
        self, db: Connection, queries: Floats, k: int, *, allowed: npt.NDArray[np.int64] | None = None
    ) -> Found: ...


class Searcher:
    """Finds candidates. Thread-safe."""

    def __init__(self, database: Database, catalog: Catalog, budget: MemoryBudget, trace: Trace) -> None:
        self._database = database
        self._catalog = catalog
        self._budget = budget
        self._trace = trace

    def candidates(
        self, query: str, vector: Floats | None, index: Index | None, k: int, *, where: Filters, depth: int = DEPTH
    ) -> list[Hit]:
        """The best `k` passages by the fused scores of BM25 and vectors, best first. Of passages with the same wording,
        such as a licence in every folder, only the best is returned.

        Args:
            query: words; if empty, only the vectors are searched.
            vector: of the query [dim], or several [n, dim], of which the nearest counts; if None, only BM25 is used.
            index: the index for `vector`; None if the collection has no vectors.
        """
        depth = max(depth, k)
        with self._database.read() as db:
            clause, params = where.where(db) if where else ("", [])
            hits: list[Hit] = []
            while True:
                with self._trace.span("full text", "search"):
                    condition = f"+rowid IN ({_PASSING.format(clause)})" if where else ""
                    lexical = self._catalog.lexical.search(db, query, depth, where=condition, params=params)
                near: list[tuple[int, float]] = []
                if vector is not None and index is not None:
                    try:
                        with self._trace.span("vectors", "search"):
                            near = self._nearest(db, vector, index, depth, clause, params)
                    except BudgetExceeded:
                        if not hits:
                            raise
                        return hits  # a deeper search does not fit the memory limit
                hits = self._fuse(db, lexical, near, k)
                if len(hits) == k or depth >= _DEEPEST or max(len(lexical), len(near)) < depth:
                    return hits
                depth = min(_DEEPER * depth, _DEEPEST)

    def show(self, query: str, hits: Iterable[Hit]) -> list[Hit]:
        """Adds to hits their snippets for the query, their best lines, and the descriptions of their folders."""
        with self._database.read() as db:
            weights = self._catalog.lexical.weights(db, query)
            described = read_descriptions(db)
        shown = [(hit, snippet(hit.text, weights)) for hit in hits]
        return [
            replace(
                hit,
                snippet=found.text,
                marks=found.marks,
                line=hit.line_at(best_sentence(hit.text, weights)),
                description=description_of(hit.path, described),
            )
            for hit, found in shown
        ]

    def _nearest(
        self, db: Connection, vector: Floats, index: Index, depth: int, clause: str, params: Sequence[object]
    ) -> list[tuple[int, float]]:
        with remedy("edge index --rebuild"):
            if not clause:
                found = index.search(db, np.atleast_2d(vector), depth)
            else:
                count = db.execute(f"SELECT count(*) FROM ({_PASSING.format(clause)})", params).fetchone()[0]
                # 16 bytes for each id: it is read and then sorted.
                with self._budget.reserve("filter", 16 * count):
                    rows = db.execute(_PASSING.format(clause), params)
                    allowed = np.fromiter((row[0] for row in rows), np.int64, count)
                    allowed.sort()
                    found = index.search(db, np.atleast_2d(vector), depth, allowed=allowed)
        for name in ("lists_read", "bytes_read", "hits"):
            self._trace.count(f"index.{name}", getattr(found, name))
        best: dict[int, float] = {}
        for identifier, score in zip(found.ids.ravel().tolist(), found.scores.ravel().tolist(), strict=True):
            if identifier >= 0:
                best[identifier] = max(score, best.get(identifier, score))
        return sorted(best.items(), key=lambda pair: -pair[1])[:depth]

    def _fuse(
        self, db: Connection, lexical: Sequence[tuple[int, float]], near: Sequence[tuple[int, float]], k: int
    ) -> list[Hit]:
        """The best `k` of both rankings by fused score, without repeated wording."""
        words = {identifier: (rank, score) for rank, (identifier, score) in enumerate(lexical, 1)}
        vectors = {identifier: (rank, score) for rank, (identifier, score) in enumerate(near, 1)}
        fused = _placed(db, convex_combination(dict(lexical), dict(near), BM25_WEIGHT))
        hits: list[Hit] = []
        seen: set[str] = set()
        while fused and len(hits) < k:
            # As many as are enough if none of them repeats a wording.
            group, fused = fused[: k - len(hits)], fused[k - len(hits) :]
            rows = read_hits(db, [identifier for identifier, _ in group])
            for identifier, score in group:
                if identifier not in rows:
                    raise self._database.damaged(f"is damaged: passage {identifier} is indexed and not there")
                hit = rows[identifier]
                if hit.wording in seen:
                    continue
                seen.add(hit.wording)
                lexical_rank, lexical_score = words.get(identifier, (None, None))
                vector_rank, vector_score = vectors.get(identifier, (None, None))
                stages = Stages(lexical_rank, lexical_score, vector_rank, vector_score, len(hits) + 1, score)
                hits.append(replace(hit, score=score, stages=stages))
        return hits


def _placed(db: Connection, fused: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Sorts ids with their scores: best first, ties by path and place in the file. Ids would order ties by the time of
    indexing, and a collection after incremental runs should give the same results as a new one."""
    counts = Counter(score for _, score in fused)
    places: dict[int, tuple[str, int]] = {}
    for group in groups([identifier for identifier, score in fused if counts[score] > 1]):
        rows = db.execute(
            "SELECT chunks.id, path, ordinal FROM chunks JOIN files ON files.id = chunks.file "
            f"WHERE chunks.id IN ({', '.join('?' * len(group))})",
            group,
        )
        places.update((identifier, (path, ordinal)) for identifier, path, ordinal in rows)
    return sorted(fused, key=lambda found: (-found[1], places.get(found[0], ("", 0))))


def read_hits(db: Connection, ids: Sequence[int]) -> dict[int, Hit]:
    """Reads chunks by id as hits without score and snippet."""
    found: dict[int, Hit] = {}
    for group in groups(ids):
        rows = db.execute(
            "SELECT chunks.id, path, line_start, line_end, page, text, title, kind, context, files.id, ordinal, "
            "chunks.hash, lines, kinds, chunks.checksum, files.checksum "
            "FROM chunks JOIN files ON files.id = chunks.file "
            f"WHERE chunks.id IN ({', '.join('?' * len(group))})",
            group,
        )
        for (
            identifier,
            path,
            line_start,
            line_end,
            page,
            text,
            title,
            kind,
            context,
            file,
            ordinal,
            stored,
            lines,
            kinds,
            place_sum,
            file_sum,
        ) in rows:
            verify_text(identifier, context, text, stored)
            place = (file, ordinal, line_start, line_end, page, lines, kinds, stored)
            verify_place(identifier, place, place_sum)
            verify_file(path, kind, title, file_sum)
            found[identifier] = Hit(
                id=identifier, path=path, line_start=line_start, line_end=line_end, page=page, score=0.0, snippet="",
                text=text, title=title, kind=kind, context=context, file=file, ordinals=(ordinal, ordinal),
                numbers=unpacked(lines, line_start, line_end, text.count("\n") + 1), kinds=unpacked_parts(kinds),
            )  # fmt: skip
    return found
