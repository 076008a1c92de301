"""`edge memory`: long-term memory on the command line."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import click

from edge.apps.commands.output import print_erasure
from edge.apps.commands.texts import Lines
from edge.apps.console import ProgressBar, told
from edge.apps.memory.arguments import written
from edge.apps.memory.console import (
    everyone_option,
    exit_code,
    json_object,
    opened_memory,
    own_memory,
    path_option,
    print_count,
    print_json,
    scope_options,
    shown,
)
from edge.apps.memory.transcripts import stamps
from edge.apps.options import (
    LazyGroup,
    OutputFile,
    configure,
    engine_options,
    json_option,
    server_option,
    words_argument,
)
from edge.config import counted
from edge.errors import InputError

_CARE = {name: f"edge.apps.memory.care:{name}" for name in ("check", "repair", "backup", "restore")}


@click.group(cls=LazyGroup, verbs=_CARE)
def memory() -> None:
    """Remember texts, and find them again by meaning, words and time.

    Memories belong to a user, an agent, a session, or several of these; a verb sees only the memories that carry
    the ids it is given. Without any id the user `default` is meant.
    """


_filters = click.option("--filters", metavar="JSON", help='Conditions, such as {"category": "food"}.')
_top_k = click.option("-n", "--top-k", type=int, default=10, show_default=True, help="How many.")
_expired = click.option("--show-expired", is_flag=True, help="Also memories that expired, ended or were forgotten.")


@memory.command()
@click.argument("texts", nargs=-1, metavar="TEXT...")
@click.option("--metadata", metavar="JSON", help='Anything to filter by later, such as {"category": "food"}.')
@click.option("--timestamp", help="When it was said or happened, such as 2026-05-08T13:56.")
@click.option("--expires", metavar="DAY", help="The last day on which it is shown, such as 2026-12-31.")
@click.option("--valid-from", metavar="WHEN", help="Since when it holds, if that is not when it was said.")
@click.option("--valid-until", metavar="WHEN", help="Until when it holds.")
@click.option("--importance", type=float, help="0 ... 1, for `search --importance`.")
@click.option("--no-supersede", is_flag=True, help="End no earlier memory, whatever is said.")
@click.option("--explain", is_flag=True, help="Show why each near memory was ended or not.")
@click.option("--embedder", help="Model of a new memory: a known name or the path of a packed model.")
@scope_options
@engine_options
@server_option
def add(
    texts: tuple[str, ...], metadata: str | None, expires: str | None, no_supersede: bool, as_json: bool, **options: Any
) -> None:
    """Remember each TEXT; - reads stdin, a text a line."""
    fields = {name: options.pop(name) for name in ("timestamp", "valid_from", "valid_until", "importance", "explain")}
    limit = configure(memory=options["memory"]).memory
    given: list[str] = []
    for text in texts:
        stdin = Lines(sys.stdin.buffer, "stdin", limit, ["edge.apps.memory.memory"]) if text == "-" else None
        given += [text] if stdin is None else [line for _, line in stdin]
    if not given:
        raise InputError("there is nothing to remember: give a text, or - to read stdin")
    fields |= {"metadata": json_object(metadata, "--metadata"), "expiration_date": expires}
    with opened_memory(options, make=True) as opened:
        result = opened.add(given, supersede=not no_supersede, **fields)
    if as_json:
        print_json(result)
        return
    for added in result["results"]:
        known = "  (known already)" if added["event"] == "NONE" else ""
        click.echo(f"{added['id']}  {added['memory']}{known}")
        for other in added.get("similar", ()):
            click.echo(f"    much like {other['id']} ({other['similarity']:.2f})  {other['memory']}")
        for other in added.get("supersedes", ()):
            click.echo(f"    in place of {other['id']}  {other['memory']}")
        for other in added.get("judged", ()):
            click.echo(
                f"    {'ends' if other['ends'] else 'keeps'} {other['id']}  {other['memory']}: {other['reason']}"
            )


_ASKED = (
    "threshold", "explain", "neighbours", "conversations", "recency", "importance", "half_life", "as_of", "max_tokens",
    "show_expired",
)  # fmt: skip
"""Options of a search that the library has under the same name."""


@memory.command()
@words_argument("query")
@_top_k
@_filters
@click.option("--threshold", type=float, help="Lowest score, 0 ... 1.")
@click.option("--no-rerank", is_flag=True, help="Keep the fused order of words and vectors; quicker, less exact.")
@click.option("--explain", is_flag=True, help="Show the score that each stage gave to each result.")
@click.option("--neighbours", type=int, default=0, help="Show so many turns before and after each result.")
@click.option("--conversations", type=int, default=0, help="Show so many conversations, and what each was about.")
@click.option("--recency", type=float, default=0.0, help="Weight of how recent a memory is, 0 ... 1.")
@click.option("--importance", type=float, default=0.0, help="Weight of how important a memory is, 0 ... 1.")
@click.option("--as-of", metavar="WHEN", help="What held then instead of what holds now, such as 2026-05-08.")
@click.option("--max-tokens", type=int, help="The best results with at most so many tokens, for any common tokenizer.")
@click.option("--half-life", type=float, default=30.0, show_default=True, help="Days after which recency has halved.")
@click.option("--reranker", help="Reranker: a known name or the path of a packed model.")
@_expired
@scope_options
@engine_options
@server_option
def search(query: str, top_k: int, filters: str | None, no_rerank: bool, as_json: bool, **options: Any) -> int:
    """Find the memories about QUERY, best first; exit code 1 if there are none."""
    asked = {name: options.pop(name) for name in _ASKED}
    conditions = json_object(filters, "--filters")
    with opened_memory(options) as opened:
        result = opened.search(query, top_k, filters=conditions, rerank=not no_rerank, **asked)
        health = opened.health()
    if as_json:
        print_json(result | {"health": health.to_json()})
        return 0 if result["results"] else 1
    for place, hit in enumerate(result["results"], 1):
        click.echo(f"{place:3d}  {hit['score']:.2f}  {shown(hit)}")
        if asked["explain"]:
            stages = hit["score_details"].items()  # a rank is a whole number
            shares = (f"{name} {value if isinstance(value, int) else f'{value:.3f}'}" for name, value in stages)
            click.echo(f"            {'  '.join(shares)}")
        for turn in hit.get("neighbours", ()):
            click.echo(f"     {turn['offset']:+d}     {shown(turn)}")
    for talk in result.get("conversations", ()):
        click.echo(
            f"{talk['id']}  {written(talk['began'])}, {counted(talk['turns'], 'turn')}: {' '.join(talk['about'])}"
        )
    return exit_code(bool(result["results"]))


@memory.command("list")
@_top_k
@_filters
@_expired
@scope_options
@server_option
def list_(top_k: int, filters: str | None, show_expired: bool, as_json: bool, **options: Any) -> int:
    """List the memories, newest first; exit code 1 if there are none."""
    with opened_memory(options) as opened:
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
@scope_options
@server_option
def get(memory_id: str, as_json: bool, **options: Any) -> int:
    """Show one memory; exit code 1 if there is none."""
    with opened_memory(options) as opened:
        found = opened.get(memory_id)
    if as_json:
        print_json(found)
        return 0 if found is not None else 1
    for name, value in (found or {}).items():
        click.echo(f"{name:16} {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}")
    return exit_code(found is not None)


_REMOVED = {"expiration_date": "never", "valid_from": "said", "valid_until": "never"}
"""The words that take a date away."""


@memory.command()
@click.argument("memory_id")
@click.argument("text", required=False)
@click.option("--metadata", metavar="JSON", help="Keys to set.")
@click.option("--timestamp", help="When it was said or happened.")
@click.option("--expires", metavar="DAY", help="The last day on which it is shown; `never` takes it away.")
@click.option("--valid-from", metavar="WHEN", help="Since when it holds; `said` means since it was said.")
@click.option("--valid-until", metavar="WHEN", help="Until when it holds; `never` makes it hold again.")
@click.option("--importance", type=float, help="0 ... 1.")
@click.option("--pin/--unpin", default=None, help="A pinned memory neither expires nor ages.")
@click.option("--forget/--recall", default=None, help="A forgotten memory is hidden, not deleted.")
@scope_options
@engine_options
@server_option
def update(
    memory_id: str,
    text: str | None,
    metadata: str | None,
    expires: str | None,
    pin: bool | None,
    forget: bool | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Change a memory: its TEXT, or the fields that options name."""
    given = {name: options.pop(name) for name in ("timestamp", "importance", "valid_from", "valid_until")}
    given |= {"text": text, "metadata": json_object(metadata, "--metadata"), "expiration_date": expires}
    changes = {
        name: None if value == _REMOVED.get(name) else value for name, value in given.items() if value is not None
    }
    if not changes and pin is None and forget is None:
        raise InputError("nothing to update: give a text or an option")
    with opened_memory(options) as opened:
        if changes:
            opened.update(memory_id, **changes)
        if pin is not None:
            opened.pin(memory_id, pin)
        if forget is not None:
            opened.forget(memory_id, forget)
        _print(opened.get(memory_id), as_json)


@memory.command()
@click.argument("memory_ids", nargs=-1, metavar="MEMORY_ID...")
@click.option("--all", "everything", is_flag=True, help="Every memory of the ids given.")
@click.option("--purge", is_flag=True, help="Erase them with their history, also what was deleted before.")
@scope_options
@server_option
def delete(memory_ids: tuple[str, ...], everything: bool, purge: bool, as_json: bool, **options: Any) -> None:
    """Delete memories; their history stays, unless --purge erases both."""
    if bool(memory_ids) == everything:
        raise InputError("name the memories to delete, or give --all")
    with opened_memory(options) as opened:
        done = [opened.delete_all(purge=purge)] if everything else [opened.delete(i, purge=purge) for i in memory_ids]
    deleted = {"deleted": "all" if everything else list(memory_ids)}
    if purge:
        erased = {what: sum(one["erased"][what] for one in done) for what in done[0]["erased"]}
        print_erasure(deleted | done[-1] | {"erased": erased}, as_json)
    elif as_json:
        print_json(deleted)
    else:
        click.echo("edge: the history stays, and with it the texts; --purge erases both", err=True)


@memory.command()
@click.argument("memory_id")
@click.argument("by", required=False)
@click.option("--undo", is_flag=True, help="Let it hold again.")
@scope_options
@server_option
def supersede(memory_id: str, by: str | None, undo: bool, as_json: bool, **options: Any) -> None:
    """End a memory where the memory BY takes its place; both stay stored."""
    if (by is None) != undo:
        raise InputError("name the memory that takes its place, or give --undo")
    with opened_memory(options) as opened:
        opened.supersede(memory_id, by)
        _print(opened.get(memory_id), as_json)


def _print(found: dict[str, Any] | None, as_json: bool) -> None:
    """Prints a memory after a change."""
    if as_json:
        print_json(found)
    elif found is not None:
        click.echo(f"{found['id']}  {shown(found)}")


@memory.command()
@click.argument("memory_id")
@click.option("--chain", is_flag=True, help="With the memories that it superseded and that superseded it.")
@scope_options
@server_option
def history(memory_id: str, chain: bool, as_json: bool, **options: Any) -> int:
    """Show every change of a memory, also of a deleted one; exit code 1 if there is none."""
    with opened_memory(options) as opened:
        changes = opened.history(memory_id, whole_chain=chain)
    if as_json:
        print_json({"history": changes})
        return 0 if changes else 1
    for change in changes:
        text = change["new_memory"] if change["new_memory"] is not None else change["old_memory"]
        click.echo(f"{written(change['updated_at'])}  {change['event']:9} {text}")
    return exit_code(bool(changes))


@memory.command()
@click.argument("target", type=OutputFile(stdout=True))
@everyone_option
@scope_options
def export(target: Path, everyone: bool, as_json: bool, **options: Any) -> None:
    """Write the memories of the ids given, with their history, to a JSON Lines file; - is stdout."""
    with told(own_memory(options, everyone=everyone)) as opened:
        count = opened.export_jsonl(sys.stdout if str(target) == "-" else target)
    if str(target) != "-":  # with "-", stdout must hold the memories and nothing else
        print_count(count, f"{counted(count, 'memory', 'memories')} written to {target}", as_json)
    elif not count:
        click.echo("edge: no memory has these ids; --everyone writes those of all", err=True)


@memory.command("import")
@click.argument("source", type=click.Path(dir_okay=False, path_type=Path))
@everyone_option
@scope_options
@engine_options
def import_(source: Path, everyone: bool, as_json: bool, **options: Any) -> None:
    """Take in an exported file, - is stdin; memories that are there already stay as they are."""
    with told(own_memory(options, everyone=everyone, make=True)) as opened:
        count = opened.import_jsonl(sys.stdin.buffer if str(source) == "-" else source)
    print_count(count, f"{counted(count, 'new memory', 'new memories')} taken in", as_json)


@memory.command()
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@click.option("--dry-run", is_flag=True, help="Only count what would come.")
@click.option("--watch", is_flag=True, help="Go on, and take in what is written later; Ctrl-C ends it.")
@scope_options
@engine_options
def learn(source: Path, dry_run: bool, watch: bool, as_json: bool, **options: Any) -> None:
    """Take in the conversations in SOURCE, a file or a folder: sessions of Claude Code and Codex, exports of ChatGPT
    and Claude (conversations.json), memories of mem0, and Markdown notes.

    Each turn is taken once, without keys and tokens. An interrupted run is continued by the next one.
    """
    with told(own_memory(options, make=not dry_run)) as opened:
        while True:
            report = opened.import_transcripts(source, dry_run=dry_run)
            if as_json:
                print_json(report.to_json())
            else:
                would = "would be " if dry_run else ""
                click.echo(
                    f"{counted(report.turns, 'turn')} in {counted(report.files, 'file')}: {report.new:,} {would}new, "
                    f"{counted(report.secrets, 'secret')} left out, "
                    f"{counted(report.skipped, 'entry', 'entries')} skipped",
                    err=True,
                )  # fmt: skip
            if not watch:
                return
            before = stamps(source)
            while stamps(source) == before:
                time.sleep(_WATCH_SECONDS)


_WATCH_SECONDS = 2.0
"""The time after which a watched source is looked at again."""


@memory.command()
@path_option
@json_option
def status(as_json: bool, **options: Any) -> None:
    """Show the number of memories, of all users, agents and sessions, and unfinished work or damage."""
    with own_memory(options, everyone=True) as opened:
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
@path_option
@json_option
@engine_options
def rebuild(as_json: bool, **options: Any) -> None:
    """Embed everything again, of all users, agents and sessions, from the stored texts: where vectors are damaged."""
    with told(own_memory(options, everyone=True)) as opened, ProgressBar(" texts") as bar:
        count = opened.rebuild(progress=bar)
    print_count(count, f"{counted(count, 'text')} embedded again", as_json)
