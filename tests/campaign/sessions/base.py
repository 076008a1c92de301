"""A long session: one process that holds a limit while it is asked for many things."""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import subprocess
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from campaign.program import EDGE, Finished, Home, end
from campaign.sampler import Sampler

PATIENCE_S = 300.0
"""Seconds without any progress after which a session counts as hanging."""

_TOO_LITTLE = "20MB"
"""Less than Python and numpy hold: everything refuses it."""


@dataclass(frozen=True)
class Ended:
    """How a session ended.

    Attributes:
        finished: the process. `Finished.fault` names the things that no process may do.
        operations: that were asked for.
        problem: a promise that was broken besides; None if there is none.
        suspect: the last request when the limit was first exceeded.
    """

    finished: Finished
    operations: int
    problem: str | None = None
    suspect: str = ""


class Session(ABC):
    """A program that runs long.

    Attributes:
        name: how it is called in the report.
        needs: packages without which it is left out.
        ends: exit codes of a session that ended well.
    """

    name: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ()
    ends: ClassVar[tuple[int, ...]] = (0,)

    def prepare(self, home: Home) -> None:  # noqa: B027
        """Makes the data of all runs, besides the models, the texts, the collection `kept` and the memory `notes`."""

    def smallest(self, home: Home) -> int:
        """The smallest limit in bytes, as a refusal names it.

        Raises:
            AssertionError: no refusal names one.
        """
        refused = home.edge(*self.arguments(home), "--memory", _TOO_LITTLE)
        assert refused.named is not None, refused
        return refused.named

    @abstractmethod
    def arguments(self, home: Home) -> list[str]:
        """Of the command, without the limit."""

    @abstractmethod
    def run(self, home: Home, limit: int, chance: random.Random, count: int) -> Ended:
        """Runs the program within `limit` bytes, asks for about `count` things, and looks for the confirmed ones."""


class Live:
    """A program that runs, is written to, read from, and sampled from outside, as a context manager.

    Attributes:
        lines: its output on stdout.
        suspect: the last request when it was first seen above its limit.
    """

    def __init__(self, home: Home, arguments: Sequence[str], limit: int, command: Sequence[str] = EDGE) -> None:
        self.arguments = (*arguments, "--memory", f"{limit}B")
        self.lines: list[bytes] = []
        self.suspect = ""
        self._limit = limit
        self._started = time.monotonic()
        self._err = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            [*command, *self.arguments],
            cwd=home.work, env=home.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._err,
            start_new_session=True,
        )  # fmt: skip
        assert self.process.stdin is not None
        os.set_blocking(self.process.stdin.fileno(), False)
        self.sampler = Sampler(self.process.pid)
        self._came = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._hung = False

    def __enter__(self) -> Live:
        self.sampler.__enter__()
        self._reader.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.sampler.__exit__(None, None, None)
        end(self.process)
        self._reader.join()
        self._err.close()

    def note(self, asked: str) -> None:
        """Notes its requests until now."""
        if self.sampler.peak > self._limit and not self.suspect:
            self.suspect = asked[:200]

    def say(self, data: bytes) -> None:
        """Writes to its stdin. Text that an ended or hanging program does not take is dropped."""
        assert self.process.stdin is not None
        target, rest, waited = self.process.stdin.fileno(), memoryview(data), 0
        while rest and waited < PATIENCE_S:
            if not select.select([], [target], [], 1.0)[1]:
                waited += 1
                continue
            try:
                rest = rest[os.write(target, rest) :]
                waited = 0
            except BlockingIOError:
                continue
            except BrokenPipeError:
                return

    def wait(self, ready: Callable[[], bool], patience: float = PATIENCE_S) -> bool:
        """Waits until something is so, which can only change when a line comes. False when it never is.

        Where the whole campaign is suspended, one of the seconds becomes longer, and counts as one.
        """
        waited, seen = 0.0, -1
        with self._came:
            while not ready():
                if len(self.lines) != seen:
                    waited, seen = 0.0, len(self.lines)
                if waited >= patience or not self._reader.is_alive():
                    return ready()
                self._came.wait(1.0)
                waited += 1.0
        return True

    @property
    def errors(self) -> str:
        """Its output on stderr until now."""
        size = os.fstat(self._err.fileno()).st_size
        return os.pread(self._err.fileno(), size, 0).decode("utf-8", "replace")

    def finish(self, *, interrupted: bool = False) -> Finished:
        """Closes its stdin, perhaps sends Ctrl-C as a terminal does, and waits for its end."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        if interrupted:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGINT)
        hung = not self.wait(lambda: not self._reader.is_alive())
        for _ in range(int(PATIENCE_S)):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(1.0)
                break
        else:
            hung = True
        end(self.process)
        self._reader.join()
        out = b"".join(self.lines).decode("utf-8", "replace")
        seconds = time.monotonic() - self._started
        return Finished(
            self.arguments, self.process.returncode, out, self.errors, self.sampler.peak, seconds, hung
        )  # fmt: skip

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._came:
                self.lines.append(line)
                self._came.notify_all()
        with self._came:
            self._came.notify_all()
