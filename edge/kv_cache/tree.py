"""The knowledge tree: KV states of documents, reused when the same tokens come again (RAGCache, section 5.1).

A prefix tree of segments: system prompts, and below them documents. A node holds the states of its own tokens, in
contexts (one path in each), host memory or on disk. A hit needs the exact tokens from the root down and the backend's
fingerprint."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from edge.budget import MemoryBudget
from edge.errors import CorruptBlock, InputError, ModelError
from edge.kv_cache.backend import KVBackend, LearnedCosts, StateSegment
from edge.kv_cache.prefix_tree import PGDSF, Match, Node, PreparedPath, Replacement
from edge.kv_cache.states import KnowledgeStates
from edge.kv_cache.store import KnowledgeStore
from edge.scheduling.background import Background
from edge.trace import Trace

_LOSS = 1e-6
"""Seconds lost per byte given up, if no costs are known."""

AGAIN = 16
"""Tokens at a document's beginning that are computed again where it stands: they take most attention (EPIC)."""

AGAIN_BEST = 32
"""The same of number 1, the best document, from which most is read."""

_TYPICAL = 512
"""Length in tokens of the document for which the cost of a byte is computed."""


class KnowledgeTree:
    """States of segments in contexts, host memory and on disk. Thread-safe; a context serves one path at a time.

    `anywhere` says whether states of documents are moved.

    Counters, all named `knowledge.`:
    - segments of requests: `context_hits`, `host_hits`, `disk_hits`, `moved_hits`, `misses`
    - tokens: `cached_tokens` and `computed_tokens`, and `ahead_tokens`, computed before a request for them
    - seconds: `prefill_s`, `restore_s`, and `keep_s` for copying states out of the context
    - states: `kept` in host memory and `saved` to disk, each also with `_nbytes`; `host_evictions`, `disk_evictions`
    - failures: `dropped` (no room for a state, or no time to save it), `corrupt`, `unread` (no memory to read a state)
    - other failures: `retries`, `disk_errors`
    """

    def __init__(
        self,
        backend: KVBackend,
        budget: MemoryBudget,
        *,
        host_limit: int,
        store: KnowledgeStore | None = None,
        costs: LearnedCosts | None = None,
        policy: Callable[[], Replacement] = PGDSF,
        anywhere: bool = False,
        writer: Background | None = None,
        trace: Trace | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Loads the index of the states that an earlier run left in the store.

        `host_limit` bounds the states in host memory; `costs` rank states and learn from every prefill. `anywhere`:
        documents' states are computed behind the common beginning of prompts and moved, except the first tokens; those
        without a `home` are computed in their place. With `writer`, `PreparedPath.release` does not wait for the
        disk."""
        for part in (store, costs):
            if part is not None and part.fingerprint != backend.fingerprint:
                raise ValueError(f"a {type(part).__name__} of {part.fingerprint!r}, not {backend.fingerprint!r}")
        self._backend = backend
        self._costs = costs
        self.anywhere = anywhere
        self._trace = trace or Trace()
        self._clock = clock
        loss = (costs.estimate(0, _TYPICAL) if costs else 0.0) / (_TYPICAL * backend.bytes_per_token) or _LOSS
        self._states = KnowledgeStates(
            budget, host_limit=host_limit, store=store, policy=policy, loss=loss, trace=self._trace,
            writer=writer,
        )  # fmt: skip
        self._held: dict[KVBackend, list[Node]] = {backend: []}
        """The path that each context holds."""
        self._in_use: set[KVBackend] = set()
        self._closed = False
        self._changed = threading.Condition()  # of the two above; nothing else is done while it is held

    def part(self, backend: KVBackend) -> None:
        """Forgets a context that is in no use now, and will be closed."""
        self._set_context(backend, [])
        self._held.pop(backend, None)

    def common(self, path: Sequence[StateSegment], backend: KVBackend) -> int:
        with self._states.locked():
            nodes = list(self._states.find(map(_key, path)))
            return sum(node.length for node in self._leading(nodes, backend))

    def match(self, path: Sequence[StateSegment]) -> Match:
        """Counts the tokens of a path by the place where their states are now. Changes nothing."""
        found = {"context": 0, "host": 0, "disk": 0, "missing": 0}
        with self._states.locked():
            for position, node in enumerate(self._states.find(map(_key, path))):
                tokens = len(path[position].tokens)
                place = node and ("context" if node.contexts else self._states.place(node))
                if place is None and (way := self._moves(path, position)):
                    place = self._stored(way)
                    again = _again(_key(path[position]), way[-1][1]) if place else 0
                    found["missing"] += again
                    tokens -= again
                found[place or "missing"] += tokens
        return Match(**found)

    def unread(self, path: Sequence[StateSegment]) -> list[tuple[StateSegment, ...]]:
        """The paths to states that no tier has, and by which documents of `path` that were computed in their place
        could be moved in later prompts."""
        found = []
        for position, document in enumerate(path):
            if document.whole and (way := self._way_home(path, position)) and self._stored(way) is None:
                found.append((*path[: len(way) - 1], StateSegment(document.id, document.home)))
        return found

    def prepare(
        self,
        path: Sequence[StateSegment],
        *,
        suffix: int = 0,
        cancelled: Callable[[int], bool] | None = None,
        backend: KVBackend | None = None,
        behind: int = 0,
        ahead: bool = False,
    ) -> PreparedPath:
        """Brings a path in context, segment by segment: cached states are restored, and missing ones are computed.
        Waits until the context is free. The caller then appends its question, generates, and releases the path.

        `suffix`: tokens to be computed after the path. Once `cancelled`, called with the current segment's number,
        returns true, the rest is left out. `behind`: tokens behind the path that stay if the context holds all of
        it. `ahead`: nobody has asked for the path yet."""
        self._check(path, suffix)
        backend = backend or self._backend
        self._occupy(backend)
        prepared = PreparedPath(backend, self._release)
        try:
            prepared.nodes = self._states.enter((segment.id, _key(segment)) for segment in path)
            for position in range(len(path)):
                if way := self._moves(path, position):
                    prepared.homes[position] = self._states.enter(way)
                prepared.nodes[position].composed = bool(prepared.homes)
            self._bring(prepared, cancelled or (lambda position: False), behind)
            self._learn(prepared, suffix, ahead)
        except BaseException:
            self._leave(prepared)
            raise
        return prepared

    def read_ahead(self, ids: Sequence[str]) -> None:
        """Lets the system read states of the next path's likely documents, likeliest first."""
        self._states.read_ahead_of(ids)

    def close(self, *, save: bool = True) -> None:
        """Waits until no context is in use, and frees the memory. `save` first writes costs and states."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._in_use)
        self._states.settle(save=save)
        if save and self._costs is not None:
            self._costs.save()
        if save and self._states.disk.available:
            self._states.save()
        for backend in list(self._held):
            self._set_context(backend, [])
        self._states.close()

    def _occupy(self, backend: KVBackend) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or backend not in self._in_use)
            if self._closed:
                raise InputError("the knowledge tree has been closed")
            if backend not in self._held:
                if backend.fingerprint != self._backend.fingerprint:
                    raise ValueError(f"a context of {backend.fingerprint!r}, not {self._backend.fingerprint!r}")
                self._held[backend] = []
            self._in_use.add(backend)

    def _check(self, path: Sequence[StateSegment], suffix: int) -> None:
        total = suffix + sum(len(segment.tokens) for segment in path)
        if total > self._backend.capacity:
            raise InputError(
                f"the prompt has {total:,} tokens but the context holds {self._backend.capacity:,}; "
                f"use fewer or shorter documents"
            )
        for segment in path:
            if not segment.tokens:
                raise InputError(f"segment {segment.id!r} has no tokens; leave it out")

    def _bring(self, prepared: PreparedPath, cancelled: Callable[[int], bool], behind: int) -> None:
        """Fills the context; if the model fails, once more from an empty one (RAGCache, section 6)."""
        try:
            if self._bring_home(prepared, cancelled):
                self._fill(prepared, cancelled, behind)
        except ModelError:
            self._trace.count("knowledge.retries")
            self._set_context(prepared.backend, [])
            self._fill(prepared, cancelled, 0)

    def _way_home(self, path: Sequence[StateSegment], position: int) -> list[tuple[str, bytes]]:
        """The path (ids and tokens) to a document's states behind the common beginning; empty if it needs none."""
        document = path[position]
        begin = next((place for place, segment in enumerate(path) if segment.home), len(path))
        there = position == begin and document.tokens == document.home
        if not self.anywhere or not document.home or there:
            return []
        home = _bytes(document.home)
        if _again(_key(document), home) >= len(document.tokens):
            return []
        return [*((segment.id, _key(segment)) for segment in path[:begin]), (document.id, home)]

    def _moves(self, path: Sequence[StateSegment], position: int) -> list[tuple[str, bytes]]:
        """The path home if a document's states are moved from there; empty if it is computed in its place."""
        way = self._way_home(path, position)
        return [] if way and path[position].whole and self._stored(way) is None else way

    def _stored(self, way: Sequence[tuple[str, bytes]]) -> str | None:
        """The tier that has the states at the end of a path; None if no tier has them."""
        with self._states.locked():
            home = self._states.find(key for _, key in way)[-1]
            return None if home is None else self._states.place(home)

    def _bring_home(self, prepared: PreparedPath, cancelled: Callable[[int], bool]) -> bool:
        """Computes the states that will be moved and that no tier has. Returns False if it was cancelled."""
        leading = len(self._leading(prepared.nodes, prepared.backend))
        for position, way in prepared.homes.items():
            if position < leading or any(map(self._states.place, (prepared.nodes[position], way[-1]))):
                continue
            if not self._compute_home(prepared, position, cancelled):
                return False
        return True

    def _compute_home(self, prepared: PreparedPath, position: int, cancelled: Callable[[int], bool]) -> bool:
        apart = PreparedPath(prepared.backend, lambda path: None)
        apart.nodes = prepared.homes[position]
        self._fill(apart, lambda _: cancelled(position), 0)
        prepared.compute_s += apart.compute_s
        if apart.complete:
            self._keep(apart.nodes, prepared.backend)
            prepared.brought.add(position)
        return apart.complete

    def _fill(self, prepared: PreparedPath, cancelled: Callable[[int], bool], behind: int) -> None:
        nodes, backend = prepared.nodes, prepared.backend
        common = len(self._leading(nodes, backend))
        self._set_context(backend, nodes[:common])
        backend.truncate((nodes[common - 1].end if common else 0) + (behind if common == len(nodes) else 0))
        prepared.places = ["context"] * common
        prepared.computed = [0] * common
        sources = [prepared.homes.get(position, [node])[-1] for position, node in enumerate(nodes)]
        self._states.read_ahead(sources[common + 1 :])  # the disk reads them while the first one is restored
        for position, node in enumerate(nodes[common:], common):
            shared = any(backend.share(holder, node.start, node.end) for holder in node.contexts)
            if not shared and cancelled(position):
                return
            started = self._clock()
            place = "context" if shared else self._restore(node, backend)
            computed = 0
            if place is None and position in prepared.homes:
                computed = self._move(sources[position], node, backend)
                place = "moved" if computed else None
            prepared.restore_s += self._clock() - started if place else 0.0
            if place is None:
                computed, seconds = self._compute(node, backend, partial(cancelled, position))
                prepared.compute_s += seconds
            elif position in prepared.brought:
                place, computed = None, node.length
            prepared.places.append(place or "nowhere")
            prepared.computed.append(computed)
            if not place and computed < node.length:
                self._trace.count("knowledge.wasted_tokens", computed)
                backend.truncate(node.start)
                return
            self._set_context(backend, nodes[: position + 1])
        prepared.complete = True

    def _leading(self, nodes: Sequence[Node | None], backend: KVBackend) -> list[Node]:
        held = self._held.get(backend, [])
        if held and backend.length < held[-1].end:
            return []  # other code has used the backend
        pairs = zip(nodes, held, strict=False)
        return held[: next((i for i, (new, old) in enumerate(pairs) if new is not old), min(len(nodes), len(held)))]

    def _restore(self, node: Node, backend: KVBackend) -> str | None:
        """Appends a node's states to a context; returns the tier that had them, or None if they must be computed. Those
        of another context count as host memory's."""
        started = self._clock()
        place = self._states.place(node)
        held = node.contexts and not place
        extract = partial(node.contexts[0].extract, node.start, node.end) if held else None
        with self._states.state(node, extract, node.length * backend.bytes_per_token) as state:
            if state is None:
                return None
            place = place or "host"
            try:
                with self._trace.span(f"restore {node.id}", "generation", tokens=node.length, place=place):
                    backend.restore(state, node.start, node.end)
            except CorruptBlock:
                self._states.discard(node)
                return None
        self._trace.count("knowledge.restore_s", self._clock() - started)
        return place

    def _move(self, home: Node, node: Node, backend: KVBackend) -> int:
        """Appends a document's states from their place behind the common beginning. Returns the number of first tokens
        computed; 0 if it cannot be done, which changes nothing."""
        again = _again(node.tokens, home.tokens)
        with self._states.state(home, None, 0) as state:
            if state is None:
                return 0
            try:
                with self._trace.span(f"move {node.id}", "generation", tokens=node.length, computed=again):
                    backend.prefill(np.frombuffer(node.tokens, np.int32)[:again].tolist())
                    backend.move(state, home.start, home.end, again + home.length - node.length)
            except CorruptBlock:
                self._states.discard(home)
                backend.truncate(node.start)
                return 0
        return again

    def _compute(self, node: Node, backend: KVBackend, cancelled: Callable[[], bool]) -> tuple[int, float]:
        apart = 0.0

        def asked() -> bool:
            nonlocal apart
            before = self._clock()
            answer = cancelled()
            apart += self._clock() - before
            return answer

        started = self._clock()
        with self._trace.span(f"prefill {node.id}", "generation", tokens=node.length):
            done = backend.prefill(np.frombuffer(node.tokens, np.int32).tolist(), asked)
        seconds = self._clock() - started - apart
        self._trace.count("knowledge.prefill_s", seconds)
        if self._costs is not None and done == node.length:
            self._costs.learn(node.start, node.length, seconds)
        return done, seconds

    def _set_context(self, backend: KVBackend, nodes: Sequence[Node]) -> None:
        with self._states.locked():
            held = self._held.get(backend, [])
            self._held[backend] = list(nodes)
            for node in nodes:
                if node not in held:
                    node.contexts.append(backend)
            gone = [node for node in held if node not in nodes]
            for node in gone:
                node.contexts.remove(backend)
            self._states.released(reversed(gone))

    def _learn(self, prepared: PreparedPath, suffix: int, ahead: bool) -> None:
        """Updates the usage that ranks the path's nodes (algorithm 1), and the counters."""
        nodes, new = prepared.nodes, prepared.computed_tokens
        if new:
            cost = prepared.compute_s / new
            if self._costs is not None:
                new += suffix
                cost = self._costs.estimate(prepared.cached_tokens, new) / new
            for node, count in zip(nodes, prepared.computed, strict=False):
                if count == node.length and not node.composed:
                    node.usage.missed(cost)
            for position in prepared.brought:
                prepared.homes[position][-1].usage.missed(cost)
        if ahead:
            self._trace.count("knowledge.ahead_tokens", new)
        elif prepared.complete:
            for node, place in zip(nodes, prepared.places, strict=True):
                self._trace.count("knowledge.misses" if place == "nowhere" else f"knowledge.{place}_hits")
                node.usage.requested()
            self._trace.count("knowledge.cached_tokens", prepared.cached_tokens)
            self._trace.count("knowledge.computed_tokens", prepared.computed_tokens)
            homes = [way[-1] for position, way in prepared.homes.items() if prepared.places[position] != "context"]
            for home in homes:
                home.usage.requested()
            self._states.used([*nodes, *homes])

    def _release(self, prepared: PreparedPath) -> None:
        started = self._clock()
        try:
            self._keep(prepared.nodes, prepared.backend)
        finally:
            self._states.write_later()
            self._trace.count("knowledge.keep_s", self._clock() - started)
            self._leave(prepared)

    def _keep(self, nodes: Sequence[Node], backend: KVBackend) -> None:
        for node in nodes:
            if backend in node.contexts:
                extract = partial(backend.extract, node.start, node.end)
                self._states.keep(node, node.length * backend.bytes_per_token, extract)

    def _leave(self, prepared: PreparedPath) -> None:
        for way in prepared.homes.values():
            self._states.leave(way)
        self._states.leave(prepared.nodes)
        with self._changed:
            self._in_use.discard(prepared.backend)
            self._changed.notify_all()


def _key(segment: StateSegment) -> bytes:
    return _bytes(segment.tokens)


def _bytes(tokens: Sequence[int]) -> bytes:
    return np.asarray(tokens, np.int32).tobytes()


def _again(tokens: bytes, home: bytes) -> int:
    """Number of a moved document's first tokens that are computed anew: those that differ, at least `AGAIN`."""
    if tokens == home:
        return AGAIN_BEST
    here, there = (np.frombuffer(text, np.int32)[::-1] for text in (tokens, home))
    length = min(len(here), len(there))
    unlike = np.flatnonzero(here[:length] != there[:length])
    return max(AGAIN, len(here) - int(unlike[0] if len(unlike) else length))
