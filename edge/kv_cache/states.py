"""The states of the knowledge tree's nodes in host memory, under the budget, and on disk (RAGCache, 5.1)."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from edge.budget import Lease, MemoryBudget
from edge.errors import BudgetExceeded, CorruptBlock, StorageError
from edge.kv_cache.backend import State
from edge.kv_cache.prefix_tree import Node, PrefixTree, Replacement
from edge.kv_cache.store import DiskStates, KnowledgeStore, StateTier
from edge.scheduling.background import Background
from edge.trace import Trace

_OWNER = "knowledge tree"

_AHEAD = 1 / 8
"""Share of the host's limit that is kept free, or saved, so that new states find room without waiting for the disk."""


@dataclass(frozen=True, slots=True)
class _Leaving:
    """A state on its way to disk, with the lease of its memory. The nodes of its path are locked meanwhile."""

    node: Node
    state: State
    lease: Lease


class KnowledgeStates:
    """The prefix tree and the two tiers below the context. Thread-safe, as long as one thread at a time keeps and
    saves.

    Host memory takes only free memory. A state is written to disk at most once, when it leaves host memory, or dropped
    if it is not worth the space. With a writer, keeping a state never waits for the disk."""

    def __init__(
        self,
        budget: MemoryBudget,
        *,
        host_limit: int,
        store: KnowledgeStore | None,
        policy: Callable[[], Replacement],
        loss: float,
        trace: Trace,
        writer: Background | None = None,
    ) -> None:
        """Loads the index of the states in the store. `loss`: seconds for giving up a byte of host memory."""
        self.host: StateTier[State] = StateTier(host_limit, policy())
        self._budget = budget
        self._trace = trace
        self._writer = writer
        self._leaving: deque[_Leaving] = deque()
        self._tree = PrefixTree(
            take=self._take_index, give=self._give, held=lambda node: node in self.host or node in self.disk
        )
        self.disk = DiskStates(store, policy(), self._tree, self.locked, trace)
        self._lock = threading.RLock()
        self._lease = budget.reserve(_OWNER, 0)
        self._shrinkers = [
            budget.add_shrinker(_OWNER, self._give_way_saved, loss=self.disk.loss),
            budget.add_shrinker(_OWNER, self._give_way, loss=loss),
        ]
        try:
            with self.locked():
                self.disk.resume()
        except BaseException:
            self._forget_shrinkers()
            self._lease.release()
            raise

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Locks the tree. The ledger's lock is taken first, because the ledger's shrinkers take this one inside it."""
        with self._budget.lock, self._lock:
            yield

    def enter(self, path: Iterable[tuple[str, bytes]]) -> list[Node]:
        with self.locked():
            return self._tree.enter(path)

    def leave(self, nodes: Sequence[Node]) -> None:
        with self.locked():
            self._tree.leave(nodes)

    def find(self, path: Iterable[bytes]) -> list[Node | None]:
        """The nodes of a path of tokens as far as they exist; None for each further token sequence."""
        with self.locked():
            return list(self._tree.find(path))

    def released(self, nodes: Iterable[Node]) -> None:
        """Removes those of the nodes that hold nothing any more, after something was detached from them."""
        with self.locked():
            for node in nodes:
                self._tree.prune(node)

    def place(self, node: Node) -> str | None:
        return "host" if node in self.host else "disk" if node in self.disk else None

    def used(self, nodes: Sequence[Node]) -> None:
        """Ranks the nodes again in each tier that has them, after a request for them."""
        with self.locked():
            for node in nodes:
                if node in self.host:
                    self.host.touch(node)
                if node in self.disk:
                    self.disk.used(node)

    def read_ahead(self, nodes: Iterable[Node]) -> None:
        """Lets the system read those of some nodes' states that are only on disk, in this order."""
        with self.locked():
            stored = self.disk.expected([node for node in nodes if self.place(node) == "disk"])
        self.disk.announce(stored)  # outside the lock, because the system may take its time

    def read_ahead_of(self, ids: Sequence[str]) -> None:
        """The same for all paths of some documents, likeliest first."""
        ranks = {id: rank for rank, id in enumerate(ids)}
        with self.locked():
            found = []
            for node in self.disk.tier:
                named = [ranks[above.id] for above in node.path()[1:] if above.id in ranks]
                if named and len(named) == len(node.path()) - 1 and node not in self.host:
                    found.append((max(named), node.end, node))
            stored = self.disk.expected([node for *_, node in sorted(found, key=lambda one: one[:2])])
        self.disk.announce(stored)

    @contextmanager
    def state(self, node: Node, extract: Callable[[], State] | None, nbytes: int) -> Iterator[State | None]:
        """A locked node's state, from host memory or read into a buffer under a lease; else copied out of a context by
        `extract` (about `nbytes`). None if nothing has it, it is damaged (then it is removed), or there is no
        memory."""
        if node in self.host:
            yield self.host[node]
            return
        stored = node in self.disk
        if not stored and extract is None:
            yield None
            return
        nbytes = self.disk.nbytes(node) if stored else nbytes
        try:
            lease = self._budget.reserve("knowledge tree reading", nbytes)
        except BudgetExceeded:
            self._trace.count("knowledge.unread")
            yield None
            return
        with lease:
            if not stored:
                assert extract is not None
                yield extract()
                return
            buffer = bytearray(nbytes)
            try:
                self.disk.read(node, memoryview(buffer))
            except (CorruptBlock, StorageError):
                self.discard(node)
                yield None
            else:
                yield buffer

    def discard(self, node: Node) -> None:
        """Removes a node's damaged state from all tiers."""
        with self.locked():
            self._trace.count("knowledge.corrupt")
            if node in self.host:
                self._remove_from_host(node, self.host.remove)
            if node in self.disk:
                self.disk.remove(node)

    def keep(self, node: Node, nbytes: int, extract: Callable[[], State]) -> None:
        """Copies a locked node's state, of about `nbytes`, into host memory, or to disk if there is no room for it."""
        if node in self.host:
            return
        if not self._make_room(nbytes, spare=node.composed):
            if not (node.composed or node in self.disk or self._keep_on_disk(node, nbytes, extract)):
                self._trace.count("knowledge.dropped")
            return
        try:
            state = extract()
        except BaseException:
            self._give(nbytes)
            raise
        size = memoryview(state).nbytes
        if size > nbytes and not self._make_room(size - nbytes, beside=nbytes, spare=node.composed):
            self._give(nbytes)
            self._trace.count("knowledge.dropped")
            return
        with self.locked():
            self._give(max(0, nbytes - size))
            self.host.put(node, state, size, self.host.policy.used(node.usage))
        self._trace.count("knowledge.kept")
        self._trace.count("knowledge.kept_nbytes", size)

    def write_later(self) -> None:
        """Has the writer, if there is one, write the states on their way to disk, and those that would leave next."""
        if self._writer is not None:
            self._writer.submit(self._write)

    def _write(self) -> None:
        while self._leaving:
            leaving = self._leaving[0]
            try:
                if leaving.node not in self.disk and not self.disk.save(leaving.node, leaving.state):
                    self._trace.count("knowledge.dropped")
            finally:
                self._leave_for_disk()
        written: set[Node] = set()  # each once: where the disk has room for one of two, they displace each other
        while (node := self._next_to_leave(written)) is not None:
            written.add(node)
            self._swap_out(node, evict=False)

    def _next_to_leave(self, written: set[Node]) -> Node | None:
        """Locks the state to be saved next, so that some room is on disk or `written`; None if it is."""
        with self.locked():
            wanted = max([self.host.limit * _AHEAD, *map(self.host.nbytes, self.host)])
            missing = wanted - min(self.host.limit - self.host.used, self._budget.free)
            gone: set[Node] = set()
            while missing > 0 and (node := self.host.victim(gone)) is not None:
                if node not in self.disk and node not in written and not node.composed:
                    node.pins += 1
                    return node
                missing -= self.host.nbytes(node)
                gone.add(node)
        return None

    def settle(self, *, save: bool) -> None:
        """Waits for the writer, and writes or drops what it has left."""
        if self._writer is not None:
            self._writer.settle()
        while self._leaving:
            if save:
                self._write()
            else:
                self._leave_for_disk()

    def save(self) -> None:
        """Writes the most valuable states that fit the disk, the least valuable first, to keep their order."""
        chosen: list[Node] = []
        with self.locked():
            room = self.disk.tier.limit
            for node in sorted(self.host, key=self.host.priority, reverse=True):
                if node.composed or node in self.disk:
                    continue
                if (size := self.disk.file_nbytes(node, self.host[node])) <= room:
                    room -= size
                    node.pins += 1
                    chosen.append(node)
        for node in reversed(chosen):
            try:
                self.disk.save(node, self.host[node])
            finally:
                with self.locked():
                    node.pins -= 1

    def close(self) -> None:
        """Stores how often stored states were used, and releases the memory."""
        with self.locked():
            self.disk.close()
            for node in list(self.host):
                self.host.remove(node)
            self._tree.clear()
            self._forget_shrinkers()
            self._lease.release()

    # --- host memory

    def _take_index(self, nbytes: int) -> None:
        """Takes `nbytes` under the lease, first from our own states and history, then from other owners."""
        while nbytes > self._budget.free:
            node = self.host.victim()
            if node is not None:
                self._evict_from_host(node)
            elif not self._tree.forget_oldest():
                break
        self._lease.resize(self._lease.nbytes + nbytes)

    def _make_room(self, nbytes: int, *, beside: int = 0, spare: bool = False) -> bool:
        """Takes `nbytes`, beside `beside` of the same state, evicting less valuable ones; or returns False. `spare`:
        only composed ones are less valuable."""
        while True:
            with self.locked():
                if self.host.used + beside + nbytes <= self.host.limit and nbytes <= self._budget.free:
                    self._lease.resize(self._lease.nbytes + nbytes)
                    return True
                node = self.host.victim() if beside + nbytes <= self.host.limit else None
                if node is None or (spare and not node.composed):
                    return False
                if not self.disk.available or node in self.disk or node.composed:
                    self._evict_from_host(node)
                    continue
                if self._writer is not None:
                    return False
                node.pins += 1  # pinned while it is written, because the ledger cannot stay locked that long
            self._swap_out(node, evict=True)

    def _swap_out(self, node: Node, *, evict: bool) -> None:
        """Saves a node's state, and unlocks it. It leaves host memory if wanted, or if not worth the disk."""
        saved = False
        try:
            saved = self.disk.save(node, self.host[node])
            if not saved:
                self._trace.count("knowledge.dropped")
        finally:
            with self.locked():
                node.pins -= 1
                # Another request may have asked for it meanwhile, or found it damaged.
                if not node.pins and node in self.host and (evict or not saved):
                    self._evict_from_host(node)

    def _forget_shrinkers(self) -> None:
        for remove in self._shrinkers:
            remove()

    def _give_way_saved(self, nbytes: int) -> None:
        """The ledger's shrinker for states that are also on disk. Getting one of them back costs only a read."""
        with self._lock:
            wanted = self._lease.nbytes - nbytes
            while self._lease.nbytes > wanted and (node := self.host.victim()) is not None:
                if node not in self.disk and not node.composed:
                    break
                self._evict_from_host(node)

    def _give_way(self, nbytes: int) -> None:
        """The ledger's shrinker. It cannot wait for the disk, so unsaved states are lost."""
        with self._lock:
            wanted = self._lease.nbytes - nbytes
            while self._lease.nbytes > wanted and (node := self.host.victim()) is not None:
                if node not in self.disk and not node.composed:
                    self._trace.count("knowledge.dropped")
                self._evict_from_host(node)
            while self._lease.nbytes > wanted and self._tree.forget_oldest():
                pass

    def _evict_from_host(self, node: Node) -> None:
        self._trace.count("knowledge.host_evictions")
        self._remove_from_host(node, self.host.evict)

    def _remove_from_host(self, node: Node, remove: Callable[[Node], State]) -> None:
        used = self.host.used
        remove(node)
        self._give(used - self.host.used)
        self._tree.prune(node)

    def _give(self, nbytes: int) -> None:
        with self.locked():
            self._lease.resize(self._lease.nbytes - nbytes)

    def _keep_on_disk(self, node: Node, nbytes: int, extract: Callable[[], State]) -> bool:
        if not self.disk.available:
            return False
        if any(leaving.node is node for leaving in list(self._leaving)):
            return True
        try:
            lease = self._budget.reserve("knowledge tree writing", nbytes)
        except BudgetExceeded:
            return False
        if self._writer is None:
            with lease:
                return self.disk.save(node, extract())
        try:
            leaving = _Leaving(node, extract(), lease)
        except BaseException:
            lease.release()
            raise
        with self.locked():
            for above in node.path():
                above.pins += 1
            self._leaving.append(leaving)
        return True

    def _leave_for_disk(self) -> None:
        with self.locked():
            leaving = self._leaving.popleft()
            leaving.lease.release()
            self._tree.leave(leaving.node.path())
