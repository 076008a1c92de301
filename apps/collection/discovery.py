"""`Discovery`: compares a scan with the collection, and marks the files that must be indexed, in the database, so that
the next run continues an interrupted one. An unchanged file costs one `stat` and one look-up."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass

from edge.apps.collection.catalog import Catalog, FileRow, files_below
from edge.apps.collection.mounts import Mounts
from edge.apps.collection.paths import nearest, written
from edge.apps.collection.report import Tally
from edge.apps.documents.base import NO_STAMP, FoundFile, Reason, SkippedFile, Stamp
from edge.apps.documents.secrets import ASKED
from edge.apps.store.database import Database
from edge.apps.store.rows import held
from edge.ivf.base import Connection
from edge.ivf.index import VectorIndex
from edge.ivf.maintenance.work import Write

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
        marks = (mark for entry in scanned(self._is_known) if (mark := self._judge(entry, every_root)) is not None)
        while batch := list(itertools.islice(marks, _BATCH)):
            with self._database.write() as db:
                for mark in batch:
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
        """In its own transaction. One for the whole scan would keep the log from being emptied."""
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
                self._tally.counts["unchanged" if row.status == "indexed" else row.status] += 1
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
