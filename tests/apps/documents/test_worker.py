"""The process that reads documents: its lease, the process that started it, and hostile answers. A document may take
over the process, which then answers anything; only this file fails."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from naive.waiting import until

from edge.apps.documents import extraction, worker
from edge.apps.documents.base import LARGEST_INTEGER, WORKER_NBYTES, Extracted, Skipped, Stamp
from edge.apps.documents.extraction import Extractor
from edge.apps.documents.process import Request, WorkerProcess
from edge.budget import MemoryBudget
from edge.errors import InputError

Ask = Callable[..., Extracted]


@pytest.mark.skipif(sys.platform != "linux", reason="Linux enforces the limit")
def test_the_system_holds_the_worker_to_its_lease(budget: MemoryBudget, tmp_path: Path) -> None:
    """Writable memory counts against one limit, the stack against another: together they are the lease."""
    import resource

    (tmp_path / "a.md").write_text("The river floods in spring.", encoding="utf-8")
    with Extractor(budget=budget) as extractor:
        extractor.extract(tmp_path / "a.md")
        assert extractor._worker is not None
        pid = extractor._worker._process.pid
        most = [resource.prlimit(pid, what) for what in (resource.RLIMIT_DATA, resource.RLIMIT_STACK)]
        assert all(soft == hard for soft, hard in most), "it cannot be raised"
        assert sum(soft for soft, _ in most) + 2 * 10**6 <= budget.holders()["document worker"] == WORKER_NBYTES


@pytest.mark.skipif(sys.platform != "linux", reason="anonymous memory is read from /proc")
@pytest.mark.parametrize("kind", ["a long line", "a run of a document", "a page of a PDF", "touch 100000"])
def test_no_file_makes_the_worker_exceed_its_lease(
    plugins: dict[str, str], budget: MemoryBudget, ask: Ask, make_pdf: Callable[..., bytes], tmp_path: Path, kind: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    path = tmp_path / {"a long line": "a.txt", "a run of a document": "a.docx"}.get(kind, "a.pdf")
    if kind == "a long line":
        path.write_text("word " * 4_000_000, encoding="utf-8")
    elif kind == "a run of a document":
        space = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
        runs = "<w:r><w:t>text</w:t></w:r>" * 300_000
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as container:
            body = f"<w:body><w:p>{runs}</w:p></w:body>"
            container.writestr("word/document.xml", f"<w:document {space}>{body}</w:document>")
    elif kind == "a page of a PDF":
        path.write_bytes(make_pdf([[(50.0, 50.0, 10.0, "hello world")] * 60_000]))
    seen: dict[int, int] = {}
    done = threading.Event()

    def look() -> None:
        worker, leased = extractor._worker, budget.holders().get("document worker", 0)
        with contextlib.suppress(OSError, AttributeError, IndexError):
            status = Path(f"/proc/{worker._process.pid}/status").read_text()  # type: ignore[union-attr]
            held = int(status.split("RssAnon:")[1].split()[0]) << 10
            if budget.holders().get("document worker", 0) == leased and extractor._worker is worker:
                seen[leased] = max(seen.get(leased, 0), held)

    def look_on() -> None:
        while not done.is_set():
            look()
            time.sleep(0.0005)

    def looked_at(worker: WorkerProcess) -> None:
        look()
        kill(worker)

    def looked_at_first(self: Extractor, memory: int, request: Request) -> WorkerProcess:
        worker = started(self, memory, request)
        look()
        return worker

    # Beside other programs, the thread may get no turn while a worker reads a long line; and of one that has ended by
    # itself, nothing is left to look at.
    kill, started = WorkerProcess.kill, Extractor._started
    monkeypatch.setattr(WorkerProcess, "kill", looked_at)
    monkeypatch.setattr(Extractor, "_started", looked_at_first)

    with Extractor(budget=budget, plugins=plugins, memory=40_000_000, most_memory=90_000_000) as extractor:
        watch = threading.Thread(target=look_on)
        watch.start()
        try:
            with contextlib.suppress(InputError, Skipped):
                ask(extractor, kind) if kind.startswith("touch") else extractor.extract(path)
        finally:
            done.set()
            watch.join()
    assert seen.keys() & {40_000_000, 90_000_000}
    assert all(held <= leased for leased, held in seen.items() if leased), seen


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


DOCUMENT = {"kind": "text", "title": "t", "encoding": None, "warning": ""}
CHUNK = ["text", "context", 1, 1, None, None, ""]
MAIL = [0, "from", "to", "subject", "", "", ""]
END = {"end": True}

TOO_LARGE = 2**63


def changed(values: list[Any], place: int, value: Any) -> list[Any]:
    return [*values[:place], value, *values[place + 1 :]]


ODD = (
    None, -1, TOO_LARGE, 10**400, 1.5, float("nan"), True, "\ud800", "x" * 10_000_001, [], {}, [TOO_LARGE], ["\ud800"],
)  # fmt: skip

ANSWERS: list[list[Any]] = [
    [DOCUMENT, [], END], [DOCUMENT, [1], END], [DOCUMENT, CHUNK[:-1], END], [CHUNK, END], [{}, CHUNK, END],
    [DOCUMENT, {"mail": None}, CHUNK, END], [DOCUMENT, {"mail": []}, CHUNK, END], [{"error": None}],
    [{"error": "x"}], [{"error": "x", "reason": "no such"}], [{"error": "x", "reason": []}],
    [{"error": "\ud800", "reason": None}],
    *([DOCUMENT, changed(CHUNK, place, value), END] for place in range(len(CHUNK)) for value in ODD),
    *([{**DOCUMENT, name: value}, CHUNK, END] for name in DOCUMENT for value in ODD),
    *([DOCUMENT, {"mail": changed(MAIL, place, value)}, CHUNK, END] for place in range(len(MAIL)) for value in ODD),
]  # fmt: skip


class _Taken:
    """A process that a document has taken over."""

    alive, ran_short, sent = True, False, ()
    answers: Any = ()

    def __init__(self, **options: Any) -> None:
        pass

    def ask(self, request: Request, following: Iterable[Request] = ()) -> Iterator[Any]:
        yield from json.loads(json.dumps(self.answers))

    def resident(self) -> int:
        return 0

    def kill(self) -> None:
        pass


def test_whatever_the_worker_answers_only_the_file_fails(
    extractor: Extractor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file.txt"
    path.write_text("A text.")
    taken = 0
    monkeypatch.setattr(extraction, "WorkerProcess", _Taken)
    for number, answers in enumerate(ANSWERS):
        _Taken.answers = answers
        try:
            found = extractor.extract(path)
        except InputError:
            continue
        except Exception as error:
            raise AssertionError(f"answer {number}, {str(answers)[:200]}: {error!r}") from error
        taken += 1
        assert all(len(text) <= 100_000 for text in (found.kind, found.title, found.warning))
        for chunk in found.chunks:
            chunk.text.encode(), chunk.context.encode()
            assert all(type(n) is int and n <= LARGEST_INTEGER for n in (chunk.line_start, chunk.line_end))
            assert chunk.page is None or chunk.page <= LARGEST_INTEGER
        assert all(page <= LARGEST_INTEGER for page in found.mails)
    assert 0 < taken < len(ANSWERS) / 3, "some odd values may be stored"


@pytest.mark.parametrize("line", [b"no JSON\n", b"[" * 100_000 + b"\n", b"\xff\n", b'"text"\n', b"1\n", b"NaN\n"])
def test_an_answer_that_is_no_json_fails_the_file(
    extractor: Extractor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: bytes
) -> None:
    path = tmp_path / "file.txt"
    path.write_text("A text.")
    real = WorkerProcess.ask

    def ask(worker: WorkerProcess, *arguments: Any, **named: Any) -> Any:
        worker._process.stdout = io.BytesIO(line)
        return real(worker, *arguments, **named)

    monkeypatch.setattr(WorkerProcess, "ask", ask)
    with pytest.raises(InputError, match="crashed the process"):
        extractor.extract(path)


@pytest.mark.parametrize("time", [-(10**30), -(2**63) - 1, -1, 0, 2**63 - 1, 2**63, 10**30])
def test_times_of_files_can_be_stored(time: int, tmp_path: Path) -> None:
    class Status:
        st_size, st_ino, st_mtime_ns, st_ctime_ns = 1, 2**64 - 1, time, time

    stamp = Stamp.of(Status())  # type: ignore[arg-type]
    assert all(-LARGEST_INTEGER <= value <= LARGEST_INTEGER for value in stamp if value is not None)
    assert stamp.mtime_ns == max(-LARGEST_INTEGER, min(time, LARGEST_INTEGER))


def test_a_library_without_room_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another attempt has more memory, and a file that could not be read stays due."""

    def extract(file: Any) -> Any:
        raise OSError("lib.so: failed to map segment from shared object")

    monkeypatch.setattr(worker, "load", lambda name: extract)
    path = tmp_path / "a.txt"
    path.write_text("A text.")
    request = {"path": str(path), "name": path.name, "max_bytes": 10**6, "max_tokens": 99, "plugins": []}
    assert list(worker._answers(request, None)) == [{"out_of_memory": True}]
