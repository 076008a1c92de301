"""KV states on disk: a directory for each model, one file per node of the knowledge tree, safe to kill at any moment.

A file is written under another name, flushed and renamed, and every part of it has a checksum. So a file is either
complete, or is removed as if it had never been written. It names its model and holds the tokens of its whole path, so
that it can be trusted without the files of its parents. Losing a file costs a prefill, but never changes an answer.

Layout, little-endian: magic; length and CRC-32 of the description; the usage record with its own CRC-32 (the only part
that is ever rewritten in place); the description (JSON: model, ids and lengths of the path's segments, checksums); the
path's tokens as int32; the state.
"""

from __future__ import annotations

import errno
import json
import os
import struct
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from edge.blocks import BlockFile, BlockId, Extent
from edge.errors import CorruptBlock, StorageError, as_storage_error
from edge.files.output_file import make_folder
from edge.files.sealed import flush, is_abandoned
from edge.kv_cache.prefix_tree import Node, Usage
from edge.trace import Trace

STATES = "kv-states"
"""Name of the folder of all models' states, in the folder of caches."""

_ERASED = "erased"
"""Name of a file in that folder that is new after each erasure. A process that began before it may hold states of
erased documents, and writes none any more."""

_MAGIC = b"EDGEKV1\n"
_DESCRIPTION = struct.Struct("<II")
_USAGE = struct.Struct("<QQdd")
_USAGE_OFFSET = len(_MAGIC) + _DESCRIPTION.size
_HEAD_NBYTES = _USAGE_OFFSET + _USAGE.size + 4
_LONGEST_DESCRIPTION = 1 << 20
_SUFFIX = ".kv"
_STATE = BlockId("state")
_NAME_CHARS = 16
"""Characters of a fingerprint in a directory's name. Each file holds the whole fingerprint."""


@dataclass(frozen=True, slots=True)
class StoredState:
    """A stored state: the file, the state inside it, and the size of the file."""

    path: Path
    extent: Extent
    nbytes: int


@dataclass(frozen=True, slots=True)
class StoredPath:
    """The contents of a file except the state: ids, tokens (int32 bytes) from the root down, and the usage history."""

    state: StoredState
    ids: tuple[str, ...]
    tokens: tuple[bytes, ...]
    usage: Usage
    priority: float


class KnowledgeStore:
    """The states of one model, in a directory beside those of other models.

    All models share one limit. If a new state does not fit, the models that were used longest ago lose their states
    first. Several processes may use a directory at once: a state that one of them removes is a miss for the others.
    """

    def __init__(self, directory: str | Path, fingerprint: str, limit: int, *, trace: Trace | None = None) -> None:
        """Opens or creates the directory of the model with this fingerprint, which decides whether a state can be used.
        `limit` bounds the files of all models: the tree keeps this model's files within it, and those of others are
        removed first."""
        self.directory = Path(directory) / fingerprint[:_NAME_CHARS]
        self.fingerprint = fingerprint
        self.limit = limit
        self._trace = trace or Trace()
        self._nbytes = 0
        self._counting = threading.Lock()
        with as_storage_error(f"{self.directory} cannot be created"):
            make_folder(self.directory)
            os.utime(self.directory)  # marks this model as the one used last
        self._erased = _stamp(self.directory.parent)

    def scan(self) -> Iterator[StoredPath]:
        """Every state whose file is intact except, possibly, for the state itself, which is not read. Removes damaged
        files, and unfinished files of killed processes."""
        with as_storage_error(f"{self.directory} cannot be read"):
            files = sorted(self.directory.iterdir())
        self._nbytes = 0
        for path in files:
            if path.name.startswith(".") and (path.suffix == f".{os.getpid()}" or is_abandoned(path)):
                self._unlink(path)
            elif path.suffix == _SUFFIX:
                try:
                    found = self._describe(path)
                except FileNotFoundError:
                    continue  # another process removed it meanwhile
                except (CorruptBlock, OSError, ValueError, KeyError, TypeError):
                    self._trace.count("knowledge.corrupt")
                    self._unlink(path)
                    continue
                if found is None:
                    self._trace.count("knowledge.foreign")
                    self._unlink(path)
                else:
                    self._nbytes += found.state.nbytes
                    yield found

    def put(self, node: Node, state: bytes | bytearray | memoryview, priority: float) -> StoredState:
        """Writes a node's state, durably."""
        view = memoryview(state).cast("B")
        tokens = b"".join(n.tokens for n in node.path())
        state_crc = zlib.crc32(view)
        description = self._description(node, len(view), zlib.crc32(tokens), state_crc)
        path = self.directory / f"{node.digest.hex()}{_SUFFIX}"
        draft = self.directory / f".{node.digest.hex()}.{os.getpid()}"
        head = _MAGIC + _DESCRIPTION.pack(len(description), zlib.crc32(description)) + _usage(node.usage, priority)
        nbytes = len(head) + len(description) + len(tokens) + len(view)
        try:
            self._displace(nbytes)
            make_folder(self.directory)  # another model's process may have removed it
            with open(draft, "wb") as file:
                file.write(head + description + tokens)
                file.write(view)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
            flush(self.directory)
            if _stamp(self.directory.parent) != self._erased:  # read last, so that no erasure misses this file
                self._unlink(path)
                raise OSError(errno.ESTALE, "documents were erased since this process began")
        except OSError as error:
            self._unlink(draft)
            raise StorageError(f"the state of {node.id!r} cannot be stored in {path}: {error.strerror}") from error
        with self._counting:
            self._nbytes += nbytes
        return StoredState(path, Extent(nbytes - len(view), len(view), state_crc), nbytes)

    def file_nbytes(self, node: Node, state_nbytes: int) -> int:
        """Size of the file that `put` would write."""
        return _HEAD_NBYTES + len(self._description(node, state_nbytes, 0, 0)) + 4 * node.end + state_nbytes

    def read(self, stored: StoredState, into: memoryview) -> None:
        """Fills the first `stored.extent.nbytes` bytes of `into`, and verifies their checksum."""
        file = BlockFile(stored.path, {_STATE: stored.extent})
        try:
            file.read(_STATE, into)
        finally:
            file.close()

    def announce(self, stored: StoredState) -> None:
        """Tells the system that a state will be read soon, so that it reads it into its page cache meanwhile."""
        with suppress(StorageError, CorruptBlock), closing(BlockFile(stored.path, {_STATE: stored.extent})) as file:
            file.announce([(stored.extent.offset, stored.extent.nbytes)])

    def note(self, stored: StoredState, usage: Usage, priority: float) -> None:
        """Rewrites a state's usage record. It is not flushed: a torn record is ignored by the next run."""
        with as_storage_error(f"{stored.path} cannot be updated"), open(stored.path, "r+b") as file:
            file.seek(_USAGE_OFFSET)
            file.write(_usage(usage, priority))

    def remove(self, stored: StoredState) -> None:
        with self._counting:
            self._nbytes -= stored.nbytes
        self._unlink(stored.path)

    def _displace(self, nbytes: int) -> None:
        """Removes other models' states, those of the model used longest ago first, until `nbytes` more fit."""
        others = sorted((_changed(place), place) for place in self.directory.parent.iterdir() if _states(place))
        others = [(changed, place) for changed, place in others if place != self.directory]
        kept = sum(_nbytes(place) for _, place in others)
        for _, place in others:
            if self._nbytes + nbytes + kept <= self.limit:
                return
            kept -= _nbytes(place)
            for path in _states(place):
                self._unlink(path)
            with suppress(OSError):  # the directory may hold other people's files
                place.rmdir()
            self._trace.count("knowledge.foreign")

    def _describe(self, path: Path) -> StoredPath | None:
        """Reads everything but the state; None if the state belongs to another model."""
        with open(path, "rb") as file:
            head = _exactly(file, _HEAD_NBYTES, path)
            length, crc = _DESCRIPTION.unpack_from(head, len(_MAGIC))
            if head[: len(_MAGIC)] != _MAGIC or length > _LONGEST_DESCRIPTION:
                raise CorruptBlock(f"{path} is no stored state")
            raw = _exactly(file, length, path)
            if zlib.crc32(raw) != crc:
                raise CorruptBlock(f"{path}: its description is corrupt")
            description: dict[str, Any] = json.loads(raw)
            if description["fingerprint"] != self.fingerprint:
                return None
            segments: list[tuple[str, int]] = description["segments"]
            tokens = _exactly(file, sum(nbytes for _, nbytes in segments), path)
            offset = file.tell()
            size = os.fstat(file.fileno()).st_size
        nbytes = int(description["state_nbytes"])
        if zlib.crc32(tokens) != int(description["tokens_crc32"], 16) or size != offset + nbytes:
            raise CorruptBlock(f"{path}: its tokens are corrupt or its state is cut off")
        state = StoredState(path, Extent(offset, nbytes, int(description["state_crc32"], 16)), size)
        return StoredPath(state, tuple(id for id, _ in segments), _cut(tokens, segments), *_past(head))

    def _description(self, node: Node, state_nbytes: int, tokens_crc: int, state_crc: int) -> bytes:
        """The description as JSON. Its length depends only on the path and the state's size."""
        return json.dumps(
            {
                "fingerprint": self.fingerprint,
                "segments": [[n.id, len(n.tokens)] for n in node.path()],
                "tokens_crc32": f"{tokens_crc:08x}",
                "state_nbytes": state_nbytes,
                "state_crc32": f"{state_crc:08x}",
            }
        ).encode()

    def _unlink(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError:  # another process has it open (Windows); the next scan will try again
            self._trace.count("knowledge.unremovable")


def forget_states(directory: Path) -> None:
    """Removes the states of all models below a directory. Processes that hold such states write none any more."""
    with as_storage_error(f"states in {directory} cannot be removed"):
        make_folder(directory)
        (directory / f"{_ERASED}.tmp").write_bytes(os.urandom(16))
        (directory / f"{_ERASED}.tmp").replace(directory / _ERASED)
        for place in [place for place in directory.iterdir() if place.is_dir()]:
            for path in place.iterdir():
                if path.suffix == _SUFFIX or path.name.startswith("."):  # or being written
                    path.unlink(missing_ok=True)


def _stamp(directory: Path) -> bytes:
    """What tells erasures apart."""
    try:
        return (directory / _ERASED).read_bytes()
    except FileNotFoundError:
        return b""


def _usage(usage: Usage, priority: float) -> bytes:
    record = _USAGE.pack(usage.frequency, usage.computed, usage.total_cost, priority)
    return record + struct.pack("<I", zlib.crc32(record))


def _past(head: bytes) -> tuple[Usage, float]:
    record = head[_USAGE_OFFSET : _USAGE_OFFSET + _USAGE.size]
    if struct.unpack_from("<I", head, _USAGE_OFFSET + _USAGE.size)[0] != zlib.crc32(record):
        return Usage(), 0.0
    frequency, computed, total_cost, priority = _USAGE.unpack(record)
    return Usage(frequency, computed, total_cost), priority


def _cut(tokens: bytes, segments: Sequence[tuple[str, int]]) -> tuple[bytes, ...]:
    parts, start = [], 0
    for _, nbytes in segments:
        parts.append(tokens[start : start + nbytes])
        start += nbytes
    return tuple(parts)


def _exactly(file: BinaryIO, nbytes: int, path: Path) -> bytes:
    data = file.read(nbytes)
    if len(data) != nbytes:
        raise CorruptBlock(f"{path} is cut off")
    return data


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # removed meanwhile
        return 0.0


def _states(place: Path) -> list[Path]:
    return [path for path in place.iterdir() if path.suffix == _SUFFIX] if place.is_dir() else []


def _nbytes(place: Path) -> int:
    total = 0
    for path in _states(place):
        with suppress(OSError):
            total += path.stat().st_size
    return total
