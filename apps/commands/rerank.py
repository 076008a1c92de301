"""`edge rerank`: ranks texts by their relevance to a query."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

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
from edge.apps.serve.connection import own_options
from edge.apps.verbs.home import OwnHome
from edge.apps.verbs.requests import Rerank
from edge.apps.verbs.verb import RERANK, do
from edge.budget import OperationPlan


@click.command()
@words_argument("query")
@Rerank.add_to
@text_options
@setup_options(device=True, server=True)
@report_options
def rerank(
    query: str,
    docs: str,
    options: Rerank,
    max_tokens: int | None,
    setup: Setup,
    report: Report,
) -> None:
    """Rank texts by how well they answer QUERY, best first."""
    config = setup.config(reranker=options.model, threshold=options.threshold, mode=options.mode)

    def planned(texts: Sequence[str]) -> OperationPlan:
        from edge.apps.store.planning import texts_plan

        return texts_plan("ranking", "reranker", config, texts, max_tokens, query)

    documents = read_texts(docs, config.memory, ["edge.runtimes.reranker"], planned)
    asked = replace(
        options, query=query, texts=[document.text for document in documents], model=config.reranker or None,
        mode=config.mode, threshold=str(config.threshold),
    )  # fmt: skip
    alone = own_options(memory=setup.memory, threads=setup.threads, trace=report.trace, max_tokens=max_tokens)
    home = OwnHome(config, report.trace, max_tokens=max_tokens)
    done = do(RERANK, asked, home, alone=alone)
    _show(done.result, documents, {**done.result["stats"], "server": done.server}, report)
    home.write_trace()  # a ranking is not lost if its trace cannot be written


def _show(found: dict[str, Any], documents: list[InputText], figures: dict[str, Any], report: Report) -> None:
    if report.as_json:
        results = [
            {"index": index, "id": documents[index].id, "score": score, "text": documents[index].text}
            for index, score, _ in found["results"]
        ]
        layers = {"layers": found["layers"]} if "layers" in found else {}
        click.echo(json.dumps({"results": results, "stats": figures, **layers}, ensure_ascii=False))
        return
    if "layers" in found:
        click.echo(f"{len(documents)} candidates; {found['rule']}")
        for layer in found["layers"]:
            _print_layer(layer)
        click.echo("")
    for place, (index, score, _) in enumerate(found["results"], 1):
        name = documents[index].id
        label = f"[{name}] " if name is not None else ""
        click.echo(f"{place:3d}  {score:.4f}  {label}{documents[index].text}")
    if report.stats:
        print_stats(figures)


def _print_layer(layer: dict[str, Any]) -> None:
    """Prints of a layer the dispersion, the clusters with their score ranges, and the candidates that were selected,
    dropped or deferred."""
    scores: dict[str, float] = layer["scores"]
    order = sorted(scores.items(), key=lambda pair: (-pair[1], int(pair[0])))
    best = "  ".join(f"{i}:{score:.3f}" for i, score in order[:8])
    click.echo(f"layer {layer['layer']:2d}  CV {layer['cv']:.3f}  {len(scores)} active  best {best}")
    clusters: dict[int, list[float]] = {}
    for i, cluster in layer["clusters"].items():
        clusters.setdefault(cluster, []).append(scores[i])
    for cluster, inside in sorted(clusters.items()):
        spread = f"{max(inside):.3f} to {min(inside):.3f}"
        click.echo(f"          cluster {cluster}: {len(inside)} candidates, scores {spread}")
    moved = {name: layer[name] for name in ("selected", "dropped") if layer[name]}
    for name, ids in moved.items():
        click.echo(f"          {name}: {', '.join(map(str, sorted(ids)))}")
    if moved:
        click.echo(f"          deferred: {len(layer['deferred'])} go on")
