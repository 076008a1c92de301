"""Anthropic's dialect: `/v1/messages` and `/v1/messages/count_tokens`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any
from uuid import uuid4

from msgspec import Meta, Struct

from edge.apps.serve import openai as chats
from edge.apps.serve.body import Whole, with_idle, with_options
from edge.apps.serve.endpoint import Call, ServedPath
from edge.apps.verbs.requests import AskOptions


class Block(chats.ChatPart):
    """A part of a message: text, a call of a tool, or what a tool returned."""

    type: str = "text"
    content: chats.Parts | None = None


class Turn(Struct, kw_only=True):
    """One message of a conversation."""

    role: str
    content: str | Annotated[list[Block], Meta(max_length=chats.MOST_PARTS)]


_CHOICES = tuple(
    {"type": kind, **more} for kind in ("auto", "none") for more in ({}, {"disable_parallel_tool_use": True})
)
_EFFORTS = tuple({"effort": effort} for effort in ("low", "medium", "high", "xhigh", "max"))
_REFUSED: dict[str, tuple[Any, ...]] = {
    "tool_choice": _CHOICES, "output_config": ({}, *_EFFORTS), "container": (), "mcp_servers": ([],), "thread": (),
    "top_k": (),
}  # fmt: skip
_HARMLESS = (
    "betas", "billing_policy", "cache_control", "compaction", "context_management", "diagnostics",
    "fallback_credit_token", "fallbacks", "inference_geo", "metadata", "service_tier", "speed", "thinking", "tools",
    "user_profile_id", "workspace_id",
)  # fmt: skip


@with_idle(_REFUSED, _HARMLESS)
class CountBody(Struct, kw_only=True):
    """A conversation whose tokens are counted."""

    messages: Annotated[list[Turn], Meta(max_length=chats.MOST_MESSAGES)]
    model: str | None = None
    system: chats.Parts | None = None


@with_options(AskOptions)
class MessagesBody(CountBody, kw_only=True):
    """A conversation, whose last message is answered."""

    max_tokens: Whole | None = None
    top_p: float | None = None
    stop_sequences: Annotated[list[str], Meta(max_length=chats.MOST_STOPS)] | None = None
    stream: bool | None = None


def _told(body: CountBody) -> Iterator[tuple[str, chats.ChatMessage]]:
    """The messages as OpenAI has them, each with its place: there a result of a tool is a message of its own."""
    if body.system:
        yield "system", chats.ChatMessage(role="system", content=body.system)
    for number, turn in enumerate(body.messages):
        place, called = f"messages[{number}]", False
        parts: list[str | chats.ChatPart] = []
        for block in [Block(text=turn.content)] if isinstance(turn.content, str) else turn.content:
            if block.type == "tool_result":
                yield place, chats.ChatMessage(role="tool", content=block.content or "")
            elif block.type == "tool_use":
                called = True
            elif block.type not in ("thinking", "redacted_thinking"):
                parts.append(block)
        if parts or called or not turn.content:
            yield place, chats.ChatMessage(role=turn.role, content=parts or None, tool_calls=called)


def messages(call: Call, body: MessagesBody) -> dict[str, Any] | None:
    """Answers the last message. The `model` is as for `/v1/chat/completions`, and so is what it answers from."""
    said, events = chats.spoken(_told(body)), call.events
    options = {name: getattr(body, name) for name in AskOptions.options()}
    asked = chats.ChatBody(messages=[], model=body.model, top_p=body.top_p, stop=body.stop_sequences, **options)
    reply = {"id": f"msg_{uuid4().hex}", "type": "message", "role": "assistant", "model": body.model or ""}
    if events is None:
        text, finish, more, counts = chats.replied(call, asked, said, None, "stop_sequences")
        content = [{"type": "text", "text": text}]
        return {**reply, "content": content, **_end(finish), "usage": _usage(counts), **more}

    def send(kind: str, **members: Any) -> None:
        events.put(kind, {"type": kind, **members})

    send("message_start", message={**reply, "content": [], **_end(None), "usage": _usage({})})
    send("content_block_start", index=0, content_block={"type": "text", "text": ""})

    def show(text: str) -> None:
        send("content_block_delta", index=0, delta={"type": "text_delta", "text": text})

    _, finish, more, counts = chats.replied(call, asked, said, show, "stop_sequences")
    send("content_block_stop", index=0)
    send("message_delta", delta=_end(finish), usage=_usage(counts), **more)
    send("message_stop")
    return None


def count(call: Call, body: CountBody) -> dict[str, Any]:
    """Counts the tokens of a conversation's texts, as the model that would answer counts them."""
    text = "\n".join(message.content for message in chats.spoken(_told(body)))
    llm = body.model or "" if chats.writes_alone(call, body.model) else ""
    with call.library.assistant(llm=llm) as assistant:
        return {"input_tokens": assistant.generator.count(text)}


def _end(finish: str | None) -> dict[str, Any]:
    """Why an answer ended; None while it is written. A sequence that ends answers is not told from their own end."""
    reason = {"length": "max_tokens", "stop": "end_turn"}.get(finish or "")
    return {"stop_reason": reason, "stop_sequence": None}


def _usage(counts: dict[str, int]) -> dict[str, int]:
    return {"input_tokens": counts.get("prompt_tokens", 0), "output_tokens": counts.get("completion_tokens", 0)}


_KINDS = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large",
    429: "rate_limit_error", 503: "overloaded_error", 504: "timeout_error",
}  # fmt: skip


def anthropic(status: int, message: str) -> dict[str, Any]:
    kind = _KINDS.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


PATHS = (
    ServedPath("POST", "/v1/messages", messages, MessagesBody, shape=anthropic, for_person=True),
    ServedPath("POST", "/v1/messages/count_tokens", count, CountBody, shape=anthropic),
)
