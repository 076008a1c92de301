"""`edge search`: finds passages by meaning and by words."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import click

from edge.apps.collection.filters import Filters, kinds_present
from edge.apps.collection.hits import Hit
from edge.apps.collection.scopes import contains
from edge.apps.collection.searching import POOL
from edge.apps.collection.together import Together
from edge.apps.files.output import markdown_link, output_option, plain_markdown, print_csv
from edge.apps.files.shown import shown
from edge.apps.files.style import highlighted, place, say, styled
from edge.apps.options import collections_option, configure, engine_options, figures_options, words_argument
from edge.apps.troubles import told
from edge.config import format_size
from edge.resident import ResidentWatch
from edge.trace import Trace

_COLUMNS = (
    "path", "line", "line_start", "line_end", "page", "score", "relevance", "snippet", "id", "collection",
    "description",
)  # fmt: skip


@click.command()
@words_argument("query")
@click.option("-n", "--top-k", type=int, default=10, show_default=True, help="How many results.")
@click.option(
    "--filter", "filters", multiple=True, metavar="KEY:VALUE",
    help="Only files that meet this; may be repeated: path:docs/**, type:pdf, type:python, after:2024-01-31, "
    "before:2024-07-01, larger:1MB, smaller:20kB. Several paths or types are alternatives.",
)  # fmt: skip
@click.option("--min-score", type=float, default=0.0, help="Leave out results that are less relevant (0 ... 1).")
@click.option("--min-blended", type=float, default=0.0, help="Leave out results of a lower blended score (0 ... 1).")
@click.option("--no-rerank", is_flag=True, help="Keep the fused order of words and vectors; quicker, less exact.")
@click.option("--explain", is_flag=True, help="Show what each stage thought of each result.")
@click.option("--device", metavar="NAME[:OPTIONS]", help="Where vectors are searched beside the host (`edge doctor`).")
@click.option("--embedder", help="Model of the query's vector, if not the collection's own (must be the same).")
@click.option("--reranker", help="Reranker: a known name or the path of a packed model.")
@collections_option
@engine_options
@figures_options
@output_option
def search(
    query: str,
    top_k: int,
    filters: tuple[str, ...],
    min_score: float,
    min_blended: float,
    no_rerank: bool,
    explain: bool,
    embedder: str | None,
    reranker: str | None,
    collections: tuple[str, ...],
    memory: str | None,
    runtime: str | None,
    threads: int | None,
    device: str | None,
    output: str,
    stats: bool,
    trace: Path | None,
) -> int:
    """Find the passages of the indexed files that answer QUERY; exit code 1 if there are none.

    A phrase in double quotes is looked up as it stands. A query may have parts: `lex: words to look up`, `vec: a
    question to look up by meaning`, `hyde: a passage as the answer might read`; one of them comes first.

    Results come in the order of their blended score, which compares the results of one search. --min-score compares
    the reranker's own judgement, which means the same in every search.
    """
    config = configure(
        memory=memory, runtime=runtime, threads=threads, embedder=embedder, reranker=reranker, device=device
    )
    where = Filters.parse(filters)
    recorder = Trace(events=trace is not None)
    with ResidentWatch() as resident:
        started = time.perf_counter()
        with told(Together.opened(collections, config, recorder, candidates=max(POOL, 2 * top_k))) as opened:
            hits = opened.search(
                query, top_k, rerank=not no_rerank, where=where, min_score=min_score, min_blended=min_blended
            )
            limit = opened.budget.limit
            healths = {name: collection.health() for name, collection in opened.collections.items()}
            notice = "" if hits else _nothing(opened, where)
        seconds = time.perf_counter() - started
    figures = _figures(recorder, seconds, resident.high_water, limit)
    if trace is not None:
        recorder.write(trace)
    health = {name: found.to_json() for name, found in healths.items()}
    _print(
        hits,
        output,
        health if len(health) > 1 else next(iter(health.values())),
        figures,
        explain,
        relevance=min_score > 0,
    )
    if not hits and output == "text":
        click.echo(f"edge: nothing found{notice}", err=True)
    if stats:
        _print_stats(figures)
    return 0 if hits else 1


def _nothing(opened: Together, where: Filters) -> str:
    """Why there is nothing, where the types asked for may be the reason."""
    searched = opened.collections.values()
    if not where.kinds or any(collection.files(Filters(kinds=where.kinds)) for collection in searched):
        return ""
    present = []
    for collection in searched:
        with collection.database.read() as db:
            present.append(kinds_present(db))
    return f"; no file of type {' or '.join(where.kinds)} is indexed, these are: {', '.join(filter(None, present))}"


def _print(
    hits: list[Hit], output: str, health: Any, figures: dict[str, Any], explain: bool, *, relevance: bool
) -> None:
    if output == "json":
        results = [_record(hit, explain) for hit in hits]
        document = {"results": results, "health": health, "stats": figures}
        click.echo(json.dumps(document, ensure_ascii=False))
    elif output == "csv":
        print_csv(_COLUMNS, [_record(hit, explain=False) for hit in hits])
    elif output == "markdown":
        for number, hit in enumerate(hits, 1):
            _print_markdown(number, hit)
    else:
        for number, hit in enumerate(hits, 1):
            _print_text(number, hit, explain, relevance)


def _record(hit: Hit, explain: bool) -> dict[str, Any]:
    """A result for programs; `page` only where the format has pages, `collection` and `description` where there are
    any."""
    record: dict[str, Any] = {
        "path": hit.path,
        "line_start": hit.line_start,
        "line_end": hit.line_end,
        "line": hit.line,
        "score": hit.score,
        "relevance": hit.stages.relevance,
        "snippet": hit.snippet,
        "id": hit.id,
    }
    if hit.page is not None:
        record["page"] = hit.page
    if hit.collection:
        record["collection"] = hit.collection
    if hit.description:
        record["description"] = hit.description
    if explain:
        record["explain"] = {name: getattr(hit.stages, name) for name in hit.stages.__dataclass_fields__}
        record["title"] = hit.title
        record["context"] = hit.context
    return record


def _print_text(number: int, hit: Hit, explain: bool, relevance: bool) -> None:
    """A result for people: where it is, how sure it is, and the words that match."""
    citation = place(_near(hit.path), hit.citation.removeprefix(hit.path))
    where = styled(f"{hit.collection}  ", fg="magenta") if hit.collection else ""
    heading = styled(f"  {shown(hit.context)}", dim=True) if hit.context else ""
    score = styled(f"{hit.score:.3f}", dim=True)
    judged = f"  relevance {hit.relevance:.2f}" if relevance else ""
    say(f"{number:3d}  {score}{judged}  {where}{citation}{heading}")
    if explain:
        say(f"            {_stages(hit)}")
    for line in hit.description.splitlines():
        say(styled(f"            ({shown(line)})", italic=True))
    say(f"            {highlighted(hit.snippet, hit.marks)}")


def _print_markdown(number: int, hit: Hit) -> None:
    name = f"{_near(hit.path)}{hit.citation.removeprefix(hit.path)}"
    context = f" {plain_markdown(hit.context)}" if hit.context else ""
    click.echo(f"{number}. {markdown_link(name, hit.path)} {hit.score:.3f}{context}")
    for line in hit.description.splitlines():
        click.echo(f"   *{plain_markdown(line)}*")
    parts, end = [], 0
    for start, stop in hit.marks:
        parts += [plain_markdown(hit.snippet[end:start]), f"**{plain_markdown(hit.snippet[start:stop])}**"]
        end = stop
    click.echo(f"   > {''.join(parts)}{plain_markdown(hit.snippet[end:])}\n")


def _stages(hit: Hit) -> str:
    stages = hit.stages
    words = "-" if stages.lexical_rank is None else f"#{stages.lexical_rank} ({stages.lexical_score:.2f})"
    vectors = "-" if stages.vector_rank is None else f"#{stages.vector_rank} ({stages.vector_score:.3f})"
    shown = f"words {words}  vectors {vectors}  fused #{stages.fused_rank} ({stages.fused_score:.3f})"
    return shown if stages.relevance is None else f"{shown}  relevance {stages.relevance:.4f}"


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
