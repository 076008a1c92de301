"""The knowledge tree: KV states of documents, reused where the same tokens come again (RAGCache, section 5.1).

A prefix tree of segments: below the root the system prompts, below them documents, each node after its path. A node
holds the states of its own tokens only. States lie in context (one path), in host memory and on disk. What is nowhere
is computed.

Whatever is cached, the same tokens end up in context with the same states: a hit needs the exact tokens from the root
down and the backend's fingerprint, and a state that cannot be read or restored is computed instead.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np

from edge.budget import MemoryBudget
from edge.costs import PrefillCosts
from edge.errors import CorruptBlock, InputError, ModelError
from edge.knowledge.backend import KVBackend, Segment
from edge.knowledge.node import Node
from edge.knowledge.path import KnowledgeStatus, Match, Prepared
from edge.knowledge.states import KnowledgeStates
from edge.knowledge.store import KnowledgeStore
from edge.replacement import PGDSF, Replacement
from edge.trace import Trace

_LOSS = 1e-6
"""Seconds a byte given back costs, where no cost table tells: about that of a model of half a billion parameters on a
few cores."""

_TYPICAL = 512
"""Tokens of a document that a byte's cost is reckoned for."""


class KnowledgeTree:
    """States of segments in context, host memory and on disk. Thread-safe; the context serves one path at a time.

    Counters, all `knowledge.`: segments asked for that were `context_hits`, `host_hits`, `disk_hits`, `speculated`
    (computed ahead by a guess) or `misses`; `cached_tokens` and `computed_tokens` of requests, `guessed_tokens`
    computed by guesses; `prefill_s`, `restore_s`, and `keep_s` of copying out of the context; states `kept` in host
    memory and `saved` to disk, with `_nbytes`; `host_evictions`, `disk_evictions`, `dropped` (gone though wanted:
    no room, or no time to save), `corrupt`, `unread` (no memory to read it into), `retries`, `disk_errors`.
    """

    def __init__(
        self,
        backend: KVBackend,
        budget: MemoryBudget,
        *,
        host_limit: int,
        store: KnowledgeStore | None = None,
        costs: PrefillCosts | None = None,
        policy: Callable[[], Replacement] = PGDSF,
        trace: Trace | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Takes up what an earlier run left in the store.

        Args:
            host_limit: bytes of states in host memory at most; it takes only what the budget has free, and gives way.
            store: the disk tier; without one, states live as long as the process.
            costs: prefill times of this backend, to rank states by; they learn from every prefill. Without them the
                time that each request computed counts.
            policy: makes the replacement policy of a tier.
            clock: seconds; a simulation has its own.

        Raises:
            BudgetExceeded: the index of the stored states does not fit.
            StorageError: the store's directory cannot be read.
            ValueError: the store or the costs belong to another backend.
        """
        for part in (store, costs):
            if part is not None and part.fingerprint != backend.fingerprint:
                raise ValueError(f"a {type(part).__name__} of {part.fingerprint!r}, not {backend.fingerprint!r}")
        self._backend = backend
        self._costs = costs
        self._trace = trace or Trace()
        self._clock = clock
        loss = (costs.estimate(0, _TYPICAL) if costs else 0.0) / (_TYPICAL * backend.bytes_per_token) or _LOSS
        self._states = KnowledgeStates(
            budget, host_limit=host_limit, store=store, policy=policy, loss=loss, trace=self._trace
        )
        self._context: list[Node] = []
        self._in_use = threading.Lock()  # the context is; taken before every other lock

    @property
    def busy(self) -> bool:
        """True while somebody uses the context."""
        return self._in_use.locked()

    def match(self, path: Sequence[Segment]) -> Match:
        """Where the states of a path are now. Changes nothing."""
        found = {"context": 0, "host": 0, "disk": 0, "missing": 0}
        with self._states.locked():
            for segment, node in zip(path, self._states.find(map(_key, path)), strict=True):
                place = node and ("context" if node.in_context else self._states.place(node))
                found[place or "missing"] += len(segment.tokens)
        return Match(**found)

    @contextmanager
    def pinned(self, path: Sequence[Segment]) -> Iterator[None]:
        """Locks what there is of a path against eviction from host memory, such as for a request that waits."""
        with self._states.locked():
            nodes = [node for node in self._states.find(map(_key, path)) if node is not None]
            for node in nodes:
                node.pins += 1
        try:
            yield
        finally:
            self._states.leave(nodes)

    def prepare(
        self,
        path: Sequence[Segment],
        *,
        suffix: int = 0,
        speculative: bool = False,
        cancelled: Callable[[int], bool] | None = None,
    ) -> Prepared:
        """Brings a path in context: what is cached is restored, what is not is computed, segment by segment.

        Waits until the context is free. The caller then appends its question and generates with the backend itself,
        and releases.

        Args:
            path: the system prompt, then documents in their order.
            suffix: tokens the caller will compute after the path.
            speculative: a guess: it does not count as a request, copies nothing, and does not wait for the context.
            cancelled: asked between segments and batches, with the number of the segment that would be worked on; once
                true, the rest is left out.

        Raises:
            InputError: a segment is empty, or path and suffix do not fit the context.
            BudgetExceeded: not even the path's index fits.
            ModelError: the backend failed twice.
        """
        self._check(path, suffix)
        if not self._in_use.acquire(blocking=not speculative):
            return Prepared([], lambda _: None)
        prepared = Prepared([], self._release_guess if speculative else self._release)
        try:
            prepared.nodes = self._states.enter((segment.id, _key(segment)) for segment in path)
            self._bring(prepared, cancelled or _never)
            self._learn(prepared, suffix, speculative)
        except BaseException:
            self._release_guess(prepared)
            raise
        return prepared

    def status(self) -> KnowledgeStatus:
        """What is held now."""
        with self._states.locked():
            host, disk = self._states.host, self._states.disk.tier
            context = self._context[-1].end if self._context else 0
            return KnowledgeStatus(context, len(host), host.used, len(disk), disk.used)

    def close(self, *, save: bool = True) -> None:
        """Saves what is not on disk yet, the most valuable first, unless told not to; gives the memory back."""
        with self._in_use:
            if save and self._states.disk.available:
                self._states.save()
            self._set_context([])
            self._states.close()

    def _check(self, path: Sequence[Segment], suffix: int) -> None:
        total = suffix + sum(len(segment.tokens) for segment in path)
        if total > self._backend.capacity:
            raise InputError(
                f"the prompt has {total:,} tokens but the context holds {self._backend.capacity:,}; "
                f"use fewer or shorter documents"
            )
        for segment in path:
            if not segment.tokens:
                raise InputError(f"segment {segment.id!r} has no tokens; leave it out")

    def _bring(self, prepared: Prepared, cancelled: Callable[[int], bool]) -> None:
        """Fills the context. Nothing of the answer exists yet, so a failure is met by trying once more, from an empty
        context (RAGCache, section 6)."""
        try:
            self._fill(prepared, cancelled)
        except ModelError:
            self._trace.count("knowledge.retries")
            self._set_context([])
            self._fill(prepared, cancelled)

    def _fill(self, prepared: Prepared, cancelled: Callable[[int], bool]) -> None:
        nodes = prepared.nodes
        common = self._common(nodes)
        self._set_context(nodes[:common])
        self._backend.truncate(nodes[common - 1].end if common else 0)
        prepared.places = ["context"] * common
        prepared.computed = [0] * common
        for position, node in enumerate(nodes[common:], common):
            if cancelled(position):
                return
            started = self._clock()
            place = self._restore(node)
            prepared.restore_s += self._clock() - started if place else 0.0
            started = self._clock()
            computed = 0 if place else self._compute(node, partial(cancelled, position))
            prepared.compute_s += self._clock() - started if computed else 0.0
            prepared.places.append(place or "nowhere")
            prepared.computed.append(computed)
            if not place and computed < node.length:
                self._trace.count("knowledge.wasted_tokens", computed)
                self._backend.truncate(node.start)
                return
            self._set_context(nodes[: position + 1])
        prepared.complete = True

    def _common(self, nodes: Sequence[Node]) -> int:
        """How many nodes of the path are in context already."""
        if self._context and self._backend.length < self._context[-1].end:
            return 0  # somebody else used the backend
        pairs = zip(nodes, self._context, strict=False)
        return next((i for i, (new, old) in enumerate(pairs) if new is not old), min(len(nodes), len(self._context)))

    def _restore(self, node: Node) -> str | None:
        """Appends a node's cached state to the context; returns where it was, None if it must be computed."""
        started = self._clock()
        place = self._states.place(node)
        with self._states.state(node) as state:
            if state is None:
                return None
            try:
                with self._trace.span(f"restore {node.id}", "generation", tokens=node.length, place=place):
                    self._backend.restore(state, node.start, node.end)
            except CorruptBlock:
                self._states.discard(node)
                return None
        self._trace.count("knowledge.restore_s", self._clock() - started)
        return place

    def _compute(self, node: Node, cancelled: Callable[[], bool]) -> int:
        started = self._clock()
        with self._trace.span(f"prefill {node.id}", "generation", tokens=node.length):
            done = self._backend.prefill(np.frombuffer(node.tokens, np.int32).tolist(), cancelled)
        seconds = self._clock() - started
        self._trace.count("knowledge.prefill_s", seconds)
        if self._costs is not None and done == node.length:
            self._costs.learn(node.start, node.length, seconds)
        return done

    def _set_context(self, nodes: Sequence[Node]) -> None:
        with self._states.locked():
            gone = [node for node in self._context if node not in nodes]
            self._context = list(nodes)
            for node in gone:
                node.in_context = False
            for node in nodes:
                node.in_context = True
            self._states.released(reversed(gone))

    def _learn(self, prepared: Prepared, suffix: int, speculative: bool) -> None:
        """Updates what ranks the path's nodes (algorithm 1), and the counters."""
        nodes, new = prepared.nodes, prepared.computed_tokens
        if new:
            cost = prepared.compute_s / new
            if self._costs is not None:
                new += 0 if speculative else suffix
                cost = self._costs.estimate(prepared.cached_tokens, new) / new
            for node, count in zip(nodes, prepared.computed, strict=False):
                if count == node.length:
                    node.usage.missed(cost)
                    node.speculated = speculative
        if speculative:
            self._trace.count("knowledge.guessed_tokens", prepared.computed_tokens)
        elif prepared.complete:
            for node, place in zip(nodes, prepared.places, strict=True):
                found = "misses" if place == "nowhere" else "speculated" if node.speculated else f"{place}_hits"
                self._trace.count(f"knowledge.{found}")
                node.speculated = False
                node.usage.requested()
            self._trace.count("knowledge.cached_tokens", prepared.cached_tokens)
            self._trace.count("knowledge.computed_tokens", prepared.computed_tokens)
            self._states.used(nodes)

    def _release(self, prepared: Prepared) -> None:
        started = self._clock()
        try:
            for node in prepared.nodes:
                if node.in_context:
                    extract = partial(self._backend.extract, node.start, node.end)
                    self._states.keep(node, node.length * self._backend.bytes_per_token, extract)
        finally:
            self._trace.count("knowledge.keep_s", self._clock() - started)
            self._release_guess(prepared)

    def _release_guess(self, prepared: Prepared) -> None:
        self._states.leave(prepared.nodes)
        self._in_use.release()


def _key(segment: Segment) -> bytes:
    return np.asarray(segment.tokens, np.int32).tobytes()


def _never(position: int) -> bool:
    return False
