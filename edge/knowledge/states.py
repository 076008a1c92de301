"""Where the states of the knowledge tree's nodes are: host memory under the budget, and disk (RAGCache, 5.1)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from edge.budget import MemoryBudget
from edge.errors import BudgetExceeded, CorruptBlock, StorageError
from edge.knowledge.backend import State
from edge.knowledge.disk import DiskStates
from edge.knowledge.node import Node, PrefixTree
from edge.knowledge.store import KnowledgeStore
from edge.knowledge.tier import Tier
from edge.replacement import Replacement
from edge.trace import Trace

_OWNER = "knowledge tree"


class KnowledgeStates:
    """The prefix tree and the two tiers below the context.

    Host memory takes only what the budget has free, asks nobody to give way for it, and gives way itself. A state is
    copied once: when it leaves host memory for the first time it goes to disk, and afterwards only to be freed. Where
    it deserves no space there it is dropped. Thread-safe, as long as one thread at a time keeps and saves.
    """

    def __init__(
        self,
        budget: MemoryBudget,
        *,
        host_limit: int,
        store: KnowledgeStore | None,
        policy: Callable[[], Replacement],
        loss: float,
        trace: Trace,
    ) -> None:
        """Takes up what an earlier run left in the store.

        Args:
            loss: what a byte of host memory given back costs, in seconds.

        Raises:
            BudgetExceeded: the index of the stored states does not fit.
            StorageError: the store's directory cannot be read.
        """
        self.host: Tier[State] = Tier(host_limit, policy())
        self._budget = budget
        self._trace = trace
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
        """Holds the tree still. The ledger's lock is taken first, since its shrinkers take this one inside it."""
        with self._budget.locked(), self._lock:
            yield

    def enter(self, path: Iterable[tuple[str, bytes]]) -> list[Node]:
        """The nodes of a path (ids and tokens), made where missing, and locked until `leave`.

        Raises:
            BudgetExceeded: a new node's index entry does not fit.
        """
        with self.locked():
            return self._tree.enter(path)

    def leave(self, nodes: Sequence[Node]) -> None:
        """Unlocks nodes of one path."""
        with self.locked():
            self._tree.leave(nodes)

    def find(self, path: Iterable[bytes]) -> list[Node | None]:
        """The nodes of a path of tokens as far as they exist; None for the rest."""
        with self.locked():
            return list(self._tree.find(path))

    def released(self, nodes: Iterable[Node]) -> None:
        """Something was detached from these nodes: forgets them if nothing is left."""
        with self.locked():
            for node in nodes:
                self._tree.prune(node)

    def place(self, node: Node) -> str | None:
        """The fastest tier that has the node's state."""
        return "host" if node in self.host else "disk" if node in self.disk else None

    def used(self, nodes: Sequence[Node]) -> None:
        """The nodes were asked for: ranks them anew wherever they are."""
        with self.locked():
            for node in nodes:
                if node in self.host:
                    self.host.touch(node)
                if node in self.disk:
                    self.disk.used(node)

    @contextmanager
    def state(self, node: Node) -> Iterator[State | None]:
        """A locked node's state, from host memory or read from disk into a buffer under a lease; None when it is
        nowhere or turns out damaged, in which case it is removed."""
        if node in self.host:
            yield self.host[node]
            return
        if node not in self.disk:
            yield None
            return
        nbytes = self.disk.nbytes(node)
        try:
            lease = self._budget.reserve("knowledge tree reading", nbytes)
        except BudgetExceeded:
            self._trace.count("knowledge.unread")
            yield None
            return
        with lease:
            buffer = bytearray(nbytes)
            try:
                self.disk.read(node, memoryview(buffer))
            except (CorruptBlock, StorageError):
                self.discard(node)
                yield None
            else:
                yield buffer

    def discard(self, node: Node) -> None:
        """Removes a node's state everywhere: it is not what it should be."""
        with self.locked():
            self._trace.count("knowledge.corrupt")
            if node in self.host:
                self._remove_from_host(node, self.host.remove)
            if node in self.disk:
                self.disk.remove(node)

    def keep(self, node: Node, nbytes: int, extract: Callable[[], State]) -> None:
        """Copies a locked node's state into host memory, or to disk where that has no room for it.

        Args:
            nbytes: about what it will take.
            extract: makes the copy.
        """
        if node in self.host:
            return
        if not self._make_room(nbytes):
            if node not in self.disk and not self._keep_on_disk(node, nbytes, extract):
                self._trace.count("knowledge.dropped")
            return
        try:
            state = extract()
        except BaseException:
            self._give(nbytes)
            raise
        size = memoryview(state).nbytes
        if size > nbytes and not self._make_room(size - nbytes, beside=nbytes):
            self._give(nbytes)
            self._trace.count("knowledge.dropped")
            return
        with self.locked():
            self._give(max(0, nbytes - size))
            self.host.put(node, state, size, self.host.policy.used(node.usage))
        self._trace.count("knowledge.kept")
        self._trace.count("knowledge.kept_nbytes", size)

    def save(self) -> None:
        """Writes states that are in host memory only: the most valuable ones that fit the disk's limit, and of these
        the least valuable first, so that they rank there as they do here."""
        chosen: list[Node] = []
        with self.locked():
            room = self.disk.tier.limit
            for node in sorted(self.host, key=self.host.priority, reverse=True):
                if node not in self.disk and (size := self.disk.file_nbytes(node, self.host[node])) <= room:
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
        """Writes down how often stored states were used, and gives the memory back."""
        with self.locked():
            self.disk.close()
            for node in list(self.host):
                self.host.remove(node)
            self._tree.clear()
            self._forget_shrinkers()
            self._lease.release()

    # --- room in host memory

    def _take_index(self, nbytes: int) -> None:
        """Takes `nbytes` under the lease: first from our own states and past, then from whoever else gives way. The
        ledger then asks us as well, and finds nothing left, so the lease stays right while it grows."""
        while nbytes > self._budget.free:
            node = self.host.victim()
            if node is not None:
                self._evict_from_host(node)
            elif not self._tree.forget_oldest():
                break
        self._lease.resize(self._lease.nbytes + nbytes)

    def _make_room(self, nbytes: int, *, beside: int = 0) -> bool:
        """Takes `nbytes` under the lease, letting less valuable states go; False when that cannot be.

        Args:
            beside: bytes of the same state that are under the lease already.
        """
        while True:
            with self.locked():
                if self.host.used + beside + nbytes <= self.host.limit and nbytes <= self._budget.free:
                    self._lease.resize(self._lease.nbytes + nbytes)
                    return True
                node = self.host.victim() if beside + nbytes <= self.host.limit else None
                if node is None:
                    return False
                if not self.disk.available or node in self.disk:
                    self._evict_from_host(node)
                    continue
                node.pins += 1  # while it is written, nobody may free it; nor is the ledger locked so long
            try:
                if not self.disk.save(node, self.host[node]):
                    self._trace.count("knowledge.dropped")
            finally:
                with self.locked():
                    node.pins -= 1
                    if not node.pins:  # nobody wants it since
                        self._evict_from_host(node)

    def _forget_shrinkers(self) -> None:
        for remove in self._shrinkers:
            remove()

    def _give_way_saved(self, nbytes: int) -> None:
        """The ledger's shrinker of states that are on disk, too: what it takes to win one again is a read."""
        with self._lock:
            wanted = self._lease.nbytes - nbytes
            while self._lease.nbytes > wanted and (node := self.host.victim()) is not None and node in self.disk:
                self._evict_from_host(node)

    def _give_way(self, nbytes: int) -> None:
        """The ledger's shrinker: states, and then what is remembered of those long gone. It cannot wait for the disk:
        what is not there yet is lost."""
        with self._lock:
            wanted = self._lease.nbytes - nbytes
            while self._lease.nbytes > wanted and (node := self.host.victim()) is not None:
                if node not in self.disk:
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
        """Copies a state past host memory; returns whether it is kept."""
        if not self.disk.available:
            return False
        try:
            lease = self._budget.reserve("knowledge tree writing", nbytes)
        except BudgetExceeded:
            return False
        with lease:
            return self.disk.save(node, extract())
