"""`/v1/ask`: answers from a collection, with citations, as a whole or as they are written."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from edge.apps.assistant.answer import Answer, AnswerStats
from edge.apps.assistant.assistant import Turn
from edge.apps.assistant.base import AskOptions
from edge.apps.assistant.citations import Citation
from edge.apps.assistant.stream import AnswerStream
from edge.apps.collection.filters import Filters
from edge.apps.serve.endpoint import Call
from edge.apps.serve.events import EventResponse, Events
from edge.apps.serve.fields import Fields
from edge.apps.serve.library import Library
from edge.apps.serve.refusals import Refusal
from edge.apps.serve.search import failed, record
from edge.scheduling.urgency import PERSON, current_urgency


class Ask:
    """The endpoint of one server."""

    def __init__(self, library: Library) -> None:
        self._library = library

    async def post(self, call: Call) -> Any:
        """Answers with the whole answer, or with events where `stream` is true: `text` for each piece of it, then
        `answer`."""
        fields = Fields(await call.json())
        question, name = fields.text("question"), fields.text("collection", "")
        llm, pipeline = fields.text("llm", ""), fields.text("pipeline", "plain")
        options, turns = options_of(fields), _turns(fields)
        urgency = call.urgency(PERSON)

        def ask(events: Events | None) -> dict[str, Any]:
            assistant = self._library.assistant(name, llm, pipeline)
            conversation = assistant.chat(options=options)
            conversation.turns.extend(turns)
            stream = conversation.stream(question)
            answer = written(stream, None if events is None else lambda text: events.put("text", {"text": text}))
            return {**document(answer), "health": assistant.collection.health().to_json()}

        if fields.flag("stream", False):
            return EventResponse(call.workers, urgency, lambda events: events.put("answer", ask(events)), failed)
        return await call.done(lambda: ask(None), urgency)


def written(stream: AnswerStream, show: Any = None) -> Answer:
    """The finished answer. `show` is called with each piece of its text; a withdrawn request ends the writing.

    Raises:
        Withdrawn, DeadlinePassed: see `edge.scheduling.urgency`.
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
    """An answer with its retrievals, what was looked for and what was found."""
    rounds = [
        {
            "queries": list(entry.queries), "question": entry.question, "below": entry.below, "best": entry.best,
            "passages": [record(hit) for hit in entry.passages],
            "search_s": entry.search_s, "rerank_s": entry.rerank_s,
        }
        for entry in answer.rounds
    ]  # fmt: skip
    return {**answer.to_json(), "found": answer.found, "rounds": rounds}


def options_of(fields: Fields) -> AskOptions:
    """How the question is to be answered, by the names of `AskOptions`. Raises `InputError` as that does."""
    usual = AskOptions()
    passages = fields.optional_whole("passages")
    return replace(
        usual,
        passages=passages,
        pool=max(usual.pool, passages or 0),
        min_relevance=fields.number("min_score") if "min_score" in fields else None,
        rerank=fields.flag("rerank", True),
        check=fields.flag("check", True),
        temperature=fields.number("temperature", 0.0),
        max_tokens=fields.whole("max_tokens", usual.max_tokens),
        seed=fields.whole("seed", 0, least=0),
        where=Filters.parse(fields.texts("filters", [])),
    )


def _turns(fields: Fields) -> list[Turn]:
    """What was said before: `turns` of a `question` and the `answer` that was given. The `title` of the document that
    the answer cites first keeps the search for a follow-up near that document."""
    found = []
    for value in fields.list_of("turns") if "turns" in fields else []:
        if not isinstance(value, dict):
            raise Refusal(422, "a turn is an object with a `question` and an `answer`")
        turn = Fields(value)
        asked = turn.text("question")
        title = turn.text("title", "")
        cited = (Citation(1, 0, title, 1, 1, 1, None, title, "", None),) if title else ()
        said = Answer(turn.text("answer", ""), cited, AnswerStats(question=asked))
        found.append(Turn(asked, turn.text("standalone", asked), said))
    return found
