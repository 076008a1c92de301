"""`edge ask`: answers a question from the indexed documents."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from edge.apps.assistant.options import assistant_options, interruptible, opened, shown, warned
from edge.apps.assistant.presentation import cited, figures
from edge.apps.options import engine_options, report_options, words_argument
from edge.errors import InputError
from edge.resident import ResidentWatch
from edge.trace import Trace

INTERRUPTED = 130


@click.command()
@words_argument("question")
@assistant_options
@engine_options
@report_options
def ask(question: str, as_json: bool, stats: bool, trace: Path | None, **chosen: Any) -> int:
    """Answer QUESTION (- reads it from stdin) from the indexed documents, with citations.

    Exit code 0: answered; 1: not in the documents; 2: error; 130: interrupted, with what was written until then.
    """
    with ResidentWatch() as watch:
        if question == "-":
            question = _from_stdin()
        recorder = Trace(events=trace is not None)
        with opened(recorder, **chosen) as assistant:
            health = assistant.collection.health()
            stream = assistant.stream(question)
            if as_json:
                with stream, interruptible(stream):
                    answer = stream.answer
            else:
                shown(stream)
                answer = stream.answer
        watch.sample()
        answer = replace(answer, stats=replace(answer.stats, peak_resident=watch.high_water))
    if trace is not None:
        recorder.write(trace)
    if as_json:
        click.echo(json.dumps(answer.to_json() | {"health": health.to_json()}, ensure_ascii=False))
    elif answer.citations:
        click.echo("\n" + "\n".join(cited(answer.citations)))
    warned(answer)
    if stats:
        click.echo("\n".join(figures(answer.stats)), err=True)
    if answer.stats.interrupted:
        return INTERRUPTED
    return 0 if answer.found else 1


def _from_stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"stdin is not valid UTF-8 (byte {error.start})") from None
