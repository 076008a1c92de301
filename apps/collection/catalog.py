"""The database of a collection: its tables, settings, roots and descriptions; and `Catalog`: its files and chunks, as
the full-text index and the vectors have them. Methods that write must be called inside a write transaction. Skipped and
failed files have a row, too, and `due` marks those to index. `chunks.id` is never reused, and is the id of the vector
and the full-text row."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edge.apps.collection.paths import ancestors, below, checked, nearest
from edge.apps.documents.base import NO_STAMP, Chunk, Mail, Stamp, packed
from edge.apps.store.database import Database, Migration
from edge.apps.store.failures import WrongValue, damaged
from edge.apps.store.folder import claim
from edge.apps.store.lexical import LexicalIndex
from edge.apps.store.rebuilding import Floats
from edge.apps.store.rows import ROW_SUM, Row, Value, held, held_by_key, row_sum, whole
from edge.budget import MemoryBudget
from edge.errors import InputError
from edge.ivf.base import Connection
from edge.ivf.index import VectorIndex

FULL_TEXT = "chunks_text"

_LONGEST = 2_000

TABLES = f"""
CREATE TABLE settings(
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE roots(
    path TEXT PRIMARY KEY
) WITHOUT ROWID;

CREATE TABLE files(
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    path TEXT NOT NULL UNIQUE,
    root TEXT NOT NULL,
    size INTEGER NOT NULL,
    mtime_ns INTEGER NOT NULL,
    hash BLOB,
    kind TEXT NOT NULL DEFAULT '',
    title TEXT NOT NULL DEFAULT '',
    status TEXT NOT NULL CHECK (status IN ('pending', 'indexed', 'skipped', 'failed')),
    reason TEXT NOT NULL DEFAULT '',
    due INTEGER NOT NULL DEFAULT 0,
    racy INTEGER NOT NULL DEFAULT 0,
    inode INTEGER,
    ctime_ns INTEGER,
    checksum BLOB
);
CREATE INDEX files_due ON files(id) WHERE due;

CREATE TABLE chunks(
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    file INTEGER NOT NULL REFERENCES files(id),
    ordinal INTEGER NOT NULL,
    text TEXT NOT NULL,
    context TEXT NOT NULL,
    line_start INTEGER NOT NULL,
    line_end INTEGER NOT NULL,
    page INTEGER,
    hash BLOB NOT NULL,
    lines TEXT,     -- line numbers, of a passage that skips lines
    kinds BLOB,     -- of its units
    checksum BLOB,
    UNIQUE (file, ordinal)
);
CREATE INDEX chunks_by_hash ON chunks(hash);

CREATE TABLE descriptions(
    path TEXT PRIMARY KEY,
    text TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE mails(
    file INTEGER NOT NULL REFERENCES files(id) ON DELETE CASCADE,
    page INTEGER NOT NULL,   -- 0 in a file of one mail
    sender TEXT NOT NULL,
    recipients TEXT NOT NULL,
    subject TEXT NOT NULL,
    sent TEXT NOT NULL,
    id TEXT NOT NULL,
    thread TEXT NOT NULL,    -- not under the checksum: it changes when an earlier mail of a thread comes
    checksum BLOB NOT NULL,
    PRIMARY KEY (file, page)
) WITHOUT ROWID;
CREATE INDEX mails_by_id ON mails(id);
CREATE INDEX mails_by_thread ON mails(thread);

{LexicalIndex.create(FULL_TEXT)}
"""

_UNRELEASED = 11


def migrations() -> list[Migration]:
    return [*[None] * _UNRELEASED, "\n".join([TABLES, *VectorIndex.migrations()])]


def full_text() -> LexicalIndex:
    return LexicalIndex(FULL_TEXT)


def passage(context: str, text: str) -> str:
    return f"{context}\n{text}" if context else text


def open_database(path: Path, budget: MemoryBudget, *, read_only: bool) -> Database:
    if not read_only:
        claim(path.parent, path.name)
    return Database(path, migrations(), budget=budget, read_only=read_only)


def read_roots(db: Connection) -> list[str]:
    return held(db, db.execute("SELECT path FROM roots ORDER BY path"), lambda row: _texts(row)[0])


def _texts(row: Row) -> Row:
    """Anybody may have written a row."""
    if not all(isinstance(value, str) for value in row):
        raise WrongValue("a folder or a description is no text")
    return row


def register_roots(db: Connection, given: Iterable[str]) -> list[str]:
    """Returns the new ones."""
    return [
        root
        for root in given
        if db.execute("INSERT OR IGNORE INTO roots VALUES (?) RETURNING path", (root,)).fetchall()
    ]


def forget_roots(db: Connection, path: str) -> bool:
    """Whether there are any."""
    condition, params = below(path)
    return bool(db.execute(f"DELETE FROM roots WHERE {condition} RETURNING 1", params).fetchall())


def read_descriptions(db: Connection) -> dict[str, str]:
    return held_by_key(db, db.execute("SELECT path, text FROM descriptions ORDER BY path"), _texts)


def description_of(path: str, described: Mapping[str, str]) -> str:
    """A line each, outermost first."""
    if not described:
        return ""
    places = [path, *ancestors(path)]
    return "\n".join(described[place] for place in reversed(places) if place in described)


def describe(db: Connection, path: str, text: str) -> None:
    text = " ".join(checked(text, "the description").split())
    if len(text) > _LONGEST:
        raise InputError(f"a description has at most {_LONGEST:,} characters, not {len(text):,}")
    if text:
        db.execute("INSERT OR REPLACE INTO descriptions VALUES (?, ?)", (path, text))
    else:
        db.execute("DELETE FROM descriptions WHERE path = ?", (path,))


not_stored = partial(damaged, what="is not what was stored", verbs="edge")

TEXT_ROOT = ""
"""Of texts that were added directly. They lie below no folder, even if a name looks like a path."""

_LAST_EVER = """SELECT max(ifnull((SELECT seq FROM sqlite_sequence WHERE name = 'chunks'), 0),
    ifnull((SELECT max(id) FROM chunks), 0))"""
"""As AUTOINCREMENT finds it."""

_GROUP = 500  # Old builds of SQLite take at most 999 values.


@dataclass(frozen=True, slots=True)
class FileRow:
    """One row of the table `files`. `racy` if its time does not prove that its content is unchanged."""

    id: int
    path: str
    root: str
    size: int
    mtime_ns: int
    inode: int | None
    ctime_ns: int | None
    hash: bytes | None
    kind: str
    title: str
    status: str
    reason: str
    due: int
    racy: int

    def is_as(self, stamp: Stamp) -> bool:
        return (self.size, self.mtime_ns, self.inode, self.ctime_ns) == stamp and not self.racy


@dataclass(frozen=True, slots=True)
class StoredChunk:
    id: int
    ordinal: int
    line_start: int
    line_end: int
    page: int | None
    lines: str | None
    hash: bytes
    checksum: bytes


PLACE = ("file", "ordinal", "line_start", "line_end", "page", "lines", "kinds", "hash")
"""Columns of `chunks` under its checksum."""

_KINDS_OF_PLACE = (int, int, int, int, int | None, str | None, bytes | None, bytes)

_COLUMNS = "id, path, root, size, mtime_ns, inode, ctime_ns, hash, kind, title, status, reason, due, racy"


class Catalog:
    def __init__(self) -> None:
        self.lexical = full_text()

    def find(self, db: Connection, path: str) -> FileRow | None:
        row = db.execute(f"SELECT {_COLUMNS} FROM files WHERE path = ?", (path,)).fetchone()
        return None if row is None else FileRow(*row)

    def due(self, database: Database, scopes: Collection[str]) -> Iterator[FileRow]:
        """Files at or below any of `scopes` that are due. Each group is read in a transaction of its own, because the
        caller may work on it for hours."""
        chosen = frozenset(scopes)
        last = 0
        while True:
            with database.read() as db:
                sql = f"SELECT {_COLUMNS} FROM files WHERE due AND id > ? ORDER BY id LIMIT {_GROUP}"
                rows = held(db, db.execute(sql, (last,)), lambda row: FileRow(*row))
            for file in rows:
                if nearest(file.path, chosen) is not None:
                    yield file
            if len(rows) < _GROUP:
                return
            last = rows[-1].id

    def count_due(self, db: Connection, scopes: Collection[str]) -> int:
        chosen = frozenset(scopes)
        return sum(nearest(path, chosen) is not None for (path,) in db.execute("SELECT path FROM files WHERE due"))

    def insert(self, db: Connection, path: str, root: str, *, due: bool) -> int:
        rows = db.execute(
            "INSERT INTO files(path, root, size, mtime_ns, status, due, checksum) "
            "VALUES (?, ?, 0, 0, 'pending', ?, ?) RETURNING id",
            (path, root, due, row_sum("files", path, "", "")),
        )
        return int(rows.fetchall()[0][0])

    def settle(
        self,
        db: Connection,
        file: int,
        *,
        status: str,
        reason: str = "",
        stamp: Stamp = NO_STAMP,
        racy: bool = False,
        hash: bytes | None = None,
        kind: str = "",
        title: str = "",
    ) -> None:
        db.execute(
            "UPDATE files SET status = ?, reason = ?, size = ?, mtime_ns = ?, inode = ?, ctime_ns = ?, racy = ?, "
            f"hash = ?, kind = ?, title = ?, due = 0, checksum = {ROW_SUM}('files', path, ?, ?) WHERE id = ?",
            (status, reason, *stamp, racy, hash, kind, title, kind, title, file),
        )

    def set_mails(self, db: Connection, file: int, mails: Mapping[int, Mail]) -> None:
        """A thread is known by the first mail that any of its mails names."""
        db.execute("DELETE FROM mails WHERE file = ?", (file,))
        for page, mail in mails.items():
            begun = db.execute("SELECT thread FROM mails WHERE id = ? AND id <> ''", (mail.thread,)).fetchone()
            thread = mail.thread if begun is None else begun[0]
            fields = (mail.sender, mail.recipients, mail.subject, mail.sent, mail.id)
            row = (file, page, *fields, thread, row_sum("mails", file, page, *fields))
            db.execute(f"INSERT INTO mails VALUES ({', '.join('?' * len(row))})", row)
            if mail.id:
                db.execute("UPDATE mails SET thread = ? WHERE thread = ?", (thread, mail.id))

    def chunks(self, db: Connection, file: int) -> list[StoredChunk]:
        rows = db.execute(
            f"SELECT id, {', '.join(PLACE)}, checksum FROM chunks WHERE file = ? ORDER BY ordinal", (file,)
        )

        def chunk(row: Row) -> StoredChunk:
            identifier, *place, checksum = row
            verify_place(identifier, place, checksum)
            _, ordinal, line_start, line_end, page, lines, _, digest = place
            return StoredChunk(identifier, ordinal, line_start, line_end, page, lines, digest, checksum)

        return held(db, rows, chunk)

    def last_chunk(self, db: Connection) -> int:
        return int(db.execute("SELECT coalesce(max(id), 0) FROM chunks").fetchone()[0])

    def insert_chunks(self, db: Connection, file: int, chunks: Iterable[tuple[int, Chunk]]) -> npt.NDArray[np.int64]:
        """Adds chunks, each with its ordinal; returns their ids [n]."""
        rows: list[tuple[Value, ...]] = []
        ids: list[int] = []
        texts: list[str] = []
        (last,) = db.execute(_LAST_EVER).fetchone()
        for number, (ordinal, chunk) in enumerate(chunks, whole(last) + 1):
            place = _place(file, ordinal, chunk)
            rows.append((number, *place, chunk.text, chunk.context, row_sum("chunks", *place)))
            ids.append(number)
            texts.append(passage(chunk.context, chunk.text))
        db.executemany(
            f"INSERT INTO chunks(id, {', '.join(PLACE)}, text, context, checksum) "
            f"VALUES ({', '.join('?' * (len(PLACE) + 4))})",
            rows,
        )
        self.lexical.add(db, ids, texts)
        return np.array(ids, np.int64)

    def move_chunks(self, db: Connection, file: int, moved: Sequence[tuple[int, int, Chunk]]) -> None:
        """Moves chunks to new ordinals and lines: (id, new ordinal, chunk). Their texts are unchanged."""
        # In two steps, because an ordinal may still belong to a chunk that moves later.
        db.executemany("UPDATE chunks SET ordinal = -ordinal - 1 WHERE id = ?", [(chunk,) for chunk, _, _ in moved])
        db.executemany(
            f"UPDATE chunks SET {' = ?, '.join(PLACE)} = ?, checksum = ? WHERE id = ?",
            [(*_place(file, ordinal, new), place_sum(file, ordinal, new), chunk) for chunk, ordinal, new in moved],
        )

    def delete_chunks(self, db: Connection, ids: Sequence[int], vectors: VectorIndex | None) -> None:
        for group in groups(ids):
            marks = ", ".join("?" * len(group))
            sql = f"SELECT id, context, text, hash FROM chunks WHERE id IN ({marks})"
            rows: Sequence[Row] = held(db, db.execute(sql, group), tuple)
            for row in rows:  # deleting with another text would corrupt the full-text index
                verify_text(*row)
            self.lexical.delete(db, [row[0] for row in rows], [passage(row[1], row[2]) for row in rows])
            db.execute(f"DELETE FROM chunks WHERE id IN ({marks})", group)
        if vectors is not None and len(ids):
            vectors.delete(db, np.array(sorted(ids), np.int64))

    def empty(self, db: Connection, file: int, vectors: VectorIndex | None) -> None:
        ids = [row[0] for row in db.execute("SELECT id FROM chunks WHERE file = ?", (file,))]
        self.delete_chunks(db, ids, vectors)
        self.set_mails(db, file, {})

    def remove(self, db: Connection, file: int, vectors: VectorIndex | None) -> None:
        self.empty(db, file, vectors)
        db.execute("DELETE FROM files WHERE id = ?", (file,))

    def same_chunks(self, db: Connection, hashes: Sequence[bytes]) -> dict[bytes, int]:
        """The id of one chunk for each of `hashes` that any file has."""
        found: dict[bytes, int] = {}
        for group in groups(hashes):
            marks = ", ".join("?" * len(group))
            found.update(db.execute(f"SELECT hash, min(id) FROM chunks WHERE hash IN ({marks}) GROUP BY hash", group))
        return found


Known = Callable[[Sequence[bytes]], Mapping[bytes, Floats]]


class ChunkRebuild:
    """The source of a rebuild. Equal passages are embedded once, or never if one has its vector (`reused`)."""

    def __init__(self, embed: Callable[[Sequence[str]], Floats], known: Known = lambda hashes: {}) -> None:
        self.reused = 0
        self.seconds = 0.0
        self._embed = embed
        self._known = known

    def rows(self, db: Connection, after: int, limit: int) -> list[tuple[int, tuple[bytes, str]]]:
        sql = "SELECT id, context, text, hash FROM chunks WHERE id > ? ORDER BY id LIMIT ?"

        def made(row: Row) -> tuple[int, tuple[bytes, str]]:
            verify_text(*row)
            return row[0], (row[3], passage(row[1], row[2]))

        return held(db, db.execute(sql, (after, limit)), made)

    def count(self, db: Connection, after: int) -> int:
        return int(db.execute("SELECT count(*) FROM chunks WHERE id > ?", (after,)).fetchone()[0])

    def vectors(self, made_from: Sequence[tuple[bytes, str]]) -> Floats:
        texts = dict(made_from)
        found = dict(self._known(list(texts)))
        new = [key for key in texts if key not in found]
        if new:
            started = time.perf_counter()
            found |= zip(new, self._embed([texts[key] for key in new]), strict=True)
            self.seconds += time.perf_counter() - started
        self.reused += len(made_from) - len(new)
        return np.stack([found[key] for key, _ in made_from])


def files_below(path: str) -> tuple[str, tuple[str, ...]]:
    """Added texts do not match."""
    condition, params = below(path)
    return f"(root <> ? AND {condition})", (TEXT_ROOT, *params)


def chunk_hash(chunk: Chunk) -> bytes:
    """Equal for chunks with equal embeddings, independent of their place."""
    return text_hash(chunk.context, chunk.text)


def text_hash(context: str, text: str) -> bytes:
    return blake2b(f"{context}\0{text}".encode(), digest_size=16).digest()


def _place(file: int, ordinal: int, chunk: Chunk) -> tuple[Value, ...]:
    lines, hash = packed(chunk.lines), chunk_hash(chunk)
    return file, ordinal, chunk.line_start, chunk.line_end, chunk.page, lines, chunk.kinds, hash


def place_sum(file: int, ordinal: int, chunk: Chunk) -> bytes:
    return row_sum("chunks", *_place(file, ordinal, chunk))


def verify_place(chunk: int, place: Sequence[Value], stored: bytes) -> None:
    """Compares the values of `PLACE` with their kinds and the row's checksum."""
    if not all(map(isinstance, place, _KINDS_OF_PLACE)) or row_sum("chunks", *place) != stored:
        raise not_stored(f"passage {chunk}")


def verify_file(path: str, kind: str, title: str, stored: bytes | None) -> None:
    if row_sum("files", path, kind, title) != stored:
        raise not_stored(f"the row of {path!a}")


def is_mail(file: int, page: int, mail: Mail, stored: bytes) -> bool:
    """Its thread is not under the checksum."""
    return row_sum("mails", file, page, *astuple(mail)[:-1]) == stored


def verify_text(chunk: int, context: str, text: str, stored: bytes) -> None:
    if text_hash(context, text) != stored:
        raise not_stored(f"passage {chunk}")


def groups(values: Sequence[object]) -> Iterator[list[object]]:
    for start in range(0, len(values), _GROUP):
        yield list(values[start : start + _GROUP])
