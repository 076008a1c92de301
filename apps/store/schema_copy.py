"""A copy of a database's schema, and of few rows that all else can be made from, in a file beside it: without the pages
that say where tables begin, nothing is found.

Where those pages are damaged, the schema is laid at the end of a copy of the file, and a first page is made that leads
there.
"""

from __future__ import annotations

import json
import os
import tempfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw

from edge.apps.store.connecting import connect
from edge.apps.store.pages import PAGE, missing_bytes, with_checksum
from edge.ivf.segment_writer import sync_folder

_HEADER = 100
"""Bytes of the file's header, before the first page's own."""

INTERRUPTED = 0x7FFFFFFF
"""Version of the schema in a first page that leads to nothing."""

_SIZE, _CHANGE, _VALID_FOR = slice(28, 32), slice(24, 28), slice(92, 96)
_INTERIOR, _LEAF = 5, 13

Schema = list[list[Any]]
"""Type, name, table, first page and statement of everything in a database."""


@dataclass(frozen=True, slots=True)
class Copied:
    """What is copied: the schema, and the rows of some queries, of each those that were found."""

    schema: Schema
    rows: list[list[list[Any]]]


def read_schema(db: Any) -> Schema:
    """The schema of an open database."""
    sql = "SELECT type, name, tbl_name, rootpage, sql FROM sqlite_schema ORDER BY rowid"
    return [list(row) for row in db.execute(sql).fetchall()]


def read_copied(db: Any, queries: Sequence[str]) -> Copied:
    """What is copied of an open database."""
    return Copied(read_schema(db), [[list(row) for row in db.execute(query).fetchall()] for query in queries])


def keep(path: Path, copied: Copied) -> None:
    """Writes the copy beside a database.

    Raises:
        OSError: the disk refuses.
    """
    body = json.dumps([copied.schema, copied.rows])
    new = _copy_of(path).with_name(_copy_of(path).name + ".tmp")
    with new.open("w", encoding="ascii") as file:
        file.write(f"{zlib.crc32(body.encode()):08x}\n{body}\n")
        file.flush()
        os.fsync(file.fileno())
    new.replace(_copy_of(path))
    sync_folder(path.parent)


def kept(path: Path) -> Copied | None:
    """The copy, if there is one and it is what was written."""
    try:
        checksum, body = _copy_of(path).read_text(encoding="ascii").split("\n", 1)
        if int(checksum, 16) != zlib.crc32(body.removesuffix("\n").encode()):
            return None
        schema, rows = json.loads(body)
        return Copied(schema, rows)
    except (OSError, ValueError, TypeError):
        return None


def put_first_page(path: Path) -> None:
    """Gives a database file a first page with which SQLite opens it; it leads to nothing.

    Raises:
        OSError: the disk refuses.
    """
    _write_first(path, _made([])[0])


def make_openable(path: Path) -> None:
    """Gives a damaged database file what SQLite asks of a file before it reads anything of it: a first page, and the
    length that the first page states. Zeros take the place of what was cut off.

    Raises:
        OSError: the disk refuses.
    """
    missing = missing_bytes(path)
    if missing is None:
        put_first_page(path)
    elif missing:
        os.truncate(path, path.stat().st_size + missing)


def put_schema(path: Path, schema: Schema) -> None:
    """Lays a schema at the end of a database file without a log, and makes a first page that leads there.

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
        for pointer in pointers:  # page 2 of the made one comes to lie behind the last
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
    new[18:20] = b"\2\2"  # a log may lie beside it
    new[32:40] = bytes(8)  # no free pages
    new[_SIZE] = (-(-path.stat().st_size // PAGE)).to_bytes(4, "big")
    new[_VALID_FOR] = new[_CHANGE]
    with path.open("r+b") as file:
        file.write(with_checksum(bytes(new)))


def _copy_of(path: Path) -> Path:
    return path.with_name(path.name + "-schema")
