"""What moves between machines. A request is (verb, JSON, raw bytes), an answer (JSON, raw bytes); JSON keeps every bit
of a float. Errors of the shard are raised again by the caller."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.apps.collection.catalog import Catalog, FileRow, chunk_hash
from edge.apps.collection.excerpts import NotIndexed
from edge.apps.collection.filters import NoSuchType
from edge.apps.documents.base import NO_STAMP, Chunk, Mail, Stamp, unpacked
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


Floats = npt.NDArray[np.float32]


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
