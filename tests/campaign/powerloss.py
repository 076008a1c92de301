"""The states a disk may be in after the power went out, worked out from a log of everything a program wrote. A write is
certain once its file was flushed, a name once its folder was, or the file itself, as journaling file systems do it.
Uncertain data may be there, may be missing, or may be there in part."""

from __future__ import annotations

import os
import random
import shutil
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

CREATE, WRITE, TRUNCATE, RENAME, UNLINK, MKDIR, RMDIR, LINK, SYNC, PRINTED, SYMLINK = range(1, 12)
_RECORD = struct.Struct("<IIIIQqQ")
_SECTOR = 512
_NAMES = (CREATE, RENAME, UNLINK, MKDIR, RMDIR, LINK, SYMLINK)
Loss = Literal["data", "data and names", "torn"]
LOSSES: tuple[Loss, ...] = ("data", "data and names", "torn")
"""Every uncertain write is gone and every name is there; both are gone; a random part of both is there, and the last
write that is there is cut off."""


@dataclass(frozen=True)
class Entry:
    """One entry of the log. `file` is a number for the file, the same under all its names."""

    kind: int
    path: str
    other: str
    file: int
    offset: int
    data: bytes


@dataclass
class Log:
    """The changes of a program to a folder. `names`: number of the file at each path, before."""

    folder: Path
    names: dict[str, int]
    entries: list[Entry] = field(default_factory=list)

    @classmethod
    def before(cls, folder: Path) -> Log:
        """Looks at the folder before the program runs in it."""
        names = {str(path): path.stat().st_ino for path in folder.rglob("*") if path.is_file()}
        return cls(folder, names)

    def read(self, log: Path) -> None:
        """Reads the shim's records from `log`."""
        # An inode's number is used again after its file is gone: each creation gets a number of its own.
        current = {node: node for node in self.names.values()}
        fresh = -1
        for kind, path, other, node, offset, data in _records(log.read_bytes()):
            if kind == CREATE:
                current[node] = fresh
                fresh -= 1
            self.entries.append(Entry(kind, path, other, current.get(node, node), offset, data))

    def printed(self, count: int) -> str:
        """The program's output before entry `count`."""
        parts = [entry.data for entry in self.entries[:count] if entry.kind == PRINTED]
        return b"".join(parts).decode("utf-8", "replace")

    def crash(self, kept: Path, count: int, loss: Loss, chance: random.Random) -> None:
        """Puts the folder into a state in which it may be when the power goes out after `count` entries. `kept`: a copy
        of the folder as it was before."""
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(kept, self.folder, symlinks=True)
        done = self.entries[:count]
        applied = self._applied(done, loss, chance)
        self._replay(done, applied)

    def _applied(self, done: list[Entry], loss: Loss, chance: random.Random) -> list[int | None]:
        """For each entry how many of its bytes reach the disk (names: 0), or None when it never does."""
        certain = _certain(done)
        result: list[int | None] = []
        if loss == "torn":
            unsure = [i for i, entry in enumerate(done) if entry.kind in _NAMES and not certain[i]]
            last_name = chance.choice([-1, *unsure])
        for i, entry in enumerate(done):
            whole = len(entry.data)
            if certain[i]:
                result.append(whole)
            elif entry.kind in _NAMES:
                there = loss == "data" or (loss == "torn" and i <= last_name)
                result.append(0 if there else None)
            elif loss == "torn" and chance.random() < 0.5:
                result.append(whole)
            else:
                result.append(None)
        if loss == "torn":
            torn = [i for i, n in enumerate(result) if n and done[i].kind == WRITE and not certain[i]]
            if torn:
                length = len(done[torn[-1]].data)
                result[torn[-1]] = chance.randrange(length // _SECTOR + 1) * _SECTOR
        return result

    def _replay(self, done: list[Entry], applied: list[int | None]) -> None:
        """Does the operations again. Files are written under their numbers first, and named at the end."""
        names = dict(self.names)
        contents: dict[int, bytearray] = {}
        folders: list[tuple[bool, str]] = []
        links: dict[str, str] = {}

        def content(file: int) -> bytearray:
            if file not in contents:
                path = next((path for path, number in self.names.items() if number == file), None)
                contents[file] = bytearray(Path(path).read_bytes() if path is not None and file > 0 else b"")
            return contents[file]

        for entry, nbytes in zip(done, applied, strict=True):
            if nbytes is None:
                continue
            if entry.kind == CREATE:
                names[entry.path] = entry.file
                contents[entry.file] = contents.get(entry.file, bytearray())
            elif entry.kind == WRITE:
                data = content(entry.file)
                data += bytes(max(0, entry.offset - len(data)))
                data[entry.offset : entry.offset + nbytes] = entry.data[:nbytes]
            elif entry.kind == TRUNCATE:
                data = content(entry.file)
                del data[entry.offset :]
                data += bytes(max(0, entry.offset - len(data)))
            elif entry.kind == RENAME:
                below = [path for path in names if path == entry.path or path.startswith(entry.path + "/")]
                moved = {entry.other + path[len(entry.path) :]: names.pop(path) for path in below}
                names.update(moved)
                if entry.other not in moved:  # a folder
                    folders += [(True, entry.other), (False, entry.path)]
            elif entry.kind == LINK and entry.path in names:
                names[entry.other] = names[entry.path]
            elif entry.kind == UNLINK:
                names.pop(entry.path, None)
                links.pop(entry.path, None)
            elif entry.kind in (MKDIR, RMDIR):
                folders.append((entry.kind == MKDIR, entry.path))
            elif entry.kind == SYMLINK:
                links[entry.other] = entry.path
        if names != self.names:
            for file in set(names.values()) & set(self.names.values()):
                content(file)
        for path in self.names.keys() - names.keys():
            Path(path).unlink(missing_ok=True)
        for there, path in folders:
            if there:
                Path(path).mkdir(parents=True, exist_ok=True)
            elif not any(name.startswith(path + "/") for name in names):
                shutil.rmtree(path, ignore_errors=True)
        for path, file in names.items():
            if file in contents and (self.names.get(path) != file or Path(path).read_bytes() != contents[file]):
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                Path(path).write_bytes(contents[file])
        for path, target in links.items():
            if not os.path.lexists(path):
                os.symlink(target, path)


def _certain(done: list[Entry]) -> list[bool]:
    """The entries that survive in any case."""
    certain = [entry.kind in (SYNC, PRINTED) for entry in done]
    for i, flush in enumerate(done):
        if flush.kind != SYNC:
            continue
        named = {flush.path}
        for j in range(i - 1, -1, -1):
            entry = done[j]
            if entry.kind in (WRITE, TRUNCATE):
                certain[j] |= entry.file == flush.file
            elif entry.kind in _NAMES:
                own = entry.path in named or entry.other in named
                beside = flush.path in (os.path.dirname(entry.path), os.path.dirname(entry.other))
                above = entry.kind in (MKDIR, RENAME) and any(
                    path.startswith((entry.other or entry.path) + "/") for path in named
                )
                if own or beside or above:
                    certain[j] = True
                    if entry.kind == RENAME and (own or above):
                        named.add(entry.path)
    return certain


def _records(data: bytes) -> Iterator[tuple[int, str, str, int, int, bytes]]:
    at = 0
    while at + _RECORD.size <= len(data):
        kind, path, other, _, node, offset, length = _RECORD.unpack_from(data, at)
        at += _RECORD.size
        names = (
            data[at : at + path].decode("utf-8", "surrogateescape"),
            (data[at + path : at + path + other].decode("utf-8", "surrogateescape")),
        )
        at += path + other
        content = data[at : at + length] if kind in (WRITE, PRINTED) else b""
        at += len(content)
        yield kind, os.path.normpath(names[0]), os.path.normpath(names[1]) if other else "", node, offset, content
