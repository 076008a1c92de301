"""Runs each measurement in a process of its own, so that its memory is its own and it warms up nothing for the next."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import click
import psutil

from edge.apps.bench.worker import report_of
from edge.errors import CapabilityError, EdgeError

Item = TypeVar("Item")
Result = TypeVar("Result")

MAIN = Path(__file__).with_name("__main__.py")


def measure(
    work: Callable[[dict[str, Any]], dict[str, Any]] | Path,
    task: Mapping[str, Any],
    *,
    threads: int,
    python: str = sys.executable,
    timeout: float | None = None,
) -> dict[str, Any]:
    """Runs a function of a benchmark, or a script, on a task in a new process, and returns its report.

    The memory of the process and its children is measured from outside, so that all programs are measured alike. A
    function samples its own process, too, which finds shorter peaks. `peak_resident` is the larger of both. A script
    reads the task from stdin and prints its report as the last line, in JSON; it runs in an empty folder, and its
    Python may be that of another program and lack this one. `threads` restricts libraries and, where the system can, a
    script's processors.
    """
    count = str(threads)
    environment = os.environ | {
        "OMP_NUM_THREADS": count, "OPENBLAS_NUM_THREADS": count, "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    interpreter = os.path.abspath(shutil.which(python) or python)  # a script runs in another folder
    # The output goes to files: a pipe would stay open as long as any process that the work has left behind.
    with tempfile.TemporaryDirectory() as empty, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        if isinstance(work, Path):
            name, folder = task.get("name", work.stem), empty
            command = ["-c", _RUN_SCRIPT, str(work.resolve()), count]
        else:
            name, folder = task.get("name", work.__name__), None
            command = [str(MAIN), "--worker", f"{work.__module__}:{work.__name__}"]
        try:
            process = subprocess.Popen(
                [interpreter, *command], stdin=subprocess.PIPE, stdout=out, stderr=errors, cwd=folder, env=environment
            )
        except OSError as error:
            raise CapabilityError(f"{python} cannot be run: {error.strerror}") from error
        with watched(process.pid) as watch:
            try:
                process.communicate(json.dumps(task).encode(), timeout=timeout)
            except subprocess.TimeoutExpired as error:
                raise EdgeError(f"{name} was ended after {timeout:.0f} s") from error
            finally:
                process.kill()
                process.wait()
        texts = []
        for file in (out, errors):
            file.seek(0)
            texts.append(file.read().decode("utf-8", "replace"))
    report = report_of(f"{name} failed", process.returncode, *texts)
    return report | {"peak_resident": max(watch.peak, report.get("peak_resident", 0))}


_RUN_SCRIPT = """
import os, runpy, sys
script, count = sys.argv[1], int(sys.argv[2])
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])
runpy.run_path(script, run_name="__main__")
"""


def say(text: str) -> None:
    click.echo(text, err=True)


def kept(file: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The report that is stored in a file; it is made unless it is there."""
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(make()), encoding="utf-8")
    report: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return report


def in_turn(
    rounds: int, names: Iterable[str], run: Callable[[str], Result]
) -> tuple[dict[str, list[Result]], dict[str, str]]:
    """The results of every system in each round, and a sentence for each system that lacks a library here.

    The systems take turns (A B A B ...), so that a slow minute of the machine does not fall on one of them alone.
    """
    found: dict[str, list[Result]] = {}
    left_out: dict[str, str] = {}
    for turn in range(rounds):
        for name in names:
            if name in left_out:
                continue
            say(f"round {turn + 1} of {rounds}: {name}")
            try:
                found.setdefault(name, []).append(run(name))
            except CapabilityError as error:
                found.pop(name, None)
                left_out[name] = f"{name} was left out: {error}."
                say(f"  {left_out[name]}")
    if not found:
        raise EdgeError("nothing was measured")
    return found, left_out


def timed(
    ask: Callable[[Item], Result], items: Iterable[Item], before: Callable[[], object] = lambda: None
) -> tuple[list[Result], list[float]]:
    """The results for all items, one after the other, and the seconds of each. `before` is called first, and does not
    count."""
    results, seconds = [], []
    for item in items:
        before()
        started = time.perf_counter()
        results.append(ask(item))
        seconds.append(time.perf_counter() - started)
    return results, seconds


@contextmanager
def watched(pid: int) -> Iterator[Any]:
    """The high-water mark (`peak`) of the anonymous memory of a process and all its children, sampled from outside, on
    Linux; 0 elsewhere. It is looked at less often than in the campaign, which would disturb the measurement."""
    if sys.platform == "linux":
        from campaign.sampler import Sampler

        with Sampler(pid, interval=0.01, search=0.1) as sampler:
            yield sampler
    else:
        yield SimpleNamespace(peak=0)


def drop_page_cache(path: Path) -> None:
    """Drops the cached pages of a file or of a folder's files, so that the next read comes from the disk, where the
    system can do this."""
    for file in _files(path) if hasattr(os, "posix_fadvise") else ():
        try:
            descriptor = os.open(file, os.O_RDONLY)
        except FileNotFoundError:  # a draft that has its own name by now
            continue
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def fill_page_cache(path: Path) -> None:
    """Reads a file or a folder's files completely, so that the next read does not come from the disk."""
    for name in _files(path):
        with open(name, "rb") as file:
            while file.read(1 << 20):
                pass


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())


def processor() -> str:
    names: list[str] = []
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = names[0] if names else platform.processor() or platform.machine()
    return f"{name}, {psutil.cpu_count(logical=False) or '?'} cores"
