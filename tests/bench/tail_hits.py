"""`tail-hits`: predicted hit rates and shares of lists, beside traffic that was not used for them (VectorLiteRAG).

Nothing is timed: the probes of real queries are counted, and queues are simulated with a given rate of the link. So the
load of the machine does not change a figure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import click
import numpy as np
import numpy.typing as npt

from bench.figures import Figure, lower, neither, tabulate
from bench.load import drawn
from bench.options import Base, Count, Output, VectorsDir, benchmark, stated
from bench.placement import index_of, question
from bench.vectors import Floats, opened_index
from edge.budget import MemoryBudget
from edge.config import parse_size
from edge.ivf.base import Snapshot
from edge.ivf.index import IndexOptions
from edge.ivf.placement import KEPT, LOG, Asked, hit_rate, replayed, smallest_share
from edge.ivf.plan import probe

Numbers = npt.NDArray[np.float64]

_MEMORY = 1 << 30

_MOST = 16
"""Searches of a batch."""

_GRID = 4_000
"""Points at which the Beta distribution is summed up."""

_SHARES = (0.05, 0.1, 0.2, 0.3, 0.5)
_BATCHES = (1, 2, 4, 8)
_STEP = 0.02
"""The steps of the exhaustive sweep, as shares of the lists."""


@benchmark
def tail_hits(
    *,
    rates: Annotated[str, "Arrivals a second, with commas between them."] = "2,4,6,8",
    within: Annotated[float, "Deadline of a search in seconds."] = 0.4,
    bandwidth: Annotated[str, "Of the place of the lists, per second."] = "25MB",
    scan: Annotated[str, "Bytes that are scanned in a second."] = "2GB",
    held_out: Annotated[Count, "Searches that are predicted."] = 4_000,
    rows: Count = 60_000,
    list_rows: Annotated[Count, "Vectors per list that training aims at."] = 256,
    nprobe: Count = 16,
    topics: Count = 300,
    exponent: Annotated[float, "Of Zipf's law, by which topics are chosen."] = 1.0,
    base: Base = None,
    work_dir: VectorsDir = Path("bench"),
    output: Output,
) -> None:
    """Predict hit rates and the smallest share of lists from the latest searches, and count them for others."""
    made, folder = index_of(work_dir, rows, base, topics, list_rows)
    try:
        given = [float(part) for part in rates.split(",")]
    except ValueError:
        raise click.BadParameter("rates are numbers with commas between them") from None
    options = IndexOptions(codec="flat", flat_limit=0)
    with opened_index(folder, made.dim, MemoryBudget(_MEMORY), read_only=True, options=options) as (index, database):
        with database.read() as db:
            snapshot = index.snapshot(db)
        asked = partial(_asked, snapshot, made.queries, nprobe, exponent)
        nbytes = np.array([sum(part.nbytes for part in parts) for parts in snapshot.lists], np.int64)
        hits = _tails(asked(100.0, LOG, 1), asked(100.0, held_out, 2), nbytes)
        shares = {}
        for rate in given:
            seconds = partial(_seconds, parse_size(bandwidth), parse_size(scan))
            shares[f"{rate:g} a second"] = _chosen(
                asked(rate, LOG, 1), asked(rate, held_out, 2), nbytes, seconds, within
            )
    conditions = {
        "rows": rows, "kind": made.kind, "lists": len(nbytes), "nprobe": nprobe, "topics": topics, "exponent": exponent,
        "logged": LOG, "held_out": held_out, "within": within, "bandwidth": parse_size(bandwidth),
        "scan": parse_size(scan),
    }  # fmt: skip
    result = {"conditions": conditions, "tails": hits, "shares": shares}
    output.put(result, _figures(hits, shares), stated(conditions))


def _asked(
    snapshot: Snapshot, centres: Floats, nprobe: int, exponent: float, rate: float, count: int, seed: int
) -> list[Asked]:
    """Searches of one load, as a placement logs them. No question of one seed is one of another."""
    arrivals = drawn(rate, 2 * count / rate, {"search": 1}, len(centres), exponent, seed=seed)[:count]
    lists = (
        np.unique(probe(question(centres, one.topic, (seed << 24) + one.number), snapshot.centroids, nprobe))
        for one in arrivals
    )
    return [Asked(one.at, own) for one, own in zip(arrivals, lists, strict=True)]


def _seconds(bandwidth: int, scan: int, read: int, scanned: int) -> float:
    return read / bandwidth + scanned / scan


def _hottest(log: Sequence[Asked], nlist: int) -> npt.NDArray[np.int64]:
    counts = np.bincount(np.concatenate([one.lists for one in log]), minlength=nlist)
    return np.argsort(-counts, kind="stable")


def _mask(lists: npt.NDArray[np.int64], nlist: int) -> npt.NDArray[np.bool_]:
    mask = np.zeros(nlist, np.bool_)
    mask[lists] = True
    return mask


def _tails(log: Sequence[Asked], others: Sequence[Asked], nbytes: npt.NDArray[np.int64]) -> dict[str, dict[str, float]]:
    """For each share of the lists and each size of a batch: the mean of the smallest hit rate in a batch, as the log
    says, as a Beta distribution says whose mean and variance come from the log, and as the other searches have it."""
    order = _hottest(log, len(nbytes))
    half = np.array(_rates(log, nbytes, _mask(order[: _half(log, order, nbytes)], len(nbytes))))
    spread = float(half.var() / (4 * half.mean() * (1 - half.mean())))
    found = {}
    for share in _SHARES:
        mask = _mask(order[: round(share * len(nbytes))], len(nbytes))
        logged, counted = (np.sort(_rates(part, nbytes, mask)) for part in (log, others))
        mean = float(logged.mean())
        for batch in _BATCHES:
            found[f"{share:.0%} of the lists, batches of {batch}"] = {
                "counted": smallest(counted, batch),
                "replayed": smallest(logged, batch),
                "beta": beta_smallest(mean, 4 * spread * mean * (1 - mean), batch),
            }
    return found


def _rates(log: Sequence[Asked], nbytes: npt.NDArray[np.int64], mask: npt.NDArray[np.bool_]) -> list[float]:
    return [hit_rate([one], nbytes, mask) for one in log]


def _half(log: Sequence[Asked], order: npt.NDArray[np.int64], nbytes: npt.NDArray[np.int64]) -> int:
    """The number of lists with which the mean hit rate is nearest to a half."""
    means = [hit_rate(log, nbytes, _mask(order[:count], len(nbytes))) for count in range(len(nbytes) + 1)]
    return int(np.argmin(np.abs(np.array(means) - 0.5)))


def smallest(rates: Numbers, batch: int) -> float:
    """The expected smallest of `batch` draws from these values, in ascending order [n]."""
    left = 1 - np.arange(len(rates) + 1) / len(rates)
    return float((rates * (left[:-1] ** batch - left[1:] ** batch)).sum())


def beta_smallest(mean: float, variance: float, batch: int) -> float:
    """The expected smallest of `batch` draws from a Beta distribution (formula 2 of VectorLiteRAG), summed up."""
    if variance <= 0 or not 0 < mean < 1:
        return mean
    total = max(mean * (1 - mean) / variance - 1, 1e-6)
    a, b = mean * total, (1 - mean) * total
    # With x = sin(t)^2 both ends, at which the density may be infinite, are finer than the middle.
    x = np.sin((np.arange(_GRID) + 0.5) * (math.pi / 2 / _GRID)) ** 2
    weights = np.exp((a - 0.5) * np.log(x) + (b - 0.5) * np.log1p(-x))
    weights /= weights.sum()
    above = 1 - np.cumsum(weights)
    before = above + weights
    return float((x * (before**batch - np.clip(above, 0, 1) ** batch)).sum())


def _chosen(
    log: Sequence[Asked], others: Sequence[Asked], nbytes: npt.NDArray[np.int64], seconds: Any, within: float
) -> dict[str, float]:
    """The share that the log suggests, and the smallest one of a sweep with which the other searches keep the
    deadline."""
    chosen = smallest_share(log, nbytes, seconds, within=within, most=_MOST, room=int(nbytes.sum()))
    order = _hottest(others, len(nbytes))

    def kept(lists: npt.NDArray[np.int64]) -> float:
        return float((replayed(others, nbytes, _mask(lists, len(nbytes)), seconds, _MOST) <= within).mean())

    swept = [
        (int(nbytes[order[:count]].sum()), kept(order[:count]))
        for count in sorted({round(step * len(nbytes)) for step in np.arange(0, 1 + _STEP, _STEP) if step <= 1})
    ]
    best = next((held for held, share in swept if share >= KEPT), swept[-1][0])
    return {
        "chosen": chosen.nbytes, "swept": best, "ratio": chosen.nbytes / best if best else math.nan,
        "predicted": chosen.kept, "kept": kept(chosen.lists), "all": float(nbytes.sum()),
    }  # fmt: skip


def _figures(hits: Mapping[str, dict[str, float]], shares: Mapping[str, Mapping[str, float]]) -> Iterator[Figure]:
    for row in hits.values():
        row["replay_off"], row["beta_off"] = (abs(row[name] - row["counted"]) for name in ("replayed", "beta"))
    columns = {
        "counted": neither("counted"), "replayed": neither("by replay"), "beta": neither("by Beta"),
        "replay_off": lower("replay off by", ""), "beta_off": lower("Beta off by", ""),
    }  # fmt: skip
    yield from tabulate(hits, columns, table="smallest hit rate of a batch")
    columns = {
        "chosen": neither("lists chosen", "B"), "swept": neither("smallest of a sweep", "B"),
        "predicted": neither("predicted to keep the deadline", "%"), "kept": neither("keep it", "%"),
    }  # fmt: skip
    yield from tabulate(shares, columns, table="shares")
