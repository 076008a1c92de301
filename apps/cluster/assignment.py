"""`Assignment`: which copy of a shard searches, by the lists that each has in memory (TeleRAG, section 4.2).

TeleRAG assigns micro-batches that wait together, each to the device that holds most of its lists. Here requests come
one after the other, and each goes at once to the copy that will probably have finished it first. A copy tells with
every answer which lists it holds.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

import numpy as np
import numpy.typing as npt

from edge.apps.cluster.catalogue import Catalogue, Replica
from edge.blocks import distinct
from edge.budget import MemoryBudget
from edge.ivf.base import IndexOptions, Quantizer
from edge.ivf.plan import probe, probed
from edge.ivf.storage.snapshots import SnapshotLease

Answer = Future[tuple[bytes, bytes]]
Assignments = Mapping[str, "Assignment"]

_SCAN = 0.2
"""Work of scanning a list, beside that of reading it. It matters little: lists that are read are scanned, too."""


def assignments(catalogue: Catalogue, shards: Mapping[str, Sequence[Replica]], budget: MemoryBudget) -> Assignments:
    """For each shard with several copies, if all shards of the present version have the newest lists."""
    several = [name for name, copies in shards.items() if len(copies) > 1]
    quantizer = catalogue.quantizer() if several else None
    versions = {one.quantizer for one in catalogue.version()[1].values()}
    if quantizer is None or len(quantizer.centroids) == 1 or versions != {quantizer.version}:
        return {}
    lease = SnapshotLease(budget, quantizer.centroids.nbytes)
    return {name: Assignment(quantizer, lease) for name in several}


class Assignment:
    """The copies of one shard in one version: the lists that they hold, and their work. Thread-safe."""

    def __init__(self, quantizer: Quantizer, lease: object = None) -> None:
        """`lease`: of the quantizer's centroids, kept as long as this object."""
        self._centroids, self._lease = quantizer.centroids, lease
        self._count = count = len(quantizer.centroids)
        self._nprobe = probed(quantizer.recall, IndexOptions().recall_target)[0] if quantizer.recall else count
        self._held = defaultdict[Replica, npt.NDArray[np.bool_]](lambda: np.zeros(count, np.bool_))
        self._coming = defaultdict[Replica, npt.NDArray[np.int64]](lambda: np.zeros(count, np.int64))
        self._work = defaultdict[Replica, float](float)
        """Of the requests under way: 1 for each, and the lists that are read for it."""
        self._lock = threading.Lock()

    def take(self, copies: Sequence[Replica], vectors: bytes) -> tuple[Replica, Callable[[Answer], None]]:
        """Chooses a copy for a request, whose queries have these vectors; the first one among equals.

        Returns:
            The copy, and the function that its answer is to be given to.
        """
        queries = np.frombuffer(vectors, np.float32).reshape(-1, self._centroids.shape[1])
        lists = distinct(probe(queries, self._centroids, self._nprobe))

        def work(copy: Replica) -> float:
            unread = ~self._held[copy][lists] & (self._coming[copy][lists] == 0)
            return 1 + _SCAN * len(lists) + float(np.count_nonzero(unread))

        def ended(answer: Answer) -> None:
            """Notes the lists that the copy holds; none if it has failed."""
            told = b"" if answer.cancelled() or answer.exception() else answer.result()[1]
            bits = np.frombuffer(told or bytes(-(-self._count // 8)), np.uint8)
            with self._lock:
                self._work[chosen] -= own
                self._coming[chosen][lists] -= 1
                self._held[chosen] = np.unpackbits(bits, count=self._count) > 0

        with self._lock:
            chosen = min(copies, key=lambda copy: self._work[copy] + work(copy))
            own = work(chosen)
            self._work[chosen] += own
            self._coming[chosen][lists] += 1
        return chosen, ended
