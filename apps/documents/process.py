"""The parent's side of a worker process: starting it, asking it, and ending it when it takes too long or too much.

Started as a program of its own rather than forked or spawned through `multiprocessing`: that needs nothing from the
caller's main module, so it works from a script, a test and an interactive session alike, on every system.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Mapping
from enum import Enum
from typing import Any

import psutil

from edge.errors import CapabilityError

_BOOTSTRAP = "import sys; sys.path[:] = sys.argv[1:]; from edge.apps.documents.worker import main; main()"
"""Takes over the parent's import path before it imports anything, so that no module is found in the working directory,
which may be the folder of strangers' files that is being read."""

_START_SECONDS = 60.0
_WATCH_SECONDS = 0.02
_LONGEST_LOOK = 1.0
"""More time than this between two looks has not passed for the worker either: the machine was suspended."""

_LONGEST_ANSWER = 64 * 10**6

WAITING_FACTOR = 5
"""How much longer than its time of computing a worker may take by the clock: the machine may be busy, the disk slow."""


class Verdict(Enum):
    """Why a worker was ended, or ended itself."""

    TIME = "time"
    MEMORY = "memory"
    CRASH = "crash"


class WorkerFailed(Exception):
    """The worker has ended before it had answered. The message says how."""

    def __init__(self, verdict: Verdict, message: str) -> None:
        super().__init__(message)
        self.verdict = verdict


class WorkerProcess:
    """A running worker. Not thread-safe: one question at a time."""

    def __init__(self) -> None:
        """Starts it and waits until it has imported what it needs.

        Raises:
            CapabilityError: it cannot be started.
        """
        if not sys.executable:
            raise CapabilityError("documents are read in a process of their own, and this Python cannot start another")
        with tempfile.TemporaryFile() as errors:
            path = [entry for entry in sys.path if isinstance(entry, str) and entry]
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _BOOTSTRAP, *path],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
                )
            except OSError as error:
                raise CapabilityError(f"the process that reads documents cannot be started: {error}") from error
            self._usage = psutil.Process(self._process.pid)
            try:
                list(self._answers(_START_SECONDS, sys.maxsize, last="ready"))
            except WorkerFailed as error:
                errors.seek(0)
                lines = errors.read().decode("utf-8", "replace").strip().splitlines() or [str(error)]
                raise CapabilityError(f"the process that reads documents does not start: {lines[-1]}") from error

    def ask(self, request: Mapping[str, Any], *, seconds: float, memory: int) -> Generator[Any, None, None]:
        """Sends a request and yields the values of the answer, up to one that is a dictionary with `end`, `error` or
        `out_of_memory`. If the caller stops before that, the worker is ended.

        Raises:
            WorkerFailed: it computed for longer than `seconds` (or took `WAITING_FACTOR` times as long by the clock),
                held more than `memory` bytes, or crashed. It has been ended.
        """
        line = json.dumps({**request, "seconds": WAITING_FACTOR * seconds, "memory": memory}).encode("ascii") + b"\n"
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except OSError as error:
            raise self._failed(None) from error
        yield from self._answers(seconds, memory)

    def resident(self) -> int:
        """Anonymous resident bytes of the worker (all resident ones where the system does not tell)."""
        try:
            info = self._usage.memory_info()
        except psutil.Error:
            return 0
        return int(info.rss - getattr(info, "shared", 0))

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
            assert pipe is not None
            with contextlib.suppress(OSError):  # what was still to be written has no reader
                pipe.close()

    def _answers(self, seconds: float, memory: int, *, last: str = "end") -> Generator[Any, None, None]:
        verdicts: list[Verdict] = []
        done = threading.Event()
        watch = threading.Thread(
            target=self._watch, args=(done, seconds, memory, verdicts), name="edge-document-watch", daemon=True
        )
        watch.start()
        assert self._process.stdout is not None
        finished = False
        try:
            while not finished:
                line = self._process.stdout.readline(_LONGEST_ANSWER)
                if not line.endswith(b"\n"):
                    break
                value = json.loads(line)
                finished = isinstance(value, dict) and not {last, "error", "out_of_memory"}.isdisjoint(value)
                yield value
        finally:
            done.set()
            watch.join()
            if not finished:
                self.kill()
        if not finished:
            raise self._failed(verdicts[0] if verdicts else None)

    def _computed(self) -> float:
        """Seconds the worker has computed since it was started."""
        try:
            times = self._usage.cpu_times()
        except psutil.Error:
            return 0.0
        return float(times.user + times.system)

    def _watch(self, done: threading.Event, seconds: float, memory: int, verdicts: list[Verdict]) -> None:
        """Ends the worker when its time is up or its memory too much, until `done`."""
        started, seen, waited = self._computed(), time.monotonic(), 0.0
        while not done.wait(_WATCH_SECONDS):
            now = time.monotonic()
            waited += min(now - seen, _LONGEST_LOOK)
            seen = now
            if self._computed() - started > seconds or waited > WAITING_FACTOR * seconds:
                verdicts.append(Verdict.TIME)
            elif self.resident() > memory:
                verdicts.append(Verdict.MEMORY)
            if verdicts:
                self._process.kill()
                return

    def _failed(self, verdict: Verdict | None) -> WorkerFailed:
        self.kill()
        code = self._process.returncode
        how = f"exit code {code}"
        if code < 0 and -code in signal.Signals.__members__.values():
            how = signal.Signals(-code).name
        return WorkerFailed(verdict or Verdict.CRASH, how)
