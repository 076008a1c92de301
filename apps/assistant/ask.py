"""`edge ask`: answers a question from the indexed documents."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import click

from edge.apps.assistant.answer import cited, figures, notices
from edge.apps.assistant.citations import Citation
from edge.apps.assistant.options import assistant_options, configured, interruptible, opened, shown, values
from edge.apps.collection.registry import locate
from edge.apps.options import Report, engine_options, report_options, server_option, words_argument
from edge.apps.serve.connection import ASK, Connection, Lost, Unserved, connected, own_options
from edge.control_characters import escaped
from edge.errors import InputError, StorageError
from edge.files.input_file import read_stdin
from edge.resident import ResidentWatch
from edge.trace import Trace

INTERRUPTED = 130

_END_S = 10.0
"""If the server has not said within this time that it ends an answer, the command ends without the rest of it."""


class ServedAnswer:
    """An answer that the server writes.

    Attributes:
        begun: whether a part of it has arrived.
        data: after the last text, everything that is printed besides the text.
    """

    def __init__(self, connection: Connection, asked: dict[str, Any]) -> None:
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
@server_option
@report_options
def ask(question: str, report: Report, **chosen: Any) -> int:
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
        return _served(question, chosen, alone, report)
    except Unserved as reason:
        server = f"not used: {reason}"
    with ResidentWatch() as watch:
        recorder = Trace(events=report.trace is not None)
        with opened(recorder, **chosen) as assistant:
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


def _served(question: str, chosen: Mapping[str, Any], alone: str, report: Report) -> int:
    """Prints the server's answer as it comes, and returns the exit code.

    Raises:
        Unserved: nothing was printed.
        StorageError: the server has ended in the middle of the answer.
    """
    connection = connected(configured(chosen), ASK, alone)
    asked = {
        "question": question, "collection": str(locate(chosen["collection"])), "pipeline": chosen["pipeline"],
        "options": values(chosen), "filters": list(chosen["filters"]),
    }  # fmt: skip
    answer = ServedAnswer(connection, asked)
    written = False
    try:
        with interruptible(answer.cancel):
            for text in answer.texts():
                if not report.as_json:
                    click.echo(text, nl=False)
                    written = True
    except Unserved as reason:
        if not answer.begun:
            raise
        raise StorageError(f"the answer is not finished: {reason}") from None
    finally:
        if written:
            click.echo()
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
