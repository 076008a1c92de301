"""`rerank-quality`: measures a reranker on judged candidate pools, and the losses and savings of pruning."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from bench.figures import Figure, higher, lower, neither, tabulate
from bench.options import Output, output_options
from edge.apps.options import Setup, setup_options
from edge.errors import InputError
from edge.files.input_file import read_input
from edge.models.blending import Retrieved, retrieval_scores
from edge.models.training.measures import ndcg
from edge.runtimes.reranker import Ranking, Reranker


@dataclass(frozen=True, slots=True)
class JudgedPool:
    """A query with its candidates in retrieval order.

    Attributes:
        grades: the relevance of each candidate.
        ideal: all judged grades of the query, including documents that retrieval missed.
        retrieved: the retriever's scores or order of the candidates (see `models.blending`).
        documents: the document of each candidate passage. A document counts once, at its first passage. None if no
            document has two passages.
    """

    query: str
    docs: list[str]
    grades: list[float]
    ideal: list[float]
    retrieved: Retrieved = True
    documents: list[str] | None = None

    def cut(self, count: int) -> JudgedPool:
        """The pool with only its first `count` candidates."""
        retrieved = True if isinstance(self.retrieved, bool) else self.retrieved[:count]
        documents = None if self.documents is None else self.documents[:count]
        return JudgedPool(self.query, self.docs[:count], self.grades[:count], self.ideal, retrieved, documents)

    def ndcg(self, scores: Any) -> float:
        """nDCG@10 of the documents in the order of `scores`, one for each candidate."""
        order = np.argsort(-np.asarray(scores, np.float64), kind="stable").tolist()
        if self.documents is not None:
            seen: dict[str, int] = {}
            for i in order:
                seen.setdefault(self.documents[i], i)
            order = list(seen.values())
        gains = np.array([self.grades[i] for i in order], np.float64)
        return float(ndcg(-np.arange(len(gains), dtype=np.float64), gains, np.array(self.ideal, float)))


@dataclass(frozen=True, slots=True)
class Quality:
    """The nDCG@10 of one set: in retrieval order, by the reranker alone, and by both blended."""

    name: str
    queries: int
    candidates: int
    retrieved: float
    alone: float
    blended: float


@dataclass(frozen=True, slots=True)
class Pruned:
    """Pruning at the stored threshold, compared with full depth, in blended order and alternating runs.

    Attributes:
        precision, full_precision: Precision@K by the judgements. With fewer than K relevant candidates, hits are
            divided by their number.
        overlap: the share of full depth's top K that pruning kept.
        evaluations: the share of layer x candidate evaluations that remain.
        seconds, full_seconds: the median seconds per query.
    """

    name: str
    k: int
    candidates: int
    mode: str
    precision: float
    full_precision: float
    overlap: float
    evaluations: float
    seconds: float
    full_seconds: float


@click.command("rerank-quality")
@click.argument("pools", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--model", help="Reranker: a known name or the path of a packed model.")
@click.option("--queries", type=int, default=100, show_default=True, help="Of each file, the first ones.")
@click.option("--candidates", type=int, multiple=True, default=(30,), show_default=True, help="First ones of a pool.")
@click.option("-k", "--top-k", "ks", type=int, multiple=True, default=(1, 5, 10), show_default=True)
@click.option("--mode", type=click.Choice(["top-k", "ranked"]), default="ranked", show_default=True)
@click.option("--max-tokens", type=int, default=256, show_default=True)
@click.option("--no-pruning", is_flag=True, help="Only the quality table.")
@output_options
@setup_options()
def rerank_quality(
    pools: tuple[Path, ...],
    model: str | None,
    queries: int,
    candidates: tuple[int, ...],
    ks: tuple[int, ...],
    mode: str,
    max_tokens: int,
    no_pruning: bool,
    output: Output,
    setup: Setup,
) -> None:
    """Judge a reranker on POOLS: JSON Lines of {"query", "docs": [...], "grades": [...], "ideal": [...], "scores":
    [...], "documents": [...]}, the docs in a retriever's order. The last three may be missing: all judged grades of the
    query, the retriever's scores, and whose passage each of the docs is."""
    config = setup.config(reranker=model, mode=mode)
    # A file that cannot be read is reported before a model is loaded and measured.
    files = [(path, read_pools(path, queries)) for path in pools]
    quality: list[Quality] = []
    pruned: list[Pruned] = []
    with Reranker(config=config, max_tokens=max_tokens) as reranker:
        for path, judged in files:
            for count in candidates:
                cut = [pool.cut(count) for pool in judged]
                quality.append(judge(reranker, path.stem, cut))
                if not no_pruning:
                    pruned += [prune(reranker, path.stem, cut, k, mode) for k in ks if k < count]
    document = {"quality": [asdict(row) for row in quality], "pruning": [asdict(row) for row in pruned]}
    output.put(document, figures(document), f"pools of {len(files)} files, results {mode}")


def figures(document: dict[str, list[dict[str, Any]]]) -> Iterator[Figure]:
    """The figures of a stored run: quality at full depth, and losses and savings of pruning."""
    rows = {f"{row['name']}, {row['candidates']} candidates": row for row in document["quality"]}
    columns = {
        "retrieved": neither("retrieved"), "alone": higher("alone"), "blended": higher("blended"),
        "queries": neither("queries"),
    }  # fmt: skip
    yield from tabulate(rows, columns, "nDCG@10")
    rows = {f"{row['name']}, {row['k']} of {row['candidates']}": row for row in document["pruning"]}
    columns = {
        "precision": higher("precision"), "full_precision": neither("at full depth"), "overlap": higher("found", "%"),
        "evaluations": lower("computed", "%"), "seconds": lower("time", "s"),
        "full_seconds": lower("time at full depth", "s"),
    }  # fmt: skip
    yield from tabulate(rows, columns, "pruning")


def read_pools(path: Path, limit: int) -> list[JudgedPool]:
    """The first `limit` pools of a file.

    Raises:
        InputError: the file cannot be read, or a line holds no pool; the message names its number.
    """
    pools: list[JudgedPool] = []
    try:
        lines = read_input(path).decode().splitlines()[:limit]
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise InputError(f"{path} is no text in UTF-8") from None
    for number, line in enumerate(lines, 1):
        try:
            value = json.loads(line)
            grades = [float(grade) for grade in value["grades"]]
            docs, scores = list(map(str, value["docs"])), value.get("scores")
            retrieved = scores is None or [float(score) for score in scores]
            ideal, documents = value.get("ideal") or grades, value.get("documents")
            pool = JudgedPool(str(value["query"]), docs, grades, ideal, retrieved, documents)
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f'{path}, line {number}: needs "query", "docs" and "grades" ({error})') from None
        if len(pool.docs) != len(grades):
            raise InputError(f"{path}, line {number}: {len(pool.docs)} docs but {len(grades)} grades")
        pools.append(pool)
    if not pools:
        raise InputError(f"{path} holds no pools")
    return pools


def judge(reranker: Reranker, name: str, pools: Sequence[JudgedPool]) -> Quality:
    """One row of the quality table, at full depth."""
    found: dict[bool, list[float]] = {False: [], True: []}
    before = []
    for pool in pools:
        before.append(pool.ndcg(retrieval_scores(len(pool.docs))))
        for blended in (False, True):
            retrieved = pool.retrieved if blended else False
            ranking = reranker.rank(pool.query, pool.docs, retrieved=retrieved, threshold="inf")
            scores = np.empty(len(pool.docs))
            for place, result in enumerate(ranking):
                scores[result.index] = -place
            found[blended].append(pool.ndcg(scores))
    size = round(statistics.mean(len(pool.docs) for pool in pools))
    means = [statistics.mean(values) for values in (before, found[False], found[True])]
    return Quality(name, len(pools), size, *means)


def prune(reranker: Reranker, name: str, pools: Sequence[JudgedPool], k: int, mode: str) -> Pruned:
    """One row of the pruning table: full depth and the stored threshold take turns on every query."""
    precision: dict[str, list[float]] = {"inf": [], "auto": []}
    seconds: dict[str, list[float]] = {"inf": [], "auto": []}
    overlaps, shares = [], []
    for number, pool in enumerate(pools):
        relevant = {i for i, grade in enumerate(pool.grades) if grade > 0}
        chosen: dict[str, set[int]] = {}
        for threshold in ("inf", "auto") if number % 2 else ("auto", "inf"):
            started = time.perf_counter()
            ranking: Ranking = reranker.explain(pool.query, pool.docs, k, retrieved=pool.retrieved, threshold=threshold)
            seconds[threshold].append(time.perf_counter() - started)
            chosen[threshold] = {result.index for result in ranking.results}
            if relevant:
                hits = len(relevant & chosen[threshold])
                precision[threshold].append(hits / min(k, len(relevant)))
            if threshold == "auto":
                shares.append(ranking.stats.evaluations / ranking.stats.evaluations_full)
        overlaps.append(len(chosen["auto"] & chosen["inf"]) / k)
    return Pruned(
        name,
        k,
        round(statistics.mean(len(pool.docs) for pool in pools)),
        mode,
        statistics.mean(precision["auto"] or [0.0]),
        statistics.mean(precision["inf"] or [0.0]),
        statistics.mean(overlaps),
        statistics.mean(shares),
        statistics.median(seconds["auto"]),
        statistics.median(seconds["inf"]),
    )
