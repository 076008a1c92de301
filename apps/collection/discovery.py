"""`Discovery`: compares a scan with the collection, and marks the files that must be indexed, in the database, so that
the next run continues an interrupted one. An unchanged file costs one `stat` and one look-up."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from edge.apps.collection.catalog import TEXT_ROOT, Catalog, FileRow, files_below, read_roots
from edge.apps.collection.paths import ancestors, below, contains, nearest, on_disk, written
from edge.apps.collection.registry import PROJECT
from edge.apps.collection.report import Tally
from edge.apps.documents.base import NO_STAMP, FoundFile, Reason, SkippedFile, Stamp
from edge.apps.documents.secrets import ASKED
from edge.apps.store.database import Database, get_setting, set_setting
from edge.apps.store.failures import WrongValue
from edge.apps.store.rows import ROW_SUM, held
from edge.ivf.base import Connection
from edge.ivf.index import VectorIndex
from edge.ivf.maintenance.work import Write

_SETTING = "mounts"


class Mounts:
    def __init__(self, known: frozenset[str]) -> None:
        self.missing = frozenset(mount for mount in known if _is_missing(mount))
        """Mounts whose device was not there when this object was made."""
        self._known = known
        self._seen: dict[str, bool] = {}

    @classmethod
    def read(cls, db: Connection) -> Mounts:
        try:
            stored = json.loads(get_setting(db, _SETTING) or "[]")
        except (ValueError, RecursionError):
            stored = None
        if not isinstance(stored, list) or not all(isinstance(path, str) and os.path.isabs(path) for path in stored):
            raise WrongValue("the setting of mounts is no list of folders")
        return cls(frozenset(stored))

    def see(self, path: str, root: str) -> None:
        for folder in ancestors(path):
            if folder in self._seen or folder == root or not contains(root, folder):
                return
            try:
                self._seen[folder] = device(folder) != device(os.path.dirname(folder))
            except OSError:  # it has gone meanwhile
                self._seen[folder] = False

    def write(self, db: Connection) -> None:
        found = {folder for folder, is_mount in self._seen.items() if is_mount} | self.missing
        found |= {mount for mount in self._known if mount not in self._seen}
        if found != self._known:
            set_setting(db, _SETTING, json.dumps(sorted(found)))


def device(folder: str) -> int:
    return os.stat(folder).st_dev


def _is_missing(mount: str) -> bool:
    try:
        if device(mount) != device(os.path.dirname(mount)):
            return False
        with os.scandir(mount) as entries:
            return next(entries, None) is None
    except (OSError, ValueError):
        return True


_BATCH = 1_000

_REMOVED = 50

Entry = FoundFile | SkippedFile
Scanned = Callable[[Callable[[FoundFile], bool]], Iterable[Entry]]
"""Its argument tells whether a file is unchanged, so that the scan need not open it."""


@dataclass(frozen=True, slots=True)
class _Mark:
    """The change of one file's row; `racy` if the reason for skipping may end without a change of the stamp."""

    path: str
    root: str
    row: FileRow | None
    reason: str | None
    racy: bool
    stamp: Stamp


class Discovery:
    """The content of files and folders that cannot be read now stays."""

    def __init__(
        self, database: Database, catalog: Catalog, vectors: VectorIndex | None, tally: Tally, *, retry: bool = False
    ) -> None:
        """`tally` gets the files that need no more work in this run. `retry` marks unchanged files that are not
        indexed."""
        self._database = database
        self._catalog = catalog
        self._vectors = vectors
        self._tally = tally
        self._retry = retry
        self._asked: FoundFile | None = None
        self._row: FileRow | None = None
        self._seen = bytearray()
        with database.read() as db:
            self._mounts = Mounts.read(db)
        self._unreadable = set(self._mounts.missing)

    def compare(self, scanned: Scanned, roots: Sequence[str]) -> None:
        every_root = frozenset(roots)
        judged = (self._judge(entry, every_root) for entry in scanned(self._is_known))
        batch: list[_Mark | None] = [None]
        while batch:
            with self._database.read():  # one for the whole scan would keep the log from being emptied
                batch = list(itertools.islice(judged, _BATCH))
            if marks := list(filter(None, batch)):
                with self._database.write() as db:
                    for mark in marks:
                        self._write(db, mark)
        with self._database.write() as db:
            self._mounts.write(db)

    def remove_unseen(self, scopes: Sequence[str]) -> None:
        """Deletes files at or below `scopes` that the scan did not find, except those of deeper roots and below
        unreadable folders."""
        for scope in scopes:
            condition, params = files_below(scope)
            with self._database.read() as db:
                rows = db.execute(
                    f"SELECT id, path FROM files WHERE {condition} AND length(root) <= ?", (*params, len(scope))
                )
                unseen = held(db, (row for row in rows if not self._was_seen(row[0])), tuple)
            gone = []
            for file, path in unseen:
                hidden = nearest(path, self._unreadable)
                if hidden is None:
                    gone.append(file)
                else:
                    self._tally.unreadable.add(hidden)
            self.remove(gone)

    def remove(self, files: Sequence[int], begun: Write | None = None) -> None:
        remaining = iter(files)
        while batch := list(itertools.islice(remaining, _REMOVED)):
            with (begun or self._database.write)() as db:
                for file in batch:
                    for (path,) in db.execute("SELECT path FROM files WHERE id = ?", (file,)).fetchall():
                        self._tally.name(path)
                    self._catalog.remove(db, file, self._vectors)
            self._tally.counts["removed"] += len(batch)

    def _is_known(self, found: FoundFile) -> bool:
        self._asked = found
        row = self._row = self._known(written(found.path))
        if row is None or row.due or row.reason == ASKED or (self._retry and row.status == "skipped"):
            return False
        return row.is_as(found.stamp)

    def _known(self, path: str) -> FileRow | None:
        with self._database.read() as db:
            return self._catalog.find(db, path)

    def _judge(self, entry: Entry, roots: Set[str]) -> _Mark | None:
        """None if nothing must change; then the entry is counted."""
        if isinstance(entry, SkippedFile) and entry.reason is Reason.EXCLUDED:
            return None
        path = written(entry.path)
        asked = self._asked if self._asked is not None and self._asked.path == entry.path else None
        row = self._row if asked is not None else self._known(path)
        root = nearest(path, roots) or path
        self._mounts.see(path, root)
        if row is not None:
            if self._was_seen(row.id):
                return None
            self._see(row.id)
        unreadable = isinstance(entry, SkippedFile) and entry.reason is Reason.UNREADABLE
        if unreadable:
            self._unreadable.add(path)
            if row is not None and row.status == "indexed":
                self._tally.unreadable.add(path)
                return None
        reason = entry.detail if isinstance(entry, SkippedFile) else None
        stamp = asked.stamp if asked is not None else NO_STAMP
        if row is not None and row.root == root:
            if reason is not None:
                settled = row.status == "skipped" and row.reason == reason and not row.due
            elif row.is_as(stamp):
                settled = not row.due and not (self._retry and row.status != "indexed")
            else:
                settled = False
            if settled:
                self._tally.add("unchanged" if row.status == "indexed" else row.status, path, row.reason)
                return None
            if reason is None and row.due:
                return None
        return _Mark(path, root, row, reason, unreadable, stamp)

    def _write(self, db: Connection, mark: _Mark) -> None:
        row = mark.row
        if mark.reason is None:
            if row is None:
                self._see(self._catalog.insert(db, mark.path, mark.root, due=True))
            else:
                db.execute("UPDATE files SET due = 1, root = ? WHERE id = ?", (mark.root, row.id))
            return
        if row is None:
            file = self._catalog.insert(db, mark.path, mark.root, due=False)
        else:
            file = row.id
            db.execute("UPDATE files SET root = ? WHERE id = ?", (mark.root, file))
            self._catalog.empty(db, file, self._vectors)
        self._see(file)
        self._catalog.settle(db, file, status="skipped", reason=mark.reason, stamp=mark.stamp, racy=mark.racy)
        self._tally.counts["skipped"] += 1

    def _see(self, file: int) -> None:
        if file >= len(self._seen):
            self._seen.extend(bytes(max(file + 1, 2 * len(self._seen)) - len(self._seen)))
        self._seen[file] = 1

    def _was_seen(self, file: int) -> bool:
        return file < len(self._seen) and bool(self._seen[file])


_LOOKED_AT = 50

_ENOUGH = 0.8  # The share of files of a missing root that must be below the collection's folder, in the same size.


def follow_move(db: Connection, collection: Path) -> None:
    """Changes all paths of a collection that was moved with its folder, such as `notes` with `notes/.edge`."""
    here = str(collection.parent)
    roots = read_roots(db)
    if collection.name != PROJECT or any(contains(here, root) for root in roots):
        return
    for root in roots:
        if not os.path.lexists(root) and (old := _place_before(db, root, here)) is not None:
            _move(db, old, here)
            return


def _place_before(db: Connection, root: str, here: str) -> str | None:
    condition, params = files_below(root)
    rows = db.execute(
        f"SELECT path, size FROM files WHERE {condition} AND status = 'indexed' ORDER BY id LIMIT ?",
        (*params, _LOOKED_AT),
    ).fetchall()
    for old in (root, *ancestors(root)):
        if old == os.path.dirname(old):
            break
        same = sum(_is_of_size(here + path[len(old) :], size) for path, size in rows)
        if rows and same >= _ENOUGH * len(rows):
            return old
    return None


def _is_of_size(path: str, size: int) -> bool:
    try:
        return os.stat(on_disk(path)).st_size == size
    except (OSError, ValueError):
        return False


def _move(db: Connection, old: str, new: str) -> None:
    moved, rest = "? || substr({0}, ?)", (new, len(old) + 1)
    condition, params = below(old)
    path = moved.format("path")
    db.execute(
        f"UPDATE files SET path = {path}, root = CASE WHEN {below(old)[0].replace('path', 'root')} THEN "
        f"{moved.format('root')} ELSE root END, checksum = {ROW_SUM}('files', {path}, kind, title) "
        f"WHERE root <> ? AND {condition}",
        (*rest, *params, *rest, *rest, TEXT_ROOT, *params),
    )
    for table in ("roots", "descriptions"):
        db.execute(f"UPDATE {table} SET path = {path} WHERE {condition}", (*rest, *params))
    db.execute("DELETE FROM settings WHERE name = 'mounts'")
