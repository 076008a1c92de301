"""The sandbox of the worker: a document that took it over gets nowhere, and every kind of document is still read."""

from __future__ import annotations

import marshal
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edge.apps.documents import process
from edge.apps.documents.base import Extracted
from edge.apps.documents.extraction import Extractor
from edge.apps.documents.process import WorkerProcess
from edge.apps.documents.sandbox import KILL_PROCESS, _program, landlock_version
from edge.budget import MemoryBudget
from edge.errors import InputError

Ask = Callable[..., Extracted]
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
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 100 100]/Contents 4 0 R>>",
        b"<</Length %d/Filter/FlateDecode>>stream\n%b\nendstream" % (len(stream), stream),
    ]
    body = b"%PDF-1.4\n" + b"".join(b"%d 0 obj\n%b\nendobj\n" % each for each in enumerate(objects, 1))
    return body + b"trailer<</Size 5/Root 1 0 R>>\n%%EOF"
