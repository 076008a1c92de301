"""A tier: the states in one kind of memory, ranked by a replacement policy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from edge.kv_cache.node import Node
from edge.kv_cache.replacement import Replacement

Payload = TypeVar("Payload")


@dataclass(slots=True)
class _Entry(Generic[Payload]):
    payload: Payload
    nbytes: int
    priority: float


class Tier(Generic[Payload]):
    """The nodes whose states are in one kind of memory, up to a number of bytes.

    A policy ranks them by this tier's clock. Not thread-safe.
    """

    def __init__(self, limit: int, policy: Replacement) -> None:
        self.limit = limit
        self.used = 0
        self.policy = policy
        self._entries: dict[Node, _Entry[Payload]] = {}

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
        """Adds a node's state."""
        if node in self._entries:
            raise ValueError(f"the state of {node.id!r} is held already")
        self._entries[node] = _Entry(payload, nbytes, priority)
        self.used += nbytes

    def touch(self, node: Node) -> None:
        """Ranks the node again, after a request for it."""
        self._entries[node].priority = self.policy.used(node.usage)

    def victim(self) -> Node | None:
        """The leaf of least priority that is not locked, or None.

        A leaf has no child in this tier. Leaves go first, because a child's states are of little use without its
        parent's.
        """
        found: Node | None = None
        least = float("inf")
        for node, entry in self._entries.items():
            if entry.priority < least and not node.pins and self._is_leaf(node):
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

    def _is_leaf(self, node: Node) -> bool:
        return not any(child in self._entries for child in node.children.values())
