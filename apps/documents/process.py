"""`WorkerProcess`: the process that reads files. It is a program of its own, not forked or spawned by
`multiprocessing`, so that it needs nothing from the caller's main module."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import psutil

from edge.apps.documents.base import Skipped, printable
from edge.apps.documents.opened import PASSES_DESCRIPTORS, open_regular
from edge.errors import CapabilityError
from edge.interpreter import python

_BOOTSTRAP = "from edge.apps.documents.worker import main; main(memory=int(sys.argv[1]))"

_START_SECONDS = 60.0
_WATCH_SECONDS = 0.005
_LONGEST_LOOK = 1.0
"""The longest interval between two checks that counts as elapsed time. A longer one means a suspended machine."""

_LONGEST_ANSWER = 64 * 10**6
_PIPE_NBYTES = 1 << 20  # Answers that the worker can give while its parent does something else.
_LAST_WORDS = 1 << 16
_KILLED = getattr(signal, "SIGKILL", 9)
"""The signal by which others end a worker. Libraries that get no memory do not use it."""

_LAST_SECONDS = 0.5  # How long a silent worker may take to exit by itself, so that its exit code is known.
_NEAR = 0.8
"""Share of its memory above which a failing worker counts as out of memory: libraries then report damage or exit."""

WAITING_FACTOR = 5
"""Elapsed time that a worker may take, relative to its computing time: the machine may be busy, or the disk slow."""


class Verdict(Enum):
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


@dataclass(frozen=True)
class Request:
    path: Path
    settings: Mapping[str, Any]
    seconds: float


class WorkerProcess:
    """A running worker. Not thread-safe: one request at a time."""

    def __init__(self, *, memory: int) -> None:
        command = python(_BOOTSTRAP, str(memory))
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
                pipesize=_PIPE_NBYTES,
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
        self.sent: deque[Request] = deque()
        self.sandbox: dict[str, bool | str] = {}
        try:
            for answer in self._answers(_START_SECONDS, last="ready"):
                self.sandbox = answer.get("sandbox", {})
        except WorkerFailed as error:
            raise CapabilityError(f"the process that reads documents does not start: {error}") from error

    def ask(self, request: Request, following: Iterable[Request] = ()) -> Generator[Any, None, None]:
        """Sends a request about a file, and yields the values of the answer, of which the last has `end`, `error` or
        `out_of_memory`. If the caller stops earlier, the worker is killed. The requests `following` are sent ahead
        where the system itself limits the worker's memory; `sent` holds them. Raises `Skipped`, and `WorkerFailed` once
        the worker is dead."""
        if self.sent:
            self.sent.popleft()
        else:
            self._send(request)
        if sys.platform == "linux":
            with contextlib.suppress(Skipped):  # `ask` will report it
                for ahead in itertools.islice(following, len(self.sent), None):
                    self._send(ahead)
                    self.sent.append(ahead)
        yield from self._answers(request.seconds)

    def _send(self, request: Request) -> None:
        asked = {
            **request.settings,
            "seconds": WAITING_FACTOR * request.seconds,
            "path": str(request.path.absolute()),
            "name": printable(request.path.name),
        }
        line = json.dumps(asked).encode("ascii") + b"\n"
        try:
            if self._channel is None:
                assert self._process.stdin is not None
                self._process.stdin.write(line)
                self._process.stdin.flush()
                return
            descriptor = open_regular(request.path)
            try:
                sent = socket.send_fds(self._channel, [line], [descriptor])
                self._channel.sendall(line[sent:])
            finally:
                os.close(descriptor)
        except OSError as error:
            raise self._failed(None) from error

    def resident(self) -> int:
        try:
            info = self._usage.memory_info()
        except psutil.Error:
            return 0
        return int(info.rss - getattr(info, "shared", 0))

    @property
    def ran_short(self) -> bool:
        return self._most > _NEAR * self._memory

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def interrupt(self) -> None:
        self._process.kill()

    def kill(self) -> None:
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
        try:
            times = self._usage.cpu_times()
        except psutil.Error:
            return 0.0
        return float(times.user + times.system)

    def _watch(self, done: threading.Event, seconds: float, verdicts: list[Verdict]) -> None:
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
        self._errors.seek(0)
        lines = self._errors.read(_LAST_WORDS).decode("utf-8", "replace").strip().splitlines()
        words = lines[-1][:300] if lines else ""
        self.kill()
        how = f"exit code {code}"
        if code < 0 and -code in signal.Signals.__members__.values():
            how = signal.Signals(-code).name
        if verdict is None and self.ran_short and code != -_KILLED:
            verdict = Verdict.MEMORY
        if verdict is None and how == "SIGABRT" and ("bad_alloc" in words or not words):
            verdict = Verdict.MEMORY if words else Verdict.ABORT
        return WorkerFailed(verdict or Verdict.CRASH, f"{how}: {words}" if words else how)
