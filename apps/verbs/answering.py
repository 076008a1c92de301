"""The work of `edge ask`, for the command's own process and for the server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from edge.apps.assistant.answer import Answer, figures, notices
from edge.apps.assistant.assistant import AnswerStream
from edge.apps.verbs.home import Home
from edge.apps.verbs.requests import Ask
from edge.apps.verbs.verb import Listener
from edge.scheduling.waiting_line import current_urgency


def ask(home: Home, asked: Ask, listener: Listener) -> dict[str, Any]:
    """The listener takes the answer's text while it is written."""
    with home.assistant(asked) as assistant:
        health = assistant.collection.health()
        listener.troubles([str(trouble) for trouble in health])
        stream = assistant.chat(options=asked).stream(asked.question)
        with home.ending(stream.cancel):
            answer = written(stream, listener.text)
    peak = max(answer.stats.peak_resident, home.peak())
    answer = replace(answer, stats=replace(answer.stats, peak_resident=peak))
    return {
        "document": answer.to_json() | {"health": health.to_json()},
        "citations": [asdict(citation) for citation in answer.citations],
        "notices": list(notices(answer)),
        "figures": list(figures(answer.stats)),
    }


def written(stream: AnswerStream, show: Callable[[str], None] | None = None) -> Answer:
    """`show` is called with each piece of the text; a withdrawn request ends the writing."""
    urgency = current_urgency()
    with stream, urgency.heard(stream.cancel):
        for text in stream:
            urgency.check()
            if show is not None:
                show(text)
        urgency.check()
        return stream.answer
