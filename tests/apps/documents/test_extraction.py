"""The worker process: its answers, and the faults that it survives."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path

import psutil
import pytest
from naive.waiting import until

from edge.apps.documents.base import MAX_FILE_BYTES, WORKER_NBYTES, Reason, Skipped
from edge.apps.documents.extraction import Extractor
from edge.budget import MemoryBudget
from edge.errors import BudgetExceeded, CapabilityError, InputError
from edge.trace import Trace
from tests.apps.documents.conftest import Ask, Bounds


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE}


def test_every_kind_becomes_chunks(session_extractor: Extractor, samples: dict[str, bytes], tmp_path: Path) -> None:
    kinds, titles = {}, {}
    for name, data in samples.items():
        (tmp_path / name).write_bytes(data)
        extracted = session_extractor.extract(tmp_path / name)
        kinds[name], titles[name] = extracted.kind, extracted.title
        assert extracted.chunks
        assert all(chunk.text.strip() and chunk.context for chunk in extracted.chunks)
        assert extracted.warning == ""
    assert kinds == {
        "plain.txt": "text", "notes.md": "markdown", "manual.rst": "rst", "program.py": "code", "program.c": "code",
        "table.csv": "csv", "data.json": "json", "records.jsonl": "json", "book.ipynb": "notebook",
        "page.html": "html", "paper.pdf": "pdf", "letter.docx": "docx", "talk.pptx": "pptx", "novel.epub": "epub",
        "events.ics": "calendar", "people.vcf": "contacts", "talk.srt": "transcript", "chat.txt": "chat",
        "export.json": "chat", "slack.json": "chat", "paper.tex": "latex", "books.bib": "bibtex", "letter.rtf": "rtf",
        "files.zip": "archive", "log.gz": "archive",
    }  # fmt: skip
    assert titles == {name: name for name in samples} | {
        "plain.txt": "Rivers", "notes.md": "Notes", "manual.rst": "Manual", "book.ipynb": "Rivers",
        "page.html": "Rivers & floods", "export.json": "Club", "paper.tex": "Ice & snow", "paper.pdf": "A paper",
        "letter.docx": "Rivers of the north", "talk.pptx": "Why rivers flood", "novel.epub": "A book",
    }, "a file without a title has its name"  # fmt: skip


def test_what_holds_nothing_or_is_no_file_is_skipped_with_its_reason(tmp_path: Path) -> None:
    files = {
        "empty.txt": b"", "blank.txt": b" \n\x0c\n", "binary.txt": b"\x7fELF\0\0", "a.svg": b"<svg/>",
        "large.txt": b"x",
    }  # fmt: skip
    reasons = [Reason.EMPTY, Reason.NO_TEXT, Reason.BINARY, Reason.UNSUPPORTED, Reason.TOO_LARGE]
    reasons += [Reason.SYMLINK, Reason.UNREADABLE, Reason.SPECIAL]
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    os.truncate(tmp_path / "large.txt", MAX_FILE_BYTES + 1)
    (tmp_path / "link").symlink_to("large.txt")
    with Extractor(budget=MemoryBudget(10**11, baseline=0)) as extractor:
        for name, reason in zip([*files, "link", "nowhere", "."], reasons, strict=True):
            with pytest.raises(Skipped) as skipped:
                extractor.extract(tmp_path / name)
            assert skipped.value.reason is reason, name
        with pytest.raises(Skipped, match="null"):
            extractor.extract(tmp_path / "nul\0l")
        if hasattr(os, "mkfifo"):
            os.mkfifo(tmp_path / "pipe")
            with pytest.raises(Skipped, match="not a regular file"):
                extractor.extract(tmp_path / "pipe")


@pytest.mark.parametrize("begun", [False, True])
def test_one_worker_reads_all_files_and_starts_with_the_first(
    extractor: Extractor, ask: Ask, trace: Trace, begun: bool
) -> None:
    before = children()
    if begun:
        extractor.begin()
        until(lambda: children() != before)
    pids = {ask(extractor, "pid").chunks[0].text for _ in range(3)}
    assert {int(pid) for pid in pids} == children() - before
    assert trace.snapshot() == {"documents.files": 3, "documents.chunks": 3, "documents.worker_starts": 1}
    extractor.close()
    assert children() == before
    assert ask(extractor, "say again").chunks[0].text == "again"


def test_one_that_is_closed_while_its_worker_starts_has_none(
    extractor: Extractor, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Late(threading.Thread):
        def run(self) -> None:
            time.sleep(0.2)
            super().run()

    before = children()
    monkeypatch.setattr(threading, "Thread", Late)
    extractor.begin()
    extractor.close()
    until(lambda: not any(isinstance(thread, Late) for thread in threading.enumerate()))
    assert children() == before


def test_a_paused_extractor_has_no_worker_and_reads_nothing(
    extractor: Extractor, ask: Ask, budget: MemoryBudget
) -> None:
    before = children()
    assert ask(extractor, "say on").chunks[0].text == "on"
    with ThreadPoolExecutor(1) as thread:
        with extractor.paused():
            assert children() == before
            assert "document worker" not in budget.holders()
            asked = thread.submit(ask, extractor, "say again")
            with pytest.raises(FutureTimeout):
                asked.result(timeout=0.2)
        assert asked.result(timeout=60).chunks[0].text == "again"


def test_a_file_that_hangs_can_be_given_up(extractor: Extractor, ask: Ask) -> None:
    extractor.interrupt()  # nothing is being read
    assert ask(extractor, "say on").chunks[0].text == "on"
    given_up = threading.Event()

    def interrupt() -> None:
        while not given_up.wait(0.3):  # again and again: the file may not be read yet
            extractor.interrupt()

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(InputError, match="crashed the process"):
        ask(extractor, "hang")
    given_up.set()
    thread.join()
    assert ask(extractor, "say on").chunks[0].text == "on"


@pytest.mark.parametrize("words", ["hang", "spin"])
def test_a_file_that_hangs_is_cut_off(extractor: Extractor, ask: Ask, bounds: Bounds, words: str) -> None:
    bounds(seconds=0.5)
    with pytest.raises(InputError, match=r"took longer than 0\.5 seconds"):
        ask(extractor, words)
    bounds()  # on a busy machine a new worker takes longer than half a second
    assert ask(extractor, "say on").chunks[0].text == "on"


@pytest.mark.parametrize(
    ("words", "how"), [("crash", "SIGSEGV|SIGBUS|exit code"), ("abort", "SIGABRT|exit code"), ("exit", "exit code 3")]
)
def test_a_file_that_crashes_the_worker_fails_alone(
    extractor: Extractor, ask: Ask, trace: Trace, words: str, how: str
) -> None:
    with pytest.raises(InputError, match=f"crashed the process that was reading it .({how})"):
        ask(extractor, words)
    assert ask(extractor, "say on").chunks[0].text == "on"
    assert trace.counters["documents.failed"] == 1
    # A reader that aborts may have wanted memory: it gets a second try with more.
    assert trace.counters["documents.worker_starts"] == (3 if words == "abort" and os.name == "posix" else 2)


def test_what_a_file_leaves_behind_does_not_fail_the_next_one(extractor: Extractor, ask: Ask, trace: Trace) -> None:
    assert ask(extractor, "poison on").chunks[0].text == "on"
    assert ask(extractor, "say on").chunks[0].text == "on"
    assert trace.counters["documents.worker_starts"] == 2
    with pytest.raises(InputError, match="crashed"):  # after one that read others, and then a new one
        ask(extractor, "crash")
    assert trace.counters["documents.worker_starts"] == 3


def test_a_worker_that_somebody_killed_is_replaced(extractor: Extractor, ask: Ask) -> None:
    pid = int(ask(extractor, "pid").chunks[0].text)
    os.kill(pid, getattr(signal, "SIGKILL", signal.SIGTERM))
    psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [], timeout=30)
    assert int(ask(extractor, "pid").chunks[0].text) != pid


def test_a_file_that_needs_too_much_memory_is_cut_off(
    extractor: Extractor, budget: MemoryBudget, ask: Ask, bounds: Bounds
) -> None:
    """Also where the system refuses faster than the parent's watch can look."""
    bounds(memory=40_000_000, most=80_000_000)
    for words in ("touch 300", "touch 100000", "exhaust"):
        with pytest.raises(InputError, match=r"needs more than 80\.0 MB of memory"):
            ask(extractor, words)
        assert budget.used == 0
    assert ask(extractor, "say on").chunks[0].text == "on"


def test_a_file_that_needs_more_memory_gets_it_while_there_is_some(
    misbehaving: None, ask: Ask, trace: Trace, bounds: Bounds
) -> None:
    bounds(memory=40_000_000, most=140_000_000)
    budget = MemoryBudget(150_000_000, baseline=0)
    with Extractor(budget=budget, trace=trace) as extractor:
        assert ask(extractor, "hold 70").chunks[0].text == "held 70"
        assert trace.counters["documents.worker_starts"] == 2
        assert budget.holders().get("document worker", 0) == 0  # that worker is gone
        ask(extractor, "say on")
        assert budget.holders()["document worker"] == 40_000_000
        with budget.reserve("somebody else", 100_000_000), pytest.raises(InputError, match="leaves no more"):
            ask(extractor, "hold 70")


def test_worker_and_result_are_leased(extractor: Extractor, ask: Ask, budget: MemoryBudget) -> None:
    extracted = ask(extractor, "much 5000")
    assert len(extracted.chunks) > 100
    text = sum(len(chunk.text) for chunk in extracted.chunks)
    assert budget.holders()["document worker"] == WORKER_NBYTES
    assert budget.holders()["extracted text"] >= text
    ask(extractor, "say on")
    assert budget.holders()["extracted text"] < text
    extractor.close()
    assert budget.used == 0


def test_a_result_that_does_not_fit_the_limit_fails_alone(misbehaving: None, ask: Ask) -> None:
    with Extractor(budget=MemoryBudget(WORKER_NBYTES + 100_000, baseline=0)) as extractor:
        with pytest.raises(InputError, match="does not fit the memory limit"):
            ask(extractor, "much 10000")
        assert ask(extractor, "say on").chunks[0].text == "on"


def test_a_limit_without_room_for_a_worker_is_refused(misbehaving: None, ask: Ask) -> None:
    budget = MemoryBudget(WORKER_NBYTES - 1, baseline=0)
    before = children()
    with Extractor(budget=budget) as extractor, pytest.raises(BudgetExceeded, match="document worker"):
        ask(extractor, "say on")
    assert children() == before


def test_an_idle_worker_is_small_and_lean(extractor: Extractor, ask: Ask) -> None:
    words = ask(extractor, "modules")
    modules = set(" ".join(chunk.text for chunk in words.chunks).split())
    assert not modules & {
        "numpy", "onnxruntime", "faiss", "psutil", "pypdfium2", "lxml", "markdown_it", "docutils", "click",
    }  # fmt: skip
    assert extractor._worker is not None
    assert extractor._worker.resident() < 30_000_000


def test_noise_of_a_library_does_not_get_between_the_answers(extractor: Extractor, ask: Ask) -> None:
    assert ask(extractor, "print and say").chunks[0].text == "and say"


def test_what_an_extractor_raises_is_damage(extractor: Extractor, ask: Ask) -> None:
    with pytest.raises(InputError, match=r"damaged, or not what its name says .KeyError"):
        ask(extractor, "raise")
    assert ask(extractor, "surrogate").chunks[0].text == "a ? b"


@pytest.mark.parametrize("order", ["abcde", "acbed", "aaeba"])
@pytest.mark.parametrize("bad", ["", "exit", "gone", "pipe"])
def test_files_that_are_sent_ahead_answer_as_they_do_alone(
    extractor: Extractor, tmp_path: Path, order: str, bad: str
) -> None:
    """Also if they are asked for in another order, or one of them takes the worker down or is no file any more."""
    paths = {name: tmp_path / f"{name}.xyz" for name in "abcde"}
    for name, path in paths.items():
        path.write_text(f"say file {name}")
    if bad == "exit":
        paths["b"].write_text("exit")
    elif bad:
        paths["b"].unlink()
        if bad == "pipe":
            os.mkfifo(paths["b"])

    def read(name: str, following: Sequence[Path]) -> str:
        try:
            return extractor.extract(paths[name], following).chunks[0].text
        except (InputError, Skipped) as error:
            return str(error)

    alone = [read(name, ()) for name in order]
    assert alone.count("file a") == order.count("a")
    assert [read(name, [paths[next_one] for next_one in "bcde"]) for name in order] == alone


def test_an_interrupt_leaves_no_half_answer(extractor: Extractor, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(extractor, "say on")

    def interrupted(nbytes: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(extractor, "_hold", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ask(extractor, "much 3000")
    gc.collect()
    assert ask(extractor, "say on").chunks[0].text == "on"


def test_a_worker_that_cannot_start_says_why(
    tmp_path: Path, budget: MemoryBudget, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("text")
    with Extractor(budget=budget) as extractor:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", str(tmp_path / "no-python"))
            with pytest.raises(CapabilityError, match="cannot be started"):
                extractor.extract(tmp_path / "a.txt")
            patch.setattr(sys, "executable", "")
            with pytest.raises(CapabilityError, match="cannot start another"):
                extractor.extract(tmp_path / "a.txt")
        (tmp_path / "json.py").write_text("raise RuntimeError('a broken library')")
        with monkeypatch.context() as patch:
            patch.syspath_prepend(str(tmp_path))
            with pytest.raises(CapabilityError, match="a broken library"):
                extractor.extract(tmp_path / "a.txt")
        assert budget.used == 0
        assert extractor.extract(tmp_path / "a.txt").chunks


def test_a_long_table_takes_little_memory(tmp_path: Path, budget: MemoryBudget, bounds: Bounds) -> None:
    """Its rows are read one after the other; as a list they took 650 bytes each."""
    path = tmp_path / "long.csv"
    path.write_text("first,second\n" + "".join(f"{n % 100},{n % 97}\n" for n in range(100_000)), encoding="utf-8")
    bounds(memory=48 * 10**6, most=48 * 10**6)
    with Extractor(budget=budget) as extractor:
        chunks = extractor.extract(path).chunks
    assert chunks[-1].line_end == 100_001
    assert sum(chunk.text.count("first: ") for chunk in chunks) == 100_000
