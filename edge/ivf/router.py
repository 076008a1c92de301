"""Which lists a query probes, and which tier each list is in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edge.ivf.base import Vectors

COLD = -1
"""The tier of a list that no device holds."""


def probe(queries: Vectors, centroids: Vectors, nprobe: int) -> npt.NDArray[np.int64]:
    """The `nprobe` lists with the largest inner product of centroid and query: [q, nprobe], best first, the lower
    number first among equals.

    Each query is multiplied on its own, so that what it probes does not depend on its batch.
    """
    nlist = len(centroids)
    nprobe = min(nprobe, nlist)
    lists = np.empty((len(queries), nprobe), np.int64)
    for row, query in zip(lists, queries, strict=True):
        scores = centroids @ query
        best = np.arange(nlist)
        if nprobe < nlist:
            best = np.flatnonzero(scores >= np.partition(scores, nlist - nprobe)[nlist - nprobe])
        row[:] = best[np.lexsort((best, -scores[best]))[:nprobe]]
    return lists


@dataclass(frozen=True, slots=True)
class TierTable:
    """Mapping tables of a placement (VectorLiteRAG, section IV-A4): every tier gets only its own probes.

    Attributes:
        tier: device number of each list [nlist], or COLD.
        local: number of each list on its device [nlist], -1 where it is cold.
    """

    tier: npt.NDArray[np.int32]
    local: npt.NDArray[np.int32]

    @classmethod
    def deal(cls, nbytes: npt.NDArray[np.int64], hot: Sequence[int], devices: int) -> TierTable:
        """Sorts the hot lists by size and deals them round-robin over the devices, which balances their memory.

        Args:
            nbytes: size of each list [nlist].
            hot: lists to place.
        """
        tier = np.full(len(nbytes), COLD, np.int32)
        local = np.full(len(nbytes), -1, np.int32)
        chosen = np.asarray(hot, np.int64)
        order = chosen[np.lexsort((chosen, -nbytes[chosen]))]
        tier[order] = np.arange(len(order)) % devices
        local[order] = np.arange(len(order)) // devices
        return cls(tier, local)

    def split(self, probes: npt.NDArray[np.int64]) -> dict[int, list[npt.NDArray[np.int64]]]:
        """The probes [q, nprobe] by tier: for each tier that gets any, the lists of each query, best first."""
        tiers = self.tier[probes]
        return {
            int(tier): [row[mine == tier] for row, mine in zip(probes, tiers, strict=True)] for tier in np.unique(tiers)
        }

    def hit_rate(self, probes: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Share of each query's probes [q] that some device holds."""
        return np.asarray((self.tier[probes] != COLD).mean(axis=1), np.float64)
