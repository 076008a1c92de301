"""How many clusters to keep in the fast tier so that a search meets its deadline (VectorLiteRAG, section IV-A).

Pure functions of measured profiles. On one box the tiers compete with the language model's KV states for one budget:
the smallest share of hot clusters that meets the deadline leaves the model the most.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edge.errors import InputError
from edge.hit_rates import tail_hit_rate

Floats = npt.NDArray[np.float64]

_QUEUING = 1.0
"""Waiting for the batch before one's own, as a share of the search time: a whole batch in the worst case."""

_SEARCH_STEPS = 24


@dataclass(frozen=True, slots=True)
class AccessProfile:
    """How often calibration queries probed each cluster, hottest first.

    Attributes:
        clusters: numbers of the clusters [nlist], hottest first.
        share: share of all probes that go to the hottest 0, 1, ... nlist clusters [nlist + 1].
        nbytes: bytes of those [nlist + 1].
        spread: variance of the hit rate between queries where its mean is a half.
    """

    clusters: npt.NDArray[np.int64]
    share: Floats
    nbytes: npt.NDArray[np.int64]
    spread: float

    @classmethod
    def measure(cls, probes: npt.NDArray[np.int64], nbytes: npt.NDArray[np.int64]) -> AccessProfile:
        """Profiles calibration queries.

        Args:
            probes: clusters that each query probes [q, nprobe].
            nbytes: size of each cluster [nlist].

        Raises:
            InputError: there are no probes.
        """
        if not probes.size:
            raise InputError("an access profile needs the probes of at least one query")
        counts = np.bincount(probes.reshape(-1), minlength=len(nbytes))
        clusters = np.lexsort((np.arange(len(counts)), -counts)).astype(np.int64)
        share = np.concatenate(([0.0], np.cumsum(counts[clusters]) / probes.size))
        sizes = np.concatenate(([0], np.cumsum(nbytes[clusters])))
        half = int(np.argmin(np.abs(share - 0.5)))
        hot = np.zeros(len(nbytes), np.bool_)
        hot[clusters[:half]] = True
        rates = hot[probes].mean(axis=1)
        mean = float(rates.mean())
        # Where no number of clusters has a mean of exactly a half, the parabola carries the variance there.
        spread = float(rates.var()) / (4 * mean * (1 - mean)) if 0 < mean < 1 else 0.0
        return cls(clusters, share, sizes, spread)

    def hit_rate(self, coverage: float) -> float:
        """Mean hit rate with the hottest `coverage` (0..1) of the clusters in the fast tier."""
        return float(np.interp(coverage * (len(self.share) - 1), np.arange(len(self.share)), self.share))

    def index_nbytes(self, coverage: float) -> float:
        """Bytes of the hottest `coverage` (0..1) of the clusters."""
        return float(np.interp(coverage * (len(self.nbytes) - 1), np.arange(len(self.nbytes)), self.nbytes))

    def variance(self, mean: float) -> float:
        """Variance of the hit rate between queries where its mean is `mean`: 4 * spread * mean * (1 - mean)."""
        return 4 * self.spread * mean * (1 - mean)

    def hottest(self, coverage: float) -> npt.NDArray[np.int64]:
        """The clusters that make up `coverage` (0..1), rounded up."""
        return self.clusters[: math.ceil(coverage * len(self.clusters) - 1e-9)]


def hit_rate_to_coverage(profile: AccessProfile, wanted: float, batch: int) -> float:
    """The smallest coverage whose expected smallest hit rate in a batch is `wanted`: 0 for a rate of 0 or less; more
    than 1 does not exist, so a rate above 1 gives 1."""
    if wanted <= 0:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(_SEARCH_STEPS):
        middle = (low + high) / 2
        mean = profile.hit_rate(middle)
        if tail_hit_rate(mean, profile.variance(mean), batch) >= wanted:
            high = middle
        else:
            low = middle
    return high


@dataclass(frozen=True, slots=True)
class SearchModel:
    """Time of a search of the slow tier alone, measured (see `edge.curve.Curve`).

    Attributes:
        coarse: seconds of coarse quantization by batch size.
        scan: seconds of scanning lists by batch size.
    """

    coarse: Callable[[float], float]
    scan: Callable[[float], float]

    def seconds(self, batch: float, hit_rate: float) -> float:
        """Time of a batch whose worst query hits so much (formula 1)."""
        return self.coarse(batch) + (1 - hit_rate) * self.scan(batch)

    def needed_hit_rate(self, batch: float, seconds: float) -> float:
        """Hit rate with which a batch takes `seconds`; above 1 where none is enough."""
        scan = self.scan(batch)
        missing = self.coarse(batch) + scan - seconds
        if scan > 0:
            return missing / scan
        return 0.0 if missing <= 0 else math.inf


@dataclass(frozen=True, slots=True)
class Partition:
    """A placement.

    Attributes:
        coverage: share of the clusters in the fast tier, hottest first.
        nbytes: what they take.
        throughput: requests per second the language model is left with.
        feasible: whether the deadline is met; without, everything is in the fast tier and it is still too slow.
    """

    coverage: float
    nbytes: int
    throughput: float
    feasible: bool


def partition(
    profile: AccessProfile,
    model: SearchModel,
    *,
    deadline: float,
    throughput: float,
    memory: int,
    queuing: float = _QUEUING,
    tolerance: float = 1e-3,
) -> Partition:
    """The smallest share of hot clusters that meets the deadline (algorithm 1).

    More clusters leave less KV space, so the model takes fewer requests, batches are smaller, and fewer clusters would
    have done: bisection finds where both agree.

    Args:
        deadline: seconds a search may take, waiting included.
        throughput: requests per second of the language model with all of `memory`.
        memory: bytes the model's KV states have when no cluster takes any.
        queuing: waiting time as a multiple of the search time.

    Raises:
        InputError: deadline, throughput or memory are not positive.
    """
    if deadline <= 0 or throughput <= 0 or memory <= 0:
        raise InputError(f"deadline, throughput and memory must be positive, not {deadline}, {throughput}, {memory}")
    seconds = deadline / (1 + queuing)
    low, high = 0.0, 1.0
    if _infer(profile, model, seconds, throughput) <= 0:
        high = 0.0
    while high - low > tolerance:
        middle = (low + high) / 2
        needed = _infer(profile, model, seconds, _throughput(profile, middle, throughput, memory))
        if needed > middle:
            low = middle
        else:
            high = middle
    left = _throughput(profile, high, throughput, memory)
    batch = max(1, math.floor(seconds * left))
    mean = profile.hit_rate(high)
    worst = tail_hit_rate(mean, profile.variance(mean), batch)
    feasible = left > 0 and model.seconds(batch, worst) <= seconds * (1 + 1e-2)
    return Partition(high, math.ceil(profile.index_nbytes(high)), left, feasible)


def _throughput(profile: AccessProfile, coverage: float, throughput: float, memory: int) -> float:
    return throughput * max(0.0, memory - profile.index_nbytes(coverage)) / memory


def _infer(profile: AccessProfile, model: SearchModel, seconds: float, throughput: float) -> float:
    """The coverage that a batch of the requests arriving within one search needs; more than 1 if none is enough."""
    arriving = seconds * throughput
    up, down = max(1, math.ceil(arriving)), max(1, math.floor(arriving))
    # The smaller batch must also keep up with the requests: it may take as long as they take to arrive, not longer.
    pace = min(seconds, down / throughput) if throughput > 0 else seconds
    choices = []
    for batch, limit in ((up, seconds), (down, pace)):
        wanted = model.needed_hit_rate(batch, limit)
        choices.append(math.inf if wanted > 1 else hit_rate_to_coverage(profile, wanted, batch))
    return min(choices)
