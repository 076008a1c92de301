"""`Intake`: adds prepared files to the collection. Embeds only new chunks, and commits related changes together.
`Advance`: the progress of an indexing run: its files, and its passages with an estimate of the total.

A batch is about one pass of the embedder. A larger file is added in several batches, and counts as complete only with
the last one. After an interruption, the next run recognizes stored chunks by their hashes and does not embed them
again.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from edge.apps.collection.catalog import Catalog, chunk_hash, passage, place_sum
from edge.apps.collection.preparation import Prepared, with_more_memory
from edge.apps.collection.report import FileProgress, Tally
from edge.apps.documents.base import Chunk
from edge.apps.documents.extraction import Extractor
from edge.apps.store.database import Database
from edge.apps.store.rebuilding import Floats
from edge.config import counted
from edge.ivf.base import Connection
from edge.ivf.index import VectorIndex
from edge.trace import Trace

BATCH = 256
"""Chunks that are embedded and committed together: as many as the embedder processes in one pass."""

_FILES = 256
"""Files without new chunks that one transaction commits."""

_PRIOR_BYTES = 20_000
_PRIOR_PASSAGES = 25.0
"""Assumed bytes and passages of each kind of file before any was read: a passage of plain text has about 800 bytes."""

_EVALUATIONS = "forward.evaluations"
"""The counter of texts that have passed through a layer."""


class Advance:
    """Reports the progress of a run after each batch, and within a batch after each layer of the embedder.

    The total is estimated from the bytes of the unread files, by suffix, and from the passages per byte of the files
    read so far.
    """

    def __init__(self, tell: FileProgress, files: Iterable[str], trace: Trace, layers: int) -> None:
        """Looks up the sizes of the files that will be read.

        Args:
            tell: the total that it gets is an estimate until all files are read.
            layers: number of the embedder's layers.
        """
        self._tell = tell
        self._trace = trace
        self._layers = layers
        self._left: Counter[str] = Counter()
        self._read: Counter[str] = Counter()
        self._given: Counter[str] = Counter()
        self._done = self._files = self._of = 0
        self._name = ""
        for path in files:
            self._of += 1
            with contextlib.suppress(OSError):
                self._left[_suffix(path)] += os.stat(path).st_size
        self._say()

    def reading(self, path: str) -> None:
        """Names the file that is waited for."""
        self._name = os.path.basename(path)
        self._say()

    def read(self, path: str, nbytes: int, passages: int) -> None:
        """Records that a file has been read and how many passages it has."""
        self._files, self._name = self._files + 1, os.path.basename(path)
        suffix = _suffix(path)
        self._left[suffix] = max(0, self._left[suffix] - nbytes)
        self._read[suffix] += nbytes
        self._given[suffix] += passages
        self._say()

    @contextmanager
    def embedding(self, passages: int) -> Iterator[None]:
        """While the embedder runs in the block, each layer it finishes counts as a fraction of these passages."""
        passed = 0.0

        def heard(texts: float) -> None:
            nonlocal passed
            passed += texts / self._layers
            self._say(min(int(passed), passages))

        with self._trace.listening(_EVALUATIONS, heard):
            yield

    def committed(self, passages: int) -> None:
        """Records that passages have been stored."""
        self._done += passages
        self._say()

    @property
    def total(self) -> int:
        """The estimated number of passages in the whole run."""
        left = sum(nbytes * self._rate(suffix) for suffix, nbytes in self._left.items())
        return max(self._given.total() + round(left), self._done)

    def _rate(self, suffix: str) -> float:
        """Passages per byte."""
        return (self._given[suffix] + _PRIOR_PASSAGES) / (self._read[suffix] + _PRIOR_BYTES)

    def _say(self, within: int = 0) -> None:
        place = f"{self._files:,} of {counted(self._of, 'file')}"
        self._tell(self._done + within, self.total, f"{place}: {self._name}" if self._name else place)


def _suffix(path: str) -> str:
    return os.path.splitext(path)[1].lower()


@dataclass(slots=True)
class _File:
    """A file that is being added, compared with its stored chunks."""

    prepared: Prepared
    removed: list[int] = field(default_factory=list)
    moved: list[tuple[int, int, Chunk]] = field(default_factory=list)
    added: deque[tuple[int, Chunk]] = field(default_factory=deque)
    begun: bool = False


_Batch = list[tuple[_File, list[tuple[int, Chunk]]]]


class Intake:
    """Adds files, batch by batch."""

    def __init__(
        self, database: Database, catalog: Catalog, index: VectorIndex, embed: Callable[[Sequence[str]], Floats],
        tally: Tally, *, extractor: Extractor | None = None, advance: Advance | None = None,
    ) -> None:  # fmt: skip
        """Prepares an intake.

        Args:
            embed: vectors [n, dim] of n texts.
            tally: gets the counts and the seconds.
            extractor: reads the next files meanwhile. It pauses where a batch needs the memory that it uses.
            advance: is notified of every file and batch.
        """
        self._database = database
        self._catalog = catalog
        self._index = index
        self._embed = embed
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
        """Embeds and commits the next batch."""
        batch: _Batch = []
        room = BATCH
        for file in self._files:
            taken = [file.added.popleft() for _ in range(min(room, len(file.added)))]
            batch.append((file, taken))
            room -= len(taken)
            if file.added or len(batch) == _FILES:
                break
        chunks = [chunk for _, taken in batch for _, chunk in taken]
        vectors = with_more_memory(self._extractor, lambda: self._vectors(chunks))
        with self._tally.timed("commit_s"):
            with_more_memory(self._extractor, lambda: self._commit(batch, vectors))
        self._waiting -= len(chunks)
        self._tally.chunks += len(chunks)
        for file, _ in batch:
            if not file.added:
                self._files.popleft()
                file.prepared.lease.release()
                outcome = _outcome(file.prepared)
                self._tally.counts[outcome] += 1
                if outcome == "unreadable":
                    self._tally.unreadable.add(file.prepared.file.path)
        if self._advance is not None:
            self._advance.committed(len(chunks))

    def _commit(self, batch: _Batch, vectors: Floats) -> None:
        """Writes a batch in one transaction. If that fails, the files are as they were before."""
        with self._database.write() as db:
            ids = [self._write(db, file, taken) for file, taken in batch]
            if len(vectors):
                self._index.add(db, np.concatenate(ids), vectors)
        for file, _ in batch:
            file.begun = True

    def _vectors(self, chunks: Sequence[Chunk]) -> Floats:
        """A vector for each chunk. Equal chunks are embedded once, or never if the collection has such a chunk."""
        hashes = [chunk_hash(chunk) for chunk in chunks]
        texts = {key: passage(chunk.context, chunk.text) for key, chunk in zip(hashes, chunks, strict=True)}
        with self._database.read() as db:
            known = self._catalog.same_chunks(db, list(texts))
            found = self._index.vectors(db, np.array(list(known.values()), np.int64)) if known else None
        new = [key for key in texts if key not in known]
        advancing = nullcontext() if self._advance is None else self._advance.embedding(len(new))
        with self._tally.timed("embed_s"), advancing:
            made = self._embed([texts[key] for key in new]) if new else None
        self._tally.reused += len(chunks) - len(new)
        parts = [part for part in (found, made) if part is not None]
        if not parts:
            return np.empty((0, 0), np.float32)
        rows = {key: row for row, key in enumerate([*known, *new])}
        table = np.concatenate(parts)
        return table[[rows[key] for key in hashes]]

    def _write(self, db: Connection, file: _File, taken: list[tuple[int, Chunk]]) -> npt.NDArray[np.int64]:
        """Writes one file's part of a batch; returns the ids of the added chunks."""
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
            ids = catalog.insert_chunks(db, row, taken)
            if not file.added:
                catalog.settle(
                    db, row, status="indexed", reason=prepared.reason, stamp=prepared.stamp,
                    racy=prepared.racy, hash=prepared.hash, kind=prepared.extracted.kind,
                    title=prepared.extracted.title,
                )  # fmt: skip
            return ids
        return np.empty(0, np.int64)


def _outcome(prepared: Prepared) -> str:
    """The outcome under which a file is counted."""
    if prepared.status == "gone":
        return "removed"
    return "unchanged" if prepared.status == "indexed" and prepared.extracted is None else prepared.status
