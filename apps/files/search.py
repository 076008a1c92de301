"""`edge search`: finds passages by meaning and by words."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import click

from edge.apps.collection.collection import Collection
from edge.apps.collection.filters import Filters
from edge.apps.collection.hits import Hit
from edge.apps.collection.place import locate
from edge.apps.collection.scopes import contains
from edge.apps.files.shown import shown
from edge.apps.options import collection_option, configure, engine_options, report_options
from edge.apps.troubles import tell
from edge.config import format_size
from edge.resident import ResidentWatch
from edge.trace import Trace


@click.command()
@click.argument("query")
@click.option("-n", "--top-k", type=int, default=10, show_default=True, help="How many results.")
@click.option(
    "--filter", "filters", multiple=True, metavar="KEY:VALUE",
    help="Only files that meet this; may be repeated: path:docs/**, type:pdf, after:2024-01-31, before:2024-07-01, "
    "larger:1MB, smaller:20kB. Several paths or types are alternatives.",
)  # fmt: skip
@click.option("--min-score", type=float, default=0.0, help="Leave out results that score lower (0 ... 1).")
@click.option("--no-rerank", is_flag=True, help="Keep the fused order of words and vectors; quicker, less exact.")
@click.option("--explain", is_flag=True, help="Show what each stage thought of each result.")
@click.option("--embedder", help="Model of the query's vector, if not the collection's own (must be the same).")
@click.option("--reranker", help="Reranker: a known name or the path of a packed model.")
@collection_option
@engine_options
@report_options
def search(
    query: str,
    top_k: int,
    filters: tuple[str, ...],
    min_score: float,
    no_rerank: bool,
    explain: bool,
    embedder: str | None,
    reranker: str | None,
    collection: Path | None,
    memory: str | None,
    runtime: str | None,
    threads: int | None,
    as_json: bool,
    stats: bool,
    trace: Path | None,
) -> int:
    """Find the passages of the indexed files that answer QUERY; exit code 1 if there are none.

    A phrase in double quotes is looked up as it stands.
    """
    config = configure(memory=memory, runtime=runtime, threads=threads, embedder=embedder, reranker=reranker)
    where = Filters.parse(filters)
    recorder = Trace(events=trace is not None)
    with ResidentWatch() as resident:
        started = time.perf_counter()
        with Collection(locate(collection), config=config, trace=recorder, read_only=True) as opened:
            hits = opened.search(query, top_k, rerank=not no_rerank, where=where, min_score=min_score)
            limit = opened.budget.limit
            health = opened.health()
        seconds = time.perf_counter() - started
    tell(health)
    figures = _figures(recorder, seconds, resident.high_water, limit)
    if trace is not None:
        recorder.write(trace)
    if as_json:
        results = [_record(hit, explain) for hit in hits]
        document = {"results": results, "health": health.to_json(), "stats": figures}
        click.echo(json.dumps(document, ensure_ascii=False))
    else:
        for place, hit in enumerate(hits, 1):
            _print(place, hit, explain)
        if not hits:
            click.echo("edge: nothing found", err=True)
    if stats:
        _print_stats(figures)
    return 0 if hits else 1


def _record(hit: Hit, explain: bool) -> dict[str, Any]:
    """A result for programs; `page` only where the format has pages."""
    record: dict[str, Any] = {
        "path": hit.path,
        "line_start": hit.line_start,
        "line_end": hit.line_end,
        "score": hit.score,
        "snippet": hit.snippet,
        "id": hit.id,
    }
    if hit.page is not None:
        record["page"] = hit.page
    if explain:
        record["explain"] = {name: getattr(hit.stages, name) for name in hit.stages.__dataclass_fields__}
        record["title"] = hit.title
        record["context"] = hit.context
    return record


def _print(place: int, hit: Hit, explain: bool) -> None:
    """A result for people: where it is, how sure it is, and the words that match in bold."""
    citation = _bold(shown(hit.citation.replace(hit.path, _near(hit.path), 1)))
    heading = f"  {shown(hit.context)}" if hit.context else ""
    click.echo(f"{place:3d}  {hit.score:.3f}  {citation}{heading}", color=is_terminal())
    if explain:
        click.echo(f"            {_stages(hit)}")
    parts, end = [], 0
    for start, stop in hit.marks:
        parts += [hit.snippet[end:start], _bold(hit.snippet[start:stop])]
        end = stop
    click.echo(f"            {''.join(parts)}{hit.snippet[end:]}", color=is_terminal())


def _stages(hit: Hit) -> str:
    stages = hit.stages
    words = "-" if stages.lexical_rank is None else f"#{stages.lexical_rank} ({stages.lexical_score:.2f})"
    vectors = "-" if stages.vector_rank is None else f"#{stages.vector_rank} ({stages.vector_score:.3f})"
    shown = f"words {words}  vectors {vectors}  fused #{stages.fused_rank} ({stages.fused_score:.3f})"
    return shown if stages.relevance is None else f"{shown}  relevance {stages.relevance:.4f}"


def _bold(text: str) -> str:
    return click.style(text, bold=True) if is_terminal() and not os.environ.get("NO_COLOR") else text


def is_terminal() -> bool:
    """Whether somebody looks at what is printed."""
    return sys.stdout.isatty()


def _near(path: str) -> str:
    """A path as short as it can be from here."""
    here = os.getcwd()
    return os.path.relpath(path, here) if contains(here, path) and path != here else path


def _figures(trace: Trace, seconds: float, peak: int, limit: int) -> dict[str, Any]:
    counters = trace.snapshot()
    stages = {f"{stage}_s": counters.get(f"search.{stage}_s", 0.0) for stage in ("embed", "search", "rerank")}
    index = {name: int(counters.get(f"index.{name}", 0)) for name in ("lists_read", "bytes_read", "hits")}
    return {"seconds": seconds, **stages, "index": index, "peak_resident": peak, "limit": limit}


def _print_stats(figures: dict[str, Any]) -> None:
    index = figures["index"]
    for line in (
        f"memory   {format_size(figures['peak_resident'])} peak of {format_size(figures['limit'])} allowed",
        f"time     {figures['seconds']:.2f} s: query vector {figures['embed_s']:.2f}, search "
        f"{figures['search_s']:.3f}, reranker {figures['rerank_s']:.2f} (opening the models included)",
        f"index    {index['lists_read']} lists read ({format_size(index['bytes_read'])}), {index['hits']} in memory",
    ):
        click.echo(line, err=True)
