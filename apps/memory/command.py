"""`edge memory`: long-term memory on the command line."""

from __future__ import annotations

import json
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import click

from edge.apps.lazy import CommandGroup
from edge.apps.memory.care import backup, check, repair, restore
from edge.apps.memory.console import exit_code, json_object, print_count, print_json, shown, stdin_lines
from edge.apps.memory.memory import Memory
from edge.apps.memory.moments import written
from edge.apps.memory.scope import SCOPE_FIELDS
from edge.apps.memory.store import default_path, holds_memory
from edge.apps.options import Command, OutputFile, configure, engine_options, words_argument
from edge.apps.progress import ProgressBar
from edge.apps.troubles import told
from edge.errors import InputError

DEFAULT_USER = "default"
"""Whose memory it is when no id is given: most machines have one user."""


@click.group(cls=CommandGroup)
def memory() -> None:
    """Remember texts, and find them again by meaning, words and time.

    Memories belong to a user, an agent, a session, or several of these; verbs see only what carries the ids they are
    given. Without any id the user `default` is meant.
    """


def whose(user_id: str | None, agent_id: str | None, run_id: str | None) -> dict[str, Any]:
    """The ids of a scope; the default user's if none is given."""
    if user_id is None and agent_id is None and run_id is None:
        user_id = DEFAULT_USER
    return {"user_id": user_id, "agent_id": agent_id, "run_id": run_id}


_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
_path = click.option("--path", type=click.Path(file_okay=False, path_type=Path), help="Directory of the memory.")


def _scope_options(command: Command) -> Command:
    for option in (
        _json,
        _path,
        click.option("--run-id", help="Which session's memory."),
        click.option("--agent-id", help="Which agent's memory."),
        click.option("--user-id", help="Whose memory; `default` if no id is given."),
    ):
        command = option(command)
    return command


def _open(options: dict[str, Any], *, everyone: bool = False, make: bool = False) -> AbstractContextManager[Memory]:
    """As `_memory`; what is unfinished or damaged is told on stderr at the end."""
    return told(_memory(options, everyone=everyone, make=make))


def _memory(options: dict[str, Any], *, everyone: bool = False, make: bool = False) -> Memory:
    """The memory that the shared options name, bound to their scope, or to none for `everyone`.

    Args:
        make: a new one if there is none.
    """
    config = configure(**{name: options.get(name) for name in ("memory", "runtime", "threads", "embedder", "reranker")})
    given = tuple(options.get(name) for name in SCOPE_FIELDS)
    if everyone and any(given):
        raise InputError("--everyone means all users, agents and sessions; leave the ids out")
    place = options["path"] or default_path()
    if not make and not holds_memory(place):
        raise InputError(f"there is no memory in {place}: `edge memory add` makes one, --path names another place")
    return Memory(place, **({} if everyone else whose(*given)), config=config)


_everyone = click.option("--everyone", is_flag=True, help="All users, agents and sessions: a backup.")
_filters = click.option("--filters", metavar="JSON", help='Conditions, such as {"category": "food"}.')
_top_k = click.option("-n", "--top-k", type=int, default=10, show_default=True, help="How many.")
_expired = click.option("--show-expired", is_flag=True, help="Also what has expired or is forgotten.")


@memory.command()
@click.argument("texts", nargs=-1, metavar="TEXT...")
@click.option("--metadata", metavar="JSON", help='Anything to filter by later, such as {"category": "food"}.')
@click.option("--timestamp", help="When it was said or happened, such as 2026-05-08T13:56.")
@click.option("--expires", metavar="DAY", help="The last day on which it is shown, such as 2026-12-31.")
@click.option("--importance", type=float, help="0 ... 1, for `search --importance`.")
@click.option("--embedder", help="Model of a new memory: a known name or the path of a packed model.")
@_scope_options
@engine_options
def add(
    texts: tuple[str, ...],
    metadata: str | None,
    timestamp: str | None,
    expires: str | None,
    importance: float | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Remember each TEXT; - reads stdin, a text a line."""
    given = [line for text in texts for line in (stdin_lines() if text == "-" else [text])]
    if not given:
        raise InputError("there is nothing to remember: give a text, or - to read stdin")
    with _open(options, make=True) as opened:
        result = opened.add(
            given,
            metadata=json_object(metadata, "--metadata"),
            timestamp=timestamp,
            expiration_date=expires,
            importance=importance,
        )
    if as_json:
        print_json(result)
        return
    for added in result["results"]:
        known = "  (known already)" if added["event"] == "NONE" else ""
        click.echo(f"{added['id']}  {added['memory']}{known}")
        for other in added.get("similar", ()):
            click.echo(f"    much like {other['id']} ({other['similarity']:.2f})  {other['memory']}")


@memory.command()
@words_argument("query")
@_top_k
@_filters
@click.option("--threshold", type=float, help="Lowest relevance, 0 ... 1.")
@click.option("--no-rerank", is_flag=True, help="Keep the fused order of words and vectors; quicker, less exact.")
@click.option("--explain", is_flag=True, help="Show what each stage thought of each result.")
@click.option("--neighbours", type=int, default=0, help="Show so many turns before and after each result.")
@click.option("--recency", type=float, default=0.0, help="Weight of how recent a memory is, 0 ... 1.")
@click.option("--importance", type=float, default=0.0, help="Weight of how important a memory is, 0 ... 1.")
@click.option("--half-life", type=float, default=30.0, show_default=True, help="Days after which recency has halved.")
@click.option("--reranker", help="Reranker: a known name or the path of a packed model.")
@_expired
@_scope_options
@engine_options
def search(
    query: str,
    top_k: int,
    filters: str | None,
    threshold: float | None,
    no_rerank: bool,
    explain: bool,
    neighbours: int,
    recency: float,
    importance: float,
    half_life: float,
    show_expired: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Find what is remembered about QUERY, best first; exit code 1 if nothing is."""
    with _open(options) as opened:
        result = opened.search(
            query,
            top_k,
            filters=json_object(filters, "--filters"),
            threshold=threshold,
            rerank=not no_rerank,
            explain=explain,
            neighbours=neighbours,
            recency=recency,
            importance=importance,
            half_life=half_life,
            show_expired=show_expired,
        )
        health = opened.health()
    if as_json:
        print_json(result | {"health": health.to_json()})
        return 0 if result["results"] else 1
    for place, hit in enumerate(result["results"], 1):
        click.echo(f"{place:3d}  {hit['score']:.3f}  {shown(hit)}")
        if explain:
            stages = "  ".join(f"{name} {value:.3f}" for name, value in hit["score_details"].items())
            click.echo(f"            relevance {hit['relevance']:.3f}  {stages}")
        for turn in hit.get("neighbours", ()):
            click.echo(f"     {turn['offset']:+d}     {shown(turn)}")
    return exit_code(bool(result["results"]))


@memory.command("list")
@_top_k
@_filters
@_expired
@_scope_options
def list_(top_k: int, filters: str | None, show_expired: bool, as_json: bool, **options: Any) -> int:
    """List what is remembered, newest first; exit code 1 if nothing is."""
    with _open(options) as opened:
        result = opened.get_all(top_k=top_k, filters=json_object(filters, "--filters"), show_expired=show_expired)
        health = opened.health()
    if as_json:
        print_json(result | {"health": health.to_json()})
        return 0 if result["results"] else 1
    for found in result["results"]:
        click.echo(f"{found['id']}  {shown(found)}")
    return exit_code(bool(result["results"]))


@memory.command()
@click.argument("memory_id")
@_scope_options
def get(memory_id: str, as_json: bool, **options: Any) -> int:
    """Show one memory; exit code 1 if there is none."""
    with _open(options) as opened:
        found = opened.get(memory_id)
    if as_json:
        print_json(found)
        return 0 if found is not None else 1
    for name, value in (found or {}).items():
        click.echo(f"{name:16} {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}")
    return exit_code(found is not None)


@memory.command()
@click.argument("memory_id")
@click.argument("text", required=False)
@click.option("--metadata", metavar="JSON", help="Keys to set.")
@click.option("--timestamp", help="When it was said or happened.")
@click.option("--expires", metavar="DAY", help="The last day on which it is shown; `never` takes it away.")
@click.option("--importance", type=float, help="0 ... 1.")
@click.option("--pin/--unpin", default=None, help="A pinned memory neither expires nor ages.")
@click.option("--forget/--recall", default=None, help="A forgotten memory is hidden, not deleted.")
@_scope_options
@engine_options
def update(
    memory_id: str,
    text: str | None,
    metadata: str | None,
    timestamp: str | None,
    expires: str | None,
    importance: float | None,
    pin: bool | None,
    forget: bool | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Change a memory: its TEXT, or what the options say."""
    given: dict[str, Any] = {
        "text": text, "metadata": json_object(metadata, "--metadata"), "timestamp": timestamp,
        "expiration_date": expires, "importance": importance,
    }  # fmt: skip
    changes = {name: value for name, value in given.items() if value is not None}
    if expires == "never":
        changes["expiration_date"] = None
    if not changes and pin is None and forget is None:
        raise InputError("nothing to update: give a text or an option")
    with _open(options) as opened:
        if changes:
            opened.update(memory_id, **changes)
        if pin is not None:
            opened.pin(memory_id, pin)
        if forget is not None:
            opened.forget(memory_id, forget)
        found = opened.get(memory_id)
    if as_json:
        print_json(found)
    elif found is not None:
        click.echo(f"{found['id']}  {shown(found)}")


@memory.command()
@click.argument("memory_ids", nargs=-1, metavar="MEMORY_ID...")
@click.option("--all", "everything", is_flag=True, help="Every memory of the ids given.")
@_scope_options
def delete(memory_ids: tuple[str, ...], everything: bool, as_json: bool, **options: Any) -> None:
    """Delete memories; their history stays."""
    if bool(memory_ids) == everything:
        raise InputError("name the memories to delete, or give --all")
    with _open(options) as opened:
        if everything:
            opened.delete_all()
        for memory_id in memory_ids:
            opened.delete(memory_id)
    if as_json:
        print_json({"deleted": "all" if everything else list(memory_ids)})


@memory.command()
@click.argument("memory_id")
@_scope_options
def history(memory_id: str, as_json: bool, **options: Any) -> int:
    """Show every change of a memory, also of a deleted one; exit code 1 if there is none."""
    with _open(options) as opened:
        changes = opened.history(memory_id)
    if as_json:
        print_json({"history": changes})
        return 0 if changes else 1
    for change in changes:
        text = change["new_memory"] if change["new_memory"] is not None else change["old_memory"]
        click.echo(f"{written(change['updated_at'])}  {change['event']:7} {text}")
    return exit_code(bool(changes))


@memory.command()
@click.argument("target", type=OutputFile(stdout=True))
@_everyone
@_scope_options
def export(target: Path, everyone: bool, as_json: bool, **options: Any) -> None:
    """Write the memories of the ids given, with their history, to a JSON Lines file; - is stdout."""
    with _open(options, everyone=everyone) as opened:
        count = opened.export_jsonl(sys.stdout if str(target) == "-" else target)
    if str(target) != "-":  # there, stdout holds the memories and nothing else
        print_count(count, f"memories written to {target}", as_json)


@memory.command("import")
@click.argument("source", type=click.Path(dir_okay=False, path_type=Path))
@_everyone
@_scope_options
@engine_options
def import_(source: Path, everyone: bool, as_json: bool, **options: Any) -> None:
    """Take in an exported file, - is stdin; what is there already stays as it is."""
    with _open(options, everyone=everyone, make=True) as opened:
        count = opened.import_jsonl(sys.stdin.buffer if str(source) == "-" else source)
    print_count(count, "memories were new", as_json)


@memory.command()
@_path
@_json
def status(as_json: bool, **options: Any) -> None:
    """Show how much is remembered, of all users, agents and sessions, and what is unfinished or damaged."""
    with _memory(options, everyone=True) as opened:
        health = opened.health(thorough=True)
        counts = opened.store.counts()
    if as_json:
        print_json({"path": str(opened.path), "health": health.to_json(), **counts})
        return
    click.echo(f"memory      {opened.path}")
    click.echo(f"state       {health.state}")
    for trouble in health:
        click.echo(f"  {trouble}")
    for name, count in counts.items():
        click.echo(f"{name:11} {count:,}")


@memory.command()
@_path
@_json
@engine_options
def rebuild(as_json: bool, **options: Any) -> None:
    """Embed everything again, of all users, agents and sessions, from the stored texts: where vectors are damaged."""
    with _open(options, everyone=True) as opened, ProgressBar(" texts") as bar:
        count = opened.rebuild(progress=bar)
    print_count(count, "texts embedded again", as_json)


for _verb in (check, repair, backup, restore):
    memory.add_command(_verb)
