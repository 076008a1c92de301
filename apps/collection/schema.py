"""The tables of a collection's `edge.db`, and the settings it keeps there.

A file is a row of `files` whatever became of it; `due` marks one that has work waiting, so an interrupted run is taken
up where it stopped. `chunks.id` is never used twice, and is also the id of the chunk's vector and of its full-text row.
"""

from __future__ import annotations

from pathlib import Path

from edge.apps.store.database import Database, Migration, make_folder
from edge.apps.store.lexical import LexicalIndex
from edge.budget import MemoryBudget
from edge.connection import Connection
from edge.ivf.index import VectorIndex

FULL_TEXT = "chunks_text"

_FILES = f"""
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
    due INTEGER NOT NULL DEFAULT 0
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
    UNIQUE (file, ordinal)
);
CREATE INDEX chunks_by_hash ON chunks(hash);

{LexicalIndex.create(FULL_TEXT)}
"""


COPIED = ("SELECT path FROM roots ORDER BY path", "SELECT name, value FROM settings WHERE name = 'embedder'")
"""What is kept beside the database, too: all else can be made from the files below these folders."""

_RACY = "ALTER TABLE files ADD COLUMN racy INTEGER NOT NULL DEFAULT 0"
"""Before, a time of 0 said of a file that it had to be looked at again, and was found by no filter. It still has to."""

_PLACES = """
ALTER TABLE chunks ADD COLUMN lines TEXT;

CREATE TABLE descriptions(
    path TEXT PRIMARY KEY,
    text TEXT NOT NULL
) WITHOUT ROWID;
"""
"""Line numbers of passages that leave lines out, and what people say of folders."""

_VECTORS = 1
"""Steps of the vector index before the first later one of this file."""


def migrations() -> list[Migration]:
    """The history of the schema. New steps of either part go to the end, in the order they were made."""
    vectors = VectorIndex.migrations()
    whole = LexicalIndex.keep_pages_whole(FULL_TEXT)
    return [_FILES, *vectors[:_VECTORS], _RACY, whole, *vectors[_VECTORS:], _PLACES]


def open_database(path: Path, budget: MemoryBudget, *, read_only: bool) -> Database:
    """The database of a collection, whose folder is made if need be. Raises as `Database` does."""
    if not read_only:
        make_folder(path.parent)
    return Database(path, migrations(), budget=budget, read_only=read_only, copied=COPIED)


def get_setting(db: Connection, name: str) -> str | None:
    """A setting's value, None if it was never set."""
    row = db.execute("SELECT value FROM settings WHERE name = ?", (name,)).fetchone()
    return None if row is None else str(row[0])


def set_setting(db: Connection, name: str, value: str) -> None:
    """Sets a setting."""
    db.execute(
        "INSERT INTO settings VALUES (?, ?) ON CONFLICT(name) DO UPDATE SET value = excluded.value", (name, value)
    )
