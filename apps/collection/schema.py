"""The tables of a collection's `edge.db`, its settings, roots and descriptions. Skipped and failed files have a row,
too, and `due` marks those to index. `chunks.id` is never reused, and is the id of the vector and the full-text row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from edge.apps.collection.paths import ancestors, below, checked
from edge.apps.store.database import Database, Migration
from edge.apps.store.failures import WrongValue
from edge.apps.store.folder import claim
from edge.apps.store.lexical import FUNCTION_WORDS, LexicalIndex
from edge.apps.store.rows import Row, held, held_by_key
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

_SPELLED = 256

_UNRELEASED = 10


def migrations() -> list[Migration]:
    vectors, *later = VectorIndex.migrations()
    return [*[None] * _UNRELEASED, f"{TABLES}{vectors}", *later, _spell_again]


def full_text() -> LexicalIndex:
    return LexicalIndex(FULL_TEXT, ignored=FUNCTION_WORDS, signs=True)


def passage(context: str, text: str) -> str:
    return f"{context}\n{text}" if context else text


def _spell_again(db: Connection) -> None:
    """Names and numbers with signs are words of the full text now, and files are due that were left out for their
    names."""
    db.execute("UPDATE files SET due = 1 WHERE reason = 'its name is not valid Unicode'")
    lexical, last = full_text(), 0
    lexical.clear(db)
    while rows := db.execute(
        "SELECT id, context, text FROM chunks WHERE id > ? ORDER BY id LIMIT ?", (last, _SPELLED)
    ).fetchall():
        lexical.add(db, [row[0] for row in rows], [passage(str(row[1]), str(row[2])) for row in rows])
        last = rows[-1][0]


def open_database(path: Path, budget: MemoryBudget, *, read_only: bool) -> Database:
    if not read_only:
        claim(path.parent, path.name)
    return Database(path, migrations(), budget=budget, read_only=read_only)


def get_setting(db: Connection, name: str) -> str | None:
    row = db.execute("SELECT value FROM settings WHERE name = ?", (name,)).fetchone()
    return None if row is None else str(row[0])


def set_setting(db: Connection, name: str, value: str) -> None:
    db.execute(
        "INSERT INTO settings VALUES (?, ?) ON CONFLICT(name) DO UPDATE SET value = excluded.value", (name, value)
    )


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
