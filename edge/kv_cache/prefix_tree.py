"""The prefix tree of segments, the usage history of removed nodes, and paths. Cached states are ranked by PGDSF
(RAGCache, section 5.1)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol

from edge.errors import BudgetExceeded
from edge.kv_cache.backend import KVBackend


@dataclass(slots=True)
class Usage:
    """The history of one entry: requests, those that computed it, their summed seconds per uncached token."""

    frequency: int = 0
    computed: int = 0
    total_cost: float = 0.0

    @property
    def cost(self) -> float:
        """Seconds per uncached token, averaged over the requests that computed it (formula 3); 0 before the first."""
        return self.total_cost / self.computed if self.computed else 0.0

    def requested(self) -> None:
        self.frequency += 1

    def missed(self, seconds_per_token: float) -> None:
        self.computed += 1
        self.total_cost += seconds_per_token


class Replacement(Protocol):
    """Ranks the entries of one tier. The entry with the lowest priority is evicted first."""

    def used(self, usage: Usage) -> float:
        """The priority of an entry that was just added to the tier, or requested from it."""

    def evicted(self, priority: float) -> None:
        """Notes that an entry of this priority was evicted for lack of space."""

    def resumed(self, priorities: Collection[float]) -> None:
        """Continues from an earlier run: the tier holds entries of these priorities."""


class PGDSF:
    """Prefix-aware greedy dual-size frequency: clock + frequency * cost per uncached token, in place of the classic
    cost / size. The clock makes entries lose rank that were popular only in the past."""

    def __init__(self) -> None:
        self.clock = 0.0

    def used(self, usage: Usage) -> float:
        return self.clock + usage.frequency * usage.cost

    def evicted(self, priority: float) -> None:
        self.clock = max(self.clock, priority)

    def resumed(self, priorities: Collection[float]) -> None:
        # No entry of a tier ranks below its clock, and the next eviction would set the clock to the lowest anyway.
        self.clock = max(self.clock, min(priorities, default=0.0))


_REMEMBERED = 4096
"""Removed paths whose usage is remembered, so that a document that comes back is ranked by its history."""
_PAST_NBYTES = 320
"""Bytes that the history of one path takes."""
_OBJECTS_NBYTES = 1200
"""Bytes of the Python objects of a node and its entries in two tiers."""


class Node:
    """One segment after the segments of its path. The root of all paths has no tokens."""

    __slots__ = (
        "children", "composed", "contexts", "digest", "end", "id", "parent", "pins", "start", "tokens", "usage",
    )  # fmt: skip

    def __init__(self, parent: Node | None, id: str, tokens: bytes) -> None:
        """Not among its parent's children yet. Its int32 token ids are its key there."""
        self.parent = parent
        self.id = id
        self.tokens = tokens
        self.children: dict[bytes, Node] = {}
        self.start: int = parent.end if parent else 0
        self.end: int = self.start + len(tokens) // 4
        self.digest: bytes = blake2b((parent.digest if parent else b"") + tokens, digest_size=16).digest()
        """Finds the path in file names and in the history; only equal tokens prove a match."""
        self.usage = Usage()
        self.pins = 0
        self.contexts: list[KVBackend] = []
        """The contexts that hold the node's states now."""
        self.composed = False
        """Whether its states are moved ones, or stand behind some. They serve the same prompt only, so they are kept in
        spare memory, and never on disk, where another run may want exact states."""

    @property
    def length(self) -> int:
        return self.end - self.start

    @property
    def index_nbytes(self) -> int:
        """Bytes of memory that the node takes without its state."""
        return len(self.tokens) + _OBJECTS_NBYTES

    def path(self) -> list[Node]:
        nodes: list[Node] = []
        node = self
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]


class PrefixTree:
    """Nodes by their paths. Nodes are removed when nothing below them is in use or has a state. Not thread-safe."""

    def __init__(
        self, *, take: Callable[[int], None], give: Callable[[int], None], held: Callable[[Node], bool]
    ) -> None:
        """`take` and `give` account for memory (`take` raises BudgetExceeded); `held`: some tier has the state."""
        self.root = Node(None, "", b"")
        self._take = take
        self._give = give
        self._held = held
        self._past: OrderedDict[bytes, Usage] = OrderedDict()

    def enter(self, path: Iterable[tuple[str, bytes]]) -> list[Node]:
        """The nodes of a path (ids and tokens), made where missing, and locked until `leave`."""
        nodes: list[Node] = []
        node = self.root
        try:
            for id, tokens in path:
                node = node.children.get(tokens) or self._add(node, id, tokens)
                node.pins += 1
                nodes.append(node)
        except BudgetExceeded:
            self.leave(nodes)
            raise
        return nodes

    def leave(self, nodes: Sequence[Node]) -> None:
        """Unlocks nodes of one path, and removes those that hold nothing."""
        for node in reversed(nodes):
            node.pins -= 1
            self.prune(node)

    def find(self, path: Iterable[bytes]) -> Iterator[Node | None]:
        """The nodes of a path of tokens as far as they exist; None for each further token sequence."""
        node: Node | None = self.root
        for tokens in path:
            node = node.children.get(tokens) if node else None
            yield node

    def prune(self, node: Node) -> None:
        """Removes a node that is not in use and has neither state nor children, and then its parents likewise."""
        while (
            node.parent is not None
            and not (node.pins or node.children or node.contexts or self._held(node))
            and node.parent.children.get(node.tokens) is node
        ):
            del node.parent.children[node.tokens]
            self._give(node.index_nbytes)
            if node.usage.frequency:
                self._remember(node)
            node = node.parent

    def forget_oldest(self) -> bool:
        """Forgets the history of the path that was removed first; returns whether there was one."""
        if not self._past:
            return False
        self._past.popitem(last=False)
        self._give(_PAST_NBYTES)
        return True

    def clear(self) -> None:
        self.root.children.clear()
        self._past.clear()

    def _add(self, parent: Node, id: str, tokens: bytes) -> Node:
        node = Node(parent, id, tokens)
        self._take(node.index_nbytes)
        past = self._past.pop(node.digest, None)
        if past is not None:
            node.usage = past
            self._give(_PAST_NBYTES)
        parent.children[tokens] = node
        return node

    def _remember(self, node: Node) -> None:
        """Keeps the history of a removed node. It fits, since the node took more memory."""
        self._past[node.digest] = node.usage
        self._take(_PAST_NBYTES)
        if len(self._past) > _REMEMBERED:
            self.forget_oldest()


@dataclass(frozen=True, slots=True)
class Match:
    """Numbers of tokens of a path, by the place where their states are now."""

    context: int
    host: int
    disk: int
    missing: int

    @property
    def cached(self) -> int:
        return self.context + self.host + self.disk


class PreparedPath:
    """A path in a context, locked there until it is released. `complete` is False if `prepare` was cancelled. `places`
    are where each segment's states were; `homes` has the paths to the places that states moved from, and `brought` the
    positions computed there for this path."""

    def __init__(self, backend: KVBackend, release: Callable[[PreparedPath], None]) -> None:
        self.backend = backend
        self.nodes: Sequence[Node] = []
        self.homes: dict[int, list[Node]] = {}
        self.brought: set[int] = set()
        self.complete = False
        self.places: list[str] = []
        self.computed: list[int] = []
        self.compute_s = 0.0
        self.restore_s = 0.0
        self._release: Callable[[PreparedPath], None] | None = release

    @property
    def end(self) -> int:
        return self.nodes[-1].end if self.nodes else 0

    @property
    def cached_tokens(self) -> int:
        return self._reused("context", "host", "disk", "moved")

    @property
    def restored_tokens(self) -> int:
        return self._reused("host", "disk", "moved")

    @property
    def computed_tokens(self) -> int:
        return sum(self.computed)

    def _reused(self, *places: str) -> int:
        parts = zip(self.nodes, self.places, self.computed, strict=False)
        return sum(node.length - computed for node, place, computed in parts if place in places)

    def release(self) -> None:
        """Unlocks path and context, and keeps states that have no copy. Call it after the answer; twice is harmless."""
        release, self._release = self._release, None
        if release is not None:
            release(self)

    def __enter__(self) -> PreparedPath:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()
