"""The process that reads documents: its limits, its sandbox, and damaged documents."""

from __future__ import annotations

import contextlib
import io
import json
import marshal
import os
import random
import signal
import subprocess
import sys
import threading
import time
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from making.pdf import pdf_bytes, pdf_of, stream_of
from naive.waiting import until

from edge.apps.documents import extraction, process, worker
from edge.apps.documents.base import LARGEST_INTEGER, WORKER_NBYTES, Chunk, Skipped, Stamp
from edge.apps.documents.extraction import Extractor
from edge.apps.documents.file_types import KINDS
from edge.apps.documents.process import Request, WorkerProcess
from edge.apps.documents.sandbox import KILL_PROCESS, _program, landlock_version
from edge.budget import MemoryBudget
from edge.errors import InputError
from tests.apps.documents.conftest import Ask, Bounds


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
    misbehaving: None, budget: MemoryBudget, ask: Ask, bounds: Bounds, tmp_path: Path, kind: str,
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
        path.write_bytes(pdf_bytes([[(50.0, 50.0, 10.0, "hello world")] * 60_000]))
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

    bounds(memory=40_000_000, most=90_000_000)
    with Extractor(budget=budget) as extractor:
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
extractor = Extractor(budget=MemoryBudget(10**10))
print(extractor.extract(Path(sys.argv[1])).chunks[0].text, extractor._worker._process.pid, flush=True)
"""


def test_it_works_from_a_script_without_a_main_guard_and_from_stdin(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello")
    (tmp_path / "script.py").write_text(SCRIPT)
    for command in ([str(tmp_path / "script.py")], ["-i", "-"], ["-c", SCRIPT]):
        run = subprocess.run(
            [sys.executable, *command, str(tmp_path / "a.txt")],
            input=SCRIPT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.stdout.startswith("hello "), run.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL to send")
def test_a_worker_whose_parent_is_killed_ends(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello")
    script = SCRIPT + "\ntime.sleep(1000)\n"
    parent = subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "a.txt")], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline().split()[1])
    parent.kill()
    parent.wait()
    parent.stdout.close()
    until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE, 0.02)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGINT to send to one process")
def test_ctrl_c_is_the_parents_to_handle(extractor: Extractor, ask: Ask) -> None:
    pid = int(ask(extractor, "pid").chunks[0].text)
    os.kill(pid, signal.SIGINT)
    assert int(ask(extractor, "pid").chunks[0].text) == pid


def test_a_worker_that_hangs_without_a_parent_ends_itself(tmp_path: Path, misbehaving: None) -> None:
    (tmp_path / "a.xyz").write_text("hang")
    request = {"path": str(tmp_path / "a.xyz"), "name": "a", "seconds": 0.1}
    program = (
        "import socket; del socket.send_fds; import misbehaving; import edge.apps.documents.worker as worker; "
        "worker._ORPHAN_SECONDS = 0.1; worker.main(memory=10**9)"
    )
    worker = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=dict(os.environ, PYTHONPATH=str(tmp_path / "plugins"), EDGE_SANDBOX="off"),
    )  # fmt: skip
    with worker:
        assert worker.stdin is not None
        assert worker.stderr is not None
        worker.stdin.write(json.dumps(request).encode() + b"\n")
        worker.stdin.flush()  # and kept open: only the time can end it
        assert b"Timeout" in worker.stderr.read()


DOCUMENT = {"kind": "text", "title": "t", "warning": ""}
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
    request = {"path": str(path), "name": path.name}
    assert list(worker._answers(request, None)) == [{"out_of_memory": True}]


linux = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is the Linux kernel's")


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    path = tmp_path / "outside.txt"
    path.write_text("none of the document's business", encoding="utf-8")
    return path


def said(extractor: Extractor, ask: Ask, way: str) -> str:
    return ask(extractor, f"escape {way}").chunks[0].text


@linux
@pytest.mark.parametrize(
    "way",
    ["fork", "run", "socket", "pair", "look-up", "signal", "owner", "owner-of-kind", "trace", "more-memory", "mount",
     "own-namespace", "chmod"],
)  # fmt: skip
def test_the_kernel_is_not_asked_for_anything_else(extractor: Extractor, ask: Ask, outside: Path, way: str) -> None:
    assert said(extractor, ask, way).startswith("stopped")
    assert said(extractor, ask, way).startswith("stopped")  # the worker goes on


@linux
@pytest.mark.skipif(not landlock_version(), reason="this kernel has no Landlock")
@pytest.mark.parametrize("way", ["read", "read-by-path", "list", "write", "create", "beside-the-program", "delete"])
def test_no_other_file_is_touched(extractor: Extractor, ask: Ask, outside: Path, way: str) -> None:
    assert said(extractor, ask, way) in ("stopped: EACCES", "stopped: ENOSYS")
    assert sorted(path.name for path in outside.parent.iterdir()) == ["file.xyz", "outside.txt", "plugins"]
    assert outside.read_text(encoding="utf-8") == "none of the document's business"


@linux
def test_the_ways_are_open_without_the_sandbox(
    extractor: Extractor, ask: Ask, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the tests above would show nothing."""
    monkeypatch.setenv("EDGE_SANDBOX", "off")
    for way in ("read", "list", "create", "chmod", "socket", "pair", "signal", "delete"):
        assert said(extractor, ask, way) == "escaped", way


@linux
def test_what_is_in_force_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def parts() -> dict[str, bool | str]:
        worker = WorkerProcess(memory=48 * 10**6)
        worker.kill()
        return worker.sandbox

    assert parts()["system calls"] is True
    assert parts()["files"] is True or not landlock_version()
    monkeypatch.setenv("EDGE_SANDBOX", "off")
    assert parts() == {"files": "switched off by EDGE_SANDBOX", "system calls": "switched off by EDGE_SANDBOX"}


@pytest.fixture
def by_path(monkeypatch: pytest.MonkeyPatch, budget: MemoryBudget) -> Iterator[Extractor]:
    """A worker that opens files itself, as on Windows."""
    monkeypatch.setattr(process, "PASSES_DESCRIPTORS", False)
    monkeypatch.setenv("EDGE_SANDBOX", "off")
    monkeypatch.setattr(process, "_BOOTSTRAP", f"import socket; del socket.send_fds; {process._BOOTSTRAP}")
    with Extractor(budget=budget) as extractor:
        yield extractor


def test_a_worker_that_opens_files_itself_reads_the_same(
    by_path: Extractor, session_extractor: Extractor, samples: dict[str, bytes], tmp_path: Path
) -> None:
    for name, data in samples.items():
        (tmp_path / name).write_bytes(data)
        assert by_path.extract(tmp_path / name) == session_extractor.extract(tmp_path / name), name


@linux
def test_no_compiled_module_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: MemoryBudget, samples: dict[str, bytes]
) -> None:
    """The worker may write 64 kB. Python would leave the beginning of a larger compiled module, and read that later."""
    monkeypatch.setenv("EDGE_SANDBOX", "off")
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path / "compiled"))
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    (tmp_path / "paper.pdf").write_bytes(samples["paper.pdf"])
    with Extractor(budget=budget) as extractor:
        assert extractor.extract(tmp_path / "paper.pdf").chunks
    written = list((tmp_path / "compiled").rglob("*.pyc"))
    assert written, "what the worker imports before it is limited"
    for path in written:
        marshal.loads(path.read_bytes()[16:])


@linux
def test_a_filter_judges_by_architecture_first() -> None:
    """Numbers of system calls mean other calls under another architecture."""
    for machine, number in (("x86_64", 0xC000003E), ("aarch64", 0xC00000B7)):
        program = _program(machine, {"read": None, "stat": None}, 1, 2)
        assert program[1] >> 32 == number
        assert program[2] >> 32 == KILL_PROCESS
        assert program[-1] >> 32 == 2
        # A call that the architecture lacks takes no place.
        assert len(program) == {"x86_64": 11, "aarch64": 7}[machine]


@linux
def test_a_library_that_gets_no_more_memory_is_said_to_need_it(tmp_path: Path, budget: MemoryBudget) -> None:
    path = tmp_path / "large.pdf"
    path.write_bytes(_pdf_of_one_long_page(300_000_000))
    with Extractor(budget=budget) as extractor:
        with pytest.raises(InputError, match=r"needs more than 192 MB of memory"):
            extractor.extract(path)
        (tmp_path / "next.txt").write_text("The next file.", encoding="utf-8")
        assert extractor.extract(tmp_path / "next.txt").chunks


def _pdf_of_one_long_page(nbytes: int) -> bytes:
    """A small file whose page description unpacks to so many blanks."""
    packer = zlib.compressobj(9)
    blanks = b" " * 10**6
    stream = b"".join(packer.compress(blanks) for _ in range(nbytes // 10**6)) + packer.flush()
    page = b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 100 100]/Contents 4 0 R>>"
    tree = b"<</Type/Pages/Kids[3 0 R]/Count 1>>"
    return pdf_of(b"<</Type/Catalog/Pages 2 0 R>>", tree, page, stream_of(stream, names=b"/Filter/FlateDecode"))


def outcome(extractor: Extractor, path: Path) -> int:
    """How many chunks a file has; 0 if it is refused. Anything but an `InputError` fails the test."""
    try:
        extracted = extractor.extract(path)
    except InputError as error:
        sentence = str(error)
        assert sentence
        assert "\n" not in sentence
        assert "took longer" not in sentence
        assert "crashed" not in sentence
        return 0
    for chunk in extracted.chunks:
        assert isinstance(chunk, Chunk)
        assert chunk.text.strip()
        assert 1 <= chunk.line_start <= chunk.line_end
        assert chunk.page is None or chunk.page >= 1
        chunk.text.encode("utf-8")
        chunk.context.encode("utf-8")
    return len(extracted.chunks)


def test_flipped_bits(session_extractor: Extractor, samples: dict[str, bytes], tmp_path: Path) -> None:
    for name, sample in samples.items():
        chance = random.Random(name)
        for flips in (1, 1, 1, 1, 3, 3, 10, 10, 100):
            data = bytearray(sample)
            for _ in range(flips):
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            (tmp_path / name).write_bytes(data)
            outcome(session_extractor, tmp_path / name)


@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.binary(min_size=1, max_size=400),
    name=st.sampled_from(sorted(f"a{suffix}" for kind in KINDS for suffix in kind.suffixes)),
)
def test_any_bytes_under_any_name(session_extractor: Extractor, tmp_path: Path, content: bytes, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    outcome(session_extractor, path)


@pytest.mark.parametrize("name", ["a.docx", "a.html"])
def test_want_of_memory_is_not_called_damage(tmp_path: Path, bounds: Bounds, name: str) -> None:
    """libxml2 reports it as a syntax error, and the worker may be far below its limit then."""
    path = tmp_path / name
    if name == "a.html":
        path.write_text("<p>word</p>" * 300_000)
    else:
        body = "".join("<w:p><w:r><w:t>word</w:t></w:r></w:p>" for _ in range(150_000))
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("word/document.xml", f'<w:document xmlns:w="w"><w:body>{body}</w:body></w:document>')
    for memory in range(40, 56, 4):
        bounds(memory=memory * 10**6, most=memory * 10**6)
        with Extractor(budget=MemoryBudget(10**10)) as extractor, pytest.raises(InputError, match="of memory"):
            extractor.extract(path)
