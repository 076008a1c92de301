"""The lease of the process that reads documents is an upper bound of its memory."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from edge.apps.documents.base import WORKER_NBYTES, Extracted, Skipped
from edge.apps.documents.extraction import Extractor, WorkerProcess
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

    def looked_at_first(self: Extractor, memory: int) -> WorkerProcess:
        worker = started(self, memory)
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
