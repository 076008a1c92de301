"""`Preparation`: reads, hashes and chunks the next files in a thread of its own, while the embedder computes. Prepared
files are held under leases. `promising`: the files to read first. `Intake`: adds prepared files to the collection; its
new chunks can be searched by words at once. Their vectors are made afterwards (`edge.apps.store.rebuilding`). A larger
file is added in several batches; after an interruption, the next run recognizes stored chunks by their hashes.
`Advance`: the progress of a run."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import TypeVar

from edge.apps.collection.catalog import Catalog, FileRow, chunk_hash, place_sum
from edge.apps.collection.discovery import Mounts
from edge.apps.collection.paths import absence, nearest, on_disk
from edge.apps.collection.query import stem
from edge.apps.collection.report import NO_REASONS, FileProgress, Tally
from edge.apps.documents.base import NO_STAMP, Chunk, Extracted, Reason, Skipped, Stamp
from edge.apps.documents.extraction import Extractor
from edge.apps.documents.opened import open_regular
from edge.apps.store.database import Database
from edge.apps.store.lexical import FUNCTION_WORDS, words_of
from edge.budget import Lease, MemoryBudget
from edge.config import counted, format_size
from edge.errors import BudgetExceeded, InputError
from edge.ivf.base import Connection
from edge.ivf.index import VectorIndex
from edge.resident import Closing
from edge.trace import Trace

AHEAD_BYTES = 8 << 20

_FILES_AHEAD = 32  # Files that the extractor knows ahead, fewer if they are large. Each is an open descriptor.
_CHUNK_BYTES = 400

_RACY_NS = 2 * 10**9
"""A file that was changed so shortly before may change again without a new time (the coarsest file system has steps of
two seconds). It is read again in the next run."""


_PATIENCE_S = 0.1  # How long `close` waits for the current file before it interrupts the extractor.


Result = TypeVar("Result")


def with_more_memory(extractor: Extractor | None, work: Callable[[], Result]) -> Result:
    """Calls `work`; if the memory is not enough, again while no file is read."""
    try:
        return work()
    except BudgetExceeded:
        if extractor is None:
            raise
    # Only here, because the error would keep the memory of the first call.
    with extractor.paused():
        return work()


@dataclass(frozen=True, slots=True)
class Prepared:
    """A file that was read, or that could not be read.

    Attributes:
        file: the file's row when it was looked up.
        stamp: of the content that was read.
        racy: the file was changed so shortly before that it may change again without a new time, or it cannot be read
            now.
        hash: hash of the content; None if the content could not be read.
        extracted: its chunks; None if the content is unchanged, or there is nothing to index.
        status: the outcome: `indexed`, `skipped`, `failed`, `gone`, or `unreadable` for an indexed file that cannot be
            read now.
        reason: one sentence for files that are not indexed, or not completely.
        lease: memory of the chunks' texts; the consumer must release it.
    """

    file: FileRow
    stamp: Stamp
    racy: bool
    hash: bytes | None
    extracted: Extracted | None
    status: str
    reason: str
    lease: Lease


@dataclass(frozen=True, slots=True)
class _Look:
    file: FileRow
    path: Path
    stamp: Stamp = NO_STAMP
    racy: bool = False
    hash: bytes | None = None
    error: OSError | Skipped | None = None

    @property
    def unread(self) -> bool:
        return self.error is None and (self.hash != self.file.hash or self.file.status not in ("indexed", "skipped"))


class Preparation(Closing):
    """Iterates over due files, prepared for `Intake`; for one consumer."""

    def __init__(
        self,
        database: Database,
        due: Iterable[FileRow],
        extractor: Extractor,
        budget: MemoryBudget,
        tally: Tally,
        *,
        waits: Callable[[str], None] | None = None,
    ) -> None:
        self._database = database
        self._due = due
        self._extractor = extractor
        self._budget = budget
        self._tally = tally
        self._waits = waits
        self._reading = ""
        self._condition = threading.Condition()
        self._ready: deque[Prepared] = deque()
        self._errors: list[BaseException] = []  # at most one; raised out of the list, it keeps no frame alive
        self._ended = False
        self._stopped = False
        self._thread = threading.Thread(target=self._work, name="edge-preparation", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Prepared]:
        while True:
            with self._condition:
                with self._tally.timed("wait_s"):
                    while not self._condition.wait_for(lambda: self._ready or self._ended, _PATIENCE_S):
                        if self._waits is not None:
                            self._waits(self._reading)
                if not self._ready:
                    break
                prepared = self._ready.popleft()
                self._condition.notify_all()
            yield prepared
        if self._errors:
            raise self._errors.pop()

    def close(self) -> None:
        """Stops reading ahead, even within a file."""
        with self._condition:
            self._stopped = True
            self._condition.notify_all()
        self._thread.join(_PATIENCE_S)
        while self._thread.is_alive():
            # Repeatedly, because the extractor reads a file a second time if it needs more memory.
            self._extractor.interrupt()
            self._thread.join(_PATIENCE_S)
        for prepared in self._ready:
            prepared.lease.release()
        self._ready.clear()

    def _work(self) -> None:
        try:
            for look, following in self._looks():
                self._reading = look.file.path
                prepared = self._prepare(look, following)
                with self._condition:
                    self._ready.append(prepared)
                    self._condition.notify_all()
                    self._condition.wait_for(lambda: self._stopped or self._waiting() < AHEAD_BYTES)
                    if self._stopped:
                        return
        except BaseException as error:  # raised in the consumer's thread
            self._errors = [error]
        finally:
            with self._condition:
                self._ended = True
                self._condition.notify_all()

    def _waiting(self) -> int:
        return sum(prepared.lease.nbytes for prepared in self._ready)

    def _looks(self) -> Iterator[tuple[_Look, list[Path]]]:
        ahead: deque[_Look] = deque()
        for file in self._due:
            ahead.append(self._look(file))
            while len(ahead) > _FILES_AHEAD or sum(look.stamp.size for look in ahead) > AHEAD_BYTES:
                yield ahead.popleft(), [look.path for look in ahead if look.unread]
        while ahead:
            yield ahead.popleft(), [look.path for look in ahead if look.unread]

    def _look(self, file: FileRow) -> _Look:
        path = Path(on_disk(file.path))
        stamp, racy = NO_STAMP, False
        try:
            stamp = Stamp.of(path.stat())
            racy = is_racy(stamp.mtime_ns, time.time())
            return _Look(file, path, stamp, racy, content_hash(path))
        except (OSError, Skipped) as error:
            return _Look(file, path, stamp, racy, error=error)

    def _prepare(self, look: _Look, following: list[Path]) -> Prepared:
        file, path, racy, digest = look.file, look.path, look.racy, look.hash
        extracted: Extracted | None = None
        status, reason = "indexed", ""
        unreadable = False
        lease = self._budget.reserve("texts to embed", 0)
        try:
            if look.error is not None:
                raise look.error
            if look.unread:
                extracted = self._extractor.extract(path, following)
                reason = extracted.warning
                self._hold(lease, extracted)
            else:
                status, reason = file.status, file.reason
        except FileNotFoundError:
            status, unreadable = "gone", not self._is_mounted(file)
        except OSError as error:
            status, reason = "failed", f"cannot be read: {error.strerror or error}"
            unreadable = True
        except Skipped as error:
            unreadable = error.reason is Reason.UNREADABLE
            status, reason = "skipped", str(error)
            if unreadable and not os.path.lexists(path):  # it vanished after the look at its size
                status, unreadable = "gone", not self._is_mounted(file)
        except InputError as error:
            extracted = None
            status, reason = ("failed", str(error)) if path.exists() else ("gone", "")
            unreadable = status == "gone" and not self._is_mounted(file)
        if unreadable:
            # It may become readable without a new time, so treat its content as unknown.
            racy, digest = True, None
            status = "unreadable" if file.status == "indexed" else status
        return Prepared(file, look.stamp, racy, digest, extracted, status, reason, lease)

    def _is_mounted(self, file: FileRow) -> bool:
        with self._database.read() as db:
            missing = Mounts.read(db).missing
        return absence(file.root, lambda root: True) is None and nearest(file.path, missing) is None

    def _hold(self, lease: Lease, extracted: Extracted) -> None:
        """If it does not fit, waits until the consumer has released earlier files."""
        sizes = (sys.getsizeof(c.text) + sys.getsizeof(c.context) + _CHUNK_BYTES for c in extracted.chunks)
        fields = (field for mail in extracted.mails.values() for field in astuple(mail))
        nbytes = sum(sizes) + sum(map(sys.getsizeof, fields))
        while not self._fits(lease, nbytes):
            with self._condition:
                if self._stopped or not self._ready:
                    raise InputError(f"its text of {format_size(nbytes)} does not fit the memory limit")
                self._condition.wait()

    @staticmethod
    def _fits(lease: Lease, nbytes: int) -> bool:
        try:
            lease.resize(nbytes)
        except BudgetExceeded:
            return False
        return True


def is_racy(mtime_ns: int, now: float) -> bool:
    return now * 1e9 - mtime_ns < _RACY_NS


def content_hash(path: Path) -> bytes:
    state = blake2b(digest_size=16)
    with os.fdopen(open_regular(path), "rb", buffering=0) as file:
        while data := file.read(1 << 20):
            state.update(data)
    return state.digest()


_LOOKED_AT = 1 << 20  # Bytes of a file that are looked at.
_PER_FILE = 1_000  # Bytes that take as long to read as a file takes besides.
_LENGTH = 10_000.0  # Of a file in which a word counts half.
_MOST, _ROW = 10_000, 1_000  # Files to choose from, and bytes of each.

_Looked = tuple[FileRow, int, bytes]  # A file, its size, and how often it holds each word.


def promising(
    database: Database, catalog: Catalog, roots: Iterable[str], query: str, nbytes: int, budget: MemoryBudget
) -> Iterator[FileRow]:
    """The due files with most of a query's words, best first, of which so many bytes can be read, at least one; without
    words the oldest. The words are looked for as bytes, which takes a hundredth of the time of reading a file."""
    words = [stem(word.lower()).encode() for word in words_of(query) if word.lower() not in FUNCTION_WORDS]
    looked = (_looked_at(file, words) for file in catalog.due(database, frozenset(roots)))
    with budget.reserve("files to choose from", _MOST * _ROW if words else 0):
        for file, size, _ in _best_first(list(itertools.islice(looked, _MOST))) if words else looked:
            yield file
            nbytes -= size + _PER_FILE
            if nbytes < 0:
                return


def _looked_at(file: FileRow, words: list[bytes]) -> _Looked:
    try:
        with os.fdopen(open_regular(Path(on_disk(file.path))), "rb", buffering=0) as opened:
            size = os.fstat(opened.fileno()).st_size
            text = (b"%s\n%s" % (file.path.encode(), opened.read(_LOOKED_AT))).lower()
    except (OSError, Skipped):  # its reader will say why
        return file, 0, bytes(len(words))
    return file, size, bytes(min(255, text.count(word)) for word in words)


def _best_first(found: list[_Looked]) -> list[_Looked]:
    holding = [sum(map(bool, column)) for column in zip(*(counts for *_, counts in found), strict=True)]
    weights = [math.log1p(len(found) / (1 + number)) for number in holding]

    def score(size: int, counts: bytes) -> float:
        long = 0.5 + size / _LENGTH
        return sum(weight * count / (count + long) for weight, count in zip(weights, counts, strict=True))

    return sorted(found, key=lambda each: -score(*each[1:]))


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
