"""The tables of a `Manifest`, their migrations, and the checksums of their rows."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

from edge.errors import CorruptBlock
from edge.ivf.storage.connection import Connection

_ROWS = 500
"""Rows that a migration rewrites at a time."""

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
    measured_lists INTEGER NOT NULL
);
INSERT INTO ivf_state VALUES (1, 0, 0, 0, 0, 0, 0, 0, 0, 0, '[]', 0, 0);
CREATE TABLE ivf_codec(one INTEGER PRIMARY KEY CHECK (one = 1), name TEXT NOT NULL, code_size INTEGER NOT NULL,
    state BLOB NOT NULL);
CREATE TABLE ivf_lists(list INTEGER PRIMARY KEY, centroid BLOB NOT NULL);
CREATE TABLE ivf_segments(number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, rows INTEGER NOT NULL,
    nbytes INTEGER NOT NULL, parts BLOB NOT NULL, pages BLOB NOT NULL);
CREATE TABLE ivf_deleted(segment TEXT NOT NULL, chunk INTEGER NOT NULL,  -- rows {CHUNK_ROWS} * chunk and on
    stamp INTEGER NOT NULL, rows INTEGER NOT NULL, bits BLOB NOT NULL, PRIMARY KEY (segment, chunk));
CREATE INDEX ivf_deleted_stamp ON ivf_deleted(segment, chunk, stamp, rows);
CREATE TABLE ivf_pending(id INTEGER PRIMARY KEY, stamp INTEGER NOT NULL, vector BLOB NOT NULL);
CREATE INDEX ivf_pending_stamp ON ivf_pending(stamp);
CREATE TABLE ivf_retired(name TEXT PRIMARY KEY, at REAL NOT NULL);
"""


def _add_checksums(db: Connection) -> None:
    """Adds a checksum to each row with blobs, because a lost page that reads as zeros may hold the end of any blob."""
    for table, key, blobs in _CHECKED:
        db.execute(f"ALTER TABLE {table} ADD COLUMN crc INTEGER")
        last = -1
        while True:
            sql = f"SELECT {key}, {', '.join(blobs)} FROM {table} WHERE {key} > ? ORDER BY {key} LIMIT {_ROWS}"
            rows = db.execute(sql, (last,)).fetchall()
            if not rows:
                break
            last = rows[-1][0]
            db.executemany(f"UPDATE {table} SET crc = ? WHERE {key} = ?", [(row_sum(*row[1:]), row[0]) for row in rows])


_TUNING = "CREATE TABLE ivf_tuning(one INTEGER PRIMARY KEY CHECK (one = 1), record BLOB NOT NULL, crc INTEGER NOT NULL)"
"""The record of the chosen parameters (`Tuned`), with its checksum; no row if the index was not tuned."""

_CHECKED = (
    ("ivf_codec", "one", ("state",)),
    ("ivf_lists", "list", ("centroid",)),
    ("ivf_segments", "number", ("parts", "pages")),
    ("ivf_pending", "id", ("vector",)),
)
"""Tables with blobs: table, key, and the columns under one checksum. For deletion marks the number of rows serves."""

MIGRATIONS: tuple[str | Callable[[Connection], None], ...] = (_TABLES, _add_checksums, _TUNING)
"""The history of the schema, oldest first. Released steps never change; new ones are appended."""


def row_sum(*blobs: bytes) -> int:
    """The checksum of a row's blobs."""
    value = 0
    for blob in blobs:
        value = zlib.crc32(blob, value)
    return value


def blobs_are_sound(row: tuple[Any, ...]) -> bool:
    """Whether the blobs of a row match their checksum, which is the row's last value."""
    return bool(row_sum(*(value for value in row if isinstance(value, bytes))) == row[-1])


def checked(what: str, row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns a row without its last value, the checksum of its blobs.

    Raises:
        CorruptBlock: the checksum does not match the blobs.
    """
    if not blobs_are_sound(row):
        raise CorruptBlock(f"the index is damaged: {what} is not what was written")
    return row[:-1]
