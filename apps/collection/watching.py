"""`Watcher`: keeps a collection up to date with its roots while it runs. The platform's notifications name the changed
paths, and a burst is handled after its end. A full comparison finds what changed before the start, and after a root was
replaced. Without notifications, full comparisons are repeated."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from edge.apps.collection.collection import Collection
from edge.apps.collection.paths import contains, with_nested
from edge.apps.collection.report import IndexReport
from edge.apps.documents.base import Stamp
from edge.apps.documents.ignoring import IGNORE_FILES
from edge.apps.store.models import INDEXING
from edge.errors import InputError, StorageError

_QUIET_MS, _LONGEST_MS = 500, 5_000  # A burst ends after so long without a change, or in all.
_POLL_S, _IDLE = 2.0, 19

_PATIENCE = 3  # Attempts to index the same changes, and to get notifications.
_LONGEST_PAUSE = 60.0  # Seconds; the first pause is one tick, and each further one twice as long.
_TICK_MS = 500


_LOOK_S = 0.1

_STALLED_S = 1.0  # After such a pause of the thread the queue may have overflowed.
_FULL = 0.25


class _NoNotifications(Exception):
    """The platform sends no notifications here; the message says why."""


class _Broken(Exception):
    """Notifications have stopped, and some are lost; the message says why."""


class _Overflow:
    """Suspects that the queue of Linux's notifications has overflowed, which the notifier does not tell: while it is
    open, a thread looks how full the queue is, and whether it was stopped."""

    def __init__(self) -> None:
        self._suspected, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._look, name="edge-watch-overflow", daemon=True)

    def suspected(self) -> bool:
        found = self._suspected.is_set()
        self._suspected.clear()
        return found

    def __enter__(self) -> _Overflow:
        if sys.platform == "linux":
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _look(self) -> None:
        last = time.monotonic()
        while not self._ended.wait(_LOOK_S):
            now = time.monotonic()
            if now - last > _STALLED_S or _queued() >= _FULL:
                self._suspected.set()
            last = now


def _queued() -> float:
    import fcntl
    import termios

    most = 0
    try:
        with open("/proc/sys/fs/inotify/max_queued_events", encoding="ascii") as file:
            limit = int(file.read())
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):  # another thread has closed it
                if "inotify" in os.readlink(f"/proc/self/fd/{name}"):
                    waiting = fcntl.ioctl(int(name), termios.FIONREAD, bytes(4))
                    most = max(most, int.from_bytes(waiting, sys.byteorder))
    except (OSError, ValueError):
        return 0.0
    return most / (_SMALLEST_EVENT * max(1, limit))


_SMALLEST_EVENT = 16


class Watcher:
    """Watches the roots of one collection.

    >>> Watcher(collection, report=print).run(stop)  # until another thread sets `stop`
    """

    def __init__(
        self,
        collection: Collection,
        *,
        report: Callable[[IndexReport], None],
        notice: Callable[[str], None] = lambda text: None,
        poll: bool = False,
        roots: Sequence[str] | None = None,
    ) -> None:
        """`report` gets the first comparison and whatever was indexed, `notice` a sentence about each problem. `poll`
        compares folders repeatedly (network drives). Without `roots` all are watched, also those added later."""
        self._collection = collection
        self._report = report
        self._notice = notice
        self._poll = poll
        self._chosen = roots
        self._waiting: set[str] = set()
        self._everything = False
        self._refusals = 0
        self._pause = self._not_before = 0.0

    def run(self, stop: threading.Event) -> None:
        """Compares everything once, then handles changes until `stop` is set."""
        if not self._roots():
            raise InputError("the collection has no folder to watch yet; name one")
        self._collection.check_room("watching", rerank=False, candidates=0, extra=INDEXING)
        if not self._poll:
            try:
                self._follow(stop)
                return
            except _NoNotifications as error:
                self._notice(f"no notifications here ({error}); comparing the folders again and again instead")
        self._compare_repeatedly(stop)

    def _roots(self) -> list[str]:
        roots = self._collection.roots
        return roots if self._chosen is None else with_nested(self._chosen, roots)

    def _compared(self) -> IndexReport:
        return self._collection.index(self._chosen or ())

    def _follow(self, stop: threading.Event) -> None:
        """Starts again with a full comparison after a root was replaced or notifications were lost."""
        first, broken = True, 0
        while not stop.is_set():
            try:
                for changed in self._changes(stop):
                    if first:
                        # The notifier runs before the first comparison, so no change can fall between the two.
                        self._report(self._compared())
                        first = self._everything = False
                    else:
                        broken = 0
                    self._waiting |= changed
                    if (self._waiting or self._everything or self._refusals) and time.monotonic() >= self._not_before:
                        self._handle()
            except _Broken as error:
                broken += 1
                if broken == _PATIENCE:
                    raise _NoNotifications(error) from error
                self._notice(f"notifications broke off ({error}); comparing everything and watching on")
                stop.wait(_TICK_MS / 1000)
            self._everything = True

    def _changes(self, stop: threading.Event) -> Iterator[set[str]]:
        """The changed paths of each burst, and regularly an empty set, until a root was replaced."""
        places = {root: _place(root) for root in self._roots()}
        folders = [root for root, place in places.items() if place is not None]
        # A notifier follows a file's inode, and loses it when an editor replaces the file.
        files = {root: _state(root) for root, place in places.items() if place is None}
        with _Overflow() as overflow:
            for changed in self._notified(folders, stop):
                for file, state in files.items():
                    if (now := _state(file)) != state:
                        files[file] = now
                        changed.add(file)
                self._everything = overflow.suspected() or self._everything
                yield changed
                if any(_place(root) != place for root, place in places.items()):
                    return

    def _compare_repeatedly(self, stop: threading.Event) -> None:
        """For at most a twentieth of the time."""
        first = True
        while True:
            try:
                report = self._compared()
            except StorageError as error:
                self._notice(f"{error}; trying again")
                report = IndexReport()
            if first or report.changed:
                self._report(report)
            first = False
            if stop.wait(max(_POLL_S, _IDLE * report.scan_s)):
                return

    def _handle(self) -> None:
        """Changes stay waiting while another process writes; after several failures a full comparison takes their
        place."""
        try:
            if self._everything or self._refusals >= _PATIENCE:
                self._waiting.clear()
                report = self._compared()
            else:
                report = self._collection.update(sorted(self._waiting))
        except StorageError as error:
            self._pause = min(2 * self._pause, _LONGEST_PAUSE) if self._refusals else _TICK_MS / 1000
            self._refusals += 1
            self._not_before = time.monotonic() + self._pause
            self._notice(f"{error}; trying again")
            return
        self._refusals = 0
        self._everything = False
        self._waiting.clear()
        if report.changed or report.failed or report.unreadable:
            self._report(report)

    def _notified(self, folders: list[str], stop: threading.Event) -> Iterator[set[str]]:
        """For folders, until one of them is deleted."""
        from watchfiles import Change, watch

        if not folders:
            while not stop.wait(_TICK_MS / 1000):
                yield set()
            return
        own = str(self._collection.path)
        try:
            for changes in watch(
                *folders, watch_filter=None, debounce=_LONGEST_MS, step=_QUIET_MS, stop_event=stop,
                rust_timeout=_TICK_MS, yield_on_timeout=True, force_polling=False, ignore_permission_denied=True,
            ):  # fmt: skip
                # A change of a folder's entries is redundant: each added or removed entry has a change of its own.
                news = (path for kind, path in changes if kind != Change.modified or not os.path.isdir(path))
                yield {_affected(path) for path in map(os.path.abspath, news) if not contains(own, path)}
                if any(kind == Change.deleted and path in folders for kind, path in changes):
                    return  # a new folder at this path may get the same inode number
        except (FileNotFoundError, RuntimeError) as error:  # a root that has just gone; a name that is not UTF-8
            raise _Broken(error) from error
        except OSError as error:  # too many folders to watch
            raise _NoNotifications(error) from error


def _affected(path: str) -> str:
    return str(Path(path).parent) if Path(path).name in IGNORE_FILES else path


def _place(root: str) -> tuple[int, int] | None:
    try:
        found = os.stat(root)
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if stat.S_ISDIR(found.st_mode) else None


def _state(path: str) -> Stamp | None:
    try:
        return Stamp.of(os.stat(path))
    except OSError:
        return None
