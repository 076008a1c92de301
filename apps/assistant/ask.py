"""`edge ask`: answers a question from the indexed documents. `edge chat`: a conversation about them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click

from edge.apps.assistant.answer import Answer, cited, figures, notices, reasons
from edge.apps.assistant.assistant import AnswerStream, Assistant, Conversation
from edge.apps.assistant.citations import Citation
from edge.apps.assistant.pipelines import PIPELINES
from edge.apps.collection.registry import located
from edge.apps.console import notice, tell
from edge.apps.documents.base import Mail
from edge.apps.options import (
    ManyOptions,
    OutputFile,
    Report,
    collections_option,
    configure,
    device_options,
    engine_options,
    report_options,
    server_option,
    words_argument,
    workplaces,
)
from edge.apps.serve.connection import own_options
from edge.apps.store.failures import Health
from edge.apps.verbs.home import OwnHome
from edge.apps.verbs.requests import Ask
from edge.apps.verbs.verb import ASK, do, interruptible
from edge.apps.verbs.work import written
from edge.config import Config, format_size
from edge.errors import EdgeError
from edge.files.named_file import read_line

Command = TypeVar("Command", bound=Callable[..., Any])

_EVERYDAY = ("llm", "collections", "where", "passages", "pipeline", "memory", "as_json")

_SETTINGS = ("memory", "runtime", "threads", "device", "device_memory", "llm", "context", "gpu_layers")


def assistant_options(command: Command) -> Command:
    for option in (
        click.option("--no-kv-cache", is_flag=True, help="Compute every document's KV states anew."),
        Ask.adding(),
        collections_option,
        click.option("--context", type=int,
                     help="Tokens of prompt and answer together (0: as the model was trained for, at most 4,096)."),
        click.option("--gpu-layers", metavar="NUMBER",
                     help="Layers of the language model on the GPU of --device cuda: a number, or auto: what fits."),
        click.option("--llm", metavar="MODEL",
                     help="FILE.gguf, a generator that `edge models pull` fetched, the http:// address of a server on "
                     "this machine, or extractive: the best sentences of the documents (the default, unless EDGE_LLM "
                     "or the user's file say otherwise)."),
        click.option("--pipeline", type=click.Choice(list(PIPELINES)), default="plain", show_default=True),
    ):  # fmt: skip
        command = option(command)
    return command


def configured(chosen: Mapping[str, Any]) -> Config:
    settings = {name: chosen[name] for name in _SETTINGS}
    return configure(no_server=chosen.get("no_server", True), **settings)


INTERRUPTED = 130


class Printing:
    """Prints an answer while it is written, unless `silent`, and troubles of the collections."""

    def __init__(self, silent: bool) -> None:
        self._silent = silent
        self._written = False

    def troubles(self, sentences: list[str]) -> None:
        for sentence in sentences:
            notice(sentence)

    def text(self, piece: str) -> None:
        if not self._silent:
            click.echo(piece, nl=False)
            self._written = True

    def end(self) -> None:
        if self._written:
            click.echo()


def shown(stream: AnswerStream, silent: bool = False) -> Answer:
    """The whole answer, printed while it is written unless `silent`. The first Ctrl-C ends it before its next token,
    the second one at once."""
    listener = Printing(silent)
    try:
        with interruptible(stream.cancel):
            return written(stream, listener.text)
    finally:
        listener.end()


@click.command(cls=ManyOptions, everyday=_EVERYDAY)
@words_argument("question", stdin=True)
@assistant_options
@engine_options
@device_options
@server_option
@report_options
def ask(question: str, report: Report, options: Ask, **chosen: Any) -> int:
    """Answer QUESTION (- reads it from stdin) from the indexed documents, with citations.

    Exit code 0: answered; 1: not in the documents; 2: error; 130: interrupted; the text that was written until then is
    printed.
    """
    alone = own_options(
        memory=chosen["memory"], threads=chosen["threads"], trace=report.trace, no_kv_cache=chosen["no_kv_cache"]
    )
    asked = replace(options, question=question, collections=located(chosen["collections"]), pipeline=chosen["pipeline"])
    home, listener = (
        OwnHome(configured(chosen), report.trace, kv_cache=not chosen["no_kv_cache"]),
        Printing(report.as_json),
    )
    try:
        done = do(ASK, asked, home, alone=alone, listener=listener)
    finally:
        listener.end()
    document = done.result["document"]
    stats = document["stats"]
    stats["server"] = done.server
    citations = [citation_of(values) for values in done.result["citations"]]
    if report.as_json:
        click.echo(json.dumps(document, ensure_ascii=False))
    elif citations:
        click.echo("\n" + "\n".join(cited(citations)))
    for line in done.result["notices"]:
        notice(line)
    if report.stats:
        click.echo("\n".join([*done.result["figures"], *workplaces(done.server, home.config)]), err=True)
    home.write_trace()
    return INTERRUPTED if stats["interrupted"] else 0 if stats["found"] else 1


def citation_of(values: dict[str, Any]) -> Citation:
    return Citation(**{**values, "mail": values["mail"] and Mail(**values["mail"])})


_HELP = """/sources  the passages of the last answer
/why      how the last answer came about
/new      forget the conversation
/quit     end (so does the end of the input)"""

_LONGEST_LINE = 1 << 20
"""The most bytes of a question that is piped in. The longest query has fewer."""


@click.command(cls=ManyOptions, everyday=_EVERYDAY)
@assistant_options
@engine_options
@device_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per answer, a line each.")
@click.option("--stats", is_flag=True, help="Print figures after each answer, to stderr.")
@click.option("--trace", type=OutputFile(), help="Write a Perfetto trace here.")
def chat(as_json: bool, stats: bool, trace: Path | None, options: Ask, **chosen: Any) -> None:
    """Talk about the indexed documents: a question per line; /help lists commands. Ctrl-C ends an answer, Ctrl-D or
    /quit the conversation."""
    home = OwnHome(configured(chosen), trace, kv_cache=not chosen["no_kv_cache"])
    try:
        asked = replace(options, collections=located(chosen["collections"]), pipeline=chosen["pipeline"])
        with home, home.assistant(asked) as assistant:
            tell(assistant.collection.health())
            _talk(assistant, as_json, stats)
    finally:
        home.write_trace()


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
    answer = shown(stream, as_json)
    if as_json:
        click.echo(json.dumps(answer.to_json() | {"health": health.to_json()}, ensure_ascii=False))
    else:
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
    if line not in ("/sources", "/why"):
        click.echo(_HELP, err=as_json or line != "/help")
    elif not conversation.turns:
        click.echo("nothing has been asked yet", err=True)
    elif line == "/sources":
        lines = list(cited(conversation.turns[-1].answer.citations, quotes=True))
        click.echo("\n".join(lines or ["the last answer has no sources"]), err=as_json)
    else:
        click.echo("\n".join(reasons(conversation.turns[-1].answer)), err=as_json)
