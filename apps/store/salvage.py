"""Reads the readable rows of a damaged database: through SQLite, and from the pages that SQLite does not find.

SQLite finds the rows of a table from its first page down. If a page above them is lost, sound rows are still in the
file. They are found here by the file format (https://sqlite.org/fileformat2.html, sections 1.6 and 2.1), and the caller
proves each by its own checksum, because pages may hold anything.
"""

from __future__ import annotations

import os
import shutil
import struct
import tempfile
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import apsw

from edge.apps.store.connections import connect, plain
from edge.apps.store.failures import damage_suppressed, is_refusal
from edge.apps.store.folder import log_of
from edge.apps.store.rows import Row, Value
from edge.ivf.base import Connection

_CACHE = 1 << 20
_PATIENCE_S = 5.0

_MOST_HOLES = 500_000
"""Failed reads of key ranges in one table, after which the rest of the table is looked for in the pages."""

_LEAST_ROW = 40  # A row takes at least so many bytes of a file.


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
        """The rows of a table that can be read from its start or from its end, without duplicates; with `order` in that
        of the first column, from an index if one has all columns, and then no row counts as lost."""
        before = self.lost.get(table, 0)
        self.lost[table] = 0
        found: dict[Row, None] = {}
        if self._db is None:
            self.lost[table] = 1
            return []
        for end in (" ORDER BY 1" if order else "", " ORDER BY 1 DESC"):
            with damage_suppressed():
                for row in self._db.execute(f"SELECT {', '.join(columns)} FROM {table}{end}"):
                    found[row] = None
                break
            self.lost[table] = 1
        if order:
            self.lost[table] = before
        return list(found)

    def _largest(self, table: str, key: str) -> int:
        """The largest key that the table may have."""
        assert self._db is not None
        largest = 0
        for sql in (f"SELECT max({key}) FROM {table}", f"SELECT seq FROM sqlite_sequence WHERE name = '{table}'"):
            with damage_suppressed():
                largest = max([largest, *(row[0] or 0 for row in self._db.execute(sql))])
        # Neither can be read: assume as many rows as the file could hold.
        return largest or self._nbytes // _LEAST_ROW


@contextmanager
def opened(copy: Path, layout: Mapping[str, Sequence[str]]) -> Iterator[Wreck]:
    """Opens a working copy of a damaged database; `copy` itself stays unchanged. An error of the disk passes through:
    it does not mean lost rows."""
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


_MAGIC = b"SQLite format 3\0"
_HEADER = 100
_PAGE = 4096  # Bytes of a page in every database of this program.
_LOG_HEADER, _FRAME = 32, 24
_LEAF = 13  # The type of a page with rows of a table.
_WHOLE = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}  # Bytes of a whole number by its type in a record.


class Pages:
    """The newest committed image of each page: in the log, or in the database file.

    Attributes:
        count: the number of pages.
        logged: the places in the log of the pages whose newest image it holds.
        unused: pages that hold nothing any more: rows that were deleted may still stand in them.
        free_bytes: how many bytes at the end of each page may be unused.
    """

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO = path.open("rb")
        self._log: BinaryIO | None = log_of(path).open("rb") if log_of(path).exists() else None
        self.count = -(-path.stat().st_size // _PAGE)
        self.logged = self._logged()
        self.count = max(self.count, max(self.logged, default=0))
        first = self.read(1)
        known = first.startswith(_MAGIC)
        # Earlier versions of this program kept eight bytes free at the end of each page.
        self.free_bytes: tuple[int, ...] = (first[20],) if known else (0, 8)
        self.unused = self._freed(int.from_bytes(first[32:36], "big")) if known else frozenset()

    def read(self, number: int) -> bytes:
        if self._log is not None and number in self.logged:
            self._log.seek(self.logged[number])
            return self._log.read(_PAGE)
        self._file.seek((number - 1) * _PAGE)
        return self._file.read(_PAGE)

    def close(self) -> None:
        self._file.close()
        if self._log is not None:
            self._log.close()

    def _logged(self) -> dict[int, int]:
        """The place in the log of each page of a committed transaction."""
        found: dict[int, int] = {}
        if self._log is None:
            return found
        header = self._log.read(_LOG_HEADER)
        begun: dict[int, int] = {}
        place = _LOG_HEADER
        while len(frame := self._log.read(_FRAME)) == _FRAME and frame[8:16] == header[16:24]:
            number, committed = struct.unpack(">II", frame[:8])
            begun[number] = place + _FRAME
            if committed:
                found |= begun
                begun = {}
            place += _FRAME + _PAGE
            self._log.seek(place)
        return found

    def _freed(self, trunk: int) -> frozenset[int]:
        freed: set[int] = set()
        while trunk and trunk not in freed and len(page := self.read(trunk)) == _PAGE:
            freed.add(trunk)
            count = min(int.from_bytes(page[4:8], "big"), _PAGE // 4 - 2)
            freed.update(struct.unpack(f">{count}I", page[8 : 8 + 4 * count]))
            trunk = int.from_bytes(page[:4], "big")
        return frozenset(freed)


def move_log(path: Path) -> None:
    """Writes the pages in the log of a database that SQLite cannot open into its file. The log stays."""
    if not path.exists():
        return
    pages = Pages(path)
    try:
        with path.open("r+b") as file:
            for number in sorted(pages.logged):
                file.seek((number - 1) * _PAGE)
                file.write(pages.read(number))
            file.flush()
            os.fsync(file.fileno())
    finally:
        pages.close()


def carved(
    path: Path, layout: Mapping[str, Sequence[str]], table: str, columns: Sequence[str]
) -> Iterator[tuple[Value, ...]]:
    """Rows in the pages of a database file that have as many columns as `table`: its own rows, and perhaps others."""
    names = layout[table]
    wanted = [names.index(column) for column in columns]
    pages = Pages(path)
    try:
        for number in range(1, pages.count + 1):
            if number in pages.unused:
                continue
            page = pages.read(number)
            for free in pages.free_bytes:
                for key, values in _rows(pages, page, _HEADER if number == 1 else 0, _PAGE - free, len(names)):
                    row = (key, *values[1:])
                    yield tuple(row[place] for place in wanted)
    finally:
        pages.close()


def _rows(pages: Pages, page: bytes, start: int, usable: int, width: int) -> Iterator[tuple[int, list[Value]]]:
    """The keys and values of the rows of `width` columns on a page."""
    if len(page) != _PAGE or page[start] != _LEAF:
        return
    cells = int.from_bytes(page[start + 3 : start + 5], "big")
    for cell in range(min(cells, _PAGE // 2)):
        place = start + 8 + 2 * cell
        try:
            at = int.from_bytes(page[place : place + 2], "big")
            length, at = _varint(page, at)
            key, at = _varint(page, at)
            if len(_types(page[at:])[0]) != width:
                continue
            values = _values(_payload(pages, page, at, length, usable))
        except (IndexError, ValueError, struct.error):
            continue
        yield key, values


def _payload(pages: Pages, page: bytes, at: int, length: int, usable: int) -> bytes:
    """The record of a cell, with its part on overflow pages (section 1.6)."""
    if length > pages.count * _PAGE:
        raise ValueError("no row is longer than its file")
    if length <= usable - 35:
        return page[at : at + length]
    least = (usable - 12) * 32 // 255 - 23
    local = least + (length - least) % (usable - 4)
    local = local if local <= usable - 35 else least
    record = bytearray(page[at : at + local])
    following = int.from_bytes(page[at + local : at + local + 4], "big")
    while len(record) < length and 0 < following <= pages.count:
        more = pages.read(following)
        following = int.from_bytes(more[:4], "big")
        record += more[4:usable]
    return bytes(record[:length])


def _types(record: bytes) -> tuple[list[int], int]:
    """The types of a record's values, and the place of the first. ValueError or IndexError where none begins."""
    header, at = _varint(record, 0)
    types: list[int] = []
    while at < header <= _PAGE:
        kind, at = _varint(record, at)
        types.append(kind)
    if at != header:
        raise ValueError("the head of a record ends inside a type")
    return types, at


def _values(record: bytes) -> list[Value]:
    types, at = _types(record)
    values: list[Value] = []
    for kind in types:
        nbytes = _WHOLE.get(kind, 8 if kind == 7 else (kind - 12) // 2 if kind >= 12 else 0)
        piece = record[at : at + nbytes]
        if len(piece) != nbytes:
            raise ValueError("the record ends before its values")
        at += nbytes
        values.append(_value(kind, piece))
    return values


def _value(kind: int, piece: bytes) -> Value:
    if kind in _WHOLE:
        return int.from_bytes(piece, "big", signed=True)
    if kind == 7:
        return float(struct.unpack(">d", piece)[0])
    if kind >= 12:
        return piece.decode("utf-8") if kind % 2 else piece
    return {8: 0, 9: 1}.get(kind)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of one to nine bytes, and the place after it."""
    value = 0
    for place in range(at, at + 8):
        value = value << 7 | data[place] & 0x7F
        if data[place] < 0x80:
            return value, place + 1
    value = value << 8 | data[at + 8]
    return value - (1 << 64) if value >= 1 << 63 else value, at + 9
