"""The worker process and the one that started it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from naive.waiting import until

from edge.apps.documents.base import Extracted
from edge.apps.documents.extraction import Extractor

Ask = Callable[..., Extracted]

SCRIPT = """
import sys, time
from pathlib import Path
from edge.apps.documents.extraction import Extractor
from edge.budget import MemoryBudget
extractor = Extractor(budget=MemoryBudget(10**10), plugins={".xyz": "edge_test_plugin:extract"})
for path in sys.argv[1:]:
    print(extractor.extract(Path(path)).chunks[0].text, flush=True)
"""


def test_it_works_from_a_script_without_a_main_guard_and_from_stdin(tmp_path: Path, plugins: dict[str, str]) -> None:
    (tmp_path / "a.xyz").write_text("say hello")
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = dict(os.environ, PYTHONPATH=str(tmp_path / "plugins"))
    for command, typed in (
        ([sys.executable, str(tmp_path / "script.py"), str(tmp_path / "a.xyz")], ""),
        ([sys.executable, "-i", "-", str(tmp_path / "a.xyz")], SCRIPT.replace("    print", " print") + "\n\n"),
        ([sys.executable, "-c", SCRIPT, str(tmp_path / "a.xyz")], ""),
    ):
        run = subprocess.run(command, input=typed, capture_output=True, text=True, env=environment, check=False)
        assert run.stdout == "hello\n", run.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL to send")
def test_a_worker_whose_parent_is_killed_ends(tmp_path: Path, plugins: dict[str, str]) -> None:
    (tmp_path / "a.xyz").write_text("pid")
    script = SCRIPT + "\ntime.sleep(1000)\n"
    environment = dict(os.environ, PYTHONPATH=str(tmp_path / "plugins"))
    parent = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "a.xyz")], stdout=subprocess.PIPE, env=environment
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE, 0.02)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGINT to send to one process")
def test_ctrl_c_is_the_parents_to_handle(extractor: Extractor, ask: Ask) -> None:
    pid = int(ask(extractor, "pid").chunks[0].text)
    os.kill(pid, signal.SIGINT)
    assert int(ask(extractor, "pid").chunks[0].text) == pid


def test_a_worker_that_hangs_without_a_parent_ends_itself(tmp_path: Path, plugins: dict[str, str]) -> None:
    (tmp_path / "a.xyz").write_text("hang")
    request = {
        "path": str(tmp_path / "a.xyz"), "name": "a", "seconds": 0.1, "memory": 10**9, "max_bytes": 100,
        "max_tokens": 100, "plugins": plugins,
    }  # fmt: skip
    worker = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import edge.apps.documents.worker as worker; worker._ORPHAN_SECONDS = 0.1; worker.main()",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=dict(os.environ, PYTHONPATH=str(tmp_path / "plugins")),
    )
    with worker:
        assert worker.stdin is not None
        worker.stdin.write(json.dumps(request).encode() + b"\n")
        worker.stdin.flush()  # and kept open: only the time can end it
        assert worker.wait(120) != 0
