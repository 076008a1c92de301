"""Tiers of the knowledge tree: the states in one kind of memory, ranked by a replacement policy, and those on disk."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Generic, TypeVar

from edge.errors import StorageError
from edge.kv_cache.backend import State
from edge.kv_cache.prefix_tree import Node, PrefixTree, Replacement
from edge.kv_cache.store import KnowledgeStore, StoredState
from edge.link import LinkRate
from edge.trace import Trace

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
        """Ranks the node again, after a request for it."""
        self._entries[node].priority = self.policy.used(node.usage)

    def victim(self, gone: Container[Node] = ()) -> Node | None:
        """The leaf of least priority that is not locked, or None; the next one after those `gone`. Leaves, which have
        no child in this tier, go first, because a child's states are of little use without its parent's."""
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
        """Removes a node for another reason."""
        entry = self._entries.pop(node)
        self.used -= entry.nbytes
        return entry.payload

    def nbytes(self, node: Node) -> int:
        return self._entries[node].nbytes

    def _is_leaf(self, node: Node, gone: Container[Node]) -> bool:
        return not any(child in self._entries and child not in gone for child in node.children.values())


class DiskStates:
    """States in a `KnowledgeStore`, ranked. Without a store nothing is kept. One thread at a time saves; the tree's
    lock guards the rest.

    A new state must be worth as much as the states that would be deleted for it, because disks are slow to write, and
    wear.
    """

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
