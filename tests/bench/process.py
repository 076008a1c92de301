"""Runs each measurement in a process of its own, so that its memory is its own and it warms up nothing for the next."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from edge.apps.bench.process import report_of, run_worker
from edge.errors import CapabilityError, EdgeError

_MAIN = Path(__file__).with_name("__main__.py")

_POLL_S = 0.01
"""The seconds between two samples of a process tree."""

_SEARCH_S = 0.2
"""The seconds between two searches for child processes. A search looks at every process of the machine, which takes
milliseconds of a core, and would disturb the measurement if it were made for each sample."""

_NEW_S = 0.1
"""The age at which a child process counts."""


def measure(worker: str, task: Mapping[str, Any], **options: Any) -> dict[str, Any]:
    """The report of a worker of the benchmarks, a module with a function `work`, on a task. See `run_worker`, which
    gets the options."""
    return run_worker(worker, task, program=(str(_MAIN), "--worker"), **options)


def measure_script(
    script: Path, task: Mapping[str, Any], *, threads: int, python: str = sys.executable, timeout: float | None = None
) -> dict[str, Any]:
    """Runs a script on a task, and returns its report with `peak_resident`, the peak of its process tree.

    The script reads the task from stdin and prints its report as the last line, in JSON. It runs in an empty folder
    and without access to a model hub. Its Python may be that of another program and lack this one. The memory is
    measured from outside, so that programs that start processes of their own are measured alike.

    Args:
        script: the script. Modules of its folder are not importable.
        task: the task, which must be JSON. Its `name` is used in messages.
        threads: the number of processors that the script may use, where the system can restrict them, and of threads.
        python: the interpreter.
        timeout: the seconds after which the script is ended; None for no bound.

    Raises:
        CapabilityError: the interpreter does not exist, or lacks a library that the script needs.
        EdgeError: the script failed. The message is the last line of its output.
    """
    name = task.get("name", script.stem)
    count = str(threads)
    interpreter = os.path.abspath(shutil.which(python) or python)  # the script runs in another folder
    environment = os.environ | {
        "OMP_NUM_THREADS": count, "OPENBLAS_NUM_THREADS": count, "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    # The output goes to files: a pipe would stay open as long as any process that the script has left behind.
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                [interpreter, "-c", _RUN_SCRIPT, str(script.resolve()), count], stdin=subprocess.PIPE, stdout=out,
                stderr=errors, cwd=folder, env=environment,
            )  # fmt: skip
        except OSError as error:
            raise CapabilityError(f"{python} cannot be run: {error.strerror}") from error
        watch = TreeWatch(process.pid)
        try:
            process.communicate(json.dumps(task).encode(), timeout=timeout)
        except subprocess.TimeoutExpired as error:
            raise EdgeError(f"{name} was ended after {timeout:.0f} s") from error
        finally:
            process.kill()
            process.wait()
            watch.close()
        texts = []
        for file in (out, errors):
            file.seek(0)
            texts.append(file.read().decode("utf-8", "replace"))
    return report_of(f"{name} failed", process.returncode, *texts) | {"peak_resident": watch.high_water}


_RUN_SCRIPT = """
import os, runpy, sys
script, count = sys.argv[1], int(sys.argv[2])
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])
runpy.run_path(script, run_name="__main__")
"""


class TreeWatch:
    """The high-water mark of the anonymous memory of a process and all its children, sampled from outside."""

    def __init__(self, pid: int) -> None:
        self.high_water = 0
        self._process = psutil.Process(pid)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops sampling."""
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        tree, searched = [self._process], 0.0
        while not self._stop.wait(_POLL_S):
            if time.monotonic() - searched >= _SEARCH_S:
                tree, searched = [self._process, *self._children()], time.monotonic()
            self.high_water = max(self.high_water, sum(map(_anonymous, tree)))

    def _children(self) -> list[psutil.Process]:
        """All processes below, except new ones: a child shares the memory of its parent until it starts its program,
        and would count twice."""
        try:
            children = self._process.children(recursive=True)
            return [child for child in children if time.time() - child.create_time() >= _NEW_S]
        except (psutil.Error, OSError):  # a process has ended; the next search finds the others
            return []


def _anonymous(process: psutil.Process) -> int:
    """The anonymous resident bytes of a process; 0 if it has ended."""
    try:
        info = process.memory_info()
    except (psutil.Error, OSError):
        return 0
    return int(info.rss - getattr(info, "shared", 0))


def drop_page_cache(path: Path) -> bool:
    """Drops the cached pages of a file or of a folder's files, so that the next read comes from the disk. Returns False
    if the system cannot do this."""
    if not hasattr(os, "posix_fadvise"):
        return False
    for file in _files(path):
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
    return True


def fill_page_cache(path: Path) -> None:
    """Reads a file or a folder's files completely, so that the next read does not come from the disk."""
    for name in _files(path):
        with open(name, "rb") as file:
            while file.read(1 << 20):
                pass


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())


def processor() -> str:
    """The name and number of physical cores of the machine's processor, for a report."""
    names: list[str] = []
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = names[0] if names else platform.processor() or platform.machine()
    return f"{name}, {psutil.cpu_count(logical=False) or '?'} cores"


_TICK_S = 0.02
_STOP_S = 0.5


class Stops:
    """A thread that sleeps again and again, and counts the sleeps that lasted much too long. A context manager.

    Attributes:
        seconds: total of the stops so far.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="edge-stops", daemon=True)

    def _watch(self) -> None:
        last = time.perf_counter()
        while not self._ended.wait(_TICK_S):
            now = time.perf_counter()
            self.seconds += self.stopped(now - last)
            last = now

    @staticmethod
    def stopped(passed: float) -> float:
        """The seconds of a stop between two ticks that are `passed` seconds apart; 0 if it is no stop."""
        return passed - _TICK_S if passed > _STOP_S else 0.0

    def __enter__(self) -> Stops:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()
