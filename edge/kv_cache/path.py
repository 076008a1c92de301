"""A path of the knowledge tree: where its states are, and a lock that holds it in context."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType

from edge.kv_cache.node import Node


@dataclass(frozen=True, slots=True)
class Match:
    """Numbers of tokens of a path, by the place where their states are now."""

    context: int
    host: int
    disk: int
    missing: int

    @property
    def cached(self) -> int:
        """Number of tokens that need not be computed."""
        return self.context + self.host + self.disk


@dataclass(frozen=True, slots=True)
class KnowledgeStatus:
    """The amounts of states that the tree holds now."""

    context_tokens: int
    host_states: int
    host_nbytes: int
    disk_states: int
    disk_nbytes: int


class Prepared:
    """A path in context, locked there until it is released. A context manager.

    Attributes:
        complete: False if `prepare` was cancelled.
        places: for each segment of the path, where its states were: `context`, `host`, `disk`, or `nowhere`.
        computed: for each segment, the number of tokens computed.
        compute_s: seconds spent on computing states.
        restore_s: seconds spent on reading cached states and copying them into the context.
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
        """Number of tokens whose states were reused."""
        places = zip(self.nodes, self.places, strict=False)
        return sum(node.length for node, place in places if place != "nowhere")

    @property
    def restored_tokens(self) -> int:
        """Number of tokens whose states were copied into the context."""
        places = zip(self.nodes, self.places, strict=False)
        return sum(node.length for node, place in places if place in ("host", "disk"))

    @property
    def computed_tokens(self) -> int:
        """Number of tokens whose states were computed."""
        return sum(self.computed)

    def release(self) -> None:
        """Unlocks the path and the context, and keeps copies of states that have none.

        Call it after the answer, since the next `prepare` removes the tokens that the answer appended to the context.
        Releasing twice is harmless.
        """
        release, self._release = self._release, None
        if release is not None:
            release(self)

    def __enter__(self) -> Prepared:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
