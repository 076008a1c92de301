"""`edge bench searchers`: queues by the bound, shares of devices, and several searchers beside one (Chameleon)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click
import numpy as np

from edge.apps.bench.figures import Figure, lower, neither, tabulate
from edge.apps.bench.options import Output, names_option, numbers, output_options
from edge.apps.bench.process import measure
from edge.errors import EdgeError
from edge.planner.published_systems import SHARES
from edge.planner.searchers import Alternation, queue_length

_WORKER = "edge.apps.bench.searchers_worker"

_CODECS = ("flat", "sq8", "pq")
_RESULTS = (10, 100)
_QUEUES = (2, 4, 8, 16, 32, 64)
_SIMULATED = 100_000
_SIMULATED_AT_ONCE = 10_000
"""Number of searches whose queues are in memory at a time."""

_DEVICES = 1000
"""Number of devices that figure 4.10 divides."""

_FIXED = (("1:4", 0.2), ("1:1", 0.5), ("4:1", 0.8))
"""Ratios of generating to retrieving devices that do not depend on the workload, and the share that generates."""


@click.command("searchers")
@click.option("--counts", type=numbers(1, 64), default="1,2,4,8", show_default=True, help="Numbers of searchers.")
@click.option("--of", default="remote", show_default=True, help="Kind of the searchers, as in `--device searchers`.")
@names_option("--codecs", _CODECS, "sq8,pq", help="Codecs of the lists: flat, sq8, pq.")
@click.option("--rows", type=click.IntRange(5000), default=40_000, show_default=True, help="Made-up vectors.")
@click.option("--queries", type=click.IntRange(2), default=200, show_default=True, help="Measured searches.")
@output_options
def searchers(counts: list[int], of: str, codecs: list[str], rows: int, queries: int, output: Output) -> None:
    """Search with several searchers behind a coordinator, and compare the results with those of the host alone.

    Before that, the queue lengths of the bound are simulated, and the best division of devices is compared with trying
    every one. Exit code 2 if a result differs.
    """
    report: dict[str, Any] = {"queues": queue_rows(), "shares": share_rows(), "searches": []}
    for codec in codecs:
        click.echo(f"searching with codec {codec}", err=True)
        task = {"name": codec, "codec": codec, "of": of, "counts": counts, "rows": rows, "queries": queries}
        report["searches"] += measure(_WORKER, task, threads=1)["rows"]
    shown = f"queues that lose nothing in 99 of 100 searches ({_SIMULATED:,} simulated); shares of {_DEVICES} devices"
    output.put(report, figures(report), shown)
    if not all(row["identical"] for row in report["searches"]):
        raise EdgeError("the searchers changed what was found")


def queue_rows(results: Sequence[int] = _RESULTS, searches: int = _SIMULATED) -> list[dict[str, Any]]:
    """Lengths by the bound, with the simulated share of searches that lose a result at that length and one below."""
    rows = []
    for count in results:
        for queues in _QUEUES:
            length = queue_length(count, queues)
            lost, shorter = (
                simulated_loss(count, queues, each, searches=searches, seed=queues) for each in (length, length - 1)
            )
            rows.append({"results": count, "queues": queues, "length": length, "lost": lost, "lost_shorter": shorter})
    return rows


def simulated_loss(results: int, queues: int, length: int, *, searches: int, seed: int) -> float:
    """Share of simulated searches in which a queue of this length drops one of the best `results`.

    In each search every result falls into a random queue, as in lists that are striped over the searchers. The share
    is a check of `queue_length`, which follows from a bound and not from a simulation.
    """
    random = np.random.default_rng(seed)
    lost = 0
    for start in range(0, searches, _SIMULATED_AT_ONCE):
        count = min(_SIMULATED_AT_ONCE, searches - start)
        held = random.multinomial(results, np.full(queues, 1 / queues), size=count)
        lost += int((held.max(axis=1) > length).sum())
    return lost / searches


def share_rows() -> list[dict[str, Any]]:
    """The workloads of figure 4.10: the share by the closed form, the best of all divisions, and fixed ratios."""
    rows = []
    for name, ratio, published in SHARES:
        work = Alternation(1, 1, ratio, 1.0)
        rates = [work.throughput(count, _DEVICES - count) for count in range(1, _DEVICES)]
        best = 1 + int(np.argmax(rates))
        fixed = {label: work.efficiency(share) for label, share in _FIXED}
        rows.append({
            "workload": name, "published": published / 100, "closed_form": work.generating_share,
            "best_of_all": best / _DEVICES, "efficiency": fixed,
        })  # fmt: skip
    return rows


def figures(report: dict[str, Any]) -> Iterator[Figure]:
    """The figures of a stored run: queues, shares of devices, and searches by codec and number of searchers."""
    queues = {f"{row['results']} results, {row['queues']} queues": row for row in report["queues"]}
    lengths = {"length": lower("length", ""), "lost": lower("lost", "%"), "lost_shorter": neither("one shorter", "%")}
    yield from tabulate(queues, lengths, "searches that lose a result")
    shares = {row["workload"]: row for row in report["shares"]}
    columns = {
        "published": neither("published", "%"), "closed_form": neither("by the formula", "%"),
        "best_of_all": neither("best of all", "%"),
        **{f"efficiency.{ratio}": neither(f"of the best rate at {ratio}", "%") for ratio, _ in _FIXED},
    }  # fmt: skip
    yield from tabulate(shares, columns, "share of devices that generate")
    searches = {f"{row['codec']}, {row['searchers'] or 'host'}": row for row in report["searches"]}
    found = {
        "median_s": lower("median", "s"),
        "asked": neither("asked"),
        "again": neither("asked again"),
        "queue": neither("queue"),
    }
    yield from tabulate(searches, found, "searches by codec and number of searchers")
