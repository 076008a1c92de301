"""`edge ask`: answers a question from the indexed documents. `edge chat` shares some of its functions."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import Any, TypeVar

import click

from edge.apps.assistant.answer import cited, figures, notices
from edge.apps.assistant.assistant import Assistant
from edge.apps.assistant.citations import Citation
from edge.apps.assistant.pipelines import PIPELINES
from edge.apps.assistant.stream import AnswerStream
from edge.apps.collection.collection import Collection
from edge.apps.collection.registry import locate
from edge.apps.console import tell
from edge.apps.options import (
    Report,
    collection_option,
    configure,
    device_options,
    engine_options,
    report_options,
    server_option,
    words_argument,
)
from edge.apps.requests import AskOptions
from edge.apps.serve.connection import ASK, Lost, OwnServer, Unserved, connected, own_options
from edge.config import Config
from edge.errors import InputError, StorageError
from edge.files.input_file import read_stdin
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
        collection_option,
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
    """Opens the collection and the assistant that the options of a command line describe."""
    config = configured(chosen)
    place = locate(chosen["collection"])
    with (
        Collection(place, config=config, trace=trace, read_only=True) as collection,
        Assistant(
            collection, pipeline=chosen["pipeline"], options=options, kv_cache=not chosen["no_kv_cache"]
        ) as assistant,
    ):  # fmt: skip
        tell(collection.health())
        yield assistant


def shown(stream: AnswerStream) -> None:
    """Prints an answer while it is written. The first Ctrl-C ends the answer before its next token, the second one ends
    it at once. The text written so far stays, and ends with a line break."""
    with stream, interruptible(stream.cancel):
        _echo(stream)


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
@words_argument("question")
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
    if question == "-":
        question = _from_stdin()
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
            stream = assistant.stream(question)
            if report.as_json:
                with stream, interruptible(stream.cancel):
                    answer = stream.answer
            else:
                shown(stream)
                answer = stream.answer
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
        "question": question, "collection": str(locate(chosen["collection"])), "pipeline": chosen["pipeline"],
        **options.to_json(),
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
    citations = [Citation(**citation) for citation in data["citations"]]
    return _finished(report, data["document"], citations, data["notices"], data["figures"])


def _from_stdin() -> str:
    try:
        return read_stdin().decode("utf-8")
    except OSError as error:
        raise InputError(f"stdin cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"stdin is not valid UTF-8 (byte {error.start})") from None
