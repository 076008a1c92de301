"""`Watcher`: keeps a collection up to date with its roots while it runs.

Notifications of the platform say which paths changed. A burst is handled when it is over, and only what changed is
looked at; what nobody watched for is found by the first full comparison. Notifications follow a folder and not its
name: where a root is another folder than before, or there again, watching begins anew with another comparison. Where
there are no notifications, comparisons are repeated.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from edge.apps.collection.advance import Progress
from edge.apps.collection.collection import Collection
from edge.apps.collection.report import IndexReport
from edge.apps.collection.roots import with_nested
from edge.apps.collection.scopes import contains
from edge.apps.documents.ignoring import IGNORE_FILES
from edge.errors import InputError, StorageError

_QUIET_MS = 500
_LONGEST_MS = 5_000
_IDLE = 19
"""Polling waits so many times as long as a comparison took."""

_PATIENCE = 3
"""Attempts to take the same changes in, before everything is compared instead; and to be notified, before polling."""

_LONGEST_PAUSE = 60.0
"""Seconds between two attempts; the first wait for a tick, each further one for twice as long."""

_TICK_MS = 500
"""How often the watcher looks up when nothing happens: for a request to stop, and at the roots."""


class _NoNotifications(Exception):
    """The platform does not notify of changes here; the message says why."""


class _Broken(Exception):
    """Notifications have ended, and some are lost; the message says why."""


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
        progress: Progress | None = None,
        poll: bool = False,
        quiet_ms: int = _QUIET_MS,
        longest_ms: int = _LONGEST_MS,
        poll_seconds: float = 2.0,
        roots: Sequence[str] | None = None,
    ) -> None:
        """Prepares to watch.

        Args:
            report: called after the first comparison, and whenever changes were taken in.
            notice: called with one sentence when something does not work as it should.
            progress: as for `Collection.index`.
            poll: compare folders again and again, for file systems that send no notifications (network drives).
            quiet_ms: a burst of changes is over when nothing changes for so long.
            longest_ms: a burst that does not end is handled after this time.
            poll_seconds: between two comparisons when polling; more where a comparison takes long.
            roots: of the collection, which to watch; all of them, also those that are added later, if None.
        """
        self._collection = collection
        self._report = report
        self._notice = notice
        self._progress = progress
        self._poll = poll
        self._quiet_ms = quiet_ms
        self._longest_ms = longest_ms
        self._poll_seconds = poll_seconds
        self._chosen = roots
        self._waiting: set[str] = set()
        self._everything = False
        self._refusals = 0
        self._pause = self._not_before = 0.0

    def run(self, stop: threading.Event) -> None:
        """Compares everything once, then handles changes until `stop` is set.

        Raises:
            InputError: the collection has no root. One that is absent is waited for.
            Others as for `Collection.index`.
        """
        if not self._roots():
            raise InputError("the collection has no folder to watch yet; name one")
        if not self._poll:
            try:
                self._follow(stop)
                return
            except _NoNotifications as error:
                self._notice(f"no notifications here ({error}); comparing the folders again and again instead")
        self._compare_repeatedly(stop)

    def _roots(self) -> list[str]:
        """The roots that are watched now, those below a chosen one included."""
        roots = self._collection.roots
        return roots if self._chosen is None else with_nested(self._chosen, roots)

    def _compared(self) -> IndexReport:
        """Compares the watched roots with the collection."""
        return self._collection.index(self._chosen or (), progress=self._progress)

    def _follow(self, stop: threading.Event) -> None:
        """Handles what the platform notifies of, and begins anew when it has lost sight of a root or of a change;
        raises `_NoNotifications` where it does not notify."""
        first, broken = True, 0
        while not stop.is_set():
            try:
                for changed in self._changes(stop):
                    if first:
                        # The notifier is at work before the first comparison, so that nothing falls between the two.
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
        """Changed paths, burst by burst, and an empty set every now and then, until a root is another folder."""
        places = {root: _place(root) for root in self._roots()}
        folders = [root for root, place in places.items() if place is not None]
        # A notifier follows a file's content, and loses it when an editor puts a new file in its place.
        files = {root: _state(root) for root, place in places.items() if place is None}
        for changed in self._notified(folders, stop):
            for file, state in files.items():
                if (now := _state(file)) != state:
                    files[file] = now
                    changed.add(file)
            yield changed
            if any(_place(root) != place for root, place in places.items()):
                return

    def _compare_repeatedly(self, stop: threading.Event) -> None:
        """Compares all files with the collection, by size and time, taking a twentieth of the time for it at most."""
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
            if stop.wait(max(self._poll_seconds, _IDLE * report.scan_s)):
                return

    def _handle(self) -> None:
        """Takes the waiting changes in; they go on waiting where another writer is at work. What cannot be taken in
        several times in a row is forgotten, and everything compared instead."""
        try:
            if self._everything or self._refusals >= _PATIENCE:
                self._waiting.clear()
                report = self._compared()
            else:
                report = self._collection.update(sorted(self._waiting), progress=self._progress)
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
        """As `_changes`, of folders, until one of them is deleted. Raises `_Broken`, or `_NoNotifications`."""
        from watchfiles import Change, watch

        if not folders:
            while not stop.wait(_TICK_MS / 1000):
                yield set()
            return
        own = str(self._collection.path)
        try:
            for changes in watch(
                *folders, watch_filter=None, debounce=self._longest_ms, step=self._quiet_ms, stop_event=stop,
                rust_timeout=_TICK_MS, yield_on_timeout=True, force_polling=False, ignore_permission_denied=True,
            ):  # fmt: skip
                # That a folder's list of entries has changed says nothing: what came and went has changes of its own.
                news = (path for kind, path in changes if kind != Change.modified or not os.path.isdir(path))
                yield {_affected(path) for path in map(os.path.abspath, news) if not contains(own, path)}
                if any(kind == Change.deleted and path in folders for kind, path in changes):
                    return  # made again, it may have the same number as before
        except (FileNotFoundError, RuntimeError) as error:  # a root that has just gone; a name that is not UTF-8
            raise _Broken(error) from error
        except OSError as error:  # too many folders to watch
            raise _NoNotifications(error) from error


def _affected(path: str) -> str:
    """What has to be looked at when a path has changed: rules about what to ignore concern their whole folder."""
    return str(Path(path).parent) if Path(path).name in IGNORE_FILES else path


def _place(root: str) -> tuple[int, int] | None:
    """Which folder a root is now, by the numbers of its device and of its own; None if it is none."""
    try:
        found = os.stat(root)
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if stat.S_ISDIR(found.st_mode) else None


def _state(path: str) -> tuple[int, int] | None:
    """Size and time of a file, None if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns
