"""Runs each measurement in a process of its own, so that its memory is its own and it warms up nothing for the next."""

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
    """Runs a module on a task, which the worker reads from stdin, and returns its report.

    Args:
        worker: the module to run, which calls `serve`.
        task: the task, which must be JSON.
        threads: the number of threads of libraries that would otherwise choose it themselves.

    Raises:
        CapabilityError: the worker needs a library that is not installed.
        EdgeError: the worker failed. The message is the last line of its output.
    """
    environment = dict(os.environ, OMP_NUM_THREADS=str(threads), OPENBLAS_NUM_THREADS=str(threads))
    done = subprocess.run(
        python(_MODULE, worker), input=json.dumps(task), capture_output=True, text=True, env=environment,
        check=False,
    )  # fmt: skip
    return report_of(f"{worker} failed on {task.get('name', 'its task')}", done.returncode, done.stdout, done.stderr)


def report_of(failure: str, code: int, out: str, errors: str) -> dict[str, Any]:
    """The report in the last line of a worker's output.

    Raises:
        CapabilityError: the worker lacks a library.
        EdgeError: the worker failed.
    """
    lines = out.strip().splitlines()
    if code != 0 or not lines:
        reason = re.sub(r"^edge\.errors\.\w+: ", "", (errors.strip().splitlines() or ["no output"])[-1])
        kind = CapabilityError if "No module named" in reason else EdgeError
        raise kind(f"{failure}: {reason}")
    report: dict[str, Any] = json.loads(lines[-1])
    return report


def serve(work: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """The worker's side: runs `work` on the task from stdin, samples its memory, and prints the report.

    A task's `watch` is the seconds between two memory samples. Each sample occupies the interpreter for a tenth of a
    millisecond, so `watch` should be long if shorter times are measured and no peak is reported.
    """
    task = json.load(sys.stdin)
    with ResidentWatch(interval=task.get("watch", 0.002)) as watch:
        report = work(task)
        watch.sample()
        report["peak_resident"] = watch.high_water
        report["peak_with_files"] = reported_nbytes("VmHWM")  # because a peer may map its weights
    print(json.dumps(report))
