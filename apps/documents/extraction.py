"""`Extractor`: converts a file of any kind to chunks. `WorkerProcess`: the process that reads it.

A worker process reads all files, with limits on time and memory. It starts with the first file, and is replaced after a
file hangs or crashes it. Its memory is leased, because the budget covers the whole process tree. It is started as a
program of its own, not forked or spawned by `multiprocessing`: so it needs nothing from the caller's main module, and
works the same from a script, a test and an interactive session, on every system.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import astuple
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

import psutil

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
    printable,
)
from edge.apps.documents.chunking import MAX_TOKENS
from edge.apps.documents.opened import PASSES_DESCRIPTORS, Attempt, open_regular
from edge.apps.documents.pdf import PagePicture
from edge.budget import MemoryBudget
from edge.config import counted, format_size
from edge.errors import BudgetExceeded, CapabilityError, ConfigError, InputError
from edge.interpreter import python
from edge.resident import Closing
from edge.trace import Trace

_BOOTSTRAP = (
    "from edge.apps.documents.worker import main; "
    "main(memory=int(sys.argv[1]), everything_importable=sys.argv[2] == 'True')"
)

_START_SECONDS = 60.0
_WATCH_SECONDS = 0.005
_LONGEST_LOOK = 1.0
"""The longest interval between two checks that counts as elapsed time. A longer one means a suspended machine."""

_LONGEST_ANSWER = 64 * 10**6
_LAST_WORDS = 1 << 16
_KILLED = getattr(signal, "SIGKILL", 9)
"""The signal by which others end a worker. Libraries that get no memory do not use it."""

_LAST_SECONDS = 0.5
"""How long a silent worker may take to exit by itself, so that its exit code is known."""

_NEAR = 0.8
"""Share of its memory above which a failing worker counts as out of memory, because libraries then report damage or end
the process. Where the system refuses memory, it does so at nine tenths."""

WAITING_FACTOR = 5
"""Elapsed time that a worker may take, relative to its computing time: the machine may be busy, or the disk slow."""


class Verdict(Enum):
    """Why a worker has failed."""

    TIME = "time"
    MEMORY = "memory"
    ABORT = "abort"
    """It exited without a message. Libraries do so when they get no more memory, and few other errors do."""
    CRASH = "crash"


class WorkerFailed(Exception):
    """The worker has exited before the end of its answer. The message says how."""

    def __init__(self, verdict: Verdict, message: str) -> None:
        super().__init__(message)
        self.verdict = verdict


class WorkerProcess:
    """A running worker. Not thread-safe: one request at a time."""

    def __init__(self, *, memory: int, everything_importable: bool = False) -> None:
        """Starts the worker and waits until it is ready."""
        command = python(_BOOTSTRAP, str(memory), str(everything_importable))
        self._memory = memory
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed in `kill`)
        self._channel: socket.socket | None = None
        theirs: socket.socket | None = None
        if PASSES_DESCRIPTORS:
            self._channel, theirs = socket.socketpair()
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE if theirs is None else theirs.fileno(),
                stdout=subprocess.PIPE,
                stderr=self._errors,
                creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
            )
        except OSError as error:
            self._close()
            raise CapabilityError(f"the process that reads documents cannot be started: {error}") from error
        finally:
            if theirs is not None:
                theirs.close()
        self._usage = psutil.Process(self._process.pid)
        self._most = 0
        self.sandbox: dict[str, bool | str] = {}
        try:
            for answer in self._answers(_START_SECONDS, last="ready"):
                self.sandbox = answer.get("sandbox", {})
        except WorkerFailed as error:
            raise CapabilityError(f"the process that reads documents does not start: {error}") from error

    def ask(self, request: Mapping[str, Any], path: Path, *, seconds: float) -> Generator[Any, None, None]:
        """Sends a request about a file and yields the values of the answer. The last value is a dictionary with `end`,
        `error` or `out_of_memory`. If the caller stops earlier, the worker is killed.

        Raises:
            Skipped: the file is not a regular file, or cannot be opened.
            WorkerFailed: the worker computed for longer than `seconds`, took `WAITING_FACTOR` times as long in elapsed
                time, used too much memory, or crashed. It has been killed.
        """
        asked = {**request, "seconds": WAITING_FACTOR * seconds, "path": str(path.absolute())}
        try:
            self._send(json.dumps(asked).encode("ascii") + b"\n", path)
        except OSError as error:
            raise self._failed(None) from error
        yield from self._answers(seconds)

    def _send(self, line: bytes, path: Path) -> None:
        if self._channel is None:
            assert self._process.stdin is not None
            self._process.stdin.write(line)
            self._process.stdin.flush()
            return
        descriptor = open_regular(path)
        try:
            sent = socket.send_fds(self._channel, [line], [descriptor])
            self._channel.sendall(line[sent:])
        finally:
            os.close(descriptor)

    def resident(self) -> int:
        """Resident anonymous bytes of the worker; all resident bytes on systems that do not report anonymous ones."""
        try:
            info = self._usage.memory_info()
        except psutil.Error:
            return 0
        return int(info.rss - getattr(info, "shared", 0))

    @property
    def ran_short(self) -> bool:
        """Whether the worker was seen near its memory limit since the last request."""
        return self._most > _NEAR * self._memory

    @property
    def alive(self) -> bool:
        """Whether the worker is running."""
        return self._process.poll() is None

    def interrupt(self) -> None:
        """Kills the worker at once, from any thread. The thread that waits for its answer gets a crash."""
        self._process.kill()

    def kill(self) -> None:
        """Kills the worker at once and closes its pipes."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # unwritten data has no reader any more
                    pipe.close()
        self._close()

    def _close(self) -> None:
        self._errors.close()
        if self._channel is not None:
            self._channel.close()

    def _answers(self, seconds: float, *, last: str = "end") -> Generator[Any, None, None]:
        verdicts: list[Verdict] = []
        done = threading.Event()
        self._most = 0
        watch = threading.Thread(
            target=self._watch, args=(done, seconds, verdicts), name="edge-document-watch", daemon=True
        )
        watch.start()
        assert self._process.stdout is not None
        finished = False
        try:
            while not finished:
                line = self._process.stdout.readline(_LONGEST_ANSWER)
                if not line.endswith(b"\n"):
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        self._process.wait(_LAST_SECONDS)
                    break
                try:
                    value = json.loads(line)
                except (ValueError, RecursionError):
                    break
                if not isinstance(value, dict | list):
                    break
                finished = isinstance(value, dict) and not {last, "error", "out_of_memory"}.isdisjoint(value)
                yield value
        finally:
            done.set()
            watch.join()
            if not finished:
                self._process.kill()
                self._process.wait()
        if not finished:
            raise self._failed(verdicts[0] if verdicts else None)

    def _computed(self) -> float:
        """Seconds of computing since the worker was started."""
        try:
            times = self._usage.cpu_times()
        except psutil.Error:
            return 0.0
        return float(times.user + times.system)

    def _watch(self, done: threading.Event, seconds: float, verdicts: list[Verdict]) -> None:
        """Kills the worker when it exceeds its time or memory, until `done` is set."""
        if done.wait(_WATCH_SECONDS):  # as for most files
            return
        started, seen, waited = self._computed(), time.monotonic(), 0.0
        while not done.wait(_WATCH_SECONDS):
            now = time.monotonic()
            waited += min(now - seen, _LONGEST_LOOK)
            seen = now
            if self._computed() - started > seconds or waited > WAITING_FACTOR * seconds:
                verdicts.append(Verdict.TIME)
            else:
                self._most = max(self._most, self.resident())
                if self._most > self._memory:
                    verdicts.append(Verdict.MEMORY)
            if verdicts:
                self._process.kill()
                return

    def _failed(self, verdict: Verdict | None) -> WorkerFailed:
        self._process.kill()
        code = self._process.wait()
        words = self._last_words()
        self.kill()
        how = f"exit code {code}"
        if code < 0 and -code in signal.Signals.__members__.values():
            how = signal.Signals(-code).name
        if verdict is None and self.ran_short and code != -_KILLED:
            verdict = Verdict.MEMORY
        if verdict is None and how == "SIGABRT" and ("bad_alloc" in words or not words):
            verdict = Verdict.MEMORY if words else Verdict.ABORT
        return WorkerFailed(verdict or Verdict.CRASH, f"{how}: {words}" if words else how)

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read(_LAST_WORDS).decode("utf-8", "replace").strip().splitlines()
        return lines[-1][:300] if lines else ""


_LARGE_NBYTES = 4 * WORKER_NBYTES
"""Memory of the worker for a file that needs more."""

_SECONDS_PER_BYTE = 4e-6
"""Additional computing time per byte: a table of a million rows takes half of it."""

_CHUNK_OVERHEAD = 400
_LEAST_TOKENS = 32

_LONGEST_FIELD = 100_000
"""The most characters of a title, of a mail's subject or its recipients, and of a reason. The rest is left out."""


Answer = TypeVar("Answer")
Read = TypeVar("Read")


class Extractor(Closing):
    """Reads files into chunks. Thread-safe; one file at a time. A context manager.

    Counters (in `trace`): `documents.files`, `.chunks`, `.failed`, `.skipped`, `.worker_starts`.
    """

    def __init__(
        self,
        *,
        budget: MemoryBudget,
        seconds: float = 20.0,
        max_bytes: int = MAX_FILE_BYTES,
        max_tokens: int = MAX_TOKENS,
        memory: int = WORKER_NBYTES,
        most_memory: int = _LARGE_NBYTES,
        plugins: Mapping[str, str] | None = None,
        trace: Trace | None = None,
    ) -> None:
        """Prepares an extractor; nothing is started or leased yet.

        Args:
            seconds: computing time for a file, plus 4 s for each megabyte. The elapsed time may be five times as long.
            max_bytes: largest size of a file.
            max_tokens: the most estimated word pieces of a chunk and its context.
            memory: bytes that the worker may use; leased while it runs.
            most_memory: bytes for a file that needs more than `memory`, if the budget has them then.
            plugins: further extractors, `package.module:function` by suffix such as `.xyz`, which take precedence. The
                worker imports them, so it must be able to.
        """
        if max_tokens < _LEAST_TOKENS:
            raise ConfigError(f"max_tokens must be at least {_LEAST_TOKENS}, not {max_tokens}")
        self._budget = budget
        self._trace = trace or Trace()
        self._seconds = seconds
        self._memory = memory
        self._most_memory = max(memory, most_memory)
        self._settings: dict[str, Any] = {
            "max_bytes": max_bytes,
            "max_tokens": max_tokens,
            "plugins": dict(plugins or {}),
        }
        self._lock = threading.Lock()
        self._worker: WorkerProcess | None = None
        self._interrupted = False
        self._has_parts = False
        self._lease = budget.reserve("document worker", 0)
        self._result = budget.reserve("extracted text", 0)

    def extract(self, path: Path) -> Extracted:
        """Extracts the chunks of a file. The result stays leased until the next call.

        Raises:
            Skipped: the file has nothing to index (empty, binary, encrypted, ...); `reason` says why.
            InputError: the file is damaged, or took too long or too much memory. One sentence, without the path.
            BudgetExceeded: the worker does not fit the memory limit.
            CapabilityError: the worker cannot be started.
        """
        with self._lock:
            self._trace.count("documents.files")
            try:
                extracted = self._patiently(Path(path), lambda memory, attempt: self._ask(Path(path), memory, attempt))
            except Skipped:
                self._trace.count("documents.skipped")
                raise
            except InputError:
                self._trace.count("documents.failed")
                raise
            self._trace.count("documents.chunks", len(extracted.chunks))
            return extracted

    def picture(self, path: Path, page: int, lines: Iterable[int] = ()) -> PagePicture:
        """Draws a page of a PDF."""
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
        """Reads no file meanwhile, so that the worker's memory is free for others. The current file is read to its end
        first."""
        with self._lock:
            self._stop()
            yield

    def close(self) -> None:
        """Stops the worker and releases all memory. A later `extract` starts a new worker."""
        with self._lock:
            self._stop()
            self._result.release()

    def _patiently(self, path: Path, ask: Callable[[int, Attempt], Answer]) -> Answer:
        """Calls `ask` with the ordinary memory; if the worker runs out of it, again with more; and if that is still too
        little, or the budget has no more, without the parts that may need much."""
        self._interrupted = self._has_parts = False
        try:
            return self._ask_fairly(ask)
        except WorkerFailed as error:
            self._stop()
            if not _wants_memory(error) or (self._most_memory == self._memory and not self._has_parts):
                raise self._failure(error, path, self._memory) from error
        tried = self._memory
        try:
            return ask(self._most_memory, Attempt.LAST)
        except WorkerFailed as error:
            tried = self._most_memory
            if not _wants_memory(error) or not self._has_parts:
                raise self._failure(error, path, self._most_memory) from error
        except BudgetExceeded as error:
            if not self._has_parts:
                raise InputError(
                    f"needs more than {format_size(self._memory)} to read, and the memory limit leaves no more: "
                    "`edge index --retry` with a larger --memory may read it"
                ) from error
        finally:
            self._stop()  # after such a file, the worker keeps much memory
        try:
            return ask(self._memory, Attempt.FRUGAL)
        except WorkerFailed as error:
            raise self._failure(error, path, tried) from error
        finally:
            self._stop()

    def _ask_fairly(self, ask: Callable[[int, Attempt], Answer]) -> Answer:
        """Asks the worker about a file. If a worker that has read other files crashes, a new one tries again, because
        those files may have caused the crash."""
        fresh = self._worker is None
        try:
            return ask(self._memory, Attempt.FIRST)
        except WorkerFailed as error:
            if fresh or self._interrupted or error.verdict is not Verdict.CRASH:
                raise
            self._stop()
            return ask(self._memory, Attempt.FIRST)

    def _ask(self, path: Path, memory: int, attempt: Attempt) -> Extracted:
        """Asks the worker to read a file."""
        worker = self._started(memory)
        request = {**self._settings, "name": printable(path.name), "attempt": attempt}
        chunks: list[Chunk] = []
        mails: dict[int, Mail] = {}
        document: tuple[str, str, str | None, str] | None = None
        nbytes = secrets = 0
        self._result.resize(0)
        with closing(worker.ask(request, path, seconds=self._allowed(path))) as answers:
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
        if worker.resident() > self._memory * 3 // 4:  # too little memory is left for the next file
            self._stop()
        if not chunks and secrets:
            raise Skipped(Reason.SECRET, "all of its text may be secret")
        if not chunks:
            raise Skipped(Reason.NO_TEXT, "the file shows no text")
        if document is None:
            raise WorkerFailed(Verdict.CRASH, "an answer without a kind")
        kind, title, encoding, warning = document
        if secrets:
            left = f"{counted(secrets, 'part')} may hold secrets and {'is' if secrets == 1 else 'are'} left out"
            warning = f"{warning}; {left}" if warning else left
        return Extracted(kind, title, tuple(chunks), encoding, warning, mails)

    def _drawn(self, path: Path, page: int, lines: list[int], memory: int) -> PagePicture:
        """Asks the worker to draw a page. Raises as `_ask` does."""
        worker = self._started(memory)
        request = {**self._settings, "page": page, "lines": lines}
        with closing(worker.ask(request, path, seconds=self._allowed(path))) as answers:
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

    def _started(self, memory: int) -> WorkerProcess:
        if self._worker is not None and not self._worker.alive:
            self._stop()
        if self._worker is None:
            self._lease.resize(memory)
            try:
                self._worker = WorkerProcess(memory=memory, everything_importable=bool(self._settings["plugins"]))
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
        """Seconds of computing that the file may take."""
        try:
            nbytes = path.lstat().st_size
        except (OSError, ValueError):  # the worker reports this error
            nbytes = 0
        most: int = self._settings["max_bytes"]
        return self._seconds + min(nbytes, most) * _SECONDS_PER_BYTE

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
    """Whether a worker may have failed because its memory was too little."""
    return error.verdict in (Verdict.MEMORY, Verdict.ABORT)


def _checked(answer: Any, read: Callable[[Any], Read]) -> Read:
    """What `read` makes of an answer. A document may have taken over the worker, which then answers anything."""
    try:
        return read(answer)
    except (TypeError, ValueError, LookupError) as error:
        raise WorkerFailed(Verdict.CRASH, f"an answer that is none ({type(error).__name__})") from error


def _chunk(answer: list[Any]) -> Chunk:
    text, context, first, last, page, numbers, kinds = answer
    lines = None if numbers is None else tuple(map(_number, numbers))
    page = None if page is None else _number(page)
    return Chunk(_text(text), _text(context), _number(first), _number(last), page, lines, bytes.fromhex(kinds))


def _document(answer: dict[str, Any]) -> tuple[str, str, str | None, str]:
    encoding = answer["encoding"]
    kind, title, warning = (_text(answer[name])[:_LONGEST_FIELD] for name in ("kind", "title", "warning"))
    return kind, title, None if encoding is None else _text(encoding), warning


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
