"""Keeps a copy of a database's schema in a file beside it, with the few rows that everything else can be rebuilt from.

Without the pages that locate its tables, no row of a database can be found. If those pages are damaged, the schema is
appended to a copy of the file, and a new first page points to it.
"""

from __future__ import annotations

import json
import os
import secrets
import tempfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw

from edge.apps.store.connections import connect
from edge.apps.store.pages import PAGE, missing_bytes
from edge.files.input_file import read_small
from edge.ivf.storage.segment_writer import sync_folder

_HEADER = 100
"""Bytes of the file's header, which precedes the b-tree header of the first page."""

INTERRUPTED = 0x7FFFFFFF
"""Schema version in a replaced first page that points to no table."""

_SIZE, _CHANGE, _VALID_FOR = slice(28, 32), slice(24, 28), slice(92, 96)
_INTERIOR, _LEAF = 5, 13

Schema = list[list[Any]]
"""Type, name, table, first page and statement of each entry in `sqlite_schema`."""


@dataclass(frozen=True, slots=True)
class Copied:
    """The content of a copy: the schema, and for each query the rows that it returned."""

    schema: Schema
    rows: list[list[list[Any]]]


def read_schema(db: Any) -> Schema:
    """The schema of an open database."""
    sql = "SELECT type, name, tbl_name, rootpage, sql FROM sqlite_schema ORDER BY rowid"
    return [list(row) for row in db.execute(sql).fetchall()]


def read_copied(db: Any, queries: Sequence[str]) -> Copied:
    """Reads the schema and the rows of `queries` from an open database."""
    return Copied(read_schema(db), [[list(row) for row in db.execute(query).fetchall()] for query in queries])


def keep(path: Path, copied: Copied) -> None:
    """Writes the copy beside a database.

    Raises:
        OSError: the disk refuses.
    """
    body = json.dumps([copied.schema, copied.rows])
    draft = path.with_name(f"{copy_of(path).name}-{secrets.token_hex(4)}.tmp")
    try:
        with draft.open("x", encoding="ascii") as file:  # "x" never follows a link that another user has placed
            file.write(f"{zlib.crc32(body.encode()):08x}\n{body}\n")
            file.flush()
            os.fsync(file.fileno())
        draft.replace(copy_of(path))
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(path.parent)


def kept(path: Path) -> Copied | None:
    """The copy beside a database; None if it is missing or damaged."""
    try:
        checksum, body = read_small(copy_of(path)).decode("ascii").split("\n", 1)
        if int(checksum, 16) != zlib.crc32(body.removesuffix("\n").encode()):
            return None
        schema, rows = json.loads(body)
        return Copied(schema, rows)
    except (OSError, ValueError, TypeError):
        return None


def put_first_page(path: Path) -> None:
    """Gives a database file a first page that SQLite can open. The page points to no table.

    Raises:
        OSError: the disk refuses.
    """
    _write_first(path, _made([])[0])


def make_openable(path: Path) -> None:
    """Makes a damaged database file acceptable to SQLite: with a valid first page, and with the length that this page
    states. Zeros replace a missing end.

    Raises:
        OSError: the disk refuses.
    """
    missing = missing_bytes(path)
    if missing is None:
        put_first_page(path)
    elif missing:
        os.truncate(path, path.stat().st_size + missing)


def put_schema(path: Path, schema: Schema) -> None:
    """Appends a schema to a database file that has no log, and writes a first page that points to it.

    Raises:
        OSError: the disk refuses.
    """
    first, *others = _made(schema)
    last = -(-path.stat().st_size // PAGE)
    page = bytearray(first)
    if page[_HEADER] == _INTERIOR:
        cells = int.from_bytes(page[_HEADER + 3 : _HEADER + 5], "big")
        places = [_HEADER + 12 + 2 * cell for cell in range(cells)]
        pointers = [_HEADER + 8, *(int.from_bytes(page[place : place + 2], "big") for place in places)]
        for pointer in pointers:  # page 2 of `_made` becomes the first page after the file's last one
            child = int.from_bytes(page[pointer : pointer + 4], "big") - 2 + last + 1
            page[pointer : pointer + 4] = child.to_bytes(4, "big")
    with path.open("r+b") as file:
        file.truncate(last * PAGE)
        file.seek(last * PAGE)
        for other in others:
            file.write(other)
    _write_first(path, bytes(page))


def _made(schema: Schema) -> list[bytes]:
    """The pages of a new database with this schema and nothing else."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "schema.db")
        db = connect(path.as_uri(), writable=True, cache=1 << 20, busy_seconds=1)
        try:
            db.execute("PRAGMA journal_mode = DELETE").fetchall()
            db.execute("CREATE TABLE placeholder(x)")
            db.execute(f"PRAGMA user_version = {INTERRUPTED}").fetchall()
            db.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 0)
            db.execute("PRAGMA writable_schema = ON").fetchall()
            db.execute("DELETE FROM sqlite_schema")
            db.executemany("INSERT INTO sqlite_schema VALUES (?, ?, ?, ?, ?)", schema)
        finally:
            db.close(True)
        data = path.read_bytes()
    return [data[at : at + PAGE] for at in range(0, len(data), PAGE)]


def _write_first(path: Path, page: bytes) -> None:
    new = bytearray(page)
    new[18:20] = b"\2\2"  # WAL mode: a log may lie beside the file
    new[32:40] = bytes(8)  # no free pages
    new[_SIZE] = (-(-path.stat().st_size // PAGE)).to_bytes(4, "big")
    new[_VALID_FOR] = new[_CHANGE]
    with path.open("r+b") as file:
        file.write(new)


def copy_of(path: Path) -> Path:
    """The file beside a database that holds the copy."""
    return path.with_name(path.name + "-schema")
