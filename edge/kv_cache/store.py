"""KV states on disk, and the tiers of the knowledge tree.

A directory for each model has one file per node, written under another name, flushed and renamed. It names its model
and holds the tokens of its whole path, so it can be trusted without its parents' files. Losing a file never changes an
answer.

Layout, little-endian: magic; length and CRC-32 of the description; the usage record with its own CRC-32 (rewritten in
place); the description (JSON: model, ids and lengths of the path's segments, checksums); the path's tokens as int32;
the state."""

from __future__ import annotations

import errno
import json
import os
import struct
import threading
import time
import zlib
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar

from edge.blocks import BlockFile, BlockId, Extent
from edge.errors import CorruptBlock, StorageError, as_storage_error
from edge.files.named_file import make_folder
from edge.files.sealed import flush, is_abandoned
from edge.kv_cache.backend import State
from edge.kv_cache.prefix_tree import Node, PrefixTree, Replacement, Usage
from edge.link import LinkRate
from edge.trace import Trace

STATES = "kv-states"
"""Name of the folder of all models' states, in the folder of caches."""

_ERASED = "erased"
"""A file in that folder that is new after each erasure: a process that began before it writes no states any more."""

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
    """The states of one model, in a directory beside those of other models. All share one limit: the models used
    longest ago lose states first. Several processes may use a directory at once."""

    def __init__(self, directory: str | Path, fingerprint: str, limit: int, *, trace: Trace | None = None) -> None:
        """The fingerprint decides whether a state can be used; `limit` bounds the files of all models."""
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
        """Every state whose file is intact except for the state itself. Removes damaged and unfinished files."""
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
        return _HEAD_NBYTES + len(self._description(node, state_nbytes, 0, 0)) + 4 * node.end + state_nbytes

    def read(self, stored: StoredState, into: memoryview) -> None:
        """Fills the first `stored.extent.nbytes` bytes of `into`, and verifies their checksum."""
        file = BlockFile(stored.path, {_STATE: stored.extent})
        try:
            file.read(_STATE, into)
        finally:
            file.close()

    def announce(self, stored: StoredState) -> None:
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


Payload = TypeVar("Payload")


@dataclass(slots=True)
class _HeldState(Generic[Payload]):
    payload: Payload
    nbytes: int
    priority: float


class StateTier(Generic[Payload]):
    """The nodes whose states are in one kind of memory of so many bytes, ranked by a policy. Not thread-safe."""

    def __init__(self, limit: int, policy: Replacement) -> None:
        self.limit = limit
        self.used = 0
        self.policy = policy
        self._entries: dict[Node, _HeldState[Payload]] = {}

    def __contains__(self, node: Node) -> bool:
        return node in self._entries

    def __iter__(self) -> Iterator[Node]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, node: Node) -> Payload:
        return self._entries[node].payload

    def priority(self, node: Node) -> float:
        """The node's priority at the last request for it."""
        return self._entries[node].priority

    def put(self, node: Node, payload: Payload, nbytes: int, priority: float) -> None:
        if node in self._entries:
            raise ValueError(f"the state of {node.id!r} is held already")
        self._entries[node] = _HeldState(payload, nbytes, priority)
        self.used += nbytes

    def touch(self, node: Node) -> None:
        self._entries[node].priority = self.policy.used(node.usage)

    def victim(self, gone: Container[Node] = ()) -> Node | None:
        """The leaf of least priority that is not locked, or None; the next one after those `gone`. A child's states are
        of little use without its parent's."""
        found: Node | None = None
        least = float("inf")
        for node, entry in self._entries.items():
            if entry.priority < least and not node.pins and node not in gone and self._is_leaf(node, gone):
                found, least = node, entry.priority
        return found

    def evict(self, node: Node) -> Payload:
        """Removes a node for lack of space, which advances the policy's clock."""
        self.policy.evicted(self._entries[node].priority)
        return self.remove(node)

    def remove(self, node: Node) -> Payload:
        entry = self._entries.pop(node)
        self.used -= entry.nbytes
        return entry.payload

    def nbytes(self, node: Node) -> int:
        return self._entries[node].nbytes

    def _is_leaf(self, node: Node, gone: Container[Node]) -> bool:
        return not any(child in self._entries and child not in gone for child in node.children.values())


class DiskStates:
    """States in a `KnowledgeStore`, ranked; a new one must be worth those deleted. One thread saves."""

    def __init__(
        self,
        store: KnowledgeStore | None,
        policy: Replacement,
        tree: PrefixTree,
        locked: Callable[[], AbstractContextManager[None]],
        trace: Trace,
    ) -> None:
        self.tier: StateTier[StoredState] = StateTier(store.limit if store else 0, policy)
        self._store = store
        self._tree = tree
        self._locked = locked
        self._trace = trace
        self._changed: set[Node] = set()
        self._announced: set[Node] = set()
        self._rate = LinkRate()

    def __contains__(self, node: Node) -> bool:
        return node in self.tier

    @property
    def available(self) -> bool:
        return self._store is not None

    def used(self, node: Node) -> None:
        self.tier.touch(node)
        self._changed.add(node)

    def nbytes(self, node: Node) -> int:
        return self.tier[node].extent.nbytes

    def file_nbytes(self, node: Node, state: State) -> int:
        return self._store.file_nbytes(node, memoryview(state).nbytes) if self._store else 0

    def read(self, node: Node, into: memoryview) -> None:
        assert self._store is not None
        started = time.perf_counter()
        with self._trace.span(f"read {node.id}", "generation", bytes=len(into)):
            self._store.read(self.tier[node], into)
        if node in self._announced:  # the time is that of the disk only without reading ahead
            self._announced.discard(node)
        else:
            self._rate.add(len(into), time.perf_counter() - started)

    def expected(self, nodes: Iterable[Node]) -> list[StoredState]:
        """The stored states of nodes that will be read soon. The time of these reads is not the disk's."""
        nodes = list(nodes)
        self._announced.update(nodes)
        return [self.tier[node] for node in nodes]

    def announce(self, stored: Iterable[StoredState]) -> None:
        """Lets the system read states into its page cache, in this order. Needs no lock."""
        for state in stored:
            assert self._store is not None
            self._store.announce(state)
            self._trace.count("knowledge.announced")

    def loss(self) -> float:
        """Seconds per byte to read states of the mean size again (see `edge.budget.Loss`)."""
        return self._rate.loss(self.tier.used / len(self.tier) if len(self.tier) else 0)

    def save(self, node: Node, state: State) -> bool:
        """Writes a locked node's state, if it is worth the space; returns whether it is on disk now."""
        store = self._store
        if store is None:
            return False
        path = node.path()
        with self._locked():
            for above in path:  # pinned, so that the parents of this state are not deleted to make room for it
                above.pins += 1
        try:
            size = self.file_nbytes(node, state)
            priority = self.tier.policy.used(node.usage)
            if not self._make_room(size, priority):
                return False
            with self._trace.span(f"store {node.id}", "knowledge", bytes=size):
                stored = store.put(node, state, priority)
            with self._locked():
                self.tier.put(node, stored, stored.nbytes, priority)
        except StorageError:
            self._trace.count("knowledge.disk_errors")
            return False
        finally:
            with self._locked():
                self._tree.leave(path)
        self._trace.count("knowledge.saved")
        self._trace.count("knowledge.saved_nbytes", size)
        return True

    def remove(self, node: Node) -> None:
        self._delete(node, self.tier.remove)

    def resume(self) -> None:
        """Builds the tree from the stored states, and deletes the lowest-ranked ones beyond the limit."""
        if self._store is None:
            return
        for found in self._store.scan():
            nodes = self._tree.enter(zip(found.ids, found.tokens, strict=True))
            node = nodes[-1]
            if node in self.tier:
                self._store.remove(found.state)  # a copy under another name
            else:
                node.usage = found.usage
                self.tier.put(node, found.state, found.state.nbytes, found.priority)
            self._tree.leave(nodes)
        self.tier.policy.resumed([self.tier.priority(node) for node in self.tier])
        while self.tier.used > self.tier.limit and (victim := self.tier.victim()) is not None:
            self._delete(victim, self.tier.evict)

    def close(self) -> None:
        """Stores how often states were used since they were stored, so that the next run can rank them."""
        for node in self._changed:
            assert self._store is not None
            try:
                self._store.note(self.tier[node], node.usage, self.tier.priority(node))
            except StorageError:
                self._trace.count("knowledge.disk_errors")
        self._changed.clear()
        self._announced.clear()
        for node in list(self.tier):
            self.tier.remove(node)

    def _make_room(self, nbytes: int, priority: float) -> bool:
        with self._locked():
            while self.tier.used + nbytes > self.tier.limit:
                victim = self.tier.victim() if nbytes <= self.tier.limit else None
                if victim is None or self.tier.priority(victim) > priority:
                    self.tier.policy.evicted(priority)  # the new state counts as the evicted one
                    return False
                self._trace.count("knowledge.disk_evictions")
                self._delete(victim, self.tier.evict)
        return True

    def _delete(self, node: Node, take: Callable[[Node], StoredState]) -> None:
        assert self._store is not None
        self._store.remove(take(node))
        self._changed.discard(node)
        self._announced.discard(node)
        self._tree.prune(node)
