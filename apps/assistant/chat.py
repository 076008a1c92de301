"""`edge chat`: a conversation about the indexed documents."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from edge.apps.assistant.answer import cited, figures, notices, reasons
from edge.apps.assistant.ask import assistant_options, interruptible, opened, shown
from edge.apps.assistant.assistant import Assistant, Conversation
from edge.apps.assistant.stream import AnswerStream
from edge.apps.options import OutputFile, device_options, engine_options
from edge.apps.requests import AskOptions
from edge.apps.store.health import Health
from edge.config import format_size
from edge.errors import EdgeError
from edge.files.input_file import read_line
from edge.trace import Trace

_HELP = """/sources  the passages of the last answer
/why      how the last answer came about
/new      forget the conversation
/quit     end (so does the end of the input)"""

_LONGEST_LINE = 1 << 20
"""The most bytes of a question that is piped in. The longest query has fewer."""


@click.command()
@assistant_options
@engine_options
@device_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per answer, a line each.")
@click.option("--stats", is_flag=True, help="Print figures after each answer, to stderr.")
@click.option("--trace", type=OutputFile(), help="Write a Perfetto trace here.")
def chat(as_json: bool, stats: bool, trace: Path | None, options: AskOptions, **chosen: Any) -> None:
    """Talk about the indexed documents: a question per line; /help lists commands. Ctrl-C ends an answer, Ctrl-D or
    /quit the conversation."""
    recorder = Trace(events=trace is not None)
    try:
        with opened(recorder, options, **chosen) as assistant:
            _talk(assistant, as_json, stats)
    finally:
        if trace is not None:
            recorder.write(trace)


def _talk(assistant: Assistant, as_json: bool, stats: bool) -> None:
    conversation = assistant.chat()
    for line in _lines():
        if line == "/quit":
            return
        if line == "/new":
            conversation = assistant.chat()
            continue
        try:
            if line.startswith("/"):
                _command(line, conversation, as_json)
            else:
                _answer(conversation.stream(line), assistant.collection.health(), as_json, stats)
        except EdgeError as error:  # the conversation goes on; any other exception is a bug and stays visible
            click.echo(f"edge: {error}", err=True)
        except KeyboardInterrupt:
            if not sys.stdin.isatty():  # without a terminal no user can continue the conversation
                raise
            click.echo("edge: interrupted", err=True)


def _answer(stream: AnswerStream, health: Health, as_json: bool, stats: bool) -> None:
    """Prints an answer, with its sources or as JSON."""
    if as_json:
        with stream, interruptible(stream.cancel):
            answer = stream.answer
        click.echo(json.dumps(answer.to_json() | {"health": health.to_json()}, ensure_ascii=False))
    else:
        shown(stream)
        answer = stream.answer
        if answer.citations:
            click.echo("\n" + "\n".join(cited(answer.citations)))
        click.echo("")
    for line in notices(answer):
        click.echo(f"edge: {line}", err=True)
    if stats:
        click.echo("\n".join(figures(answer.stats)), err=True)


def _lines() -> Iterator[str]:
    """Yields the non-empty lines that are typed or piped in. A prompt is shown only on a terminal."""
    if not sys.stdin.isatty():
        while (read := read_line(sys.stdin.buffer, _LONGEST_LINE))[1]:
            if line := _decoded(*read):
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
        except KeyboardInterrupt:  # a fresh line, as in a shell
            click.echo("\nCtrl-D or /quit ends", err=True)
            continue
        except UnicodeDecodeError as error:  # pasted in another encoding
            click.echo(f"edge: what was typed is not valid UTF-8 (byte {error.start})", err=True)
            continue
        if line:
            yield line


def _decoded(line: bytes, length: int) -> str:
    """A line as text; empty if it was too long, which is reported."""
    if length > len(line):
        click.echo(
            f"edge: a line of {format_size(length)} is not read: {format_size(_LONGEST_LINE)} is the most", err=True
        )
        return ""
    return line.decode("utf-8", errors="replace").strip()


def _command(line: str, conversation: Conversation, as_json: bool) -> None:
    """Executes a line that begins with /. With `as_json`, output goes to stderr, and stdout holds answers only."""
    if line not in ("/sources", "/why"):
        click.echo(_HELP, err=as_json or line != "/help")
    elif not conversation.turns:
        click.echo("nothing has been asked yet", err=True)
    elif line == "/sources":
        lines = list(cited(conversation.turns[-1].answer.citations, quotes=True))
        click.echo("\n".join(lines or ["the last answer has no sources"]), err=as_json)
    else:
        click.echo("\n".join(reasons(conversation.turns[-1].answer)), err=as_json)
