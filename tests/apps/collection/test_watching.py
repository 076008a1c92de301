"""Watching a folder: real files, real notifications."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from edge.apps.collection.collection import Collection
from edge.apps.collection.discovery import Discovery
from edge.apps.collection.paths import on_the_way
from edge.apps.collection.report import IndexReport
from edge.apps.collection.watching import Watcher
from edge.errors import BudgetExceeded, InputError, StorageError
from tests.apps.collection.conftest import Check


@pytest.fixture(autouse=True)
def short_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pauses between two looks are shorter: most of the tests' time is waiting for them."""
    # A busy machine stops threads, too.
    for name, value in {"_TICK_MS": 50, "_QUIET_MS": 50, "_POLL_S": 0.05, "_STALLED_S": 60.0}.items():
        monkeypatch.setattr(f"edge.apps.collection.watching.{name}", value)


class Watched:
    """A watcher at work in a thread, and its messages."""

    def __init__(self, collection: Collection, **options: Any) -> None:
        self.collection = collection
        self.reports: list[IndexReport] = []
        self.notices: list[str] = []
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._watcher = Watcher(collection, report=self.reports.append, notice=self.notices.append, **options)
        self.ticks = 0
        self._changes, self._watcher._changes = self._watcher._changes, self._counted  # type: ignore[method-assign]
        self._thread = threading.Thread(target=self._run)

    def _counted(self, stop: threading.Event) -> Iterator[set[str]]:
        for changed in self._changes(stop):
            self.ticks += 1
            yield changed

    def _run(self) -> None:
        try:
            self._watcher.run(self._stop)
        except BaseException as error:
            self._error = error

    def names(self) -> set[str]:
        return {Path(file.path).name for file in self.collection.files()}

    def until(self, holds: Callable[[], bool]) -> None:
        end = time.monotonic() + 60
        while not holds():
            assert self._error is None, self._error
            assert time.monotonic() < end, (self.names(), self.reports, self.notices)
            time.sleep(0.02)

    def settle(self) -> None:
        """Waits until the watcher has nothing to do and is notified again."""
        seen = self.ticks
        self.until(lambda: self.ticks > seen + 1 and not self._watcher._everything)

    def __enter__(self) -> Watched:
        self._thread.start()
        self.until(lambda: len(self.reports) > 0)
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()


@contextmanager
def no_rebuild(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[str]]]:
    """Records the paths that the watcher looks at; a full comparison fails."""
    looked: list[list[str]] = []
    update = Collection.update

    def record(self: Collection, paths: Any, **options: Any) -> IndexReport:
        looked.append(list(paths))
        return update(self, looked[-1], **options)

    def refuse(self: Collection, *_: Any, **__: Any) -> IndexReport:
        raise AssertionError("everything was compared")

    with monkeypatch.context() as patch:
        patch.setattr(Collection, "update", record)
        patch.setattr(Collection, "index", refuse)
        yield looked


def changes_are_followed(watched: Watched, small: Any) -> None:
    """A file comes, changes and goes."""
    assert watched.names() == {"rivers.md", "bread.md", "ice.txt", "found-at-start.txt"}
    (small.path / "new.txt").write_text("A new file about volcanoes.")
    watched.until(lambda: "new.txt" in watched.names())
    (small.path / "new.txt").write_text("It is about geysers now, and longer than before.")
    collection = watched.collection
    watched.until(lambda: any("geysers" in hit.text for hit in collection.search("geysers", 9, rerank=False)))
    os.remove(small.path / "new.txt")
    watched.until(lambda: "new.txt" not in watched.names())
    assert watched.names() == {"rivers.md", "bread.md", "ice.txt", "found-at-start.txt"}


def test_only_what_changes_is_looked_at(collection: Collection, small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    collection.index(small.path)
    small.write("found-at-start.txt", "Something that came while nobody watched.")
    with Watched(collection) as watched, no_rebuild(monkeypatch) as looked:
        changes_are_followed(watched, small)
    assert {path for paths in looked for path in paths} == {str(small.path / "new.txt")}
    assert watched.notices == []


def test_polling(collection: Collection, small: Any) -> None:
    collection.index(small.path)
    small.write("found-at-start.txt", "Something that came while nobody watched.")
    with Watched(collection, poll=True) as watched:
        changes_are_followed(watched, small)
    assert watched.notices == []


def test_folders_that_come_and_go_and_rules_that_change(
    collection: Collection, small: Any, tmp_path: Path, consistent: Check
) -> None:
    collection.index(small.path)
    elsewhere = tmp_path / "elsewhere" / "inner"
    elsewhere.mkdir(parents=True)
    (elsewhere / "moved.txt").write_text("A file in a folder that is moved in.")
    with Watched(collection) as watched:
        shutil.move(elsewhere.parent, small.path / "arrived")
        watched.until(lambda: "moved.txt" in watched.names())
        (small.path / ".gitignore").write_text("arrived/\n")
        watched.until(lambda: "moved.txt" not in watched.names())
        os.remove(small.path / ".gitignore")
        watched.until(lambda: "moved.txt" in watched.names())
        (small.path / ".edgeignore").write_text("arrived/\n")
        watched.until(lambda: "moved.txt" not in watched.names())
        os.remove(small.path / ".edgeignore")
        watched.until(lambda: "moved.txt" in watched.names())
        shutil.rmtree(small.path / "arrived")
        watched.until(lambda: "moved.txt" not in watched.names())
        (small.path / ".hidden.txt").write_text("hidden")
        (small.path / "seen.txt").write_text("seen")
        watched.until(lambda: "seen.txt" in watched.names())
        assert ".hidden.txt" not in watched.names()
    consistent(collection)


def test_a_root_that_is_a_file_may_be_replaced(collection: Collection, small: Any) -> None:
    single = small.path / "ice.txt"
    collection.index(single)
    with Watched(collection) as watched:
        replacement = small.write("replacement", "Ice is cold, the new file says.")
        os.replace(replacement, single)
        watched.until(lambda: any("new file" in hit.text for hit in collection.search("ice", 5, rerank=False)))
        assert watched.names() == {"ice.txt"}


def test_without_notifications_folders_are_compared(
    collection: Collection, small: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*paths: str, **options: Any) -> Any:
        raise OSError("OS file watch limit reached")

    monkeypatch.setattr("watchfiles.watch", refuse)
    collection.index(small.path)
    with Watched(collection) as watched:
        assert "watch limit reached" in watched.notices[0]
        (small.path / "new.txt").write_text("A new file.")
        watched.until(lambda: "new.txt" in watched.names())


def test_changes_wait_for_another_writer(collection: Collection, small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    collection.index(small.path)
    update, refusals = Collection.update, iter([True, True])

    def busy(self: Collection, paths: Any, **options: Any) -> IndexReport:
        if next(refusals, False):
            raise StorageError("another process has been changing the collection")
        return update(self, paths, **options)

    monkeypatch.setattr(Collection, "update", busy)
    with Watched(collection) as watched:
        (small.path / "new.txt").write_text("A new file.")
        watched.until(lambda: "new.txt" in watched.names())
    assert len(watched.notices) == 2


def test_changes_that_cannot_be_taken_in_are_found_by_comparing_everything(
    collection: Collection, small: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    collection.index(small.path)

    def refuse(self: Collection, paths: Any, **options: Any) -> IndexReport:
        raise StorageError("the expression is too large")

    monkeypatch.setattr(Collection, "update", refuse)
    with Watched(collection) as watched:
        (small.path / "new.txt").write_text("A new file.")
        watched.until(lambda: "new.txt" in watched.names())
        said = len(watched.notices)
        watched.until(lambda: not watched._watcher._waiting)
    assert said == 3


def test_there_must_be_something_to_watch(collection: Collection) -> None:
    with pytest.raises(InputError, match="no folder to watch"):
        Watcher(collection, report=print).run(threading.Event())


def test_a_limit_that_no_change_fits_is_refused_at_the_start(collection: Collection, small: Any) -> None:
    collection.index([small.path])
    stop = threading.Event()
    stop.set()
    with (
        Collection(collection.path, config=collection.config) as again,
        again.budget.reserve("others", again.budget.free - 10**6),
        pytest.raises(BudgetExceeded) as refused,
    ):
        Watcher(again, report=print).run(stop)
    assert "watching cannot work within" in str(refused.value)


def made_anew(watched: Watched, path: Path) -> None:
    """Makes a root that is not there, with a file deep in it, and puts another one beside it when the first is in."""
    (path / "deep").mkdir(parents=True)
    (path / "deep" / "first.txt").write_text("The first file.")
    watched.until(lambda: "first.txt" in watched.names())
    watched.settle()
    (path / "deep" / "second.txt").write_text("The second file.")
    watched.until(lambda: "second.txt" in watched.names())


@pytest.mark.parametrize("way", ["renamed", "renamed above it", "deleted", "missing at first"])
def test_a_root_that_goes_and_is_made_again_is_watched(collection: Collection, small: Any, way: str) -> None:
    """Of a change to the name of a folder above it nobody is notified."""
    root = small.path / "kitchen"
    collection.index(root)

    def go() -> None:
        if way.startswith("renamed"):
            (root if way == "renamed" else small.path).rename(small.path.with_name("elsewhere"))
        else:
            shutil.rmtree(root)

    if way == "missing at first":
        go()
    with Watched(collection) as watched:
        if way == "missing at first":
            assert watched.reports[0].missing == (str(root),)
        else:
            go()
        made_anew(watched, root)
        assert watched.names() == {"first.txt", "second.txt"}
    assert watched.notices == []


def test_a_comparison_of_everything_waits_for_another_writer(
    collection: Collection, small: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    collection.index(small.path)
    with Watched(collection) as watched:
        index, refusals = Collection.index, iter([True])

        def busy(self: Collection, *roots: Any, **options: Any) -> IndexReport:
            if next(refusals, False):
                raise StorageError("another process has been changing the collection")
            return index(self, *roots, **options)

        monkeypatch.setattr(Collection, "index", busy)
        small.path.rename(small.path.with_name("elsewhere"))
        made_anew(watched, small.path)
    assert len(watched.notices) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="names are valid Unicode here")
def test_a_name_that_is_not_utf8_does_not_end_notifications(
    collection: Collection, small: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    collection.index(small.path)
    with Watched(collection) as watched:
        for name in (b"\xff.txt", b"\xfe.txt", b"\xfd.txt"):
            said = len(watched.notices)
            Path(os.fsdecode(os.path.join(os.fsencode(small.path), name))).write_text("Its name is not UTF-8.")
            watched.until(lambda said=said: len(watched.notices) > said)  # type: ignore[misc]
            watched.settle()
        # A file that was just written is read again, and each reading breaks them off. That ends after two seconds.
        looked: list[str] = []
        update = Collection.update
        monkeypatch.setattr(
            Collection, "update", lambda self, paths, **options: update(self, looked.extend(paths) or paths, **options)
        )
        attempts = itertools.count()
        while not looked:
            name = f"new-{next(attempts)}.txt"
            (small.path / name).write_text("A new file.")
            watched.until(lambda name=name: name in watched.names())  # type: ignore[misc]
    assert looked == [str(small.path / name)]
    assert all("comparing everything and watching on" in notice for notice in watched.notices)


def test_notifications_that_break_again_and_again_are_given_up(
    collection: Collection, small: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*paths: str, **options: Any) -> Any:
        raise RuntimeError("Unable to decode path")
        yield

    monkeypatch.setattr("watchfiles.watch", broken)
    collection.index(small.path)
    with Watched(collection) as watched:
        assert [("watching on" in notice, "again and again" in notice) for notice in watched.notices] == [
            (True, False),
            (True, False),
            (False, True),
        ]
        (small.path / "new.txt").write_text("A new file.")
        watched.until(lambda: "new.txt" in watched.names())


def test_a_folder_and_a_file_in_it_may_change_together(collection: Collection, small: Any) -> None:
    collection.index(small.path)
    new = small.write("kitchen/new.txt", "A new file.")
    report = collection.update([new, small.path, small.path / "kitchen", small.path / "nothing"])
    assert (report.indexed, report.unchanged, report.removed) == (1, 3, 0)
    assert collection.update(["/elsewhere/entirely"]).changed is False


def test_only_what_is_on_the_way_is_looked_at(
    collection: Collection, folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a/b/c.txt", "a/b/d.txt", "a/e/f.txt", "g/h.txt", "i.txt"):
        folder.write(name, "text")
    collection.index(folder.path)
    folder.write("a/b/c.txt", "another text")
    looked: list[str] = []
    known = Discovery._known

    def note(self: Discovery, path: str) -> Any:
        looked.append(os.path.relpath(path, folder.path).replace(os.sep, "/"))
        return known(self, path)

    monkeypatch.setattr(Discovery, "_known", note)
    assert collection.update([folder.path / "a" / "b" / "c.txt"]).indexed == 1
    assert set(looked) == {"a/b/c.txt"}
    assert collection.update([folder.path / "gone" / "deep.txt"]).changed is False


def test_the_names_that_lead_to_paths() -> None:
    way = on_the_way("/r", ["/r/a/b/c.txt", "/r/a/b/d.txt", "/r/a/e", "/r/f"])
    assert way == {"/r": {"a", "f"}, "/r/a": {"b", "e"}, "/r/a/b": {"c.txt", "d.txt"}}
    assert on_the_way("/r", ["/r"]) == {}
    assert on_the_way("/", ["/a/b"]) == {"/": {"a"}, "/a": {"b"}}


def test_only_the_folders_that_were_named_are_watched(make: Any, folder: Any, tmp_path: Path) -> None:
    """`edge watch DIR` watches DIR, though the collection has other folders."""
    collection = make()
    other = tmp_path.resolve() / "other"
    other.mkdir()
    (other / "far.md").write_text("Far away.\n")
    folder.write("here.md", "Here.\n")
    collection.index([folder.path, other])
    with Watched(collection, roots=[str(folder.path)]) as watched:
        watched.until(lambda: bool(watched.reports))
        (other / "new.md").write_text("Not looked at.\n")
        folder.write("new-here.md", "Looked at.\n")
        watched.until(lambda: "new-here.md" in watched.names())
        assert "new.md" not in watched.names()
        assert watched.reports[0].unchanged == 1  # of the other folder nothing was compared


WATCH = """
import sys, threading
from pathlib import Path
from naive.program import config_of
from edge.apps.collection.collection import Collection
from edge.apps.collection.watching import Watcher
with Collection(sys.argv[1], config=config_of(Path(sys.argv[2]), Path(sys.argv[3]), threads=1)) as collection:
    Watcher(collection, report=lambda report: print("compared", report.indexed, flush=True)).run(threading.Event())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="inotify")
def test_an_overflow_of_the_queue_means_a_full_comparison(
    collection: Collection, small: Any, model_folder: Path, tmp_path: Path
) -> None:
    collection.index([small.path])
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text(encoding="ascii"))
    packages = Path(__file__).parents[2] / "packages.py"
    code = f"import runpy; runpy.run_path({str(packages)!r})['load']()" + WATCH
    command = [sys.executable, "-c", code, str(collection.path), str(model_folder), str(tmp_path / "scratch")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watcher:
        try:
            assert watcher.stdout is not None
            assert watcher.stdout.readline().startswith("compared")
            watcher.send_signal(signal.SIGSTOP)
            with open(small.path / "busy.txt", "ab", 0) as one, open(small.path / "other.txt", "ab", 0) as other:
                for _ in range(limit):  # equal notifications in a row would be one
                    one.write(b"a")
                    other.write(b"b")
            (small.path / "last.txt").write_text("It is about geysers.")
            time.sleep(1.5)
            watcher.send_signal(signal.SIGCONT)
            end = time.monotonic() + 60
            while not any(file.path.endswith("last.txt") for file in collection.files()):
                assert time.monotonic() < end, "the last change was lost"
                time.sleep(0.05)
        finally:
            watcher.kill()
