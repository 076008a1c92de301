"""`edge chat`: a conversation about the indexed documents."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from edge.apps.assistant.assistant import Assistant
from edge.apps.assistant.conversation import Conversation
from edge.apps.assistant.options import assistant_options, opened, shown
from edge.apps.assistant.presentation import cited, figures, reasons
from edge.apps.options import engine_options
from edge.errors import EdgeError
from edge.trace import Trace

_HELP = """/sources  the passages of the last answer
/why      how the last answer came about
/new      forget the conversation
/quit     end (so does the end of the input)"""


@click.command()
@assistant_options
@engine_options
@click.option("--stats", is_flag=True, help="Print figures after each answer, to stderr.")
@click.option("--trace", type=click.Path(dir_okay=False, path_type=Path), help="Write a Perfetto trace here.")
def chat(stats: bool, trace: Path | None, **chosen: Any) -> None:
    """Talk about the indexed documents: a question per line; /help lists commands."""
    recorder = Trace(events=trace is not None)
    try:
        with opened(recorder, **chosen) as assistant:
            _talk(assistant, stats)
    finally:
        if trace is not None:
            recorder.write(trace)


def _talk(assistant: Assistant, stats: bool) -> None:
    conversation = assistant.chat()
    for line in _lines():
        if line.startswith("/"):
            if line == "/quit":
                return
            if line == "/new":
                conversation = assistant.chat()
            else:
                _command(line, conversation)
            continue
        try:
            shown(conversation.stream(line))
        except EdgeError as error:  # the conversation goes on
            click.echo(f"edge: {error}", err=True)
            continue
        answer = conversation.turns[-1].answer
        if answer.citations:
            click.echo("\n" + "\n".join(cited(answer.citations)))
        click.echo("")
        if stats:
            click.echo("\n".join(figures(answer.stats)), err=True)


def _lines() -> Iterator[str]:
    """What is typed or piped in, line by line, without empty lines; a prompt only on a terminal."""
    if not sys.stdin.isatty():
        for raw in sys.stdin.buffer:
            if line := raw.decode("utf-8", errors="replace").strip():
                yield line
        return
    with suppress(ImportError):  # Windows has none
        import readline  # noqa: F401  # gives input() history and editing
    click.echo("ask about your documents; /help lists commands", err=True)
    while True:
        try:
            line = input("> ").strip()
        except EOFError:
            click.echo("", err=True)
            return
        if line:
            yield line


def _command(line: str, conversation: Conversation) -> None:
    if line not in ("/sources", "/why"):
        click.echo(_HELP, err=line != "/help")
    elif not conversation.turns:
        click.echo("nothing has been asked yet", err=True)
    elif line == "/sources":
        lines = list(cited(conversation.turns[-1].answer.citations, quotes=True))
        click.echo("\n".join(lines or ["the last answer has no sources"]))
    else:
        click.echo("\n".join(reasons(conversation.turns[-1].answer)))
