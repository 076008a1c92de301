"""`IndexManifest`: the index's tables in the collection's SQLite database; a transaction there is the only commit.

Pending and deleted rows have a random stamp, by which a reader fetches only rows that are new to it. After a rollback a
counter would give the same number twice."""

from __future__ import annotations

import json
import secrets
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edge.errors import CorruptBlock, InputError
from edge.ivf.base import CodecSpec, Connection, Ids, Tuned, Vectors
from edge.ivf.storage.segments import PAGE, PART, SegmentEntry

CHUNK_ROWS = 32_768
"""Rows of a segment that share one blob of deletion bits. A deletion rewrites at least one blob, 4 KiB."""

_TABLES = f"""
CREATE TABLE ivf_state(
    one INTEGER PRIMARY KEY CHECK (one = 1),
    generation INTEGER NOT NULL,        -- grows with every change
    stamp INTEGER NOT NULL,             -- another random number after every change
    dim INTEGER NOT NULL,               -- 0: no vector yet
    rows INTEGER NOT NULL,              -- vectors that count, pending ones included
    training INTEGER NOT NULL,          -- stamp of codec and centroids; 0: one list, scanned exactly
    trained_rows INTEGER NOT NULL,
    trained_misfit REAL NOT NULL,       -- mean of 1 - cosine to the own centroid, at the training
    newer_rows INTEGER NOT NULL,        -- rows assigned since, and the sum of their misfits
    newer_misfit REAL NOT NULL,
    recall TEXT NOT NULL,               -- JSON: [[nprobe, recall@10], ...]
    measured_rows INTEGER NOT NULL,     -- rows and lists when that was measured
    measured_lists INTEGER NOT NULL,
    quantizer INTEGER NOT NULL DEFAULT 0 -- version of the present coarse quantizer
);
INSERT INTO ivf_state VALUES (1, 0, 0, 0, 0, 0, 0, 0, 0, 0, '[]', 0, 0, 0);
CREATE TABLE ivf_codec(one INTEGER PRIMARY KEY CHECK (one = 1), name TEXT NOT NULL, code_size INTEGER NOT NULL,
    state BLOB NOT NULL, crc INTEGER);      -- of the row's blobs, because a lost page of zeros may hold the end of any
CREATE TABLE ivf_lists(list INTEGER PRIMARY KEY, centroid BLOB NOT NULL, crc INTEGER);
CREATE TABLE ivf_segments(number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, rows INTEGER NOT NULL,
    nbytes INTEGER NOT NULL, parts BLOB NOT NULL, pages BLOB NOT NULL, crc INTEGER,
    quantizer INTEGER NOT NULL DEFAULT 0);  -- version of the one that assigned its rows
CREATE TABLE ivf_deleted(segment TEXT NOT NULL, chunk INTEGER NOT NULL,  -- rows {CHUNK_ROWS} * chunk and on
    stamp INTEGER NOT NULL, rows INTEGER NOT NULL, bits BLOB NOT NULL, PRIMARY KEY (segment, chunk));
CREATE INDEX ivf_deleted_stamp ON ivf_deleted(segment, chunk, stamp, rows);
CREATE TABLE ivf_pending(id INTEGER PRIMARY KEY, stamp INTEGER NOT NULL, vector BLOB NOT NULL, crc INTEGER);
CREATE INDEX ivf_pending_stamp ON ivf_pending(stamp);
CREATE TABLE ivf_retired(name TEXT PRIMARY KEY, at REAL NOT NULL);
CREATE TABLE ivf_tuning(one INTEGER PRIMARY KEY CHECK (one = 1), record BLOB NOT NULL,  -- `Tuned`; no row: not tuned
    crc INTEGER NOT NULL);
"""

MIGRATIONS: Sequence[str] = (_TABLES,)
"""The history of the schema, oldest first. Released steps never change; new ones are appended."""


def row_sum(*blobs: bytes) -> int:
    value = 0
    for blob in blobs:
        value = zlib.crc32(blob, value)
    return value


def blobs_are_sound(row: tuple[Any, ...]) -> bool:
    return bool(row_sum(*(value for value in row if isinstance(value, bytes))) == row[-1])


def checked(what: str, row: tuple[Any, ...] | None) -> tuple[Any, ...]:
    """Returns a row without its last value, the checksum of its blobs."""
    if row is None or not blobs_are_sound(row):
        raise CorruptBlock(f"the index is damaged: {what} is not what was written")
    return row[:-1]


_MANY = 500
"""Values bound to one statement."""


@dataclass(frozen=True, slots=True)
class State:
    """The one row of `ivf_state`."""

    generation: int
    stamp: int
    dim: int
    rows: int
    training: int
    trained_rows: int
    trained_misfit: float
    newer_rows: int
    newer_misfit: float
    recall: tuple[tuple[int, float], ...]
    measured_rows: int
    measured_lists: int
    quantizer: int
    """The version of the quantizer that several indexes share; 0: the index trains itself."""


class IndexManifest:
    """The tables as one connection sees them. Writing needs a write transaction, which the caller commits."""

    def __init__(self, db: Connection) -> None:
        self.db = db

    def stamp(self) -> tuple[int, int]:
        """Generation and stamp of the state that this connection sees."""
        generation, stamp = self.db.execute("SELECT generation, stamp FROM ivf_state").fetchone()
        return int(generation), int(stamp)

    def state(self) -> State:
        row: tuple[Any, ...] = self.db.execute(
            "SELECT generation, stamp, dim, rows, training, trained_rows, trained_misfit, newer_rows, newer_misfit,"
            " recall, measured_rows, measured_lists, quantizer FROM ivf_state"
        ).fetchone()
        recall = tuple((int(n), float(r)) for n, r in json.loads(row[9]))
        return State(*(*row[:9], recall, *row[10:]))

    def touch(self, *, recall: Iterable[tuple[int, float]] | None = None, **values: object) -> int:
        """Begins a new generation with these columns of the state changed; returns its stamp."""
        if not self.db.in_transaction:
            raise InputError("the index is changed inside a write transaction: begin one, and commit it afterwards")
        stamp = secrets.randbits(62)
        if recall is not None:
            values["recall"] = json.dumps(list(recall))
        columns = "".join(f", {name} = ?" for name in values)
        self.db.execute(
            f"UPDATE ivf_state SET generation = generation + 1, stamp = ?{columns}", (stamp, *values.values())
        )
        return stamp

    def count_rows(self, change: int) -> None:
        self.db.execute("UPDATE ivf_state SET rows = rows + ?", (change,))

    def count_misfit(self, rows: int, total: float) -> None:
        """Adds rows that were assigned after the training, and the sum of their misfits."""
        self.db.execute(
            "UPDATE ivf_state SET newer_rows = newer_rows + ?, newer_misfit = newer_misfit + ?", (rows, total)
        )

    def clear(self, at: float) -> None:
        """Forgets every vector and all training. Vectors that come next may have another width."""
        self.touch(
            recall=(), dim=0, rows=0, training=0, trained_rows=0, trained_misfit=0.0, newer_rows=0, newer_misfit=0.0,
            measured_rows=0, measured_lists=0, quantizer=0,
        )  # fmt: skip
        self.retire_segments(self.segment_names(), at)
        for table in ("ivf_pending", "ivf_lists", "ivf_codec", "ivf_tuning"):
            self.db.execute(f"DELETE FROM {table}")

    # Training

    def codec(self) -> CodecSpec:
        row = self.db.execute("SELECT name, code_size, state, crc FROM ivf_codec").fetchone()
        name, code_size, state = checked("the codec of the vectors", row)
        return CodecSpec(name, self.state().dim, code_size, state)

    def tuned(self) -> Tuned | None:
        row = self.db.execute("SELECT record, crc FROM ivf_tuning").fetchone()
        return None if row is None else Tuned.from_json(checked("the record of its tuning", row)[0].decode())

    def set_tuned(self, tuned: Tuned) -> None:
        record = tuned.to_json().encode()
        self.db.execute(
            "INSERT OR REPLACE INTO ivf_tuning(one, record, crc) VALUES (1, ?, ?)", (record, row_sum(record))
        )

    def forget_tuned(self) -> None:
        self.db.execute("DELETE FROM ivf_tuning")

    def list_count(self) -> int:
        return max(1, int(self.db.execute("SELECT count(*) FROM ivf_lists").fetchone()[0]))

    def centroids(self, dim: int) -> Vectors:
        out = np.zeros((self.list_count(), dim), np.float32)
        for row in self.db.execute("SELECT list, centroid, crc FROM ivf_lists"):
            number, blob = checked(f"the centre of list {row[0]}", row)
            out[number] = np.frombuffer(blob, np.float32)
        return out

    def set_training(self, spec: CodecSpec, centroids: Vectors) -> None:
        """Replaces codec and centroids; the segments must be replaced in the same transaction."""
        row = (spec.name, spec.code_size, spec.state, row_sum(spec.state))
        self.db.execute(
            "INSERT OR REPLACE INTO ivf_codec(one, name, code_size, state, crc) VALUES (1, ?, ?, ?, ?)", row
        )
        self.db.execute("DELETE FROM ivf_lists")
        self.set_centroids(dict(enumerate(centroids)))

    def set_centroids(self, centroids: dict[int, Vectors]) -> None:
        """Replaces or adds single centroids [dim], by list."""
        rows = ((number, blob := centroid.tobytes(), row_sum(blob)) for number, centroid in centroids.items())
        self.db.executemany("INSERT OR REPLACE INTO ivf_lists(list, centroid, crc) VALUES (?, ?, ?)", rows)

    # Segments

    def segment_names(self) -> list[str]:
        return [name for (name,) in self.db.execute("SELECT name FROM ivf_segments ORDER BY number")]

    def segment(self, name: str) -> SegmentEntry:
        sql = "SELECT rows, nbytes, parts, pages, crc FROM ivf_segments WHERE name = ?"
        row = self.db.execute(sql, (name,)).fetchone()
        rows, nbytes, parts, pages = checked(f"the table of {name}", row)
        return SegmentEntry(name, rows, nbytes, np.frombuffer(parts, PART), np.frombuffer(pages, PAGE))

    def segment_totals(self) -> tuple[int, int]:
        count, nbytes = self.db.execute("SELECT count(*), coalesce(sum(nbytes), 0) FROM ivf_segments").fetchone()
        return int(count), int(nbytes)

    def add_segment(self, entry: SegmentEntry) -> None:
        """Makes a file that is on disk part of the state."""
        parts, pages = entry.parts.tobytes(), entry.pages.tobytes()
        self.db.execute(
            "INSERT INTO ivf_segments(name, rows, nbytes, parts, pages, crc, quantizer) "
            "VALUES (?, ?, ?, ?, ?, ?, (SELECT quantizer FROM ivf_state))",
            (entry.name, entry.rows, entry.nbytes, parts, pages, row_sum(parts, pages)),
        )

    def retire_segments(self, names: Iterable[str], at: float) -> None:
        """Takes files out of the state. They stay on disk for readers that still use them."""
        for name in names:
            self.db.execute("DELETE FROM ivf_segments WHERE name = ?", (name,))
            self.db.execute("DELETE FROM ivf_deleted WHERE segment = ?", (name,))
            self.db.execute("INSERT INTO ivf_retired VALUES (?, ?)", (name, at))

    def drop_segments(self, names: Iterable[str], at: float) -> None:
        """Takes files out of the state with their rows, unless another state has replaced them meanwhile."""
        held = set(self.segment_names())
        self.retire_segments([name for name in names if name in held], at)
        (rows,) = self.db.execute(
            "SELECT (SELECT coalesce(sum(rows), 0) FROM ivf_segments)"
            " - (SELECT coalesce(sum(rows), 0) FROM ivf_deleted) + (SELECT count(*) FROM ivf_pending)"
        ).fetchone()
        self.touch(rows=rows)

    def retired(self) -> list[tuple[str, float]]:
        """Files out of use, with the time (seconds since 1970) they were retired."""
        return list(self.db.execute("SELECT name, at FROM ivf_retired"))

    def forget_retired(self, names: Iterable[str]) -> None:
        self.db.executemany("DELETE FROM ivf_retired WHERE name = ?", ((name,) for name in names))

    # Deleted rows

    def deleted_stamps(self) -> dict[tuple[str, int], tuple[int, int]]:
        rows = self.db.execute("SELECT segment, chunk, stamp, rows FROM ivf_deleted")
        return {(segment, chunk): (stamp, count) for segment, chunk, stamp, count in rows}

    def deleted_rows(self, segment: str, chunk: int) -> Ids:
        found = self.db.execute(
            "SELECT bits, rows FROM ivf_deleted WHERE segment = ? AND chunk = ?", (segment, chunk)
        ).fetchone()
        if found is None:
            return np.empty(0, np.int64)
        rows = np.flatnonzero(np.unpackbits(np.frombuffer(found[0], np.uint8)))
        if len(rows) != found[1]:
            raise CorruptBlock(f"the index is damaged: of {segment} {found[1]:,} rows are deleted, not {len(rows):,}")
        return rows + chunk * CHUNK_ROWS

    def all_deleted_rows(self, segment: str) -> Ids:
        chunks = self.db.execute("SELECT chunk FROM ivf_deleted WHERE segment = ? ORDER BY chunk", (segment,))
        return np.concatenate([np.empty(0, np.int64), *(self.deleted_rows(segment, c) for (c,) in chunks.fetchall())])

    def delete_rows(self, segment: str, rows: Ids, stamp: int) -> Ids:
        """Marks `rows` [n] (ascending) of a segment as deleted; returns those that were not marked yet."""
        fresh = []
        for chunk in np.unique(rows // CHUNK_ROWS).tolist():
            low, high = np.searchsorted(rows, (chunk * CHUNK_ROWS, (chunk + 1) * CHUNK_ROWS))
            before = self.deleted_rows(segment, chunk)
            new = np.setdiff1d(rows[low:high], before, assume_unique=True)
            if len(new) == 0:
                continue
            marks = np.zeros(CHUNK_ROWS, np.bool_)
            marks[np.concatenate((before, new)) - chunk * CHUNK_ROWS] = True
            self.db.execute(
                "INSERT OR REPLACE INTO ivf_deleted VALUES (?, ?, ?, ?, ?)",
                (segment, chunk, stamp, len(before) + len(new), np.packbits(marks).tobytes()),
            )
            fresh.append(new)
        return np.concatenate(fresh) if fresh else np.empty(0, np.int64)

    # Pending rows

    def pending_count(self) -> int:
        return int(self.db.execute("SELECT count(*) FROM ivf_pending").fetchone()[0])

    def pending_stamps(self) -> tuple[Ids, Ids]:
        """Ids [n] and stamps [n] of the pending rows, in the order of stamps."""
        rows = self.db.execute("SELECT id, stamp FROM ivf_pending ORDER BY stamp, id").fetchall()
        table = np.array(rows, np.int64).reshape(-1, 2)
        return table[:, 0].copy(), table[:, 1].copy()

    def pending_vectors(self, ids: Ids, dim: int) -> Vectors:
        out = np.empty((len(ids), dim), np.float32)
        place = {number: at for at, number in enumerate(ids.tolist())}
        for some in _cut(list(place)):
            query = f"SELECT id, vector, crc FROM ivf_pending WHERE id IN ({_marks(some)})"
            for row in self.db.execute(query, some):
                number, blob = checked(f"vector {row[0]}", row)
                out[place[number]] = np.frombuffer(blob, np.float32)
        return out

    def add_pending(self, ids: Ids, vectors: Vectors, stamp: int) -> None:
        pairs = zip(ids.tolist(), vectors, strict=True)
        rows = ((number, stamp, blob := vector.tobytes(), row_sum(blob)) for number, vector in pairs)
        self.db.executemany("INSERT INTO ivf_pending(id, stamp, vector, crc) VALUES (?, ?, ?, ?)", rows)

    def delete_pending(self, ids: Ids) -> int:
        count = 0
        for some in _cut(ids.tolist()):
            self.db.execute(f"DELETE FROM ivf_pending WHERE id IN ({_marks(some)})", some).fetchall()
            count += int(self.db.execute("SELECT changes()").fetchone()[0])
        return count

    def which_pending(self, ids: Ids) -> Ids:
        found: list[int] = []
        for some in _cut(ids.tolist()):
            found += [n for (n,) in self.db.execute(f"SELECT id FROM ivf_pending WHERE id IN ({_marks(some)})", some)]
        return np.sort(np.array(found, np.int64))


def flat(dim: int) -> CodecSpec:
    return CodecSpec("flat", dim, 4 * dim)


def _cut(values: list[int]) -> Iterator[list[int]]:
    for start in range(0, len(values), _MANY):
        yield values[start : start + _MANY]


def _marks(values: Sequence[int]) -> str:
    return ", ".join("?" * len(values))
