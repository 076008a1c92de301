"""The parent's side of a worker process: starting it, asking it, and ending it when it takes too long or too much.

Started as a program of its own rather than forked or spawned through `multiprocessing`: that needs nothing from the
caller's main module, so it works from a script, a test and an interactive session alike, on every system.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import psutil

from edge.apps.documents.opened import PASSES_DESCRIPTORS, open_regular
from edge.errors import CapabilityError

_BOOTSTRAP = (
    "import sys; memory, everything = sys.argv[1:3]; sys.path[:] = sys.argv[3:]; "
    "from edge.apps.documents.worker import main; main(memory=int(memory), everything_importable=everything == 'True')"
)
"""Takes over the parent's import path before it imports anything, so that no module is found in the working directory,
which may be the folder of strangers' files that is being read."""

_START_SECONDS = 60.0
_WATCH_SECONDS = 0.005
_LONGEST_LOOK = 1.0
"""More time than this between two looks has not passed for the worker either: the machine was suspended."""

_LONGEST_ANSWER = 64 * 10**6
_LAST_WORDS = 1 << 16
_KILLED = getattr(signal, "SIGKILL", 9)
"""The signal of who ends a worker from outside; libraries that get no memory do not."""

_LAST_SECONDS = 0.5
"""How long a worker that says no more may take to end by itself, so that how it ended is known."""

_NEAR = 0.8
"""Share of its memory at which a worker that fails is taken to fail for want of memory: libraries say damage then, or
end the process. Where the system refuses memory, it does so at nine tenths."""

WAITING_FACTOR = 5
"""How much longer than its time of computing a worker may take by the clock: the machine may be busy, the disk slow."""


class Verdict(Enum):
    """Why a worker was ended, or ended itself."""

    TIME = "time"
    MEMORY = "memory"
    ABORT = "abort"
    """It ended itself without a word. So do libraries that get no more memory, and few others."""
    CRASH = "crash"


class WorkerFailed(Exception):
    """The worker has ended before it had answered. The message says how."""

    def __init__(self, verdict: Verdict, message: str) -> None:
        super().__init__(message)
        self.verdict = verdict


class WorkerProcess:
    """A running worker. Not thread-safe: one question at a time."""

    def __init__(self, *, memory: int, everything_importable: bool = False) -> None:
        """Starts it and waits until it has imported what it needs.

        Args:
            memory: anonymous bytes it may hold, the idle interpreter's included. Linux enforces it as an upper bound;
                elsewhere the worker is looked at every few milliseconds.
            everything_importable: let it read whatever is on the import path, which plug-ins need.

        Raises:
            CapabilityError: it cannot be started.
        """
        if not sys.executable:
            raise CapabilityError("documents are read in a process of their own, and this Python cannot start another")
        self._memory = memory
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed in `kill`)
        self._channel: socket.socket | None = None
        path = [entry for entry in sys.path if isinstance(entry, str) and entry]
        theirs: socket.socket | None = None
        if PASSES_DESCRIPTORS:
            self._channel, theirs = socket.socketpair()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOTSTRAP, str(memory), str(everything_importable), *path],
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
        """Sends a request about a file and yields the values of the answer, up to one that is a dictionary with `end`,
        `error` or `out_of_memory`. If the caller stops before that, the worker is ended.

        Raises:
            Skipped: the file is not a regular one, or cannot be opened.
            WorkerFailed: it computed for longer than `seconds` (or took `WAITING_FACTOR` times as long by the clock),
                held more memory than it may, or crashed. It has been ended.
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
        """Anonymous resident bytes of the worker (all resident ones where the system does not tell)."""
        try:
            info = self._usage.memory_info()
        except psutil.Error:
            return 0
        return int(info.rss - getattr(info, "shared", 0))

    @property
    def ran_short(self) -> bool:
        """Whether it was seen to hold nearly as much memory as it may, since it was last asked."""
        return self._most > _NEAR * self._memory

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def interrupt(self) -> None:
        """Ends it at once, from any thread; who waits for its answer learns that it has crashed."""
        self._process.kill()

    def kill(self) -> None:
        """Ends it at once, and forgets what it was asked."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # what was still to be written has no reader
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
                value = json.loads(line)
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
        """Seconds the worker has computed since it was started."""
        try:
            times = self._usage.cpu_times()
        except psutil.Error:
            return 0.0
        return float(times.user + times.system)

    def _watch(self, done: threading.Event, seconds: float, verdicts: list[Verdict]) -> None:
        """Ends the worker when its time is up or its memory too much, until `done`."""
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
        """The last line of what the worker wrote to stderr."""
        self._errors.seek(0)
        lines = self._errors.read(_LAST_WORDS).decode("utf-8", "replace").strip().splitlines()
        return lines[-1][:300] if lines else ""
