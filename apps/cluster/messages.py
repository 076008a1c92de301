"""What moves between machines. A request is (verb, JSON, raw bytes), an answer (JSON, raw bytes); JSON keeps every bit
of a float. Errors of the shard are raised again by the caller. `ShardSource`: a shard as a source of a search, which
asks it once as a rule. `Figures`: the statistics of one version that were asked for before."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import astuple, dataclass, field
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.apps.collection.catalog import Catalog, FileRow, chunk_hash
from edge.apps.collection.excerpts import NotIndexed
from edge.apps.collection.filters import Filters, NoSuchType
from edge.apps.collection.hits import Hit
from edge.apps.collection.searching import Floats, Ranking, Within
from edge.apps.documents.base import NO_STAMP, Chunk, Mail, Stamp, unpacked
from edge.apps.store.lexical import FUNCTION_WORDS, Statistics, shown_terms, unknown_words
from edge.errors import EdgeError, InputError, StorageError, Unreachable
from edge.ivf.base import Connection
from edge.ivf.index import VectorIndex

Call = Callable[[str, bytes, bytes], tuple[bytes, bytes]]
"""Sends a request, and returns its answer."""


class ShardLost(Unreachable):
    """`changed`: it was started again, and has changed since the version that was asked for."""

    def __init__(self, shard: str, why: str, *, changed: bool = False) -> None:
        super().__init__(f"shard {shard} does not answer: {why}")
        self.shard = shard
        self.changed = changed


class NoSuchVersion(StorageError):
    """A shard does not hold the version of the collection that a search asks for."""


_ERRORS: dict[str, type[EdgeError]] = {
    kind.__name__: kind for kind in (NoSuchType, NotIndexed, NoSuchVersion, InputError, StorageError)
}


def asked(call: Call, verb: str, raw: bytes = b"", **arguments: Any) -> tuple[Any, bytes]:
    head, beside = call(verb, json.dumps(arguments, ensure_ascii=False).encode(), raw)
    answer = json.loads(head)
    if "error" in answer:
        kind, text = answer["error"]
        raise _ERRORS.get(kind, StorageError)(text)
    return answer["answer"], beside


def answered(work: Callable[..., tuple[Any, bytes]], head: bytes, raw: bytes) -> tuple[bytes, bytes]:
    """The answer of `work(raw, **arguments)`, or the error that it raises."""
    try:
        answer, beside = work(raw, **json.loads(head))
    except EdgeError as error:
        kind = next((kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _ERRORS), "StorageError")
        return json.dumps({"error": [kind, str(error)]}).encode(), b""
    return json.dumps({"answer": answer}, ensure_ascii=False).encode(), beside


@dataclass(frozen=True, slots=True)
class ShardDocument:
    """A file or text that is indexed completely; `vectors` [n, dim], one for each chunk."""

    path: str
    root: str
    kind: str
    title: str
    hash: bytes
    chunks: tuple[Chunk, ...]
    vectors: Floats
    stamp: Stamp = NO_STAMP
    racy: bool = False
    reason: str = ""
    mails: Mapping[int, Mail] = field(default_factory=dict)


def packed(documents: Sequence[ShardDocument]) -> tuple[list[dict[str, Any]], bytes]:
    """As values of JSON, and their vectors as raw bytes."""
    about = [
        {
            "path": one.path, "root": one.root, "kind": one.kind, "title": one.title, "hash": one.hash.hex(),
            "stamp": list(one.stamp), "racy": one.racy, "reason": one.reason,
            "chunks": [
                [c.text, c.context, c.line_start, c.line_end, c.page, c.lines, c.kinds.hex()] for c in one.chunks
            ],
            "mails": {page: astuple(mail) for page, mail in one.mails.items()},
        }
        for one in documents
    ]  # fmt: skip
    return about, b"".join(one.vectors.astype(np.float32).tobytes() for one in documents)


def unpacked_documents(about: Sequence[dict[str, Any]], raw: bytes, dim: int) -> list[ShardDocument]:
    count = sum(len(one["chunks"]) for one in about)
    if len(raw) != 4 * dim * count:
        raise InputError(f"{count} passages came with {len(raw):,} bytes of vectors of width {dim}")
    vectors = np.frombuffer(raw, np.float32).reshape(-1, dim)
    found, at = [], 0
    for one in about:
        chunks = tuple(
            Chunk(text, context, start, end, page, None if lines is None else tuple(lines), bytes.fromhex(kinds))
            for text, context, start, end, page, lines, kinds in one["chunks"]
        )
        found.append(
            ShardDocument(
                one["path"], one["root"], one["kind"], one["title"], bytes.fromhex(one["hash"]), chunks,
                vectors[at : at + len(chunks)], Stamp(*one["stamp"]), one["racy"], one["reason"],
                {int(page): Mail(*mail) for page, mail in one["mails"].items()},
            )
        )  # fmt: skip
        at += len(chunks)
    return found


def put(db: Connection, catalog: Catalog, index: VectorIndex, documents: Iterable[ShardDocument]) -> int:
    """Adds or replaces documents inside a write transaction; returns how many passages were added."""
    ids: list[npt.NDArray[np.int64]] = []
    vectors: list[Floats] = []
    for one in documents:
        row = catalog.find(db, one.path)
        file = catalog.insert(db, one.path, one.root, due=False) if row is None else row.id
        if not _has(db, catalog, row, one):
            catalog.empty(db, file, index)
            ids.append(catalog.insert_chunks(db, file, enumerate(one.chunks)))
            vectors.append(one.vectors)
            catalog.set_mails(db, file, one.mails)
        catalog.settle(
            db, file, status="indexed", reason=one.reason, stamp=one.stamp, racy=one.racy, hash=one.hash,
            kind=one.kind, title=one.title,
        )  # fmt: skip
    if not ids:
        return 0
    numbers = np.concatenate(ids)
    index.add(db, numbers, np.concatenate(vectors))
    return len(numbers)


def _has(db: Connection, catalog: Catalog, row: FileRow | None, one: ShardDocument) -> bool:
    if row is None or row.hash != one.hash or row.status != "indexed" or row.due:
        return False
    return [chunk.hash for chunk in catalog.chunks(db, row.id)] == [chunk_hash(chunk) for chunk in one.chunks]


def take(db: Connection, catalog: Catalog, index: VectorIndex, paths: Iterable[str]) -> int:
    """Inside a write transaction; returns how many there were."""
    rows = [row for path in paths if (row := catalog.find(db, path)) is not None]
    for row in rows:
        catalog.remove(db, row.id, index)
    return len(rows)


def stored(db: Connection, catalog: Catalog, index: VectorIndex, paths: Iterable[str]) -> list[ShardDocument]:
    """Those that are not there, or not complete, are left out."""
    found = []
    for path in paths:
        row = catalog.find(db, path)
        if row is None or row.hash is None or row.status != "indexed":
            continue
        rows = db.execute(
            "SELECT id, text, context, line_start, line_end, page, lines, kinds FROM chunks WHERE file = ? "
            "ORDER BY ordinal",
            (row.id,),
        ).fetchall()
        chunks = tuple(
            Chunk(
                text, context, start, end, page,
                None if lines is None else unpacked(lines, start, end, text.count("\n") + 1), kinds or b"",
            )
            for _, text, context, start, end, page, lines, kinds in rows
        )  # fmt: skip
        vectors = index.vectors(db, np.array([each[0] for each in rows], np.int64))
        mails = db.execute(
            "SELECT page, sender, recipients, subject, sent, id, thread FROM mails WHERE file = ?", (row.id,)
        )
        stamp = Stamp(row.size, row.mtime_ns, row.inode, row.ctime_ns)
        found.append(
            ShardDocument(
                path, row.root, row.kind, row.title, row.hash, chunks, vectors, stamp, bool(row.racy), row.reason,
                {page: Mail(*mail) for page, *mail in mails.fetchall()},
            )
        )  # fmt: skip
    return found


def paths_after(db: Connection, after: str, limit: int) -> list[str]:
    rows = db.execute("SELECT path FROM files WHERE path > ? ORDER BY path LIMIT ?", (after, limit))
    return [path for (path,) in rows]


_REMEMBERED = 50_000


class Figures:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: Statistics | None = None

    def of(self, terms: Sequence[str]) -> Statistics | None:
        """None if one of the terms is not known."""
        known = self._known
        if known is None or any(term not in known.counts for term in terms):
            return None
        return Statistics(known.rows, known.words, {term: known.counts[term] for term in terms})

    def add(self, found: Statistics) -> None:
        with self._lock:
            kept = {} if self._known is None or len(self._known.counts) > _REMEMBERED else self._known.counts
            self._known = Statistics(found.rows, found.words, {**kept, **found.counts})


class ShardSource:
    """For one search."""

    def __init__(
        self, call: Call, version: int, figures: Figures, k: int, query: str = "", *, resident: bool = False
    ) -> None:
        """`query`: the text that the search will need statistics of. `resident`: let the shard tell which lists it has
        in memory."""
        self._call = call
        self._version = version
        self._figures = figures
        self._k = k
        self._resident = resident
        self._lexical = Catalog().lexical
        words = [term for word in unknown_words(query, FUNCTION_WORDS) for term in self._lexical.terms(word)]
        self._ahead = [*shown_terms(query).values(), *self._lexical.terms(query), *words]
        self._places: dict[int, tuple[str, int]] = {}
        self._hits: dict[int, Hit] = {}

    def view(self) -> AbstractContextManager[object]:
        """All requests name one version."""
        return nullcontext()

    def statistics(self, queries: Sequence[str]) -> Statistics:
        return self._statistics([term for query in queries for term in self._lexical.terms(query)])

    def shown(self, query: str) -> Statistics:
        return self._statistics(list(shown_terms(query).values()))

    def resembling(self, word: str) -> dict[str, int]:
        return dict(asked(self._call, "resembling", version=self._version, word=word)[0])

    def gather(
        self, queries: Sequence[tuple[str, Floats | None]], depth: int, whole: Statistics | None, where: Filters,
        within: Within,
    ) -> list[tuple[Ranking, Ranking]]:  # fmt: skip
        """The figures of a lone shard come with it."""
        began = time.monotonic()
        terms = self._ahead if whole is None and self._figures.of(self._ahead) is None else []
        rows = [np.empty((0, 0), np.float32) if own is None else np.atleast_2d(own) for _, own in queries]
        answer, _ = asked(
            self._call, "gather", b"".join(own.astype(np.float32).tobytes() for own in rows), version=self._version,
            queries=[(words, len(own)) for (words, _), own in zip(queries, rows, strict=True)], depth=depth,
            whole=None if whole is None else figures(whole), terms=terms, where=where.texts,
            within={"seconds": within.share, "exhaustive": within.exhaustive, "embedder": within.embedder}, k=self._k,
            resident=self._resident,
        )  # fmt: skip
        within.took = max(within.took, time.monotonic() - began)
        if terms:
            self._figures.add(Statistics(**answer["statistics"]))
        self._places.update((i, (path, ordinal)) for i, path, ordinal in answer["places"])
        self._take(answer["hits"])
        return [
            ([(i, score) for i, score in words], [(i, score) for i, score in near])
            for words, near in answer["rankings"]
        ]

    def places(self, ids: Sequence[int]) -> dict[int, tuple[str, int]]:
        """Of passages that `gather` found."""
        return {i: self._places[i] for i in ids}

    def hits(self, ids: Sequence[int]) -> dict[int, Hit]:
        """They have their descriptions."""
        if missing := [i for i in ids if i not in self._hits]:
            answer, _ = asked(self._call, "hits", version=self._version, ids=missing)
            self._take(answer)
        return {i: self._hits[i] for i in ids}

    def _take(self, hits: Sequence[list[Any]]) -> None:
        self._hits.update((values[0], _hit(values)) for values in hits)

    def _statistics(self, terms: Sequence[str]) -> Statistics:
        found = self._figures.of(terms)
        if found is None:
            wanted = list(dict.fromkeys([*terms, *self._ahead]))
            answer, _ = asked(self._call, "statistics", version=self._version, terms=wanted)
            found = Statistics(**answer)
            self._figures.add(found)
        return found


def figures(statistics: Statistics) -> dict[str, Any]:
    return {"rows": statistics.rows, "words": statistics.words, "counts": dict(statistics.counts)}


_FIELDS = [name for name in Hit.__dataclass_fields__ if name not in ("marks", "stages", "line", "collection")]
_VALUES = attrgetter(*_FIELDS)
_PAIRS, _MAIL = _FIELDS.index("kinds"), _FIELDS.index("mail")
"""The fields of a passage, but those that a search adds; `dataclasses.asdict` takes fifty times as long."""


def hit_values(hit: Hit) -> list[Any]:
    values = list(_VALUES(hit))
    values[_MAIL] = None if hit.mail is None else astuple(hit.mail)
    return values


def _hit(values: list[Any]) -> Hit:
    values[_PAIRS] = tuple((kind, end) for kind, end in values[_PAIRS])
    values[_MAIL] = values[_MAIL] and Mail(*values[_MAIL])
    named: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in zip(_FIELDS, values, strict=True)
    }
    return Hit(**named)
