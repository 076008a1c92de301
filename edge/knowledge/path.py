"""A path of the knowledge tree: where its states are, and holding it in context."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType

from edge.knowledge.node import Node


@dataclass(frozen=True, slots=True)
class Match:
    """Tokens of a path by where their states are now."""

    context: int
    host: int
    disk: int
    missing: int

    @property
    def cached(self) -> int:
        """Tokens that need not be computed."""
        return self.context + self.host + self.disk


@dataclass(frozen=True, slots=True)
class KnowledgeStatus:
    """What the tree holds now."""

    context_tokens: int
    host_states: int
    host_nbytes: int
    disk_states: int
    disk_nbytes: int


class Prepared:
    """A path in context, locked there until released. A context manager.

    Attributes:
        complete: False when it was cancelled, or speculative while the context was in use.
        places: for each segment of the path, where its states were: `context`, `host`, `disk`, or `nowhere`.
        computed: for each segment, tokens computed.
        compute_s: seconds of computing; `restore_s` of reading cached states and copying them into the context.
    """

    def __init__(self, nodes: Sequence[Node], release: Callable[[Prepared], None]) -> None:
        self.nodes = nodes
        self.complete = False
        self.places: list[str] = []
        self.computed: list[int] = []
        self.compute_s = 0.0
        self.restore_s = 0.0
        self._release: Callable[[Prepared], None] | None = release

    @property
    def cached_tokens(self) -> int:
        """Tokens whose states were reused."""
        places = zip(self.nodes, self.places, strict=False)
        return sum(node.length for node, place in places if place != "nowhere")

    @property
    def restored_tokens(self) -> int:
        """Tokens whose states were copied into the context."""
        places = zip(self.nodes, self.places, strict=False)
        return sum(node.length for node, place in places if place in ("host", "disk"))

    @property
    def computed_tokens(self) -> int:
        """Tokens whose states were computed."""
        return sum(self.computed)

    def release(self) -> None:
        """Unlocks the path and the context, and keeps copies of states that have none. Call it after the answer: what
        was appended to the path in context is forgotten at the next `prepare`. Releasing twice is harmless."""
        release, self._release = self._release, None
        if release is not None:
            release(self)

    def __enter__(self) -> Prepared:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
