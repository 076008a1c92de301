"""`edge ask`: answers a question from the indexed documents."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import click

from edge.apps.assistant.citations import Citation
from edge.apps.assistant.options import assistant_options, configured, interruptible, opened, shown, values
from edge.apps.assistant.presentation import cited, figures, notices
from edge.apps.assistant.served import ServedAnswer
from edge.apps.collection.registry import locate
from edge.apps.options import Report, engine_options, report_options, server_option, words_argument
from edge.apps.serve.connection import ASK, Unserved, connected, own_options
from edge.errors import InputError, StorageError
from edge.files.input_file import read_stdin
from edge.resident import ResidentWatch
from edge.trace import Trace

INTERRUPTED = 130


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
    told = Told(document, answer.citations, [*notices(answer)], [*figures(answer.stats)], answer.found)
    told.show(report)
    return told.code


@dataclass(frozen=True, slots=True)
class Told:
    """The printed parts of a finished answer, which this process or the server wrote.

    Attributes:
        document: as JSON.
        notices, figures: lines.
    """

    document: dict[str, Any]
    citations: Sequence[Citation]
    notices: list[str]
    figures: list[str]
    found: bool

    @property
    def code(self) -> int:
        """The exit code."""
        return INTERRUPTED if self.document["stats"]["interrupted"] else 0 if self.found else 1

    def show(self, report: Report) -> None:
        """Prints everything that comes after the text."""
        if report.as_json:
            click.echo(json.dumps(self.document, ensure_ascii=False))
        elif self.citations:
            click.echo("\n" + "\n".join(cited(self.citations)))
        for line in self.notices:
            click.echo(f"edge: {line}", err=True)
        if report.stats:
            click.echo("\n".join([*self.figures, f"server   {self.document['stats']['server']}"]), err=True)


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
    told = Told(data["document"], citations, data["notices"], data["figures"], data["found"])
    told.show(report)
    return told.code


def _from_stdin() -> str:
    try:
        return read_stdin().decode("utf-8")
    except OSError as error:
        raise InputError(f"stdin cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"stdin is not valid UTF-8 (byte {error.start})") from None
