"""`/v1/ask`: answers from a collection, with citations, as a whole or while they are written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from msgspec import Meta, Struct

from edge.apps.assistant.answer import Answer, AnswerStats
from edge.apps.assistant.assistant import Turn
from edge.apps.assistant.citations import Citation
from edge.apps.assistant.stream import AnswerStream
from edge.apps.requests import AskOptions
from edge.apps.serve.body import options_of, with_options
from edge.apps.serve.endpoint import Call, ServedPath
from edge.apps.serve.search import record
from edge.scheduling.waiting_line import current_urgency

MOST_TURNS = 1000

Show = Callable[[str], None] | None
"""Takes each piece of an answer's text."""


class AskedTurn(Struct, kw_only=True):
    """A question that was asked before, and its answer. The `title` of the document that the answer cites first keeps
    the search for a follow-up near that document."""

    question: str
    answer: str | None = None
    title: str | None = None
    standalone: str | None = None

    def turn(self) -> Turn:
        """This turn of a conversation."""
        title = self.title
        cited = (Citation(1, 0, title, 1, 1, 1, None, title, "", None),) if title else ()
        said = Answer(self.answer or "", cited, AnswerStats(question=self.question))
        return Turn(self.question, self.standalone or self.question, said)


@with_options(AskOptions)
class AskBody(Struct, kw_only=True):
    """A question to a collection."""

    question: str
    collection: str | None = None
    llm: str | None = None
    pipeline: str | None = None
    turns: Annotated[list[AskedTurn], Meta(max_length=MOST_TURNS)] | None = None
    stream: bool | None = None


def ask(call: Call, body: AskBody) -> dict[str, Any]:
    """Answers a question from a collection, with citations. With `stream` the answer comes in events: `text` for each
    piece of it, then `answer` with the whole."""
    options, events = options_of(body, AskOptions), call.events
    show: Show = None if events is None else lambda text: events.put("text", {"text": text})
    with call.library.assistant(body.collection or "", body.llm or "", body.pipeline or "plain") as assistant:
        conversation = assistant.chat(options=options)
        conversation.turns.extend(turn.turn() for turn in body.turns or ())
        answer = written(conversation.stream(body.question), show)
        return {**document(answer), "health": assistant.collection.health().to_json()}


def written(stream: AnswerStream, show: Show = None) -> Answer:
    """The finished answer. `show` is called with each piece of its text; a withdrawn request ends the writing.

    Raises:
        Withdrawn, DeadlinePassed: see `edge.scheduling.waiting_line`.
    """
    urgency = current_urgency()
    with stream, urgency.heard(stream.cancel):
        for text in stream:
            urgency.check()
            if show is not None:
                show(text)
        urgency.check()
        return stream.answer


def document(answer: Answer) -> dict[str, Any]:
    """An answer with its retrievals: the queries and the passages of each."""
    rounds = [
        {
            "queries": list(entry.queries), "question": entry.question, "below": entry.below, "best": entry.best,
            "passages": [record(hit) for hit in entry.passages],
            "search_s": entry.search_s, "rerank_s": entry.rerank_s,
        }
        for entry in answer.rounds
    ]  # fmt: skip
    return {**answer.to_json(), "found": answer.found, "rounds": rounds}


PATHS = (ServedPath("POST", "/v1/ask", ask, AskBody, for_person=True, last="answer"),)
