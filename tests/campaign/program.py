"""Runs the program the way a person does: as a process, in a home folder of its own, watched from outside."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from naive.forked import Forks
from naive.program import settings_of, write_tiny_models

from campaign.sampler import Sampler
from edge.config import parse_size

EDGE = (str(Path(sys.executable).with_name("edge")),)
_FORKS = Forks()

PATIENCE = 300.0
"""Seconds after which a command counts as hanging. A campaign may share its machine."""

_KEPT = ("PATH", "LANG", "LC_ALL", "TMPDIR", "VIRTUAL_ENV", "SYSTEMROOT", "OMP_NUM_THREADS", "PYTHONPYCACHEPREFIX")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u200e\u200f]")
_NAMED = re.compile(r"limit that works is ([\d.]+ ?[kMG]?B)|([\d.]+ ?[kMG]?B) is the smallest that works")
_BUG = ("Traceback (most recent call last)", "Fatal Python error", "Segmentation fault", "panicked at")


@dataclass(frozen=True)
class Finished:
    """How a command ended; `code` is negative for a signal. `peak`: anonymous memory of its process tree in bytes, 0
    where it was not sampled; `hung`: it did not end in time, and was killed."""

    arguments: tuple[str, ...]
    code: int
    out: str
    err: str
    peak: int
    seconds: float
    hung: bool

    def __str__(self) -> str:
        said = (self.err or self.out).strip()[-200:]
        how = f"ended with {self.code}"
        if self.hung:
            how = f"hangs: no end after {self.seconds:.0f} s"
        elif self.code == -signal.SIGKILL:
            how = "was killed, and not by its time limit"
        return f"`edge {' '.join(self.arguments)[:120]}` {how}: {said}"

    @property
    def named(self) -> int | None:
        """The limit in bytes that a refusal of memory says is enough; None if it names none."""
        found = _NAMED.search(self.err) if self.code == 2 else None
        return None if found is None else parse_size(found[1] or found[2])

    def fault(self, limit: int | None = None) -> str | None:
        """A thing that no command may do with any input; None if it did none of them. `limit`: bytes of memory that its
        process tree was allowed."""
        said = self.out + self.err
        bug = next((sign for sign in _BUG if sign in said), None)
        control = _CONTROL.search(said)
        if self.hung:
            problem = f"hangs: no end after {self.seconds:.0f} s"
        elif bug is not None:
            problem = f"prints {bug!r}: {said[said.index(bug) :][-300:]}"
        elif self.code not in (0, 1, 2, 130, -signal.SIGINT, -signal.SIGKILL):
            problem = f"ends with code {self.code}: {self.err[-200:]}"
        elif self.code == 2 and not self.err.strip():
            problem = "ends with code 2 and says nothing"
        elif control is not None:
            around = said[max(0, control.start() - 80) : control.end() + 20]
            problem = f"prints the control character U+{ord(control[0]):04X}: {around!a}"
        elif limit is not None and self.peak > limit:
            problem = f"took {self.peak:,} bytes of {limit:,}: {self.peak / limit:.3f} times the limit"
        else:
            return None
        return f"`edge {' '.join(self.arguments)[:160]}` {problem}"


class Home:
    """A new home folder, with nothing of this machine's. Commands run in its folder `work`."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.work = self.path / "work"
        self.models = self.path / "models"
        self.work.mkdir(parents=True, exist_ok=True)

    def with_tiny_models(self) -> Home:
        """Puts the reranker `tiny` and the embedder `tiny-embedder` there, with random weights."""
        write_tiny_models(self.models)
        return self

    def environment(self, **more: str) -> dict[str, str]:
        """The variables of a command that runs here; `more` wins."""
        own = {"HOME": str(self.path), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUTF8": "1"}
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        return kept | settings_of(self.path, **own) | more

    def edge(
        self,
        *arguments: str,
        stdin: bytes | None = None,
        sampled: bool = False,
        patience: float = PATIENCE,
        interrupted_after: float | None = None,
        environment: Mapping[str, str] | None = None,
        command: Sequence[str] = EDGE,
    ) -> Finished:
        """Runs `edge ARGUMENTS` here and waits for it. `sampled`: its memory is looked at every 2 ms; after `patience`
        seconds it is killed and counts as hanging; `interrupted_after` so many it gets Ctrl-C."""
        started = time.monotonic()
        # Files and not pipes: a command that prints much is not slowed down by the reader, and needs no second thread.
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, tempfile.TemporaryFile() as given:
            given.write(stdin or b"")
            given.seek(0)
            process = subprocess.Popen(
                [*command, *arguments],
                cwd=self.work, env=self.environment(**(environment or {})), stdin=given, stdout=out, stderr=err,
                start_new_session=True,
            )  # fmt: skip
            peak, hung = 0, False
            try:
                with Sampler(process.pid) if sampled else contextlib.nullcontext() as sampler:
                    if interrupted_after is not None:
                        _interrupt(process, interrupted_after)
                    _wait(process, patience)
                peak = 0 if sampler is None else sampler.peak
            except subprocess.TimeoutExpired:
                hung = True
            finally:
                end(process)
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read().decode("utf-8", "replace"))
        seconds = time.monotonic() - started
        return Finished(tuple(arguments), process.returncode, *texts, peak, seconds, hung)

    def look(self, *arguments: str, **more: str) -> Finished:
        """Runs `edge ARGUMENTS` as `edge` does, in a fork (see `naive.forked`). Its memory is not sampled, and it reads
        nothing."""
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            out, err = Path(folder, "out"), Path(folder, "err")
            code, hung = _FORKS.run(arguments, self.work, self.environment(**more), out, err, PATIENCE)
            texts = [file.read_bytes().decode("utf-8", "replace") for file in (out, err)]
        return Finished(tuple(arguments), code, *texts, 0, time.monotonic() - started, hung)


def _wait(process: subprocess.Popen[bytes], patience: float) -> None:
    """Waits second by second. Where the whole campaign is suspended, one of them becomes longer, and counts as one."""
    for _ in range(round(patience) - 1):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1.0)
            return
    process.wait(1.0)


def _interrupt(process: subprocess.Popen[bytes], after: float) -> None:
    try:
        process.wait(after)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)  # as a terminal sends it: to the whole group


def end(process: subprocess.Popen[bytes]) -> None:
    """Kills a process that was started in a session of its own, with everything it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Snapshot:
    """A folder that is put back as it was before every case, at the same path."""

    def __init__(self, folder: Path) -> None:
        """Copies the folder as it is now beside itself."""
        self.folder = folder
        self.kept = folder.with_name(folder.name + ".kept")
        shutil.rmtree(self.kept, ignore_errors=True)
        shutil.copytree(folder, self.kept, symlinks=True)

    def restore(self) -> None:
        """Puts every file back, with its times."""
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.kept, self.folder, symlinks=True)
