"""A knowledge tree on the fake context with every number within reach, and its twin: the place of each state, by plain
rules."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edge.budget import MemoryBudget
from edge.kv_cache.backend import StateSegment
from edge.kv_cache.prefix_tree import _PAST_NBYTES, Node
from edge.kv_cache.store import KnowledgeStore
from edge.kv_cache.tree import KnowledgeTree
from edge.scheduling.background import Background
from edge.trace import Trace
from naive.kv import FakeContext, uncached


def segment(name: str, length: int) -> StateSegment:
    """A segment of so many tokens, told by its name from all others."""
    seed = int.from_bytes(name.encode(), "little") % 1009
    return StateSegment(name, tuple(int(token) for token in np.random.default_rng(seed).integers(0, 30_000, length)))


class Rig:
    """A tree with its surroundings, and checks of everything that must hold after any operation."""

    def __init__(
        self, *, limit: int = 10**7, host: int = 10**6, disk: int = 0, folder: Path | None = None, behind: bool = False,
        **keys: Any,
    ) -> None:  # fmt: skip
        """`behind`: a thread writes to disk."""
        self.writer = Background("states") if behind else None
        self.trace = Trace()
        self.backend = FakeContext(
            **{k: keys.pop(k) for k in ("capacity", "batch", "fingerprint", "fixed") if k in keys}
        )
        self.budget = MemoryBudget(limit, baseline=0)
        self.store = None
        if folder is not None:
            self.store = KnowledgeStore(folder, self.backend.fingerprint, disk, trace=self.trace)
        self.tree = KnowledgeTree(
            self.backend,
            self.budget,
            host_limit=host,
            store=self.store,
            trace=self.trace,
            writer=self.writer,
            clock=lambda: self.backend.clock,
            **keys,
        )

    @property
    def host_nbytes(self) -> int:
        """Bytes of the states in host memory."""
        with self.tree._states.locked():
            return self.tree._states.host.used

    def ask(self, path: Sequence[StateSegment], question: Sequence[int] = (7, 7), **keys: Any) -> list[str]:
        """A request; returns where its segments were."""
        with self.tree.prepare(path, suffix=len(question), **keys) as prepared:
            assert prepared.complete
            tokens = [token for segment in path for token in segment.tokens]
            assert prepared.cached_tokens + prepared.computed_tokens == len(tokens) == self.backend.length
            self.backend.failures = []
            self.backend.prefill(question)
            assert self.backend.output() == uncached([*tokens, *question]), "the answer depends on what was cached"
        return prepared.places

    def count(self, name: str) -> float:
        return self.trace.snapshot().get(f"knowledge.{name}", 0)

    def nodes(self) -> list[Node]:
        """Every node, the root left out."""
        found, waiting = [], [self.tree._states._tree.root]
        while waiting:
            node = waiting.pop()
            found += [node] if node.parent else []
            waiting += node.children.values()
        return found

    def check(self, *, files: bool = True) -> None:
        """Bytes are where the ledger says, within the limits, and nothing is left locked or useless. `files`: nobody
        has meddled with the files."""
        while self.writer is not None and self.writer.busy:
            time.sleep(0.001)
        states = self.tree._states
        assert not states._leaving
        held = sum(memoryview(states.host[node]).nbytes for node in states.host)
        index = sum(node.index_nbytes for node in self.nodes())
        assert states.host.used == held <= states.host.limit
        assert states._lease.nbytes == held + index + _PAST_NBYTES * len(states._tree._past)
        assert self.budget.used <= self.budget.limit
        for node in self.nodes():
            assert node.pins == 0
            assert node.contexts == [backend for backend, held in self.tree._held.items() if node in held]
            assert node in states.host or node in states.disk or node.contexts or node.children
        assert set(states.host) | set(states.disk.tier) <= set(self.nodes())
        assert states.disk._changed | states.disk._announced <= set(states.disk.tier)
        if self.store is not None and files:
            sizes = {path: path.stat().st_size for path in self.store.directory.iterdir()}
            named = {states.disk.tier[node].path: states.disk.tier[node].nbytes for node in states.disk.tier}
            assert sizes == named
            assert sum(sizes.values()) == states.disk.tier.used <= states.disk.tier.limit

    def held(self) -> tuple[set[str], set[str]]:
        """Paths in host memory and on disk, written as `a/b/c`."""
        states = self.tree._states
        return {_name(node) for node in states.host}, {_name(node) for node in states.disk.tier}


def _name(node: Node) -> str:
    return "/".join(part.id for part in node.path())


class Twin:
    """The states that PGDSF keeps, by the rules as they are written: every step looks at everything. `sizes` gives the
    bytes of a path's last segment in host memory and of its file, and `cost` the seconds to compute tokens after
    others."""

    def __init__(
        self,
        host: int,
        disk: int,
        sizes: Callable[[tuple[str, ...]], tuple[int, int]],
        cost: Callable[[int, int], float],
    ) -> None:
        self.limits = (host, disk)
        self.sizes = sizes
        self.cost = cost
        self.tiers: tuple[dict[tuple[str, ...], float], dict[tuple[str, ...], float]] = ({}, {})
        self.clocks = [0.0, 0.0]
        self.frequency: dict[tuple[str, ...], int] = {}
        self.costs: dict[tuple[str, ...], list[float]] = {}
        self.context: list[tuple[str, ...]] = []

    def ask(self, names: Sequence[str], tokens: Callable[[str], int], suffix: int) -> list[str]:
        path = [tuple(names[: i + 1]) for i in range(len(names))]
        common = 0
        while common < min(len(path), len(self.context)) and path[common] == self.context[common]:
            common += 1
        places = ["context"] * common
        for node in path[common:]:
            places.append("host" if node in self.tiers[0] else "disk" if node in self.tiers[1] else "nowhere")
        new = sum(tokens(n[-1]) for n, place in zip(path, places, strict=True) if place == "nowhere")
        cached = sum(tokens(name) for name in names) - new
        for node, place in zip(path, places, strict=True):
            if place == "nowhere":
                per_token = self.cost(cached, new + suffix) / (new + suffix)
                self.costs.setdefault(node, []).append(per_token)
            self.frequency[node] = self.frequency.get(node, 0) + 1
        for node in path:
            for tier in (0, 1):
                if node in self.tiers[tier]:
                    self.tiers[tier][node] = self.priority(tier, node)
        self.context = path
        for node in path:
            self.keep(node, path)
        return places

    def priority(self, tier: int, node: tuple[str, ...]) -> float:
        known = self.costs.get(node, [])
        return self.clocks[tier] + self.frequency.get(node, 0) * (sum(known) / len(known) if known else 0.0)

    def keep(self, node: tuple[str, ...], locked: Iterable[tuple[str, ...]]) -> None:
        host = self.tiers[0]
        if node in host:
            return
        size = self.sizes(node)[0]
        if size > self.limits[0]:
            if node not in self.tiers[1]:
                self.save(node, locked)
            return
        while sum(self.sizes(n)[0] for n in host) + size > self.limits[0]:
            victim = self.least(0, locked)
            if victim is None:
                if node not in self.tiers[1]:
                    self.save(node, locked)
                return
            if victim not in self.tiers[1]:
                self.save(victim, locked)
            self.clocks[0] = max(self.clocks[0], host.pop(victim))
        host[node] = self.priority(0, node)

    def save(self, node: tuple[str, ...], locked: Iterable[tuple[str, ...]]) -> None:
        disk = self.tiers[1]
        size = self.sizes(node)[1]
        priority = self.priority(1, node)
        above = [node[: i + 1] for i in range(len(node))]
        while sum(self.sizes(n)[1] for n in disk) + size > self.limits[1]:
            victim = self.least(1, [*locked, *above])
            if size > self.limits[1] or victim is None or disk[victim] > priority:
                self.clocks[1] = max(self.clocks[1], priority)
                return
            self.clocks[1] = max(self.clocks[1], disk.pop(victim))
        disk[node] = priority

    def least(self, tier: int, locked: Iterable[tuple[str, ...]]) -> tuple[str, ...] | None:
        held = self.tiers[tier]
        leaves = [n for n in held if not any(len(m) == len(n) + 1 and m[: len(n)] == n for m in held)]
        free = [n for n in leaves if n not in set(locked)]
        return min(free, key=lambda n: held[n], default=None)

    def held(self) -> tuple[set[str], set[str]]:
        return {"/".join(n) for n in self.tiers[0]}, {"/".join(n) for n in self.tiers[1]}
