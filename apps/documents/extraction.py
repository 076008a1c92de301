"""`Extractor`: converts a file of any kind to chunks, in a worker process with limits on time and memory. The worker is
replaced after a file hangs or crashes it. Its memory is leased from the budget."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import astuple
from pathlib import Path
from typing import Any, TypeVar

from edge.apps.documents.base import (
    LARGEST_INTEGER,
    MAX_FILE_BYTES,
    MAX_TEXT_CHARS,
    WORKER_NBYTES,
    Chunk,
    Extracted,
    Mail,
    Reason,
    Skipped,
    no_text,
)
from edge.apps.documents.opened import Attempt
from edge.apps.documents.pdf import PagePicture
from edge.apps.documents.process import Request, Verdict, WorkerFailed, WorkerProcess
from edge.budget import MemoryBudget
from edge.config import counted, format_size
from edge.errors import BudgetExceeded, EdgeError, InputError
from edge.resident import Closing
from edge.trace import Trace

_LARGE_NBYTES = 4 * WORKER_NBYTES  # Memory of the worker for a file that needs more, if the budget has it then.
_SECONDS = 20.0
"""Computing time for a file, plus that of its bytes. The elapsed time may be five times as long."""

_SECONDS_PER_BYTE = 4e-6
_CHUNK_OVERHEAD = 400

_LONGEST_FIELD = 100_000
"""Characters of a title, of a mail's subject or recipients, and of a reason. The rest is left out."""


Answer = TypeVar("Answer")
Read = TypeVar("Read")


class Extractor(Closing):
    """Reads files into chunks. Thread-safe; one file at a time. A context manager.

    Counters (in `trace`): `documents.files`, `.chunks`, `.failed`, `.skipped`, `.worker_starts`.
    """

    def __init__(self, *, budget: MemoryBudget, trace: Trace | None = None) -> None:
        """Prepares an extractor; nothing is started or leased yet. The worker's memory is leased while it runs."""
        self._budget = budget
        self._trace = trace or Trace()
        self._lock = threading.Lock()
        self._worker: WorkerProcess | None = None
        self._beginning: threading.Thread | None = None
        self._interrupted = False
        self._has_parts = False
        self._lease = budget.reserve("document worker", 0)
        self._result = budget.reserve("extracted text", 0)

    def begin(self) -> None:
        """Starts the worker meanwhile, so that the first file need not wait for it."""

        def start() -> None:
            with suppress(EdgeError), self._lock:  # `extract` will report it
                self._started(WORKER_NBYTES)

        self._beginning = threading.Thread(target=start, name="edge-worker-start", daemon=True)
        self._beginning.start()

    def extract(self, path: Path, following: Sequence[Path] = ()) -> Extracted:
        """Extracts the chunks of a file, which stay leased until the next call. The worker goes on with the files
        `following`. Raises `Skipped` (nothing to index), `InputError` (damage, too much time or memory; without the
        path), `BudgetExceeded` and `CapabilityError` (no worker)."""
        with self._lock:
            self._trace.count("documents.files")
            try:
                extracted = self._patiently(
                    Path(path), lambda memory, attempt: self._ask(Path(path), memory, attempt, following)
                )
            except Skipped:
                self._trace.count("documents.skipped")
                raise
            except InputError:
                self._trace.count("documents.failed")
                raise
            self._trace.count("documents.chunks", len(extracted.chunks))
            return extracted

    def picture(self, path: Path, page: int, lines: Iterable[int] = ()) -> PagePicture:
        marked = sorted(set(lines))
        with self._lock:
            return self._patiently(Path(path), lambda memory, _: self._drawn(Path(path), page, marked, memory))

    def interrupt(self) -> None:
        """Stops the current extraction of another thread, as if the file had crashed the worker."""
        self._interrupted = True
        worker = self._worker
        if worker is not None:
            worker.interrupt()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Reads no file meanwhile, so that the worker's memory is free for others."""
        with self._lock:
            self._stop()
            yield

    def close(self) -> None:
        """Stops the worker and releases all memory. A later `extract` starts a new worker."""
        if self._beginning is not None:
            self._beginning.join()
        with self._lock:
            self._stop()
            self._result.release()

    def _patiently(
        self, path: Path, ask: Callable[[int, Attempt], Answer], attempt: Attempt = Attempt.FIRST, tried: int = 0
    ) -> Answer:
        """Calls `ask` with the ordinary memory; then with more; then without the parts that may need much."""
        memory = _LARGE_NBYTES if attempt is Attempt.LAST else WORKER_NBYTES
        try:
            if attempt is not Attempt.FIRST:
                return ask(memory, attempt)
            self._interrupted = self._has_parts = False
            return self._ask_fairly(ask)
        except WorkerFailed as error:
            self._stop()
            tried = max(tried, memory)
            more = attempt is Attempt.FIRST or self._has_parts
            if not _wants_memory(error) or attempt is Attempt.FRUGAL or not more:
                raise self._failure(error, path, tried) from error
        except BudgetExceeded as error:
            if attempt is not Attempt.LAST:
                raise
            if not self._has_parts:
                raise InputError(
                    f"needs more than {format_size(WORKER_NBYTES)} to read, and the memory limit leaves no more: "
                    "`edge index --retry` with a larger --memory may read it"
                ) from error
        finally:
            if attempt is not Attempt.FIRST:  # after such a file, the worker keeps much memory
                self._stop()
        return self._patiently(path, ask, Attempt(attempt + 1), tried)

    def _ask_fairly(self, ask: Callable[[int, Attempt], Answer]) -> Answer:
        """Once more with a new worker if one that has read other files crashes, because these may have caused the
        crash."""
        fresh = self._worker is None
        try:
            return ask(WORKER_NBYTES, Attempt.FIRST)
        except WorkerFailed as error:
            if fresh or self._interrupted or error.verdict is not Verdict.CRASH:
                raise
            self._stop()
            return ask(WORKER_NBYTES, Attempt.FIRST)

    def _ask(self, path: Path, memory: int, attempt: Attempt, following: Sequence[Path]) -> Extracted:
        request = self._request(path, attempt=attempt)
        worker = self._started(memory, request)
        ahead = (self._request(path, attempt=Attempt.FIRST) for path in following if attempt is Attempt.FIRST)
        chunks: list[Chunk] = []
        mails: dict[int, Mail] = {}
        document: tuple[str, str, str] | None = None
        nbytes = secrets = 0
        self._result.resize(0)
        with closing(worker.ask(request, ahead)) as answers:
            for answer in answers:
                if isinstance(answer, list):
                    chunk = _checked(answer, _chunk)
                    chunks.append(chunk)
                    nbytes += len(chunk.text) + len(chunk.context) + _CHUNK_OVERHEAD
                    if nbytes > self._result.nbytes:
                        self._hold(2 * nbytes)
                    continue
                _raise_failure(answer, worker)
                self._has_parts = self._has_parts or "parts" in answer
                secrets = _checked(answer.get("secrets", 0), _number)
                if "kind" in answer:
                    document = _checked(answer, _document)
                elif "mail" in answer:
                    page, mail = _checked(answer["mail"], _mail)
                    mails[page] = mail
                    nbytes += sum(map(len, astuple(mail))) + _CHUNK_OVERHEAD
        self._hold(nbytes)
        if worker.resident() > WORKER_NBYTES * 3 // 4:  # too little memory is left for the next file
            self._stop()
        if not chunks and secrets:
            raise Skipped(Reason.SECRET, "all of its text may be secret")
        if not chunks:
            raise no_text()
        if document is None:
            raise WorkerFailed(Verdict.CRASH, "an answer without a kind")
        kind, title, warning = document
        if secrets:
            left = f"{counted(secrets, 'part')} may hold secrets and {'is' if secrets == 1 else 'are'} left out"
            warning = f"{warning}; {left}" if warning else left
        return Extracted(kind, title, tuple(chunks), warning, mails)

    def _drawn(self, path: Path, page: int, lines: list[int], memory: int) -> PagePicture:
        request = self._request(path, page=page, lines=lines)
        worker = self._started(memory, request)
        with closing(worker.ask(request)) as answers:
            answer = next(answers)
            _raise_failure(answer, worker)
            found = PagePicture.of(answer)
            next(answers, None)  # runs the generator to its end
        return found

    def _hold(self, nbytes: int) -> None:
        try:
            self._result.resize(nbytes)
        except BudgetExceeded as error:
            raise InputError(f"its text of {format_size(nbytes)} does not fit the memory limit") from error

    def _request(self, path: Path, **settings: Any) -> Request:
        return Request(path, settings, self._allowed(path))

    def _started(self, memory: int, request: Request | None = None) -> WorkerProcess:
        worker = self._worker
        if worker is not None and (not worker.alive or (worker.sent and worker.sent[0] != request)):
            self._stop()
        if self._worker is None:
            self._lease.resize(memory)
            try:
                self._worker = WorkerProcess(memory=memory)
            except BaseException:
                self._lease.release()
                raise
            self._trace.count("documents.worker_starts")
        return self._worker

    def _stop(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            self._worker = None
        self._lease.release()

    def _allowed(self, path: Path) -> float:
        try:
            nbytes = path.lstat().st_size
        except (OSError, ValueError):  # the worker reports this error
            nbytes = 0
        return _SECONDS + min(nbytes, MAX_FILE_BYTES) * _SECONDS_PER_BYTE

    def _failure(self, error: WorkerFailed, path: Path, memory: int) -> InputError:
        if error.verdict is Verdict.TIME:
            return InputError(f"took longer than {self._allowed(path):.3g} seconds to read")
        if error.verdict is Verdict.MEMORY:
            return InputError(f"needs more than {format_size(memory)} of memory to read")
        if error.verdict is Verdict.ABORT:
            return InputError(
                f"crashed the process that was reading it ({error}), most likely because it needs more than "
                f"{format_size(memory)} of memory"
            )
        return InputError(f"crashed the process that was reading it ({error})")


def _wants_memory(error: WorkerFailed) -> bool:
    return error.verdict in (Verdict.MEMORY, Verdict.ABORT)


def _checked(answer: Any, read: Callable[[Any], Read]) -> Read:
    """What `read` makes of an answer. A document that has taken over the worker may answer anything."""
    try:
        return read(answer)
    except (TypeError, ValueError, LookupError) as error:
        raise WorkerFailed(Verdict.CRASH, f"an answer that is none ({type(error).__name__})") from error


def _chunk(answer: list[Any]) -> Chunk:
    text, context, first, last, page, numbers, kinds = answer
    lines = None if numbers is None else tuple(map(_number, numbers))
    page = None if page is None else _number(page)
    return Chunk(_text(text), _text(context), _number(first), _number(last), page, lines, bytes.fromhex(kinds))


def _document(answer: dict[str, Any]) -> tuple[str, str, str]:
    kind, title, warning = (_text(answer[name])[:_LONGEST_FIELD] for name in ("kind", "title", "warning"))
    return kind, title, warning


def _mail(answer: list[Any]) -> tuple[int, Mail]:
    page, *fields = answer
    return _number(page), Mail(*(_text(field)[:_LONGEST_FIELD] for field in fields))


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > MAX_TEXT_CHARS:
        raise TypeError("a text is expected")
    value.encode()  # raises ValueError for half of a character
    return value


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= LARGEST_INTEGER:
        raise TypeError("a number of a page or a line is expected")
    return value


def _raise_failure(answer: dict[str, Any], worker: WorkerProcess) -> None:
    if "error" in answer:
        reason = _checked(answer, lambda answer: answer["reason"] and Reason(answer["reason"]))
        sentence = _checked(answer["error"], _text)[:_LONGEST_FIELD]
        if reason is None and worker.ran_short:
            raise WorkerFailed(Verdict.MEMORY, sentence)
        raise InputError(sentence) if reason is None else Skipped(reason, sentence)
    if "out_of_memory" in answer:
        raise WorkerFailed(Verdict.MEMORY, "the system refused an allocation")
