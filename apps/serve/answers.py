"""Answers from collections, with citations, as a whole or as they are written: `/v1/ask`, and OpenAI's chat."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any
from uuid import uuid4

from edge.apps.assistant.answer import Answer, AnswerStats
from edge.apps.assistant.assistant import Turn
from edge.apps.assistant.base import AskOptions
from edge.apps.assistant.citations import Citation
from edge.apps.assistant.stream import AnswerStream
from edge.apps.collection.filters import Filters
from edge.apps.serve.endpoint import Call
from edge.apps.serve.events import EventResponse, Events
from edge.apps.serve.json_values import Fields
from edge.apps.serve.library import OWN_LLM, Library, installed_names
from edge.apps.serve.refusals import Refusal, openai
from edge.apps.serve.search import failed, record
from edge.runtimes.generation.base import Message, Sampling
from edge.scheduling.urgency import PERSON, current_urgency

MOST_TURNS = 1000
MOST_MESSAGES = 2 * MOST_TURNS
MOST_PARTS = 1000
"""Parts of a message."""

MOST_STOPS = 100
"""Texts that end an answer. Each is looked for after every token."""


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
            with self._library.assistant(name, llm, pipeline) as assistant:
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
    for value in fields.list_of("turns", most=MOST_TURNS) if "turns" in fields else []:
        if not isinstance(value, dict):
            raise Refusal(422, "a turn is an object with a `question` and an `answer`")
        turn = Fields(value)
        asked = turn.text("question")
        title = turn.text("title", "")
        cited = (Citation(1, 0, title, 1, 1, 1, None, title, "", None),) if title else ()
        said = Answer(turn.text("answer", ""), cited, AnswerStats(question=asked))
        found.append(Turn(asked, turn.text("standalone", asked), said))
    return found


class Chat:
    """The endpoints of one server."""

    def __init__(self, library: Library) -> None:
        self._library = library

    async def models(self, call: Call) -> dict[str, Any]:
        """`/v1/models`: collections to answer from, generators, rerankers and embedders."""
        library = self._library
        names = [*library.names(), OWN_LLM, *library.pulled_generators(), *installed_names(library)]
        made = [{"id": name, "object": "model", "created": 0, "owned_by": "edge-rag"} for name in dict.fromkeys(names)]
        return {"object": "list", "data": made}

    async def completions(self, call: Call) -> Any:
        """`/v1/chat/completions`: the model is a collection to answer from, `llm` for the language model alone, or
        the name of a generator."""
        values = await call.json()
        fields = Fields(values)
        model, messages = fields.text("model", ""), _messages(fields)
        urgency = call.urgency(PERSON)
        base = {"id": f"chatcmpl-{uuid4().hex}", "created": int(time.time()), "model": model}
        plain = model == OWN_LLM or model in self._library.pulled_generators()

        def answer(show: Any) -> tuple[str, dict[str, Any], dict[str, int]]:
            if plain:
                return self._plain(fields, model, messages, show)
            return self._grounded(fields, values, model, messages, show)

        if fields.flag("stream", False):
            usage = isinstance(values.get("stream_options"), dict) and values["stream_options"].get("include_usage")
            return EventResponse(
                call.workers, urgency, lambda events: _streamed(events, base, answer, bool(usage)), _failed
            )
        text, more, counts = await call.done(lambda: answer(None), urgency)
        message = {"role": "assistant", "content": text, "refusal": None}
        choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
        return {**base, "object": "chat.completion", "choices": [choice], "usage": counts, **more}

    def _grounded(
        self, fields: Fields, values: dict[str, Any], model: str, messages: list[Message], show: Any
    ) -> tuple[str, dict[str, Any], dict[str, int]]:
        """An answer from a collection; a name that is none means the usual one, as clients send names of services."""
        name = model if model in self._library.names() else ""
        most = values.get("max_completion_tokens") or values.get("max_tokens")
        options = options_of(Fields({**values, "max_tokens": most, "filters": values.get("filters")}))
        said = [message for message in messages if message.role != "system"]
        if not said or said[-1].role != "user":
            raise Refusal(422, "the last message is the question, and its role is user")
        with self._library.assistant(name) as assistant:
            conversation = assistant.chat(options=options)
            for asked, reply in pairwise(said):
                if asked.role == "user" and reply.role == "assistant":
                    told = Answer(reply.content, (), AnswerStats(question=asked.content))
                    conversation.turns.append(Turn(asked.content, asked.content, told))
            answer = written(conversation.stream(said[-1].content), show)
        citations = [citation.to_json() for citation in answer.citations]
        stats = answer.stats
        return (
            answer.text,
            {"citations": citations, "found": answer.found},
            _usage(stats.prompt_tokens, stats.new_tokens),
        )

    def _plain(
        self, fields: Fields, llm: str, messages: list[Message], show: Any
    ) -> tuple[str, dict[str, Any], dict[str, int]]:
        stop = tuple(fields.texts("stop", [], most=MOST_STOPS))
        most = "max_completion_tokens" if "max_completion_tokens" in fields else "max_tokens"
        sampling = Sampling(
            temperature=fields.number("temperature", 0.0), top_p=fields.number("top_p", 1.0),
            seed=fields.whole("seed", 0, least=0), stop=stop, max_tokens=fields.whole(most, 256),
        )  # fmt: skip
        pieces = []
        with self._library.assistant("", llm) as assistant:
            for text in _written(assistant.write, messages, sampling):
                pieces.append(text)
                if show is not None:
                    show(text)
            stats = assistant.generator.stats
        counts = _usage(0, 0) if stats is None else _usage(stats.prompt_tokens, stats.new_tokens)
        return "".join(pieces), {}, counts


def _written(write: Any, messages: list[Message], sampling: Sampling) -> Iterator[str]:
    urgency, cancel = current_urgency(), threading.Event()
    with urgency.heard(cancel.set):
        for text in write(messages, sampling, cancel):
            urgency.check()
            yield text
        urgency.check()


def _streamed(events: Events, base: dict[str, Any], answer: Any, usage: bool) -> None:
    def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> None:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        events.put("", {**base, "object": "chat.completion.chunk", "choices": [choice], **more})

    chunk({"role": "assistant", "content": ""})
    _, more, counts = answer(lambda text: chunk({"content": text}))
    chunk({}, "stop", **more)
    if usage:
        events.put("", {**base, "object": "chat.completion.chunk", "choices": [], "usage": counts})
    events.put("", "[DONE]")


def _failed(events: Events, error: Refusal) -> None:
    events.tell("", openai(error.status, error.message))


def _messages(fields: Fields) -> list[Message]:
    found = []
    for value in fields.list_of("messages", most=MOST_MESSAGES):
        if not isinstance(value, dict):
            raise Refusal(422, "a message is an object with a `role` and a `content`")
        role, content = Fields(value).text("role"), value.get("content")
        if isinstance(content, list):
            texts: list[str] = []
            for part in Fields(value).list_of("content", most=MOST_PARTS):
                text = part.get("text") if isinstance(part, dict) else part
                if not isinstance(text, str):
                    raise Refusal(
                        422, "a part of a message is an object with a `text`: pictures and sound cannot be read"
                    )
                texts.append(text)
            content = "\n".join(texts)
        if not isinstance(content, str):
            raise Refusal(422, "the `content` of a message is a text")
        found.append(Message("system" if role == "developer" else role, content))
    if not found:
        raise Refusal(422, "there are no messages")
    return found


def _usage(prompt: int, new: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}
