"""`edge rerank`: ranks texts by their relevance to a query."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from edge.apps.commands.texts import InputText, read_texts
from edge.apps.options import (
    Report,
    Setup,
    print_stats,
    report_options,
    setup_options,
    text_options,
    words_argument,
)
from edge.apps.serve.background import connected, own_options
from edge.apps.serve.connection import MODELS, Unserved
from edge.budget import OperationPlan
from edge.config import Config
from edge.resident import ResidentWatch

if TYPE_CHECKING:
    from edge.runtimes.reranker import Ranking


@click.command()
@words_argument("query")
@click.option("-k", "--top-k", type=int, help="How many results (all if not given).")
@click.option("--model", help="Reranker: a known name or the path of a packed model.")
@click.option("--threshold", help="Dispersion at which pruning starts: auto, inf, or a number.")
@click.option(
    "--mode", type=click.Choice(["top-k", "ranked"]), help="ranked: full depth's order; top-k: the best set, faster."
)
@click.option("--retrieved", is_flag=True, help="Texts come in a retriever's order, best first: blend it in.")
@click.option("--explain", is_flag=True, help="Show scores and decisions layer by layer.")
@text_options
@setup_options(device=True, server=True)
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
    explain: bool,
    setup: Setup,
    report: Report,
) -> None:
    """Rank texts by how well they answer QUERY, best first."""
    config = setup.config(reranker=model, threshold=threshold, mode=mode)

    def planned(texts: Sequence[str]) -> OperationPlan:
        from edge.apps.store.planning import texts_plan

        return texts_plan("ranking", "reranker", config, texts, max_tokens, query)

    documents = read_texts(docs, config.memory, ["edge.runtimes.reranker"], planned)
    alone = own_options(
        memory=setup.memory, threads=setup.threads, trace=report.trace, explain=explain, max_tokens=max_tokens,
    )  # fmt: skip
    try:
        results, figures, server = _served(query, documents, top_k, retrieved, config, alone)
    except Unserved as reason:
        server = f"not used: {reason}"
    else:
        _show(results, documents, {**figures, "server": server}, report=report)
        return

    from edge.apps.store.planning import check_texts
    from edge.runtimes.reranker import Reranker
    from edge.trace import Trace

    with ResidentWatch() as watch:
        recorder = Trace(events=report.trace is not None)
        check_texts("ranking", "reranker", config, [d.text for d in documents], max_tokens, query)
        with Reranker(config=config, max_tokens=max_tokens, trace=recorder) as reranker:
            texts = [d.text for d in documents]
            ranking = reranker.explain(query, texts, top_k, retrieved=retrieved, every_layer=explain)
        watch.sample()
        figures = replace(ranking.stats, peak_resident=watch.high_water).to_json()
    try:
        if report.trace is not None:
            recorder.write(report.trace)
    finally:  # a ranking is not lost if its trace cannot be written
        found = [(result.index, result.score) for result in ranking.results]
        layers = ranking if explain else None
        _show(found, documents, {**figures, "server": server}, layers, report=report)


def _served(
    query: str, documents: list[InputText], top_k: int | None, retrieved: bool, config: Config, alone: str
) -> tuple[list[tuple[int, float]], dict[str, Any], str]:
    """The indices and scores of the texts, best first; the figures; and a note on the server that ranked them.

    Raises:
        Unserved: the server cannot be used for this request.
    """
    connection = connected(config, MODELS, alone)
    answer = connection.ask("/own/rerank", {
        "query": query, "texts": [document.text for document in documents], "top_k": top_k, "retrieved": retrieved,
        "model": config.reranker, "mode": config.mode, "threshold": config.threshold,
    })  # fmt: skip
    found = [(index, score) for index, score, _ in answer["results"]]
    return found, answer["stats"], f"used: process {connection.hello['pid']}"


def _show(
    results: list[tuple[int, float]],
    documents: list[InputText],
    figures: dict[str, Any],
    layers: Ranking | None = None,
    *,
    report: Report,
) -> None:
    """Prints a ranking. `layers` is the ranking with its layer reports, if they are to be printed."""
    if report.as_json:
        click.echo(json.dumps(_document(results, documents, figures, layers), ensure_ascii=False))
        return
    if layers is not None:
        _print_layers(layers, len(documents))
    for place, (index, score) in enumerate(results, 1):
        name = documents[index].id
        label = f"[{name}] " if name is not None else ""
        click.echo(f"{place:3d}  {score:.4f}  {label}{documents[index].text}")
    if report.stats:
        print_stats(figures)


def _document(
    results: list[tuple[int, float]], documents: list[InputText], stats: dict[str, Any], ranking: Ranking | None
) -> dict[str, Any]:
    document: dict[str, Any] = {
        "results": [
            {"index": index, "id": documents[index].id, "score": score, "text": documents[index].text}
            for index, score in results
        ],
        "stats": stats,
    }
    if ranking is not None:
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
    """Prints for each layer the dispersion, the clusters with their score ranges, and the candidates that were
    selected, dropped or deferred."""
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
