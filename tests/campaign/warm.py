"""Runs commands in forks of a process that has imported the program already, in a tenth of a start's time: for the many
looks at the files after an attack."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import runpy
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_IMPORTED = (
    "edge.apps.cli", "edge.apps.commands.models", "edge.apps.commands.index", "edge.apps.commands.search",
    "edge.apps.verbs.searching", "edge.apps.commands.contents", "edge.apps.collection.care",
    "edge.apps.collection.collection", "edge.apps.collection.intake", "edge.apps.collection.writing",
    "edge.apps.memory.command", "edge.apps.memory.memory", "edge.apps.memory.care",
    "edge.apps.commands.texts", "edge.apps.commands.texts",
    "edge.devices.cpu", "edge.devices.faiss_codec", "faiss", "numpy.ma",
    "edge.ivf.maintenance.compaction", "edge.ivf.maintenance.retraining",
    "edge.runtimes.reranker", "edge.runtimes.embedder", "edge.runtimes.native.runtime",
    "tokenizers", "safetensors.numpy",
)  # fmt: skip


class Warm:
    """The process that waits for commands."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def run(
        self,
        arguments: Sequence[str],
        work: Path,
        environment: Mapping[str, str],
        out: Path,
        err: Path,
        patience: float,
    ) -> tuple[int, bool]:
        """Runs `edge ARGUMENTS`. The exit code (negative for a signal), and whether it had to be killed."""
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, __file__],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
                start_new_session=True,  # Ctrl-C is for the campaign
            )  # fmt: skip
        task = {
            "arguments": list(arguments), "work": str(work), "environment": dict(environment),
            "out": str(out), "err": str(err), "patience": patience,
        }  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(task) + "\n")
        self._process.stdin.flush()
        code, hung = json.loads(self._process.stdout.readline())
        return code, hung

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait()
            self._process = None


def _serve() -> None:
    import importlib

    for name in _IMPORTED:
        importlib.import_module(name)
    from naive.unflushed import leave_unflushed

    leave_unflushed()  # a look at the files is not what an attack is tried on
    gc.collect()
    gc.freeze()  # no command looks through the objects of these modules
    for line in sys.stdin:
        print(json.dumps(_run(json.loads(line))), flush=True)


def _run(task: dict[str, Any]) -> tuple[int, bool]:
    child = os.fork()
    if child == 0:
        _become(task)
    waited, before = 0.0, time.monotonic()
    hung = False
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), hung
        now = time.monotonic()
        waited += min(now - before, 1.0)  # where the whole campaign was suspended, the command was, too
        before = now
        if waited > task["patience"] and not hung:
            hung = True
            with contextlib.suppress(ProcessLookupError):  # it has ended, or has no group of its own yet
                os.killpg(child, 9)
        time.sleep(0.003)


def _become(task: dict[str, Any]) -> None:
    """The child: one command, as if it had been started from a shell."""
    try:
        os.setsid()
        os.chdir(task["work"])
        os.environ.clear()
        os.environ.update(task["environment"])
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(task[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
        sys.stdin, sys.stdout, sys.stderr = (
            os.fdopen(0, encoding="utf-8"), os.fdopen(1, "w", encoding="utf-8"), os.fdopen(2, "w", encoding="utf-8"),
        )  # fmt: skip
        from edge.apps.cli import main

        sys.argv = ["edge", *task["arguments"]]
        code = 0
        try:
            main(task["arguments"])
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 2
        except BaseException:
            import traceback

            traceback.print_exc()
            code = 1
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    finally:
        os._exit(code)


if __name__ == "__main__":
    runpy.run_path(str(Path(__file__).resolve().parents[1] / "packages.py"))["load"]()
    sys.path[:] = [place for place in sys.path if place and Path(place).resolve() != Path(__file__).resolve().parent]
    _serve()
