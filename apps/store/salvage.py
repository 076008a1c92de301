"""Reads the readable rows of a damaged database: through SQLite, and from the pages that SQLite does not find."""

from __future__ import annotations

import shutil
import tempfile
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw

from edge.apps.store.carving import carved
from edge.apps.store.connections import connect, plain
from edge.apps.store.failures import damage_suppressed, is_refusal
from edge.ivf.storage.connection import Connection

_CACHE = 1 << 20
_PATIENCE_S = 5.0

_MOST_HOLES = 500_000
"""Failed reads of key ranges in one table, after which the rest of the table is looked for in the pages."""

_LEAST_ROW = 40
"""A row takes at least so many bytes of a file."""

Row = tuple[Any, ...]


class Wreck:
    """A damaged database, opened for reading.

    Attributes:
        lost: by table, the number of places with rows that SQLite cannot read; 0 if it read all rows.
        searched: the tables whose rows were also looked for in the pages; how many of them are lost is not known.
    """

    def __init__(
        self,
        db: Connection | None,
        nbytes: int,
        path: Path | None = None,
        layout: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """Stores the arguments.

        Args:
            db: None if SQLite cannot open the file.
            nbytes: bytes of the file.
            path: a file in which rows are looked for that SQLite does not find; `layout` has the columns of its tables,
                the integer key first. Without it, only SQLite's rows are read.
        """
        self._db = db
        self._nbytes = nbytes
        self._path = path
        self._layout = layout or {}
        self.lost: dict[str, int] = {}
        self.searched: set[str] = set()

    def rows(
        self, table: str, columns: Sequence[str], proves: Callable[[Row], bool] = lambda row: True
    ) -> Iterator[Row]:
        """The readable rows of a table: in the order of its integer key, the first column, those that SQLite finds;
        then those in its pages. The latter may be rows of another table, so only those that `proves` accepts are given.
        A missing table counts as lost."""
        found = array("q")
        for row in self._found(table, columns):
            if self._path is not None:
                found.append(row[0])
            yield row
        if self._path is None or not self.lost[table]:
            return
        self.searched.add(table)
        for row in carved(self._path, self._layout, table, columns):
            key: Any = row[0]
            place = bisect_left(found, key)
            if (place == len(found) or found[place] != key) and proves(row):
                yield row

    def _found(self, table: str, columns: Sequence[str]) -> Iterator[Row]:
        """The rows that SQLite finds."""
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
        return largest or self._nbytes // _LEAST_ROW


@contextmanager
def opened(copy: Path, layout: Mapping[str, Sequence[str]]) -> Iterator[Wreck]:
    """Opens a working copy of a damaged database; `copy` itself stays unchanged.

    Args:
        layout: the columns of each table, in the order of the table.

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
        try:
            with damage_suppressed():
                _move_log(own)
                db = connect(own.absolute().as_uri(), writable=True, cache=_CACHE, busy_seconds=_PATIENCE_S)
            yield Wreck(db, copy.stat().st_size, copy, layout)
        finally:
            if db is not None:
                db.close(True)


def layout_of(db: Connection) -> dict[str, list[str]]:
    """The columns of each table of an open database, in the order of the table."""
    tables = [row[0] for row in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    return {table: [row[1] for row in db.execute(f"PRAGMA table_info({table})")] for table in tables}


def _move_log(path: Path) -> None:
    """Moves the log into the file, as far as SQLite can read it."""
    db = plain(path)
    try:
        with damage_suppressed():
            db.execute("PRAGMA schema_version").fetchall()  # this opens the log
            db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    finally:
        db.close(True)
