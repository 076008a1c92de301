"""KV states on disk: a directory for each model, one file per node of the knowledge tree, safe to kill at any moment.

A file is written under another name, flushed and renamed, and everything in it is checksummed: what is there is whole
or is removed as if it had never been. It names the model it belongs to and holds the tokens of its whole path, so that
it can be trusted without its parents' files. Losing one costs a prefill, never an answer.

Layout, little-endian: magic; length and CRC-32 of the description; the usage record with its own CRC-32 (the only part
that is ever rewritten in place); the description (JSON: model, ids and lengths of the path's segments, checksums); the
path's tokens as int32; the state.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import psutil

from edge.blocks import BlockFile, BlockId, Extent
from edge.errors import CorruptBlock, StorageError
from edge.knowledge.node import Node
from edge.replacement import Usage
from edge.trace import Trace

_MAGIC = b"EDGEKV1\n"
_DESCRIPTION = struct.Struct("<II")
_USAGE = struct.Struct("<QQdd")
_USAGE_OFFSET = len(_MAGIC) + _DESCRIPTION.size
_HEAD_NBYTES = _USAGE_OFFSET + _USAGE.size + 4
_LONGEST_DESCRIPTION = 1 << 20
_SUFFIX = ".kv"
_STATE = BlockId("state")
_NAME_CHARS = 16
"""Of a fingerprint, that name a directory; files are checked against the whole."""


@dataclass(frozen=True, slots=True)
class StoredState:
    """Where a node's state lies.

    Attributes:
        path: its file.
        extent: the state inside the file.
        nbytes: size of the file.
    """

    path: Path
    extent: Extent
    nbytes: int


@dataclass(frozen=True, slots=True)
class StoredPath:
    """What a file says besides the state itself: ids and tokens (int32 bytes) from the root down, and its past."""

    state: StoredState
    ids: tuple[str, ...]
    tokens: tuple[bytes, ...]
    usage: Usage
    priority: float


class KnowledgeStore:
    """The states of one model, in a directory of their own beside those of others.

    All together keep one limit: where a new state does not fit, the models used longest ago lose theirs. Several
    processes may use a directory at once: what one removes is a miss for the others.
    """

    def __init__(self, directory: str | Path, fingerprint: str, limit: int, *, trace: Trace | None = None) -> None:
        """Opens or creates the model's directory.

        Args:
            directory: holds those of all models.
            fingerprint: of the backend, which decides whether a state can be used.
            limit: bytes that all files may take. The tree keeps it for this model's, and they come first.

        Raises:
            StorageError: the directory cannot be created.
        """
        self.directory = Path(directory) / fingerprint[:_NAME_CHARS]
        self.fingerprint = fingerprint
        self.limit = limit
        self._trace = trace or Trace()
        self._nbytes = 0
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            os.utime(self.directory)  # used last
        except OSError as error:
            raise StorageError(f"{self.directory} cannot be created: {error.strerror}") from error

    def scan(self) -> Iterator[StoredPath]:
        """Every state that can be used, as far as that is known without reading the states themselves. Removes what a
        killed process left behind and damaged files.

        Raises:
            StorageError: the directory cannot be read.
        """
        try:
            files = sorted(self.directory.iterdir())
        except OSError as error:
            raise StorageError(f"{self.directory} cannot be read: {error.strerror}") from error
        self._nbytes = 0
        for path in files:
            if _is_abandoned_draft(path):
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
        """Writes a node's state, durably.

        Raises:
            StorageError: the disk refuses; nothing is left behind.
        """
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
            self.directory.mkdir(parents=True, exist_ok=True)  # another model's process may have removed it
            with open(draft, "wb") as file:
                file.write(head + description + tokens)
                file.write(view)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
            self._flush_directory()
        except OSError as error:
            self._unlink(draft)
            raise StorageError(f"the state of {node.id!r} cannot be stored in {path}: {error.strerror}") from error
        self._nbytes += nbytes
        return StoredState(path, Extent(nbytes - len(view), len(view), state_crc), nbytes)

    def file_nbytes(self, node: Node, state_nbytes: int) -> int:
        """Size of the file that `put` will write."""
        return _HEAD_NBYTES + len(self._description(node, state_nbytes, 0, 0)) + 4 * node.end + state_nbytes

    def read(self, stored: StoredState, into: memoryview) -> None:
        """Fills the first `stored.extent.nbytes` bytes of `into`, and checks them.

        Raises:
            CorruptBlock: they are not what was written; the caller removes the state.
            StorageError: the file is gone or the disk reports an error.
        """
        file = BlockFile(stored.path, {_STATE: stored.extent})
        try:
            file.read(_STATE, into)
        finally:
            file.close()

    def note(self, stored: StoredState, usage: Usage, priority: float) -> None:
        """Rewrites a state's past, for the next run to rank it by. Not flushed: if it is torn, the past is forgotten.

        Raises:
            StorageError: the file is gone or the disk refuses.
        """
        try:
            with open(stored.path, "r+b") as file:
                file.seek(_USAGE_OFFSET)
                file.write(_usage(usage, priority))
        except OSError as error:
            raise StorageError(f"{stored.path} cannot be updated: {error.strerror}") from error

    def remove(self, stored: StoredState) -> None:
        """Deletes a state."""
        self._nbytes -= stored.nbytes
        self._unlink(stored.path)

    def _displace(self, nbytes: int) -> None:
        """Removes what is kept for other models, that used longest ago first, until there is room for so much more."""
        others = sorted((_changed(place), place) for place in self.directory.parent.iterdir() if _states(place))
        others = [(changed, place) for changed, place in others if place != self.directory]
        kept = sum(_nbytes(place) for _, place in others)
        for _, place in others:
            if self._nbytes + nbytes + kept <= self.limit:
                return
            kept -= _nbytes(place)
            for path in _states(place):
                self._unlink(path)
            with suppress(OSError):  # what else lies there is not ours
                place.rmdir()
            self._trace.count("knowledge.foreign")

    def _describe(self, path: Path) -> StoredPath | None:
        """Reads everything but the state; None when it is another model's."""
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
        """Its length depends on nothing but the path and the state's size."""
        return json.dumps(
            {
                "fingerprint": self.fingerprint,
                "segments": [[n.id, len(n.tokens)] for n in node.path()],
                "tokens_crc32": f"{tokens_crc:08x}",
                "state_nbytes": state_nbytes,
                "state_crc32": f"{state_crc:08x}",
            }
        ).encode()

    def _flush_directory(self) -> None:
        if os.name == "posix":  # elsewhere a directory cannot be opened, and a rename is durable or lost as a whole
            descriptor = os.open(self.directory, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def _unlink(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError:  # held open by another process (Windows): the next scan meets it again
            self._trace.count("knowledge.unremovable")


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
    """The states in a model's directory."""
    return [path for path in place.iterdir() if path.suffix == _SUFFIX] if place.is_dir() else []


def _nbytes(place: Path) -> int:
    """Bytes of the states in a model's directory."""
    total = 0
    for path in _states(place):
        with suppress(OSError):
            total += path.stat().st_size
    return total


def _is_abandoned_draft(path: Path) -> bool:
    """True for the unfinished file of a process that is no more, or of an earlier one with this one's number."""
    writer = path.suffix[1:]
    if not path.name.startswith(".") or not writer.isdigit():
        return False
    return int(writer) == os.getpid() or not psutil.pid_exists(int(writer))
