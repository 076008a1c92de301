"""Runs each measurement in a process of its own, so that it warms up nothing for the next."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

from edge.errors import CapabilityError, EdgeError
from edge.interpreter import python
from edge.resident import ResidentWatch, reported_nbytes

_MODULE = "import runpy; runpy.run_module(sys.argv[1], run_name='__main__')"


def run_worker(worker: str, task: Mapping[str, Any], *, threads: int) -> dict[str, Any]:
    """Runs the module `worker`, which calls `serve`, on a task for JSON, and returns its report. `CapabilityError` if
    it lacks a library, `EdgeError` with the last line of its output if it failed."""
    environment = dict(os.environ, OMP_NUM_THREADS=str(threads), OPENBLAS_NUM_THREADS=str(threads))
    done = subprocess.run(
        python(_MODULE, worker), input=json.dumps(task), capture_output=True, text=True, env=environment,
        check=False,
    )  # fmt: skip
    return report_of(f"{worker} failed on {task.get('name', 'its task')}", done.returncode, done.stdout, done.stderr)


def report_of(failure: str, code: int, out: str, errors: str) -> dict[str, Any]:
    """In the last line of a worker's output."""
    lines = out.strip().splitlines()
    if code != 0 or not lines:
        reason = re.sub(r"^edge\.errors\.\w+: ", "", (errors.strip().splitlines() or ["no output"])[-1])
        kind = CapabilityError if "No module named" in reason else EdgeError
        raise kind(f"{failure}: {reason}")
    report: dict[str, Any] = json.loads(lines[-1])
    return report


def serve(work: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """The worker's side. A task's `watch` is the seconds between memory samples, each of which takes the interpreter a
    tenth of a millisecond."""
    task = json.load(sys.stdin)
    with ResidentWatch(interval=task.get("watch", 0.002)) as watch:
        report = work(task)
        watch.sample()
        report["peak_resident"] = watch.high_water
        report["peak_with_files"] = reported_nbytes("VmHWM")  # because a peer may map its weights
    print(json.dumps(report))
