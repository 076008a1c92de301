"""`search-quality`: measures BM25, vectors, both fused, and the reranker on judged sets, with the same
collection code as `edge search`."""

from __future__ import annotations

import json
import random
import statistics
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import click
import numpy as np

from bench.figures import higher, neither, tabulate
from bench.options import Output, output_options
from edge.apps.collection.collection import Collection
from edge.apps.collection.hits import Hit
from edge.apps.collection.searching import DEPTH
from edge.apps.options import Setup, setup_options
from edge.apps.requests import POOL
from edge.errors import InputError
from edge.models.training.corpora import Corpus, Qrels, load
from edge.models.training.measures import ndcg

_K = 10
_STAGES: dict[str, Callable[[Hit], int | None]] = {
    "bm25": lambda hit: hit.stages.lexical_rank,
    "vectors": lambda hit: hit.stages.vector_rank,
    "fused": lambda hit: hit.stages.fused_rank,
}


@click.command("search-quality")
@click.argument("data", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--split", type=click.Choice(["test", "train"]), default="test", show_default=True)
@click.option("--queries", type=int, help="Of each set, drawn at random; all if not given.")
@click.option("--pool", default=30, show_default=True, help="Fused candidates that are reranked; 0: no reranking.")
@click.option("--pools", type=click.Path(file_okay=False, path_type=Path), help="Write the fused pools here, as JSONL.")
@output_options
@setup_options()
def search_quality(
    data: tuple[Path, ...],
    split: str,
    queries: int | None,
    pool: int,
    pools: Path | None,
    output: Output,
    setup: Setup,
) -> None:
    """nDCG@10 of every stage of search on DATA: sets in BEIR's layout. An id such as `a/b` is searched below `a` only.

    the benchmark `rerank-quality` and `edge models calibrate` read the files that --pools writes.
    """
    config = setup.config()
    table = {}
    for folder in data:
        corpus = load(folder)
        judged: Qrels = getattr(corpus, split)
        asked = sorted(judged)
        if not asked:
            raise InputError(f"{folder} has no {split} judgements")
        random.Random(0).shuffle(asked)
        out = pools / f"{folder.name}.{split}.jsonl" if pools else None
        with tempfile.TemporaryDirectory() as place, Collection(place, config=config) as collection:
            click.echo(f"indexing {corpus.name}: {len(corpus.ids)} documents", err=True)
            collection.add(corpus.texts, ids=corpus.ids, title=corpus.titles)
            table[corpus.name] = measure(collection, corpus, judged, asked[:queries], pool, out)
    stages = {name: higher(name) for name in (*_STAGES, "reranked")} | {"queries": neither("queries")}
    result = {"split": split, "pool": pool, "ndcg@10": table}
    output.put(result, tabulate(table, stages), "nDCG@10")


def measure(
    collection: Collection, corpus: Corpus, judged: Qrels, asked: Sequence[str], pool: int, out: Path | None
) -> dict[str, float]:
    """The mean nDCG@10 over the queries `asked`, by stage. The fused pools are written to `out`, if given."""
    found: dict[str, list[float]] = {}
    records: list[str] = []
    for start in range(0, len(asked), 256):
        group = asked[start : start + 256]
        vectors = collection.embed_queries([corpus.queries[q] for q in group])
        for query, vector in zip(group, vectors, strict=True):
            text, grades, scope = corpus.queries[query], judged[query], corpus.scope(query)
            hits = collection.candidates(text, vector, DEPTH, where=[f"path:{scope}/*"] if scope else None)
            orders = {name: ordered(hits, rank) for name, rank in _STAGES.items()}
            if pool:
                orders["reranked"] = [hit.path for hit in collection.rerank(text, hits[:pool])]
            for name, order in orders.items():
                found.setdefault(name, []).append(score(order, grades))
            if out:
                records.append(_record(text, hits[:POOL], grades, corpus.name))
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text("".join(f"{line}\n" for line in records), encoding="utf-8")
    return {"queries": float(len(asked)), **{name: statistics.mean(values) for name, values in found.items()}}


def ordered(hits: Iterable[Hit], rank: Callable[[Hit], int | None]) -> list[str]:
    """The documents in one stage's order."""
    ranked = [(place, hit.path) for hit in hits if (place := rank(hit)) is not None]
    return [path for _, path in sorted(ranked)]


def score(order: Iterable[str], grades: dict[str, int]) -> float:
    """The nDCG@10 of documents. A repeated document counts only at its first place."""
    first = list(dict.fromkeys(order))[:_K]
    gains = np.array([grades.get(path, 0) for path in first] + [0] * (_K - len(first)), np.float64)
    return float(ndcg(-np.arange(_K, dtype=np.float64), gains, np.array(sorted(grades.values()), np.float64)))


def _record(query: str, hits: Sequence[Hit], grades: dict[str, int], domain: str) -> str:
    pool = {"query": query, "docs": [hit.passage for hit in hits], "grades": [grades.get(h.path, 0) for h in hits]}
    pool |= {"scores": [hit.stages.fused_score for hit in hits], "documents": [hit.path for hit in hits]}
    return json.dumps(pool | {"ideal": sorted(grades.values(), reverse=True), "domain": domain})
