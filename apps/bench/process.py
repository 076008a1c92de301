"""One measurement in a process of its own: what it holds is then its own, and nothing warms up for the next."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil

from edge.errors import CapabilityError, EdgeError
from edge.resident import ResidentWatch


def measure(worker: str, task: Mapping[str, Any], *, threads: int, python: str = sys.executable) -> dict[str, Any]:
    """Runs `python -m WORKER` on a task, which it reads from stdin, and returns what it reports.

    Args:
        worker: module that calls `serve`.
        threads: for every library that would otherwise choose its own number.
        python: the interpreter, for a peer whose requirements clash with ours.

    Raises:
        CapabilityError: the worker misses a library.
        EdgeError: it failed; the message is its last line.
    """
    environment = dict(os.environ, OMP_NUM_THREADS=str(threads), OPENBLAS_NUM_THREADS=str(threads))
    done = subprocess.run(
        [python, "-m", worker], input=json.dumps(task), capture_output=True, text=True, env=environment, check=False
    )
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
        kind = CapabilityError if "No module named" in reason else EdgeError
        raise kind(f"{worker} failed on {task.get('name', 'its task')}: {reason}")
    report: dict[str, Any] = json.loads(lines[-1])
    return report


def serve(work: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """The worker's side: runs `work` on the task from stdin, watches memory, prints the report.

    A task's `watch` is the seconds between two looks at its memory. Each takes the interpreter for a tenth of a
    millisecond: where shorter times are measured and no peak is reported it is to be long.
    """
    task = json.load(sys.stdin)
    with ResidentWatch(interval=task.get("watch", 0.002)) as watch:
        report = work(task)
        watch.sample()
        report["peak_resident"] = watch.high_water
        report["peak_with_files"] = _peak_with_files()
    print(json.dumps(report))


def _peak_with_files() -> int | None:
    """High-water mark of all resident bytes, mapped files included (a peer may map its weights); None where the system
    does not tell."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), None)


def drop_page_cache(path: Path) -> bool:
    """Forgets a file's (or folder's files') cached pages, so that the next reading comes from the disk; False where
    the system cannot."""
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
    """Reads a file (or folder's files) through, so that the next reading does not come from the disk."""
    for name in _files(path):
        with open(name, "rb") as file:
            while file.read(1 << 20):
                pass


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())


def processor() -> str:
    """The machine's processor and its physical cores, for a report."""
    names: list[str] = []
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = names[0] if names else platform.processor() or platform.machine()
    return f"{name}, {psutil.cpu_count(logical=False) or '?'} cores"
