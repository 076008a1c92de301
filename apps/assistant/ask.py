"""`edge ask`: answers a question from the indexed documents. `edge chat`: a conversation about them."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import click

from edge.apps.assistant.answer import Answer, cited, figures, notices, reasons
from edge.apps.assistant.assistant import AnswerStream, Assistant, Conversation
from edge.apps.assistant.citations import Citation
from edge.apps.assistant.pipelines import PIPELINES
from edge.apps.collection.collection import Together
from edge.apps.collection.registry import locate
from edge.apps.console import tell
from edge.apps.documents.base import Mail
from edge.apps.options import (
    OutputFile,
    Report,
    collections_option,
    configure,
    device_options,
    engine_options,
    report_options,
    server_option,
    words_argument,
)
from edge.apps.requests import AskOptions
from edge.apps.serve.background import connected, own_options
from edge.apps.serve.connection import ASK, Lost, OwnServer, Unserved
from edge.apps.store.health import Health
from edge.config import Config, format_size
from edge.errors import EdgeError, StorageError
from edge.files.input_file import read_line
from edge.resident import ResidentWatch
from edge.text.control_characters import escaped
from edge.trace import Trace

Command = TypeVar("Command", bound=Callable[..., Any])

_SETTINGS = ("memory", "runtime", "threads", "device", "device_memory", "llm", "context")
"""Options that override settings of the same name."""


def assistant_options(command: Command) -> Command:
    """Adds the options of answering, such as `--pipeline` and `--llm`, to a command."""
    for option in (
        click.option("--no-kv-cache", is_flag=True, help="Compute every document's KV states anew."),
        AskOptions.add_to,
        collections_option,
        click.option("--context", type=int,
                     help="Tokens of prompt and answer together (0: as the model was trained for, at most 4,096)."),
        click.option("--llm", metavar="MODEL",
                     help="FILE.gguf, a generator that `edge models pull` fetched, the http:// address of a server on "
                     "this machine, or extractive: the best sentences of the documents (the default, unless EDGE_LLM "
                     "or the user's file say otherwise)."),
        click.option("--pipeline", type=click.Choice(list(PIPELINES)), default="plain", show_default=True),
    ):  # fmt: skip
        command = option(command)
    return command


def configured(chosen: Mapping[str, Any]) -> Config:
    """The configuration that the options of a command line describe."""
    settings = {name: chosen[name] for name in _SETTINGS}
    return configure(no_server=chosen.get("no_server", True), **settings)


@contextmanager
def opened(trace: Trace, options: AskOptions, **chosen: Any) -> Iterator[Assistant]:
    """Opens the collections and the assistant that the options of a command line describe."""
    with Together.opened(chosen["collections"], configured(chosen), trace, candidates=2 * options.pool) as collections:
        several = len(collections.collections) > 1
        with Assistant(
            collections if several else collections.first, pipeline=chosen["pipeline"], options=options,
            kv_cache=not chosen["no_kv_cache"],
        ) as assistant:  # fmt: skip
            tell(collections.health())
            yield assistant


def shown(stream: AnswerStream, silent: bool = False) -> Answer:
    """The whole answer, printed while it is written unless `silent`. The first Ctrl-C ends the answer before its next
    token, the second one ends it at once. The text written so far stays, and ends with a line break."""
    with stream, interruptible(stream.cancel):
        if not silent:
            _echo(stream)
        return stream.answer


def _echo(texts: Iterable[str]) -> None:
    """Prints the pieces of a text, and a line break at their end, however they end."""
    written = False
    try:
        for text in texts:
            click.echo(text, nl=False)
            written = True
    finally:
        if written:
            click.echo()


@contextmanager
def interruptible(cancel: Callable[[], None]) -> Iterator[None]:
    """A context in which the first Ctrl-C calls `cancel`, which ends the answer before its next token. The second one
    raises `KeyboardInterrupt`."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before)
        cancel()

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


INTERRUPTED = 130

_END_S = 10.0
"""If the server has not said within this time that it ends an answer, the command ends without the rest of it."""


class ServedAnswer:
    """An answer that the server writes.

    Attributes:
        begun: whether a part of it has arrived.
        data: after the last text, everything that is printed besides the text.
    """

    def __init__(self, connection: OwnServer, asked: dict[str, Any]) -> None:
        """`asked`: fields of the request, without the name by which its answer can be ended."""
        self.begun = False
        self.data: dict[str, Any] = {}
        self._connection = connection
        self._asked = {**asked, "name": os.urandom(16).hex()}

    def texts(self) -> Iterator[str]:
        """The pieces of its text, as they arrive. Troubles of the collection are printed before the first one.

        Raises:
            Unserved: the server did not finish the answer.
        """
        for name, data in self._connection.events("/own/ask", self._asked):
            if name not in ("text", "answer"):
                continue
            if not self.begun:
                self.begun = True
                for trouble in data["troubles"]:
                    click.echo(escaped(f"edge: {trouble}"), err=True)
            if name == "answer":
                self.data = data
                return
            yield data["text"]
        raise Lost("the server ended before it had answered")

    def cancel(self) -> None:
        """Ends the answer before its next token. The part that is written, with its citations, still arrives.

        Raises:
            KeyboardInterrupt: the server has not begun to answer, or cannot be told to end the answer. It ends the
                answer when the connection is closed.
        """
        try:
            done = self._connection.ask("/own/end", {"name": self._asked["name"]}, _END_S)
        except Unserved:
            raise KeyboardInterrupt from None
        if not done["ended"] and not self.begun:
            raise KeyboardInterrupt


@click.command()
@words_argument("question", stdin=True)
@assistant_options
@engine_options
@device_options
@server_option
@report_options
def ask(question: str, report: Report, options: AskOptions, **chosen: Any) -> int:
    """Answer QUESTION (- reads it from stdin) from the indexed documents, with citations.

    Exit code 0: answered; 1: not in the documents; 2: error; 130: interrupted; the text that was written until then is
    printed.
    """
    alone = own_options(
        memory=chosen["memory"], threads=chosen["threads"], trace=report.trace, no_kv_cache=chosen["no_kv_cache"]
    )
    try:
        return _served(question, options, chosen, alone, report)
    except Unserved as reason:
        server = f"not used: {reason}"
    with ResidentWatch() as watch:
        recorder = Trace(events=report.trace is not None)
        with opened(recorder, options, **chosen) as assistant:
            health = assistant.collection.health()
            answer = shown(assistant.stream(question), report.as_json)
        watch.sample()
        answer = replace(answer, stats=replace(answer.stats, peak_resident=watch.high_water))
    if report.trace is not None:
        recorder.write(report.trace)
    document = answer.to_json() | {"health": health.to_json()}
    document["stats"]["server"] = server
    return _finished(report, document, answer.citations, notices(answer), figures(answer.stats))


def _finished(
    report: Report, document: dict[str, Any], citations: Sequence[Citation], notices: Iterable[str],
    figures: Iterable[str],
) -> int:  # fmt: skip
    """Prints everything that comes after an answer's text, and returns the exit code.

    Args:
        document: the answer as JSON.
        notices, figures: lines.
    """
    stats = document["stats"]
    if report.as_json:
        click.echo(json.dumps(document, ensure_ascii=False))
    elif citations:
        click.echo("\n" + "\n".join(cited(citations)))
    for line in notices:
        click.echo(f"edge: {line}", err=True)
    if report.stats:
        click.echo("\n".join([*figures, f"server   {stats['server']}"]), err=True)
    return INTERRUPTED if stats["interrupted"] else 0 if stats["found"] else 1


def _served(question: str, options: AskOptions, chosen: Mapping[str, Any], alone: str, report: Report) -> int:
    """Prints the server's answer as it comes, and returns the exit code.

    Raises:
        Unserved: nothing was printed.
        StorageError: the server has ended in the middle of the answer.
    """
    connection = connected(configured(chosen), ASK, alone)
    asked = {
        "question": question,
        "collections": [(name, str(locate(name or None))) for name in chosen["collections"] or ("",)],
        "pipeline": chosen["pipeline"], **options.to_json(),
    }  # fmt: skip
    answer = ServedAnswer(connection, asked)
    try:
        with interruptible(answer.cancel):
            if report.as_json:
                list(answer.texts())
            else:
                _echo(answer.texts())
    except Unserved as reason:
        if not answer.begun:
            raise
        raise StorageError(f"the answer is not finished: {reason}") from None
    data = answer.data
    data["document"]["stats"]["server"] = f"used: process {connection.hello['pid']}"
    citations = [
        Citation(**{**citation, "mail": citation["mail"] and Mail(**citation["mail"])})
        for citation in data["citations"]
    ]
    return _finished(report, data["document"], citations, data["notices"], data["figures"])


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
