"""Reading ahead: bounded, under leases, and over when its reader stops; batches that do not fit beside it; progress."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from naive.waiting import PATIENCE_S, until

from edge.apps.collection.catalog import Catalog, migrations
from edge.apps.collection.intake import Advance, Preparation, Prepared, content_hash, promising, with_more_memory
from edge.apps.collection.report import Tally
from edge.apps.documents.base import Chunk, Extracted
from edge.apps.documents.extraction import Extractor
from edge.apps.documents.opened import open_regular
from edge.apps.store.database import Database
from edge.budget import MemoryBudget
from edge.errors import BudgetExceeded, CapabilityError, InputError
from edge.ivf.index import VectorIndex
from edge.trace import Trace
from tests.apps.collection.conftest import Check, Folder, Make


class Texts:
    """An extractor of texts of a thousand characters; notes the requests."""

    def __init__(self) -> None:
        self.read: list[str] = []

    def extract(self, path: Path, following: Sequence[Path] = ()) -> Extracted:
        self.read.append(path.name)
        return Extracted("text", path.name, (Chunk("x" * 1000, "", 1, 1, None),))

    def interrupt(self) -> None:
        raise AssertionError("nothing takes long here")


@pytest.fixture
def budget() -> MemoryBudget:
    return MemoryBudget(50_000_000, baseline=0)


@pytest.fixture
def database(tmp_path: Path, budget: MemoryBudget) -> Database:
    database = Database(tmp_path / "edge.db", migrations(), budget=budget)
    with database.write() as db:
        for number in range(30):
            path = tmp_path / f"{number:02d}.txt"
            path.write_text(str(number))
            Catalog().insert(db, str(path), str(tmp_path), due=True)
    return database


@pytest.fixture
def prepare(database: Database, budget: MemoryBudget, tmp_path: Path) -> Callable[..., Preparation]:
    return lambda extractor, **options: Preparation(
        database, Catalog().due(database, [str(tmp_path)]), extractor, budget, Tally(), **options
    )


def settled(texts: Texts) -> int:
    """How many files have been read when nothing more is."""
    count = -1
    while count != len(texts.read):
        count = len(texts.read)
        time.sleep(0.2)
    return count


def test_it_reads_ahead_as_far_as_it_may(
    prepare: Callable[..., Preparation], budget: MemoryBudget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge.apps.collection.intake.AHEAD_BYTES", 5_000)
    texts = Texts()
    with prepare(texts) as preparation:
        until(lambda: len(texts.read) >= 3)
        assert settled(texts) <= 5
        until(lambda: budget.holders()["texts to embed"] > 4_000)
        assert budget.holders()["texts to embed"] < 8_000
        names = []
        for prepared in preparation:
            names.append(Path(prepared.file.path).name)
            prepared.lease.release()
        assert names == [f"{number:02d}.txt" for number in range(30)]
    assert "texts to embed" not in budget.holders()


@pytest.mark.parametrize(
    ("query", "nbytes", "chosen"),
    [
        ("how is bread baked", 1, ["07"]),
        ("BREAD", 2_500, ["07", "11", "03"]),
        ("river bread", 1, ["03"]),
        ("what is it", 2_500, ["00", "01", "02"]),
        ("", 1, ["00"]),
        ("gone", 1, ["00"]),
    ],
)
def test_files_with_the_words_of_a_query_are_read_first(
    database: Database, budget: MemoryBudget, tmp_path: Path, query: str, nbytes: int, chosen: list[str]
) -> None:
    texts = {"03": "a river and bread", "07": "bread bread, baking", "11": "Bread baker", "05": "a river"}
    for name, text in texts.items():
        (tmp_path / f"{name}.txt").write_text(text)
    (tmp_path / "09.txt").unlink()
    found = list(promising(database, Catalog(), [str(tmp_path)], query, nbytes, budget))
    assert [Path(file.path).stem for file in found] == chosen
    assert "files to choose from" not in budget.holders()


def test_what_nobody_takes_is_given_back(prepare: Callable[..., Preparation], budget: MemoryBudget) -> None:
    texts = Texts()
    with prepare(texts) as preparation:
        next(iter(preparation)).lease.release()
        settled(texts)
    assert "texts to embed" not in budget.holders()


def test_a_text_that_does_not_fit_is_a_failure_of_its_file_alone(
    prepare: Callable[..., Preparation], budget: MemoryBudget
) -> None:
    class Large(Texts):
        def extract(self, path: Path, following: Sequence[Path] = ()) -> Extracted:
            if path.name == "07.txt":
                return Extracted("text", "", (Chunk("x" * 60_000_000, "", 1, 1, None),))
            return super().extract(path)

    with prepare(Large()) as preparation:
        found = list(preparation)
    assert [Path(one.file.path).name for one in found if one.status == "failed"] == ["07.txt"]
    assert "60.0 MB does not fit the memory limit" in next(one.reason for one in found if one.status == "failed")


def test_outcomes(prepare: Callable[..., Preparation], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge.apps.collection.intake._RACY_NS", 0)

    class Picky(Texts):
        def extract(self, path: Path, following: Sequence[Path] = ()) -> Extracted:
            if path.name == "01.txt":
                raise InputError("a damaged text")
            if path.name == "02.txt":
                path.unlink()
                raise InputError("cannot be read: no such file")
            return super().extract(path)

    (tmp_path / "03.txt").unlink()
    with prepare(Picky()) as preparation:
        found = {Path(one.file.path).name: one for one in preparation}
    assert [found[f"0{i}.txt"].status for i in range(5)] == ["indexed", "failed", "gone", "gone", "indexed"]
    assert found["01.txt"].reason == "a damaged text"
    assert not found["00.txt"].racy
    assert found["00.txt"].stamp.mtime_ns == (tmp_path / "00.txt").stat().st_mtime_ns
    assert found["00.txt"].hash == content_hash(tmp_path / "00.txt")


@pytest.mark.skipif(os.name != "posix", reason="pipes and devices are files there alone")
def test_what_takes_a_file_s_place_is_not_waited_for(prepare: Callable[..., Preparation], tmp_path: Path) -> None:
    """After the scan: the preparation opened a pipe, and waited for its writer without end."""
    pipe, device, folder, gone = (tmp_path / f"0{number}.txt" for number in range(4))
    for path in (pipe, device, folder):
        path.unlink()
    os.mkfifo(pipe)
    device.symlink_to("/dev/zero")
    folder.mkdir()
    found: dict[str, Prepared] = {}

    def read() -> None:
        with prepare(Texts()) as preparation:
            found.update((Path(one.file.path).name, one) for one in preparation)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    special = "not a regular file (a pipe, a socket, a device or a folder)"
    outcomes = [(found[path.name].status, found[path.name].reason) for path in (pipe, device, folder, gone)]
    link = "a symbolic link, which is not followed"
    assert outcomes == [("skipped", special), ("skipped", link), ("skipped", special), ("indexed", "")]


@pytest.mark.parametrize("moment", ["hashed", "read"])
def test_a_file_that_vanishes_after_the_look_at_its_size_is_gone(
    prepare: Callable[..., Preparation], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    class Late(Texts):
        def extract(self, path: Path, following: Sequence[Path] = ()) -> Extracted:
            if path.name == "01.txt":
                path.unlink()
                open_regular(path)
            return super().extract(path)

    def hashed(path: Path) -> bytes:
        if path.name == "01.txt" and moment == "hashed":
            path.unlink()
        return content_hash(path)

    monkeypatch.setattr("edge.apps.collection.intake.content_hash", hashed)
    with prepare(Late()) as preparation:
        found = {Path(one.file.path).name: one.status for one in preparation}
    assert (found["00.txt"], found["01.txt"]) == ("indexed", "gone")


def test_an_extractor_that_cannot_work_at_all_is_the_run_s_error(prepare: Callable[..., Preparation]) -> None:
    class Broken(Texts):
        def extract(self, path: Path, following: Sequence[Path] = ()) -> Extracted:
            raise CapabilityError("the worker cannot be started")

    with prepare(Broken()) as preparation, pytest.raises(CapabilityError, match="cannot be started"):
        list(preparation)


def test_who_stops_does_not_wait_for_a_slow_file(prepare: Callable[..., Preparation], budget: MemoryBudget) -> None:
    begun, interrupted = threading.Event(), threading.Event()
    given_up: list[str] = []

    class Slow(Texts):
        """Reads every file twice, as one that needs much memory is."""

        def extract(self, path: Path, following: Sequence[Path] = ()) -> Extracted:
            begun.set()
            for _ in range(2):
                assert interrupted.wait(PATIENCE_S), "nobody interrupted"
                interrupted.clear()
            given_up.append(path.name)
            raise InputError("crashed the process that was reading it (SIGKILL)")

        def interrupt(self) -> None:
            interrupted.set()

    with prepare(Slow()):
        assert begun.wait(60)
    assert given_up == ["00.txt"]
    assert "texts to embed" not in budget.holders()


def refusal() -> BudgetExceeded:
    return BudgetExceeded("index writer needs more", owner="index writer", asked=1, free=0, needed=1)


class Reading:
    """An extractor that can be paused."""

    def __init__(self) -> None:
        self.is_paused = False

    def extract(self, path: Path) -> Any:
        raise AssertionError("nothing is read here")

    def interrupt(self) -> None:
        raise AssertionError("nothing is read here")

    @contextmanager
    def paused(self) -> Iterator[None]:
        self.is_paused = True
        yield
        self.is_paused = False


def test_work_is_done_again_only_if_the_memory_was_not_enough() -> None:
    reading, seen = Reading(), []

    def work() -> str:
        seen.append(reading.is_paused)
        if not reading.is_paused:
            raise refusal()
        return "done"

    assert with_more_memory(reading, lambda: "at once") == "at once"
    assert with_more_memory(reading, work) == "done"
    assert seen == [False, True]
    with pytest.raises(BudgetExceeded):
        with_more_memory(None, work)


def test_a_batch_that_did_not_fit_is_written_whole_while_no_file_is_read(
    make: Make, folder: Folder, monkeypatch: pytest.MonkeyPatch, consistent: Check
) -> None:
    """The second attempt replaces the old passages, as the first one would have done."""
    folder.write("a.md", "The river floods in spring.\n\n" * 3)
    folder.write("b.md", "Bread needs time.\n")
    collection = make()
    collection.index([folder.path])
    folder.write("a.md", "# Glaciers\n\nThe glacier melts in summer.\n")
    folder.write("c.md", "The mill is very old.\n")
    paused: list[bool] = []
    pausing = Extractor.paused
    adding = VectorIndex.add

    @contextmanager
    def watched(self: Extractor) -> Iterator[None]:
        with pausing(self):
            paused.append(True)
            yield
            paused.pop()

    def refused(self: VectorIndex, db: Any, ids: Any, vectors: Any) -> None:
        adding(self, db, ids, vectors)
        if not paused:
            raise refusal()

    monkeypatch.setattr(Extractor, "paused", watched)
    monkeypatch.setattr(VectorIndex, "add", refused)
    collection.index([folder.path])
    fresh = make("fresh")
    monkeypatch.undo()
    fresh.index([folder.path])
    for query in ("river", "glacier", "mill", "bread"):
        expected = [(hit.path, hit.text) for hit in fresh.search(query, rerank=False)]
        assert [(hit.path, hit.text) for hit in collection.search(query, rerank=False)] == expected
    consistent(collection)


def files(folder: Path, sizes: dict[str, int]) -> list[str]:
    for name, size in sizes.items():
        (folder / name).write_bytes(b"x" * size)
    return [str(folder / name) for name in sizes]


def test_the_estimate_follows_what_was_read_and_ends_exact(tmp_path: Path) -> None:
    said: list[tuple[int, int, str]] = []
    paths = files(tmp_path, {**{f"{i}.pdf": 100_000 for i in range(10)}, **{f"{i}.txt": 10_000 for i in range(10)}})
    advance = Advance(lambda *told: said.append(told), [*paths, str(tmp_path / "gone")], Trace(), 6)
    for path in paths:  # a PDF of 100 kB has 5 passages, a text of 10 kB has 12
        pdf = path.endswith(".pdf")
        advance.read(path, 100_000 if pdf else 10_000, 5 if pdf else 12)
    first, second = f"{said[0][1]:,} passages searchable by meaning", f"{said[1][1]:,} passages searchable by meaning"
    assert said[0][0::2] == (0, f"0 of 21 files read, 0 of about {first}")
    assert said[1][2] == f"1 of 21 files read, 0 of about {second}: 0.pdf"
    totals = [total for _, total, _ in said]
    assert totals[-1] == 170
    assert all(100 < total < 350 for total in totals[3:])  # after three files it is near, and stays near
    with advance.embedding():
        for done in (100, 170):
            advance.embedded(done, 170)
    assert said[-2:] == [
        (done, 170, f"20 of 21 files read, {done} of 170 passages searchable by meaning") for done in (100, 170)
    ]


def test_layers_move_it_within_a_batch(tmp_path: Path) -> None:
    said: list[int] = []
    trace = Trace()
    advance = Advance(lambda done, total, place: said.append(done), files(tmp_path, {"a.txt": 1000}), trace, 4)
    advance.read(str(tmp_path / "a.txt"), 1000, 8)
    with advance.embedding():
        for _ in range(4):
            trace.count("forward.evaluations", 8)
        advance.embedded(8, 16)
        trace.count("forward.evaluations", 8)
        for _ in range(9):  # some of them another search's
            trace.count("forward.evaluations", 8)
    trace.count("forward.evaluations", 8)  # nobody listens any more
    assert said[2:] == [2, 4, 6, 8, 8, 10, 12, 14, *[16] * 7]
