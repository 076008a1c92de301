"""`edge plan traversal`: shows the effect of delayed synchronisation on a search in a graph of neighbours."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import click
import numpy as np

from edge.apps.options import configure, json_option
from edge.budget import MemoryBudget
from edge.errors import InputError
from edge.planner.traversal import (
    BloomFilter,
    Traversal,
    TraversalUnits,
    Vectors,
    at_once,
    graph_nbytes,
    nearest_graph,
    traversal_cycles,
    traverse,
)

_GROUPS = (1, 2, 4, 6)
_CANDIDATES = (1, 2, 4)
_CLUSTERS, _SPREAD = 40, 0.7

_SEEN_NBYTES = 512
"""Of a vertex that a query has seen: its entries in a set and in two queues."""


@dataclass(frozen=True, slots=True)
class Searched:
    """The results of one setting over all queries. Hops and recall are counted, cycles are modelled."""

    groups: int
    candidates: int
    hops: float
    recall: float
    cycles: float


@click.command("traversal")
@click.option("--vertices", type=click.IntRange(100, 4000), default=2000, show_default=True, help="Vectors, made up.")
@click.option("--dim", type=click.IntRange(2, 1024), default=96, show_default=True, help="Dimensions of a vector.")
@click.option(
    "--degree", type=click.IntRange(1, 64), default=8, show_default=True, help="Nearest vectors that each vertex names."
)
@click.option("--length", type=click.IntRange(1, 1000), default=20, show_default=True, help="Of the queue of results.")
@click.option("-k", "--top-k", type=click.IntRange(1, 1000), default=10, show_default=True, help="Results.")
@click.option("--queries", type=click.IntRange(1, 1000), default=40, show_default=True)
@click.option(
    "--units",
    type=click.IntRange(1, 64),
    default=4,
    show_default=True,
    help="Units of the modelled accelerator that compute distances side by side.",
)
@click.option(
    "--bloom", type=click.IntRange(8, 26), help="Remember visited vertices in a Bloom filter of 2^BLOOM bits."
)
@json_option
def traversal(
    vertices: int,
    dim: int,
    degree: int,
    length: int,
    top_k: int,
    queries: int,
    units: int,
    bloom: int | None,
    as_json: bool,
) -> None:
    """Search a graph of made-up vectors with several groups of candidates in flight (Falcon).

    Hops and recall are counted. The gain in time is predicted by a model of an accelerator. The latency of a group is a
    guess, since the source prints none: the shape of the gain counts, not its size. On a processor nothing waits, and
    nothing is gained.
    """
    if top_k > length:
        raise InputError(f"{top_k} results need a queue of at least that length, not {length}")
    random = np.random.default_rng(7)
    centres = random.standard_normal((_CLUSTERS, dim))

    def made(count: int) -> Vectors:
        rows = centres[random.integers(_CLUSTERS, size=count)] + _SPREAD * random.standard_normal((count, dim))
        return rows.astype(np.float32)

    hardware = TraversalUnits(computing=units, per_vector=max(1.0, dim * 4 / 64))
    needed = graph_nbytes(vertices, dim, degree) + 3 * 8 * dim * max(vertices, queries) + _query_nbytes(vertices, bloom)
    with MemoryBudget(configure().memory).reserve("graph", needed):
        vectors, asked = made(vertices), made(queries)
        graph = nearest_graph(vectors, degree)
        found = [
            searched(vectors, graph, asked, top_k, length, groups, candidates, hardware, bloom)
            for candidates in _CANDIDATES for groups in _GROUPS
        ]  # fmt: skip
    best = found[0]
    if as_json:
        rows = [
            {"groups": s.groups, "candidates": s.candidates, "hops": s.hops / best.hops, "recall": s.recall,
             "speedup": best.cycles / s.cycles}
            for s in found
        ]  # fmt: skip
        click.echo(json.dumps({"hops": "counted", "recall": "counted", "speedup": "predicted", "settings": rows}))
        return
    click.echo(f"{'groups':>7}{'candidates':>12}{'hops':>8}{'recall':>9}{'speedup':>9}")
    for s in found:
        click.echo(
            f"{s.groups:>7}{s.candidates:>12}{s.hops / best.hops:>8.2f}{s.recall:>9.1%}{best.cycles / s.cycles:>9.2f}"
        )
    top = min(found, key=lambda s: s.cycles)
    click.echo(
        f"{top.groups} groups of {top.candidates} would be fastest: predicted {best.cycles / top.cycles:.2f} times as "
        f"fast as best-first search, with {top.hops / best.hops:.2f} times the hops."
    )


def _query_nbytes(vertices: int, bloom: int | None) -> int:
    """Of one query: its queues and the vertices it has seen, its filter, and all exact distances with their order."""
    return vertices * (_SEEN_NBYTES + 3 * 8) + (0 if bloom is None else 1 << bloom)


def searched(
    vectors: Vectors,
    graph: Sequence[Sequence[int]],
    asked: Vectors,
    k: int,
    length: int,
    groups: int,
    candidates: int,
    units: TraversalUnits,
    bloom: int | None = None,
) -> Searched:
    """Searches for all queries with one setting, starting at vertex 0."""
    runs: list[Traversal] = []
    right = 0
    for query in asked:

        def distances(vertices: Sequence[int], query: Vectors = query) -> list[float]:
            return [float(d) for d in ((vectors[list(vertices)] - query) ** 2).sum(axis=1)]

        visited = None if bloom is None else BloomFilter(1 << bloom)
        run = traverse(
            at_once(graph, distances), 0, k=k, length=length, groups=groups, candidates=candidates, visited=visited
        )  # fmt: skip
        exact = np.argsort(((vectors - query) ** 2).sum(axis=1))[:k]
        right += len(set(exact.tolist()) & set(run.labels))
        runs.append(run)
    cycles = sum(traversal_cycles(run, groups, length, units) for run in runs)
    return Searched(groups, candidates, sum(run.hops for run in runs), right / k / len(asked), cycles)
