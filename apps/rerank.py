"""`edge rerank`: ranks texts by their relevance to a query."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from edge.apps.evolution import check_picture, plot_scores
from edge.apps.options import (
    OutputFile,
    configure,
    engine_options,
    print_stats,
    report_options,
    text_options,
    words_argument,
)
from edge.apps.planning import check_texts
from edge.apps.texts import Document, read_documents
from edge.resident import ResidentWatch
from edge.runtimes.reranker import Ranking, Reranker
from edge.trace import Trace


@click.command()
@words_argument("query")
@click.option("-k", "--top-k", type=int, help="How many results (all if not given).")
@click.option("--model", help="Reranker: a known name or the path of a packed model.")
@click.option("--threshold", help="Dispersion at which pruning starts: auto, inf, or a number.")
@click.option(
    "--mode", type=click.Choice(["top-k", "ranked"]), help="ranked: exact order; top-k: the best set, faster."
)
@click.option("--retrieved", is_flag=True, help="Texts come in a retriever's order, best first: blend it in.")
@click.option("--plot", type=OutputFile(), help="Draw each candidate's score by layer here.")
@click.option("--explain", is_flag=True, help="Show scores and decisions layer by layer.")
@text_options
@engine_options
@report_options
def rerank(
    query: str,
    docs: str,
    top_k: int | None,
    model: str | None,
    threshold: str | None,
    mode: str | None,
    retrieved: bool,
    max_tokens: int | None,
    plot: Path | None,
    explain: bool,
    memory: str | None,
    runtime: str | None,
    threads: int | None,
    as_json: bool,
    stats: bool,
    trace: Path | None,
) -> None:
    """Rank texts by how well they answer QUERY, best first."""
    config = configure(memory=memory, runtime=runtime, threads=threads, reranker=model, threshold=threshold, mode=mode)
    if plot is not None:
        check_picture(plot)
    with ResidentWatch() as watch:
        documents = read_documents(docs, config.memory)
        recorder = Trace(events=trace is not None)
        check_texts("ranking", "reranker", config, [d.text for d in documents], max_tokens, query)
        with Reranker(config=config, max_tokens=max_tokens, trace=recorder) as reranker:
            texts = [d.text for d in documents]
            ranking = reranker.explain(
                query, texts, top_k, retrieved=retrieved, every_layer=explain or plot is not None
            )
        watch.sample()
        figures = replace(ranking.stats, peak_resident=watch.high_water).to_json()
    try:
        if trace is not None:
            recorder.write(trace)
        if plot is not None:
            plot_scores(ranking, texts, plot)
    finally:  # a ranking is not lost where its trace or its picture cannot be written
        if as_json:
            click.echo(json.dumps(_document(ranking, documents, figures, explain), ensure_ascii=False))
        else:
            _print_results(ranking, documents, explain)
            if stats:
                print_stats(figures)


def _print_results(ranking: Ranking, documents: list[Document], explain: bool) -> None:
    if explain:
        _print_layers(ranking, len(documents))
    for place, result in enumerate(ranking.results, 1):
        name = documents[result.index].id
        label = f"[{name}] " if name is not None else ""
        click.echo(f"{place:3d}  {result.score:.4f}  {label}{result.text}")


def _document(ranking: Ranking, documents: list[Document], stats: dict[str, Any], explain: bool) -> dict[str, Any]:
    document: dict[str, Any] = {
        "results": [
            {"index": r.index, "id": documents[r.index].id, "score": r.score, "text": r.text} for r in ranking.results
        ],
        "stats": stats,
    }
    if explain:
        document["layers"] = [
            {
                "layer": report.layer,
                "cv": report.decision.cv,
                "scores": dict(zip(map(str, report.ids.tolist()), report.scores.tolist(), strict=True)),
                "clusters": dict(zip(map(str, report.ids.tolist()), report.decision.clusters.tolist(), strict=False)),
                "selected": report.decision.selected.tolist(),
                "dropped": report.decision.dropped.tolist(),
                "deferred": report.decision.deferred.tolist(),
            }
            for report in ranking.layers
        ]
    return document


def _print_layers(ranking: Ranking, candidates: int) -> None:
    """Layer by layer: dispersion, clusters with their score ranges, and who was selected, dropped or deferred."""
    rule = "never prunes" if ranking.threshold == float("inf") else f"prunes above CV {ranking.threshold:.3f}"
    if ranking.margin is not None:
        rule = f"drops candidates more than {ranking.margin:.2f} deviations behind"
    click.echo(f"{candidates} candidates; {rule}")
    for report in ranking.layers:
        decision = report.decision
        order = sorted(
            zip(report.scores.tolist(), report.ids.tolist(), strict=True), key=lambda pair: (-pair[0], pair[1])
        )
        best = "  ".join(f"{i}:{score:.3f}" for score, i in order[:8])
        click.echo(f"layer {report.layer:2d}  CV {decision.cv:.3f}  {len(report.ids)} active  best {best}")
        if len(decision.clusters):
            for cluster in range(int(decision.clusters.max()) + 1):
                inside = report.scores[decision.clusters == cluster]
                spread = f"{inside.max():.3f} to {inside.min():.3f}"
                click.echo(f"          cluster {cluster}: {len(inside)} candidates, scores {spread}")
        if len(decision.selected) or len(decision.dropped):
            for name, ids in (("selected", decision.selected), ("dropped", decision.dropped)):
                if len(ids):
                    click.echo(f"          {name}: {', '.join(map(str, sorted(ids.tolist())))}")
            click.echo(f"          deferred: {len(decision.deferred)} go on")
    click.echo("")
