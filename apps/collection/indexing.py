"""`Intake`: adds prepared files to the collection, whose new chunks can be searched by words at once. Their vectors are
made afterwards (`edge.apps.store.rebuilding`). A larger file is added in several batches; after an interruption, the
next run recognizes stored chunks by their hashes. `Advance`: the progress of a run."""

from __future__ import annotations

import contextlib
import os
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from edge.apps.collection.catalog import Catalog, chunk_hash, place_sum
from edge.apps.collection.paths import on_disk
from edge.apps.collection.preparation import Prepared, with_more_memory
from edge.apps.collection.report import NO_REASONS, FileProgress, Tally
from edge.apps.documents.base import Chunk
from edge.apps.documents.extraction import Extractor
from edge.apps.store.database import Database
from edge.config import counted
from edge.ivf.base import Connection
from edge.ivf.index import VectorIndex
from edge.trace import Trace

BATCH = 256

_FILES = 256

_PRIOR_BYTES = 20_000
_PRIOR_PASSAGES = 25.0  # Assumed before any file of a kind was read: a passage of plain text has about 800 bytes.
_EVALUATIONS = "forward.evaluations"


class Advance:
    """The files that were read, then the passages that have their vector, also after each layer within a batch. The
    total is estimated from the bytes of the unread files, by suffix."""

    def __init__(self, tell: FileProgress, files: Iterable[str], trace: Trace, layers: int) -> None:
        self._tell = tell
        self._trace = trace
        self._layers = layers
        self._left: Counter[str] = Counter()
        self._read: Counter[str] = Counter()
        self._given: Counter[str] = Counter()
        self._done = self._files = self._of = 0
        self._passed = 0.0
        self._name = ""
        for path in files:
            self._of += 1
            with contextlib.suppress(OSError):
                self._left[_suffix(path)] += os.stat(on_disk(path)).st_size
        self._say()

    def reading(self, path: str) -> None:
        self._name = os.path.basename(path)
        self._say()

    def read(self, path: str, nbytes: int, passages: int) -> None:
        self._files, self._name = self._files + 1, os.path.basename(path)
        suffix = _suffix(path)
        self._left[suffix] = max(0, self._left[suffix] - nbytes)
        self._read[suffix] += nbytes
        self._given[suffix] += passages
        self._say()

    @contextmanager
    def embedding(self) -> Iterator[None]:
        """Each layer that the embedder finishes counts as a fraction of its passages."""
        self._name, self._passed = "", 0.0

        def heard(texts: float) -> None:
            self._passed += texts / self._layers
            self._say(min(int(self._passed), self.total - self._done))

        with self._trace.listening(_EVALUATIONS, heard):
            yield

    def embedded(self, done: int, total: int) -> None:
        self._done, self._passed = done, 0.0
        self._left.clear()
        self._given = Counter({"": total})
        self._say()

    @property
    def total(self) -> int:
        left = sum(nbytes * self._rate(suffix) for suffix, nbytes in self._left.items())
        return max(self._given.total() + round(left), self._done)

    def _rate(self, suffix: str) -> float:
        return (self._given[suffix] + _PRIOR_PASSAGES) / (self._read[suffix] + _PRIOR_BYTES)

    def _say(self, within: int = 0) -> None:
        done, total = self._done + within, self.total
        about = "about " if any(self._left.values()) else ""
        passages = f"{done:,} of {about}{counted(total, 'passage')} searchable by meaning"
        place = f"{self._files:,} of {counted(self._of, 'file')} read, {passages}"
        self._tell(done, total, f"{place}: {self._name}" if self._name else place)


def _suffix(path: str) -> str:
    return os.path.splitext(path)[1].lower()


@dataclass(slots=True)
class _File:
    prepared: Prepared
    removed: list[int] = field(default_factory=list)
    moved: list[tuple[int, int, Chunk]] = field(default_factory=list)
    added: deque[tuple[int, Chunk]] = field(default_factory=deque)
    begun: bool = False


_Batch = list[tuple[_File, list[tuple[int, Chunk]]]]


class Intake:
    def __init__(
        self, database: Database, catalog: Catalog, index: VectorIndex | None, tally: Tally, *,
        extractor: Extractor | None = None, advance: Advance | None = None,
    ) -> None:  # fmt: skip
        """`index` loses the vectors of removed chunks. `extractor` pauses where a batch needs its memory."""
        self._database = database
        self._catalog = catalog
        self._index = index
        self._tally = tally
        self._extractor = extractor
        self._advance = advance
        self._files: deque[_File] = deque()
        self._waiting = 0

    def take(self, files: Iterable[Prepared]) -> None:
        """Adds files; commits whenever a batch is full. Discards uncommitted files if an error ends it."""
        try:
            for prepared in files:
                self._files.append(file := self._compare(prepared))
                self._waiting += len(file.added)
                if self._advance is not None:
                    self._advance.read(prepared.file.path, prepared.stamp.size, len(file.added))
                while self._waiting >= BATCH or len(self._files) >= _FILES:
                    self._flush()
            while self._files:
                self._flush()
        finally:
            for file in self._files:
                file.prepared.lease.release()
            self._files.clear()

    def _compare(self, prepared: Prepared) -> _File:
        """Compares a file's chunks with its stored ones. Chunks with an equal hash stay, even at another ordinal."""
        file = _File(prepared)
        if prepared.extracted is None:
            return file
        stored: dict[bytes, deque[int]] = {}
        places: dict[int, bytes | None] = {}
        with self._database.read() as db:
            for old in self._catalog.chunks(db, prepared.file.id):
                stored.setdefault(old.hash, deque()).append(old.id)
                places[old.id] = old.checksum
        for ordinal, chunk in enumerate(prepared.extracted.chunks):
            same = stored.get(chunk_hash(chunk))
            if not same:
                file.added.append((ordinal, chunk))
                continue
            kept = same.popleft()
            if places[kept] != place_sum(prepared.file.id, ordinal, chunk):
                file.moved.append((kept, ordinal, chunk))
        file.removed = [identifier for rest in stored.values() for identifier in rest]
        return file

    def _flush(self) -> None:
        batch: _Batch = []
        room = BATCH
        for file in self._files:
            taken = [file.added.popleft() for _ in range(min(room, len(file.added)))]
            batch.append((file, taken))
            room -= len(taken)
            if file.added or len(batch) == _FILES:
                break
        with self._tally.timed("commit_s"):
            with_more_memory(self._extractor, lambda: self._commit(batch))
        count = sum(len(taken) for _, taken in batch)
        self._waiting -= count
        self._tally.chunks += count
        for file, _ in batch:
            if not file.added:
                self._files.popleft()
                file.prepared.lease.release()
                outcome = _outcome(file.prepared)
                path, reason = file.prepared.file.path, file.prepared.reason
                self._tally.add(outcome, path, reason)
                if outcome in ("indexed", "removed"):
                    self._tally.name(path)
                if outcome == "indexed" and reason not in NO_REASONS:
                    self._tally.add("incomplete", path, reason)
                if outcome == "unreadable":
                    self._tally.unreadable.add(path)

    def _commit(self, batch: _Batch) -> None:
        with self._database.write() as db:
            for file, taken in batch:
                self._write(db, file, taken)
        for file, _ in batch:
            file.begun = True

    def _write(self, db: Connection, file: _File, taken: list[tuple[int, Chunk]]) -> None:
        prepared, catalog = file.prepared, self._catalog
        known = prepared.file
        row = known.id
        if prepared.status == "gone":
            catalog.remove(db, row, self._index)
        elif prepared.status == "unreadable":
            # Its stored size and time stay those of the indexed content, so the next run tries the file again.
            db.execute("UPDATE files SET due = 0 WHERE id = ?", (row,))
        elif prepared.extracted is None and (prepared.status, prepared.reason) == (known.status, known.reason):
            db.execute(
                "UPDATE files SET size = ?, mtime_ns = ?, inode = ?, ctime_ns = ?, racy = ?, due = 0 WHERE id = ?",
                (*prepared.stamp, prepared.racy, row),
            )
        elif prepared.extracted is None:
            catalog.empty(db, row, self._index)
            catalog.settle(
                db, row, status=prepared.status, reason=prepared.reason, stamp=prepared.stamp, racy=prepared.racy,
                hash=prepared.hash,
            )  # fmt: skip
        else:
            if not file.begun:
                catalog.delete_chunks(db, file.removed, self._index)
                catalog.move_chunks(db, row, file.moved)
                catalog.set_mails(db, row, prepared.extracted.mails)
                # A file without a hash counts as incomplete until its last chunk is stored.
                db.execute("UPDATE files SET hash = NULL WHERE id = ?", (row,))
            catalog.insert_chunks(db, row, taken)
            if not file.added:
                catalog.settle(
                    db, row, status="indexed", reason=prepared.reason, stamp=prepared.stamp,
                    racy=prepared.racy, hash=prepared.hash, kind=prepared.extracted.kind,
                    title=prepared.extracted.title,
                )  # fmt: skip


def _outcome(prepared: Prepared) -> str:
    if prepared.status == "gone":
        return "removed"
    return "unchanged" if prepared.status == "indexed" and prepared.extracted is None else prepared.status
