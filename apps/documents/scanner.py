"""Walks folders for files to index, in a fixed order, each file once. Skipped files come with a reason."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from edge.apps.documents.base import FoundFile, Reason, Skipped, SkippedFile, Stamp, printable
from edge.apps.documents.file_types import HISTORY, choose
from edge.apps.documents.ignoring import IGNORE_FILES, Rules, component
from edge.apps.documents.opened import OpenedFile
from edge.apps.documents.secrets import refuse_secrets
from edge.budget import MemoryBudget
from edge.errors import InputError

_OWN_FOLDER = ".edge"
_EXCLUDE = Path(".git", "info", "exclude")
_FILE_ATTRIBUTE_HIDDEN = 2
_SURROGATE_TAGS = frozenset({0xA000000C, 0xA0000003})  # Reparse tags of Windows' symbolic links and junctions.


@dataclass(frozen=True, slots=True)
class _Folder:
    """A folder to walk, the components (as of `component`) from the top of its rules down to it, and the rules."""

    path: Path
    parts: tuple[str, ...]
    rules: Rules


def scan(
    roots: Sequence[str | os.PathLike[str]],
    *,
    exclude: Iterable[str | os.PathLike[str]] = (),
    unchanged: Callable[[FoundFile], bool] | None = None,
    only: Mapping[str, Set[str]] | None = None,
    budget: MemoryBudget | None = None,
) -> Iterator[FoundFile | SkippedFile]:
    """Files below the roots, depth first, sorted by the bytes of their names. Hidden and ignored ones, those with
    secrets that no ignore file includes, symbolic links, and what is not regular, empty, too large, unreadable, binary
    or unsupported are skipped with a reason. A root is walked even if its own name would be skipped. `exclude` is never
    indexed; an `unchanged` file is not opened; `only` maps folders (absolute, resolved) to the names that are
    considered in them; `budget` leases the patterns of ignore files."""
    resolved = list(dict.fromkeys(_resolved(root) for root in roots))
    excluded = {os.path.normcase(Path(path).resolve()) for path in exclude}
    return _Scanner(resolved, set(map(os.path.normcase, resolved)), excluded, unchanged, only or {}, budget).walk()


def fingerprint(root: Path, left_out: Container[str]) -> tuple[str, int]:
    """A checksum of the names, sizes and times of all that a scan of a folder looks at, in a fraction of its time, and
    the newest time; ("", 0) if a part cannot be read. Nothing below the paths that are `left_out` counts."""
    newest, digest = 0, blake2b(digest_size=16)

    def note(name: str, found: os.stat_result) -> None:
        nonlocal newest
        newest = max(newest, found.st_mtime_ns, found.st_ctime_ns)
        times = found.st_mtime_ns, found.st_ctime_ns
        digest.update(repr((name, found.st_mode, found.st_size, found.st_ino, times)).encode())

    try:
        top, *between = _way(root)
        for path in (root, top / _EXCLUDE, *(folder / name for folder in (top, *between) for name in IGNORE_FILES)):
            with suppress(FileNotFoundError, NotADirectoryError):
                note(str(path), path.stat())
        folders = [str(root)]
        while folders:
            with os.scandir(folders.pop()) as entries:
                for entry in sorted(entries, key=lambda entry: entry.name):
                    if not entry.name.startswith(".") or entry.name in IGNORE_FILES:
                        note(entry.name, entry.stat(follow_symlinks=False))
                        if entry.is_dir(follow_symlinks=False) and entry.path not in left_out:
                            folders.append(entry.path)
    except OSError:
        return "", 0
    return digest.hexdigest(), newest


@dataclass(frozen=True, slots=True)
class _Scanner:
    roots: Sequence[Path]
    named: Container[Path | str]
    exclude: Container[str]
    unchanged: Callable[[FoundFile], bool] | None
    only: Mapping[str, Set[str]]
    budget: MemoryBudget | None

    def walk(self) -> Iterator[FoundFile | SkippedFile]:
        for root in self.roots:
            try:
                status = root.lstat()
            except OSError as error:
                yield SkippedFile(root, Reason.UNREADABLE, f"cannot be read: {error.strerror}")
                continue
            if stat.S_ISDIR(status.st_mode):
                yield from self._walk_folder(root)
            else:
                yield self._file(root, root, status, asked=True)

    def _walk_folder(self, root: Path) -> Iterator[FoundFile | SkippedFile]:
        try:
            folders = [_outer(root, self.budget)]
        except Skipped as reason:
            yield SkippedFile(root, reason.reason, str(reason))
            return
        waiting = [self._entries(root)]
        while waiting:
            entry = next(waiting[-1], None)
            if entry is None:
                waiting.pop()
                folders.pop()
                continue
            taken = entry if isinstance(entry, SkippedFile) else self._take(entry, folders[-1], root)
            if isinstance(taken, _Folder):
                waiting.append(self._entries(taken.path))
                folders.append(taken)
            elif taken is not None:
                yield taken

    def _entries(self, folder: Path) -> Iterator[os.DirEntry[str] | SkippedFile]:
        only = self.only.get(str(folder))
        try:
            with os.scandir(folder) as entries:
                taken = (entry for entry in entries if only is None or entry.name in only)
                return iter(sorted(taken, key=lambda entry: os.fsencode(entry.name)))
        except OSError as error:
            return iter([SkippedFile(folder, Reason.UNREADABLE, f"cannot be read: {error.strerror}")])

    def _take(self, entry: os.DirEntry[str], folder: _Folder, root: Path) -> FoundFile | SkippedFile | _Folder | None:
        """None for a root, which is walked separately."""
        path = folder.path / entry.name
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError as error:
            return SkippedFile(path, Reason.UNREADABLE, f"cannot be read: {error.strerror}")
        where = os.path.normcase(path)
        if where in self.exclude or entry.name == _OWN_FOLDER:
            return SkippedFile(path, Reason.EXCLUDED, "belongs to an index")
        if where in self.named:
            return None
        if stat.S_ISLNK(status.st_mode) or getattr(status, "st_reparse_tag", 0) in _SURROGATE_TAGS:
            return SkippedFile(path, Reason.SYMLINK, "a symbolic link, which is not followed")
        if entry.name.startswith(".") or getattr(status, "st_file_attributes", 0) & _FILE_ATTRIBUTE_HIDDEN:
            return SkippedFile(path, Reason.HIDDEN, "hidden")
        is_folder = stat.S_ISDIR(status.st_mode)
        parts = (*folder.parts, component(entry.name))
        decider = folder.rules.decider(parts, folder=is_folder)
        if decider is not None and not decider.keeps:
            return SkippedFile(path, Reason.IGNORED, "named by an ignore file")
        if is_folder:
            try:
                return _Folder(path, parts, folder.rules.entered(path, len(parts)))
            except Skipped as reason:
                return SkippedFile(path, reason.reason, str(reason))
        return self._file(path, root, status, asked=decider is not None and decider.names_secrets)

    def _file(self, path: Path, root: Path, status: os.stat_result, *, asked: bool) -> FoundFile | SkippedFile:
        """One that is `asked` for may hold secrets."""
        found = FoundFile(path, root, Stamp.of(status))
        try:
            if not asked:
                refuse_secrets(path.name)
            if self.unchanged is not None and self.unchanged(found):
                return found
            with OpenedFile(path) as file:
                if not asked:
                    refuse_secrets(file.name, file.head)
                if choose(file.name, file.head) is HISTORY and not asked:
                    raise Skipped(Reason.SECRET, "a browser's history or bookmarks; `edge index FILE` reads it")
        except Skipped as reason:
            return SkippedFile(path, reason.reason, str(reason))
        return found


def _resolved(root: str | os.PathLike[str]) -> Path:
    try:
        return Path(root).resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as error:  # missing; a loop of symbolic links; not a valid path
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{printable(root)} cannot be indexed: {reason}") from error


def _way(root: Path) -> list[Path]:
    """From the nearest folder upward that holds `.git` to the root; the root alone if none does."""
    above = [root, *root.parents]
    top = next((at for at, folder in enumerate(above) if os.path.lexists(folder / ".git")), 0)
    return above[top::-1]


def _outer(root: Path, budget: MemoryBudget | None) -> _Folder:
    way = _way(root)
    rules = Rules([way[0] / _EXCLUDE], 0, budget=budget)
    for depth, folder in enumerate(way):
        rules = rules.entered(folder, depth)
    return _Folder(root, tuple(map(component, root.relative_to(way[0]).parts)), rules)
