"""The proportions of TeleRAG's machines (Lin et al. 2025), from which the benchmark `devices` derives its rates.

The paper's index has 61 GB in 4,096 clusters, of which a search probes 256. The text used here lacks the hit rates of
its table 3, so a measured hit rate stands beside the table's budgets and beside the coverage of table 1.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping
from dataclasses import dataclass

INDEX_GB = 61.0
PROBED = 256 / 4096
"""The share of the lists that a search probes."""

DEVICE_MEMORY = 1 / 6
"""The device's memory as a share of the index: 10 GB of 61 (section 5.2, desktop with the 3B model)."""

SEVERAL_MEMORY = 24 / 61
"""The same for each of several devices (section 5.2, 24 GB on Server2)."""

COVERAGE = {
    "hyde": 0.731, "subquestion": 0.632, "iterative": 0.915, "iter-retgen": 0.838, "flare": 0.791, "self-rag": 1.0,
}  # fmt: skip
"""Table 1, NQ: the share of the finally probed lists that are among as many lists nearest to the prediction."""

CACHE_GAINS = {1: 0.02, 2: 0.12, 4: 0.21, 8: 0.18}
"""Figure 13: what cached lists and the assignment of micro-batches by them add to the throughput, by devices."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes per second of the link, of a scan on the device, and of a scan in the slow place."""

    link: float
    scan: float
    slow: float


@dataclass(frozen=True, slots=True)
class Proportions:
    """One machine of the paper.

    Attributes:
        name: the machine, as tables name it.
        link: GB/s between host and device (table 2).
        scan: GB/s that the device scans, taken to be the bandwidth of its memory (data sheet).
        slow: GB/s that the host scans.
        budgets: GB that are fetched ahead in each pipeline (table 3): as much as the link moves while the model writes.
    """

    name: str
    link: float
    scan: float
    slow: float
    budgets: Mapping[str, float]

    def rates(self, probed_nbytes: float, window: float, pipelines: Collection[str] = ()) -> Rates:
        """The rates at which an index behaves like the paper's.

        Args:
            probed_nbytes: bytes of the lists that one search probes.
            window: seconds of the generation before a search, on average over the pipelines.
            pipelines: the pipelines; all six if not given.
        """
        budget = statistics.mean(self.budgets[pipeline] for pipeline in pipelines or self.budgets)
        link = budget / (INDEX_GB * PROBED) * probed_nbytes / window
        return Rates(link, link * self.scan / self.link, link * self.slow / self.link)


_DESKTOP_SLOW = 1.03 / (1 / 32 + 1 / 1008)
"""GB/s: copying lists when they are needed and searching them on the device takes 3 % longer than searching them in the
slow place (section 3.2)."""

_HOST_MEMORY = 460.8 / 204.8
"""Bandwidth of the server's host memory (12 channels of DDR5-4800) over the desktop's (8 of DDR4-3200). The paper gives
no time of a search on the server's host, so that its scan is taken to be faster by this factor."""

_BUDGETS: Mapping[str, Mapping[str, float]] = {
    "desktop": {"hyde": 7, "subquestion": 7, "iterative": 3, "iter-retgen": 2.5, "flare": 3, "self-rag": 1.25},
    "h100": {"hyde": 9, "subquestion": 8, "iterative": 5, "iter-retgen": 4, "flare": 6, "self-rag": 3},
}

PROPORTIONS = {
    "desktop": Proportions("RTX 4090 desktop, Llama 3B", 32, 1008, _DESKTOP_SLOW, _BUDGETS["desktop"]),
    "h100": Proportions("H100 server, Llama 8B", 64, 3350, _DESKTOP_SLOW * _HOST_MEMORY, _BUDGETS["h100"]),
}
