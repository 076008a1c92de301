"""The prefix tree of segments: its nodes, and what is remembered of those that are gone."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b

from edge.errors import BudgetExceeded
from edge.replacement import Usage

_REMEMBERED = 4096
"""Paths whose past is remembered after their states are gone, so that a document that comes back ranks as it should."""
_PAST_NBYTES = 320
"""What remembering one takes."""
_OBJECTS_NBYTES = 1200
"""What the Python objects of a node and its entries in two tiers take."""


class Node:
    """One segment after its path. Above all paths stands one root without tokens."""

    __slots__ = (
        "children", "digest", "end", "id", "in_context", "parent", "pins", "speculated", "start", "tokens", "usage",
    )  # fmt: skip

    def __init__(self, parent: Node | None, id: str, tokens: bytes) -> None:
        """Makes a node; it is not among its parent's children yet.

        Args:
            id: a name for traces.
            tokens: int32 token ids; they are the node's key, so finding a child compares them.
        """
        self.parent = parent
        self.id = id
        self.tokens = tokens
        self.children: dict[bytes, Node] = {}
        self.start: int = parent.end if parent else 0
        self.end: int = self.start + len(tokens) // 4
        self.digest: bytes = blake2b((parent.digest if parent else b"") + tokens, digest_size=16).digest()
        """Names the path, in files and in the memory of what is gone. It finds; only tokens prove."""
        self.usage = Usage()
        self.pins = 0
        self.in_context = False
        self.speculated = False

    @property
    def length(self) -> int:
        """Tokens of the segment."""
        return self.end - self.start

    @property
    def index_nbytes(self) -> int:
        """Bytes of memory the node takes apart from its state."""
        return len(self.tokens) + _OBJECTS_NBYTES

    def path(self) -> list[Node]:
        """The nodes from below the root down to this one."""
        nodes: list[Node] = []
        node = self
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]


class PrefixTree:
    """Nodes by their paths. A node stays as long as anything is attached to it or to one below. Not thread-safe."""

    def __init__(
        self, *, take: Callable[[int], None], give: Callable[[int], None], held: Callable[[Node], bool]
    ) -> None:
        """An empty tree.

        Args:
            take, give: account for bytes of memory; `take` raises BudgetExceeded when they are not to be had.
            held: whether some tier has the node's state.
        """
        self.root = Node(None, "", b"")
        self._take = take
        self._give = give
        self._held = held
        self._past: OrderedDict[bytes, Usage] = OrderedDict()

    def enter(self, path: Iterable[tuple[str, bytes]]) -> list[Node]:
        """The nodes of a path (ids and tokens), made where missing, and locked until `leave`.

        Raises:
            BudgetExceeded: there is no memory for a new node.
        """
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
        """Unlocks nodes of one path, and forgets those that hold nothing."""
        for node in reversed(nodes):
            node.pins -= 1
            self.prune(node)

    def find(self, path: Iterable[bytes]) -> Iterator[Node | None]:
        """The nodes of a path of tokens as far as they exist; None for the rest."""
        node: Node | None = self.root
        for tokens in path:
            node = node.children.get(tokens) if node else None
            yield node

    def prune(self, node: Node) -> None:
        """Forgets a node that nothing is attached to, and then its parents likewise."""
        while (
            node.parent is not None
            and not (node.pins or node.children or node.in_context or self._held(node))
            and node.parent.children.get(node.tokens) is node
        ):
            del node.parent.children[node.tokens]
            self._give(node.index_nbytes)
            if node.usage.frequency:
                self._remember(node)
            node = node.parent

    def forget_oldest(self) -> bool:
        """Forgets the past of the path that went first; returns whether there was any."""
        if not self._past:
            return False
        self._past.popitem(last=False)
        self._give(_PAST_NBYTES)
        return True

    def clear(self) -> None:
        """Forgets everything."""
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
        """Keeps the past of a node that is gone; there is room, since the node took more."""
        self._past[node.digest] = node.usage
        self._take(_PAST_NBYTES)
        if len(self._past) > _REMEMBERED:
            self.forget_oldest()
