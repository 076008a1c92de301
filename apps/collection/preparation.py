"""`Preparation`: reads, hashes and chunks the next files in a thread of its own, while the embedder computes. Prepared
files are held under leases. `promising`: the files to read first."""

from __future__ import annotations

import itertools
import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TypeVar

from edge.apps.collection.catalog import Catalog, FileRow
from edge.apps.collection.discovery import Mounts
from edge.apps.collection.paths import absence, nearest, on_disk
from edge.apps.collection.report import Tally
from edge.apps.collection.snippets import stem
from edge.apps.documents.base import NO_STAMP, Extracted, Reason, Skipped, Stamp
from edge.apps.documents.extraction import Extractor
from edge.apps.documents.opened import open_regular
from edge.apps.store.database import Database
from edge.apps.store.lexical import FUNCTION_WORDS, words_of
from edge.budget import Lease, MemoryBudget
from edge.config import format_size
from edge.errors import BudgetExceeded, InputError
from edge.resident import Closing

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
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._database = database
        self._due = due
        self._extractor = extractor
        self._budget = budget
        self._tally = tally
        self._waits = waits
        self._reading = ""
        self._clock = clock
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
            racy = is_racy(stamp.mtime_ns, self._clock())
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
