"""`edge search`: finds passages by meaning and by words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from edge.apps.collection.hits import Hit, Place, brief, written
from edge.apps.collection.paths import from_here
from edge.apps.collection.registry import located, project_collection, project_root
from edge.apps.console import (
    folded,
    highlighted,
    index_line,
    markdown_link,
    modelled_line,
    notice,
    output_option,
    place,
    plain_markdown,
    print_csv,
    say,
    styled,
)
from edge.apps.options import (
    ManyOptions,
    Setup,
    collections_option,
    figures_options,
    setup_options,
    words_argument,
    workplaces,
)
from edge.apps.serve.connection import own_options
from edge.apps.verbs.home import OwnHome
from edge.apps.verbs.requests import Search
from edge.apps.verbs.verb import SEARCH, do
from edge.apps.verbs.work import SearchOutcome
from edge.config import Config, counted, format_size
from edge.errors import InputError
from edge.text.control_characters import escaped

_COLUMNS = (
    "path", "line", "line_start", "line_end", "page", "score", "relevance", "snippet", "id", "collection",
    "description",
)  # fmt: skip

_FURTHER = 5


@click.command(cls=ManyOptions, everyday=("top_k", "where", "collections", "files", "min_score", "output", "memory"))
@words_argument("query", stdin=True)
@Search.add_to
@click.option("--here", is_flag=True, help="Search the project that you are in, without `edge index` before.")
@click.option("--explain", is_flag=True, help="Show the score that each stage gave to each result.")
@click.option("--embedder", help="Model of the query's vector, if not the collection's own (must be the same).")
@click.option("--reranker", help="Reranker: a known name or the path of a packed model.")
@click.option("--cluster", metavar="ADDRESS", help="Search a collection in shards, which Ray at ADDRESS reaches.")
@click.option("--partial", is_flag=True, help="With --cluster: if a shard is lost, give the results of the others.")
@collections_option
@setup_options(device=True, server=True)
@figures_options
@output_option
def search(
    query: str,
    options: Search,
    here: bool,
    explain: bool,
    cluster: str | None,
    partial: bool,
    embedder: str | None,
    reranker: str | None,
    collections: tuple[str, ...],
    setup: Setup,
    output: str,
    stats: bool,
    trace: Path | None,
) -> int:
    """Find the passages of the indexed files that answer QUERY (- reads it from stdin); exit code 1 if there are none.

    Words in double quotes are searched as a phrase, and gann* finds every word that begins so; a query of these alone
    finds only passages that hold one. -word or NOT word at the end leaves out the passages that hold it. A query may
    consist of parts: `lex: words to look up`, `vec: a question to look up by meaning`, `hyde: a passage as the answer
    might read`; it must begin with one of them.

    Each result is shown with the probability that it answers, which decides the order and can be compared between
    queries; --min-score compares it, and the page shows it, too. With --no-rerank, and where most candidates are code,
    it is the fused score of words and vectors, which is no probability.
    """
    source = click.get_current_context().get_parameter_source("files")
    if source is ParameterSource.DEFAULT and output in ("text", "markdown"):
        options = replace(options, files=True)
    if options.brief and output != "json":
        raise InputError("--brief is a form of JSON: add --json")
    config = setup.config(embedder=embedder, reranker=reranker)
    if partial and cluster is None:
        raise InputError("--partial needs --cluster: one collection has no shards")
    root = project_root(collections or cluster) if here else ""
    places = {"": str(project_collection(root))} if root else located(collections)
    asked = replace(options, query=query, here=root, collections=places)
    home = OwnHome(config, trace)
    if cluster is not None:
        from edge.apps.cluster.command import searched

        found = searched(cluster, collections, config, trace, query, options, partial=partial)
        server = "not used: the collection is in shards"
    else:
        done = do(SEARCH, asked, home, alone=own_options(memory=setup.memory, threads=setup.threads, trace=trace))
        found, server = SearchOutcome.of(done.result), done.server
        found.figures["seconds"] = done.seconds
    figures = {**found.figures, "server": server}
    if figures["without"]:
        left = ", ".join(word.strip('"') for word in figures["without"])
        notice(f"without passages that hold {left}; in double quotes it is looked up")
    for trouble in found.troubles:
        notice(trouble)
    for word, other in figures["spelled"].items():
        notice(f"searched for {other}, because no passage holds {word}")
    healths = found.healths
    health = healths if len(healths) > 1 else next(iter(healths.values()))
    if options.brief:
        click.echo(written(brief(found.hits, top_k=options.top_k, max_tokens=options.max_tokens)))
    else:
        _print(found.hits, output, health, figures, explain)
    if not found.hits and output == "text":
        notice(f"nothing found{found.nothing}")
    if stats:
        _print_stats(figures, config)
    home.write_trace()
    return 0 if found.hits else 1


def _print(hits: list[Hit], output: str, health: Any, figures: dict[str, Any], explain: bool) -> None:
    if output == "json":
        results = [hit.to_json(explain=explain) for hit in hits]
        document = {"results": results, "health": health, "stats": figures}
        click.echo(json.dumps(document, ensure_ascii=False))
    elif output == "csv":
        print_csv(_COLUMNS, [hit.to_json() for hit in hits])
    elif output == "markdown":
        for number, hit in enumerate(hits, 1):
            _print_markdown(number, hit)
    elif hits:
        say("\n".join(line for number, hit in enumerate(hits, 1) for line in _lines(number, hit, explain)))


def _shown(hit: Hit) -> str:
    return f"{hit.score:.2f}"


def _lines(number: int, hit: Hit, explain: bool) -> list[str]:
    citation = place(from_here(hit.path), hit.citation.removeprefix(hit.path))
    where = styled(f"{hit.collection}  ", fg="magenta") if hit.collection else ""
    heading = styled(f"  {escaped(hit.context)}", dim=True) if hit.context else ""
    score = styled(_shown(hit), dim=True)
    id = styled(f"  #{hit.id}", dim=True)
    below = [_stages(hit)] if explain else []
    below += [styled(escaped(hit.mail.line), dim=True)] if hit.mail else []
    below += [styled(f"({escaped(line)})", italic=True) for line in hit.description.splitlines()]
    below += highlighted(folded(hit.snippet, 12), hit.marks).split("\n")
    below += [styled(line, dim=True) for line in _further(hit)]
    first = f"{number:3d}  {score}  {where}{citation}{heading}{id}"
    return [first, *(f"            {line}" for line in below)]


def _print_markdown(number: int, hit: Hit) -> None:
    name = f"{from_here(hit.path)}{hit.citation.removeprefix(hit.path)}"
    context = f" {plain_markdown(hit.context)}" if hit.context else ""
    click.echo(f"{number}. {markdown_link(name, hit.path)} {_shown(hit)}{context}")
    for line in (*hit.description.splitlines(), *([hit.mail.line] if hit.mail else [])):
        click.echo(f"   *{plain_markdown(line)}*")
    parts, end = [], 0
    for start, stop in hit.marks:
        parts += [plain_markdown(hit.snippet[end:start]), f"**{plain_markdown(hit.snippet[start:stop])}**"]
        end = stop
    click.echo(f"   > {''.join(parts)}{plain_markdown(hit.snippet[end:])}\n")
    for line in _further(hit):
        click.echo(f"   {line}\n")


def _further(hit: Hit) -> Iterator[str]:
    """The other places of a file's result in a line. Of several on a page, one is named."""
    first = Place(hit.id, hit.line_start, hit.line_end, hit.page, hit.score)
    _, *names = dict.fromkeys(place.name(hit.kind) for place in (first, *hit.more))
    if names:
        shown = ", ".join(names[:_FURTHER]) + (", ..." if len(names) > _FURTHER else "")
        yield f"{counted(len(names), 'more place')}: {shown}"


def _stages(hit: Hit) -> str:
    stages = hit.stages
    words = "-" if stages.lexical_rank is None else f"#{stages.lexical_rank} ({stages.lexical_score:.2f})"
    vectors = "-" if stages.vector_rank is None else f"#{stages.vector_rank} ({stages.vector_score:.3f})"
    shown = f"words {words}  vectors {vectors}  fused #{stages.fused_rank} ({stages.fused_score:.3f})"
    return shown if stages.blend is None else f"{shown}  reranker {stages.reranker:.4f}  blend {stages.blend:.3f}"


def _print_stats(figures: dict[str, Any], config: Config) -> None:
    index, pruned = figures["index"], figures["pruned"]
    saved = "" if pruned is None else f", {pruned:.0%} of its work pruned"
    for line in (
        f"memory   {format_size(figures['peak_resident'])} peak of {format_size(figures['limit'])} allowed",
        f"time     {figures['seconds']:.2f} s: query vector {figures['embed_s']:.2f}, search "
        f"{figures['search_s']:.3f}, reranker {figures['rerank_s']:.2f}{saved} (opening the models included)",
        index_line(
            index["lists_read"] + index["hits"],
            f"{counted(index['lists_read'], 'list')} read ({format_size(index['bytes_read'])}), {index['hits']} in "
            f"memory",
            index["lists_cut"],
        ),
        *workplaces(figures["server"], config),
    ):
        click.echo(line, err=True)
    if "modelled" in figures:
        click.echo(modelled_line(**figures["modelled"]), err=True)
