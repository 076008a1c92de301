"""`Wreck`: the rows of a damaged database that SQLite can read; the caller proves each by its own checksum. `move_log`:
the log of a database that SQLite cannot open."""

from __future__ import annotations

import os
import shutil
import struct
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import BinaryIO

import apsw

from edge.apps.store.connections import connect, plain
from edge.apps.store.failures import damage_suppressed, is_refusal
from edge.apps.store.folder import log_of
from edge.apps.store.rows import Row
from edge.ivf.base import Connection

_CACHE = 1 << 20
_PATIENCE_S = 5.0

_MOST_HOLES = 500_000
"""Failed reads of key ranges in one table, after which the rest of the table counts as lost."""

_LEAST_ROW = 40  # A row takes at least so many bytes of a file.


class Wreck:
    """A damaged database, opened for reading. `lost`: by table, the number of places with rows that cannot be read."""

    def __init__(self, db: Connection | None, nbytes: int) -> None:
        """`db` is None if SQLite cannot open the file, which has so many bytes."""
        self._db = db
        self._nbytes = nbytes
        self.lost: dict[str, int] = {}

    def rows(self, table: str, columns: Sequence[str]) -> Iterator[Row]:
        """The readable rows of a table in the order of its integer key, the first column. A missing table counts as
        lost."""
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
def opened(copy: Path, new: Path) -> Iterator[Wreck]:
    """Opens a working copy of a damaged database; `copy` itself stays unchanged. `new` is another database of the same
    tables. An error of the disk passes through: it does not mean lost rows."""
    with tempfile.TemporaryDirectory(dir=copy.parent) as folder:
        own = Path(folder) / copy.name
        for name in ("", "-wal"):
            source = copy.with_name(copy.name + name)
            if source.exists():
                shutil.copy2(source, own.with_name(own.name + name))
        with damage_suppressed():
            _move_log(own)
        db: apsw.Connection | None = None
        try:
            for first in _first_pages(own, new):
                _complete(own, first)
                if (db := _with_tables(own)) is not None:
                    break
            yield Wreck(db, copy.stat().st_size)
        finally:
            if db is not None:
                db.close(True)


def _with_tables(own: Path) -> apsw.Connection | None:
    with damage_suppressed():
        db = connect(own.absolute().as_uri(), writable=True, cache=_CACHE, busy_seconds=_PATIENCE_S)
        try:
            db.execute("SELECT count(*) FROM sqlite_schema").fetchall()
        except BaseException:
            db.close(True)
            raise
        return db
    return None


def _first_pages(own: Path, new: Path) -> Iterator[bytes]:
    """What the first page may have been: itself, or if it is lost, that of a database of the same tables. SQLite puts
    these to the same places, and to others when it writes a database anew."""
    with own.open("rb") as file:
        if (first := file.read(_PAGE)).startswith(_MAGIC):
            yield first
            return
    yield new.read_bytes()[:_PAGE]
    anew = own.with_name("anew")
    with closing(plain(new)) as db:
        db.execute("VACUUM INTO ?", (str(anew),))
    yield anew.read_bytes()[:_PAGE]


def _complete(own: Path, first: bytes) -> None:
    """Gives a database this first page, and the length that it tells: SQLite reads no file that was cut off. A part of
    a page is no page."""
    with own.open("r+b") as file:
        whole = own.stat().st_size // _PAGE
        file.truncate(whole * _PAGE)
        count = max(whole, int.from_bytes(first[28:32], "big"))
        file.write(first[:28] + count.to_bytes(4, "big") + first[32:])
        file.truncate(count * _PAGE)


def layout_of(db: Connection) -> dict[str, list[str]]:
    tables = [row[0] for row in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    return {table: [row[1] for row in db.execute(f"PRAGMA table_info({table})")] for table in tables}


def _move_log(path: Path) -> None:
    """Moves the log into the file, as far as SQLite can read it; all of it if SQLite would find no database there."""
    with path.open("rb") as file:
        is_database = file.read(len(_MAGIC)) == _MAGIC
    if not is_database:
        move_log(path)
        log_of(path).unlink(missing_ok=True)
        return
    with closing(plain(path)) as db, damage_suppressed():
        db.execute("PRAGMA schema_version").fetchall()  # this opens the log
        db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)


_MAGIC = b"SQLite format 3\0"
_PAGE = 4096  # Bytes of a page in every database of this program.
_LOG_HEADER, _FRAME = 32, 24


def move_log(path: Path) -> None:
    """Writes the committed pages in the log of a database that SQLite cannot open into its file
    (https://sqlite.org/fileformat2.html, section 4.1). The log stays."""
    if not (path.exists() and log_of(path).exists()):
        return
    with log_of(path).open("rb") as log, path.open("r+b") as file:
        for number, place in sorted(_logged(log).items()):
            log.seek(place)
            file.seek((number - 1) * _PAGE)
            file.write(log.read(_PAGE))
        file.flush()
        os.fsync(file.fileno())


def _logged(log: BinaryIO) -> dict[int, int]:
    """The place in the log of the newest image of each page."""
    found: dict[int, int] = {}
    begun: dict[int, int] = {}
    header, place = log.read(_LOG_HEADER), _LOG_HEADER
    while len(frame := log.read(_FRAME)) == _FRAME and frame[8:16] == header[16:24]:
        number, committed = struct.unpack(">II", frame[:8])
        begun[number] = place + _FRAME
        if committed:
            found |= begun
            begun = {}
        place += _FRAME + _PAGE
        log.seek(place)
    return found
