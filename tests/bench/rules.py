"""`pruning-rules`: the paper's rule of pruning beside ours, at equal precision.

GRATING's rule (section 4.1) needs a threshold for each number of results, size of pool and mode. It is chosen on every
other query, as the smallest that finds `--target` of full depth's results. The bounded rule has its stored margin. Both
are then run on the other queries.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from bench.figures import Figure, higher, lower, neither, tabulate
from bench.options import ARGUMENT, File, Output, benchmark
from bench.process import say
from bench.rerank_peers import JudgedPool, read_pools
from edge.apps.options import configure
from edge.budget import MemoryBudget
from edge.errors import InputError
from edge.runtimes.reranker import Ranking, Reranker
from edge.streaming.pruning import Mode, ProgressivePruning

THRESHOLDS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0)
MODES: tuple[Mode, ...] = ("ranked", "top-k")
_FULL = math.inf


@benchmark
def pruning_rules(
    *,
    pools: Annotated[tuple[File, ...], ARGUMENT],
    queries: Annotated[int, "Of each file."] = 24,
    results: Annotated[tuple[int, ...], "Numbers of results."] = (1, 5, 10),
    candidates: Annotated[tuple[int, ...], "Sizes of the pools."] = (20, 60),
    target: Annotated[float, "The share of full depth's results that the threshold must find."] = 0.99,
    memory: Annotated[str, "Limit of the process."] = "600MB",
    threads: Annotated[int | None, "Compute threads."] = None,
    output: Output,
) -> None:
    """Work, time and Precision@K of both rules on POOLS, files that `search-quality --pools` writes."""
    judged = [[pool for pool in read_pools(path, queries) if len(pool.docs) >= max(candidates)] for path in pools]
    if min(map(len, judged)) < 2:
        raise InputError(f"every file needs at least 2 queries with {max(candidates)} candidates")
    config = configure(memory=memory, threads=threads)
    cases = [(size, k, mode) for size, k, mode in product(candidates, results, MODES) if k < size]
    rows: dict[str, dict[str, float]] = {}
    with Reranker(config=config, budget=MemoryBudget(config.memory)) as reranker:
        say("choosing the thresholds")
        recorded = {size: [_pass(reranker, pool, size, size, None, _FULL)[0] for part in judged for pool in part[::2]]
                    for size in candidates}  # fmt: skip
        thresholds = {case: chosen(recorded[case[0]], case, target) for case in cases}
        say("running both rules")
        measured: defaultdict[tuple[Any, ...], list[tuple[float, ...]]] = defaultdict(list)
        for pool in (pool for part in judged for pool in part[1::2]):
            for size in candidates:
                full, whole_s = _pass(reranker, pool, size, size, None, _FULL)
                order = [result.index for result in full.results]
                for case in (case for case in cases if case[0] == size):
                    _, k, mode = case
                    measured[(*case, "full depth")].append((1.0, whole_s, 1.0, precision(pool, order[:k], size)))
                    for rule, threshold in (("bounded", None), ("cluster", thresholds[case])):
                        found, took = _pass(reranker, pool, size, k, mode, threshold)
                        ids = [result.index for result in found.results]
                        work = found.stats.evaluations / found.stats.evaluations_full
                        same = len({*ids} & {*order[:k]}) / k
                        measured[(*case, rule)].append((work, took, same, precision(pool, ids, size)))
    for (size, k, mode, rule), values in measured.items():
        work, took, same, right = (statistics.fmean(column) for column in zip(*values, strict=True))
        row = {"work": work, "seconds": took, "found": same, "precision": right, "queries": float(len(values))}
        limit = {"threshold": thresholds[size, k, mode]} if rule == "cluster" else {}
        rows[f"{k} of {size}, {mode}, {rule}"] = row | limit
    output.put({"rows": rows}, figures(rows), "")


def figures(rows: dict[str, dict[str, float]]) -> Iterator[Figure]:
    columns = {
        "work": lower("computed", "%"), "seconds": lower("processor time", "s"), "found": higher("found", "%"),
        "precision": higher("precision", ""), "threshold": neither("threshold"), "queries": neither("queries"),
    }  # fmt: skip
    yield from tabulate(rows, columns)


def chosen(recorded: Sequence[Ranking], case: tuple[int, int, Mode], target: float) -> float:
    """The smallest threshold with which the cluster rule finds `target` of the best `k` of some passes at full depth;
    infinity, which prunes nothing, if none does."""
    _, k, mode = case
    for threshold in THRESHOLDS:
        shares = [len({*replayed(each, k, mode, threshold)} & {*_best(each, k)}) / k for each in recorded]
        if statistics.fmean(shares) >= target:
            return threshold
    return math.inf


def replayed(full: Ranking, k: int, mode: Mode, threshold: float) -> list[int]:
    """The best `k` candidates by the cluster rule, on the scores of a pass at full depth that reported every layer."""
    pruning = ProgressivePruning(k, mode=mode, threshold=threshold, candidates=len(full.results))
    active: npt.NDArray[np.int64] = np.arange(len(full.results))
    selected: list[int] = []
    reports = [report for report in full.layers if report.layer > 0]
    for report in reports[:-1]:
        scores = np.empty(len(full.results))
        scores[report.ids] = report.scores
        decision = pruning.decide(report.layer, active, scores[active])
        selected += decision.selected.tolist()
        active = decision.deferred
        if decision.finished:
            return selected
    left = {*active.tolist()}
    return [*selected, *(result.index for result in full.results if result.index in left)][:k]


def precision(pool: JudgedPool, ids: Sequence[int], size: int) -> float:
    """Precision@K of some candidates; with fewer than K relevant ones, their share that was found, as in the paper."""
    relevant = {place for place, grade in enumerate(pool.grades[:size]) if grade > 0}
    return len(relevant & {*ids}) / max(1, min(len(ids), len(relevant)))


def _best(full: Ranking, k: int) -> list[int]:
    return [result.index for result in full.results[:k]]


def _pass(
    reranker: Reranker, pool: JudgedPool, size: int, k: int, mode: Mode | None, threshold: float | None
) -> tuple[Ranking, float]:
    """A ranking of the first `size` candidates, and its processor time."""
    retrieved = pool.retrieved if isinstance(pool.retrieved, bool) else pool.retrieved[:size]
    started = time.process_time()
    found = reranker.explain(
        pool.query, pool.docs[:size], k, retrieved=retrieved, mode=mode, threshold=threshold,
        every_layer=threshold == _FULL,
    )  # fmt: skip
    return found, time.process_time() - started
