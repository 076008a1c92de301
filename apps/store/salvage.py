"""Reads the readable rows of a damaged database, skipping lost pages."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw

from edge.apps.store.connections import connect, plain
from edge.apps.store.failures import damage_suppressed, is_refusal
from edge.apps.store.pages import PAGE
from edge.apps.store.schema_copy import Schema, kept, make_openable, put_schema, read_schema

_CACHE = 1 << 20
_PATIENCE_S = 5.0

_MOST_HOLES = 500_000
"""Failed reads of key ranges in one table, after which the rest of the table counts as lost."""

Row = tuple[Any, ...]


class Wreck:
    """A copy of a damaged database, opened for reading.

    Attributes:
        kept: results of the queries whose rows were copied beside the database.
        lost: by table, the number of places with unreadable rows; 0 if all rows were read.
    """

    def __init__(self, db: apsw.Connection | None, pages: int, kept: Sequence[Sequence[Sequence[Any]]] = ()) -> None:
        self.kept = kept
        self._db = db
        self._pages = pages
        self.lost: dict[str, int] = {}

    def rows(self, table: str, columns: Sequence[str]) -> Iterator[Row]:
        """The readable rows of a table, in the order of its integer key, the first column. A missing table has no rows
        and counts as lost."""
        self.lost[table] = 0
        if self._db is None:
            self.lost[table] = 1
            return
        select = f"SELECT {', '.join(columns)} FROM {table} WHERE {columns[0]} BETWEEN ? AND ? ORDER BY {columns[0]}"
        tries = 0
        waiting = [(0, self._largest(table, columns[0]))]
        while waiting:
            low, high = waiting.pop()
            if low > high:
                continue
            last = low - 1
            try:
                for row in self._db.execute(select, (low, high)):
                    last = row[0]
                    yield row
                continue
            except (apsw.Error, UnicodeDecodeError) as error:
                if is_refusal(error):
                    raise
                low = last + 1
            tries += 1
            if low >= high or tries > _MOST_HOLES:
                self.lost[table] += 1
                continue
            middle = (low + high) // 2
            waiting += [(middle + 1, high), (low, middle)]

    def small(self, table: str, columns: Sequence[str], *, order: bool = False) -> list[Row]:
        """The rows of a table that can be read from its start or from its end, without duplicates.

        Args:
            order: reads in the order of the first column, from an index if one has all columns; then no row counts as
                lost.
        """
        before = self.lost.get(table, 0)
        self.lost[table] = 0
        found: dict[Row, None] = {}
        if self._db is None:
            self.lost[table] = 1
            return []
        for end in (" ORDER BY 1" if order else "", " ORDER BY 1 DESC"):
            try:
                for row in self._db.execute(f"SELECT {', '.join(columns)} FROM {table}{end}"):
                    found[row] = None
                break
            except (apsw.Error, UnicodeDecodeError) as error:
                if is_refusal(error):
                    raise
                self.lost[table] = 1
        if order:
            self.lost[table] = before
        return list(found)

    def _largest(self, table: str, key: str) -> int:
        """The largest key that the table may have."""
        assert self._db is not None
        largest = 0
        for sql in (
            f"SELECT max({key}) FROM {table}",
            f"SELECT seq FROM sqlite_sequence WHERE name = '{table}'",
        ):
            with damage_suppressed():
                largest = max([largest, *(row[0] or 0 for row in self._db.execute(sql))])
        # Neither can be read: assume as many rows as the file could hold.
        return largest or self._pages * PAGE // 40


@contextmanager
def opened(copy: Path) -> Iterator[Wreck]:
    """Opens a working copy of a damaged database; `copy` itself stays unchanged. If the pages that locate the tables
    are lost, the schema copy beside the database replaces them.

    Raises:
        apsw.Error, OSError: the disk refuses. This error does not mean lost rows, and callers must not count it as
            such.
    """
    with tempfile.TemporaryDirectory(dir=copy.parent) as folder:
        own = Path(folder) / copy.name
        for name in ("", "-wal"):
            source = copy.with_name(copy.name + name)
            if source.exists():
                shutil.copy2(source, own.with_name(own.name + name))
        db = None
        known = kept(copy)
        try:
            with damage_suppressed():
                _make_readable(own, None if known is None else known.schema)
                db = _connection(own)
            rows = [] if known is None else known.rows
            yield Wreck(db, own.stat().st_size // PAGE if own.exists() else 0, rows)
        finally:
            if db is not None:
                db.close(True)


def _make_readable(path: Path, schema: Schema | None) -> None:
    """Moves the log into the file, and replaces the schema if it cannot be read."""
    make_openable(path)
    db = plain(path)
    try:
        with damage_suppressed():
            db.execute("PRAGMA schema_version").fetchall()  # this opens the log
        with damage_suppressed():
            db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        with damage_suppressed():
            if schema is None or read_schema(db) == schema:
                return
    finally:
        db.close(True)
    if schema is not None:
        put_schema(path, schema)


def _connection(path: Path) -> apsw.Connection:
    return connect(path.absolute().as_uri(), writable=True, cache=_CACHE, busy_seconds=_PATIENCE_S)
