"""OpenAI's dialect of responses: `/v1/responses`. No response is stored."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from typing import Annotated, Any
from uuid import uuid4

from msgspec import Meta, Struct

from edge.apps.serve.body import Whole, with_idle, with_options
from edge.apps.serve.endpoint import Call, ServedPath
from edge.apps.serve.openai import MOST_MESSAGES, ChatBody, ChatMessage, Parts, openai, replied, spoken
from edge.apps.serve.refusals import HttpRefusal
from edge.apps.verbs.requests import AskOptions


class Item(Struct, kw_only=True):
    """One item of a conversation: a message, a call of a tool, what a tool returned, or thoughts."""

    type: str | None = None
    role: str | None = None
    content: Parts | None = None
    output: Parts | None = None


_PLAIN = {"format": {"type": "text"}}
_TEXTS = ({}, _PLAIN, *({**_PLAIN, "verbosity": verbosity} for verbosity in ("low", "medium", "high")))
_REFUSED: dict[str, tuple[Any, ...]] = {
    "background": (False,), "background_options": (), "include": ([], ["reasoning.encrypted_content"]), "image": (),
    "moderation": (), "prompt": (), "text": _TEXTS, "tool_choice": ("none", "auto"), "top_logprobs": (0,),
    "truncation": ("auto", "disabled"),
}  # fmt: skip
_HARMLESS = (
    "access_programs", "context_management", "max_tool_calls", "metadata", "parallel_tool_calls", "prompt_cache_key",
    "prompt_cache_options", "prompt_cache_retention", "reasoning", "safety_identifier", "service_tier", "store",
    "stream_options", "tools", "user",
)  # fmt: skip


@with_idle(_REFUSED, _HARMLESS)
@with_options(AskOptions)
class ResponsesBody(Struct, kw_only=True):
    """A text, or a conversation whose last message is answered."""

    input: str | Annotated[list[Item], Meta(max_length=MOST_MESSAGES)]
    instructions: str | None = None
    model: str | None = None
    max_output_tokens: Whole | None = None
    top_p: float | None = None
    stream: bool | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None


def _told(body: ResponsesBody) -> Iterator[tuple[str, ChatMessage]]:
    for field in ("previous_response_id", "conversation"):
        if getattr(body, field) is not None:
            raise HttpRefusal(
                422,
                f"the field `{field}` names what was said before, and nothing of it is stored here: send it in `input`",
            )
    if body.instructions:
        yield "instructions", ChatMessage(role="system", content=body.instructions)
    if isinstance(body.input, str):
        yield "input", ChatMessage(role="user", content=body.input)
        return
    for number, item in enumerate(body.input):
        place, kind = f"input[{number}]", item.type or "message"
        if kind == "message":
            if item.role is None:
                raise HttpRefusal(422, f"the field `{place}.role` is missing")
            yield place, ChatMessage(role=item.role, content=item.content)
        elif kind.endswith("_call_output"):
            yield place, ChatMessage(role="tool", content=item.output or "")
        elif kind.endswith("_call"):
            yield place, ChatMessage(role="assistant", tool_calls=[kind])
        elif kind != "reasoning":
            raise HttpRefusal(422, f"the field `{place}.type` is {kind[:80]!a}, which this server cannot read")


def responses(call: Call, body: ResponsesBody) -> dict[str, Any] | None:
    """Answers a text, or the last message of a conversation. The `model` is as for `/v1/chat/completions`."""
    said, events = spoken(_told(body)), call.events
    options = {name: getattr(body, name) for name in AskOptions.options()}
    options["max_tokens"] = body.max_output_tokens or options["max_tokens"]
    asked = ChatBody(messages=[], model=body.model, top_p=body.top_p, **options)
    reply = _begun(body, asked)
    item: dict[str, Any] = {"type": "message", "id": f"msg_{uuid4().hex}", "role": "assistant"}
    if events is None:
        return _ended(reply, item, *replied(call, asked, said, None))
    numbers = count()

    def send(kind: str, **members: Any) -> None:
        events.put(kind, {"type": kind, "sequence_number": next(numbers), **members})

    place: dict[str, Any] = {"item_id": item["id"], "output_index": 0, "content_index": 0}
    send("response.created", response=reply)
    send("response.in_progress", response=reply)
    send("response.output_item.added", output_index=0, item={**item, "status": "in_progress", "content": []})
    send("response.content_part.added", **place, part=_part(""))

    def show(text: str) -> None:
        send("response.output_text.delta", **place, delta=text, logprobs=[])

    ended = _ended(reply, item, *replied(call, asked, said, show))
    (whole,) = ended["output"]
    (part,) = whole["content"]
    send("response.output_text.done", **place, text=part["text"], logprobs=[])
    send("response.content_part.done", **place, part=part)
    send("response.output_item.done", output_index=0, item=whole)
    send(f"response.{ended['status']}", response=ended)
    return None


def _begun(body: ResponsesBody, asked: ChatBody) -> dict[str, Any]:
    return {
        "id": f"resp_{uuid4().hex}", "object": "response", "created_at": int(time.time()), "status": "in_progress",
        "model": body.model or "", "output": [], "error": None, "incomplete_details": None,
        "instructions": body.instructions, "max_output_tokens": body.max_output_tokens, "metadata": {},
        "parallel_tool_calls": True, "previous_response_id": None, "store": False, "temperature": asked.temperature,
        "text": _PLAIN, "tool_choice": "auto", "tools": [], "top_p": body.top_p, "truncation": "disabled",
        "usage": None,
    }  # fmt: skip


def _ended(
    reply: dict[str, Any], item: dict[str, Any], text: str, finish: str, more: dict[str, Any], counts: dict[str, int]
) -> dict[str, Any]:
    cut = finish == "length"
    status = "incomplete" if cut else "completed"
    usage = {
        "input_tokens": counts["prompt_tokens"], "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": counts["completion_tokens"], "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": counts["total_tokens"],
    }  # fmt: skip
    why = {"reason": "max_output_tokens"} if cut else None
    output = [{**item, "status": status, "content": [_part(text)]}]
    return {**reply, "status": status, "incomplete_details": why, "output": output, "usage": usage, **more}


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def failed(status: int, message: str) -> dict[str, Any]:
    """As OpenAI writes it in an answer, and in a stream of responses."""
    found = openai(status, message)
    return {**found["error"], **found, "type": "error", "sequence_number": 0}


PATHS = (ServedPath("POST", "/v1/responses", responses, ResponsesBody, shape=failed, for_person=True),)
