"""Conversations in the dialects of OpenAI (`/v1/chat/completions`, `/v1/completions`, and `/v1/responses`, of which
none is stored) and of Anthropic (`/v1/messages` and `/v1/messages/count_tokens`)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import count, pairwise
from typing import Annotated, Any
from uuid import uuid4

from msgspec import Meta, Struct

from edge.apps.assistant.answer import Answer, AnswerStats
from edge.apps.assistant.assistant import Turn as Exchange
from edge.apps.serve.body import Whole, options_of, with_idle, with_options
from edge.apps.serve.collections import Show
from edge.apps.serve.endpoint import Call, ServedPath
from edge.apps.serve.library import OWN_LLM
from edge.apps.serve.models import Input, texts_of
from edge.apps.serve.refusals import HttpRefusal, anthropic, failed, openai
from edge.apps.verbs.requests import AskOptions
from edge.apps.verbs.work import written
from edge.runtimes.generation.base import Message, Sampling
from edge.scheduling.waiting_line import current_urgency

MOST_MESSAGES = 2000
MOST_PARTS = 1000
_TOOLS = ("tool", "function")
MOST_STOPS = 100
"""Texts that end an answer. Each is looked for after every token."""


class ChatPart(Struct):
    """A part of a message."""

    text: str | None = None


Parts = str | Annotated[list[str | ChatPart], Meta(max_length=MOST_PARTS)]


class ChatMessage(Struct, kw_only=True):
    """One message of a conversation. That of an assistant which called tools may have no content."""

    role: str
    content: Parts | None = None
    tool_calls: Any = None
    function_call: Any = None


class StreamOptions(Struct):
    """The parts of a stream besides the answer."""

    include_usage: bool | None = None


_REFUSED: dict[str, tuple[Any, ...]] = {
    "n": (1,), "logit_bias": ({},), "frequency_penalty": (0,), "presence_penalty": (0,),
}  # fmt: skip
_REFUSED_IN_CHAT: dict[str, tuple[Any, ...]] = {
    "logprobs": (False,), "top_logprobs": (0,), "response_format": ({"type": "text"},),
    "tool_choice": ("none", "auto"), "functions": ([],), "function_call": ("none", "auto"), "audio": (),
    "modalities": (["text"],), "web_search_options": (), "moderation": (),
}  # fmt: skip
_REFUSED_IN_TEXTS: dict[str, tuple[Any, ...]] = {"best_of": (1,), "echo": (False,), "logprobs": (), "suffix": ("",)}
_HARMLESS = (
    "tools", "parallel_tool_calls", "metadata", "prediction", "prompt_cache_key", "prompt_cache_options",
    "prompt_cache_retention", "reasoning_effort", "safety_identifier", "service_tier", "store", "verbosity",
)  # fmt: skip
"""A model is free to call none of the `tools`; the others are hints, or notes for the service's accounts."""


@with_idle(_REFUSED, ("user",))
class WritingBody(Struct, kw_only=True):
    """How an answer is written."""

    model: str | None = None
    max_tokens: Whole | None = None
    temperature: float | None = None
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    top_p: float | None = None
    stop: str | Annotated[list[str], Meta(max_length=MOST_STOPS)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None


@with_idle(_REFUSED_IN_CHAT, _HARMLESS)
@with_options(AskOptions)
class ChatBody(WritingBody, kw_only=True):
    """A conversation, whose last message is answered."""

    messages: Annotated[list[ChatMessage], Meta(max_length=MOST_MESSAGES)]
    max_completion_tokens: Whole | None = None


@with_idle(_REFUSED_IN_TEXTS)
@with_options(AskOptions)
class CompletionBody(WritingBody, kw_only=True):
    """A prompt, which is answered as a conversation of one message."""

    prompt: Input


Reply = tuple[str, str, dict[str, Any], dict[str, int]]
"""The text of an answer, the reason for its end, further members of the reply, and the numbers of tokens."""


def completions(call: Call, body: ChatBody) -> dict[str, Any] | None:
    """Answers the last message. The `model` is a collection to answer from, `llm` for the language model alone, or the
    name of a generator. Answers from a collection carry `citations`."""
    body.max_tokens = body.max_completion_tokens or body.max_tokens
    said = spoken((f"messages[{number}]", message) for number, message in enumerate(body.messages))
    return _answered(call, body, said, chat=True)


def text_completions(call: Call, body: CompletionBody) -> dict[str, Any] | None:
    """Answers a `prompt`, as the interface before that of conversations did. The `model` is as for those."""
    prompts = texts_of(body.prompt, "prompt")
    if len(prompts) > 1:
        raise HttpRefusal(422, "the field `prompt` holds several prompts, and one is answered at a time")
    return _answered(call, body, [Message("user", prompts[0])], chat=False)


def _answered(call: Call, body: WritingBody, messages: list[Message], *, chat: bool) -> dict[str, Any] | None:
    """The reply of a conversation or a prompt; None if it went to the client in events."""
    model, events = body.model or "", call.events
    base = {"id": f"{'chatcmpl' if chat else 'cmpl'}-{uuid4().hex}", "created": int(time.time()), "model": model}
    whole, part = ("chat.completion", "chat.completion.chunk") if chat else ("text_completion", "text_completion")

    def choice(content: dict[str, Any], finish: str | None) -> list[dict[str, Any]]:
        return [{"index": 0, **content, "finish_reason": finish, "logprobs": None}]

    if events is None:
        text, finish, more, counts = replied(call, body, messages, None)
        message = {"message": {"role": "assistant", "content": text, "refusal": None}} if chat else {"text": text}
        return {**base, "object": whole, "choices": choice(message, finish), "usage": counts, **more}

    def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> None:
        content = {"delta": delta} if chat else {"text": delta.get("content", "")}
        events.put("", {**base, "object": part, "choices": choice(content, finish), **more})

    if chat:
        chunk({"role": "assistant", "content": ""})
    _, finish, more, counts = replied(call, body, messages, lambda text: chunk({"content": text}))
    chunk({}, finish, **more)
    if body.stream_options and body.stream_options.include_usage:
        events.put("", {**base, "object": part, "choices": [], "usage": counts})
    events.put("", "[DONE]")
    return None


def replied(call: Call, body: WritingBody, messages: list[Message], show: Show, stop: str = "stop") -> Reply:
    """The reply in any dialect: of a language model alone, or from a collection. `stop`: this field's name in the
    dialect."""
    if writes_alone(call, body.model):
        return _plain(call, body, messages, show)
    return _grounded(call, body, messages, show, stop)


def writes_alone(call: Call, model: str | None) -> bool:
    return model == OWN_LLM or model in call.library.pulled_generators()


def _grounded(call: Call, body: WritingBody, messages: list[Message], show: Show, stop: str) -> Reply:
    """An answer from a collection, the usual one for names of services."""
    for field, value, harmless in ((stop, body.stop, (None, [])), ("top_p", body.top_p, (None, 1.0))):
        if value not in harmless:
            raise HttpRefusal(
                422, f"the field `{field}` is obeyed by a language model alone, with the model `{OWN_LLM}`"
            )
    options = options_of(body, AskOptions, call.server.options.usual)
    told = [message for message in messages if message.role != "system"]
    said = [each for each in told if each.role not in _TOOLS and (each.content or each.role == "user")]
    if not told or told[-1].role != "user":
        raise HttpRefusal(422, "the last message is the question, and its role is user")
    name = body.model if body.model in call.library.names() else None
    with call.library.assistant([name or ""]) as assistant:
        conversation = assistant.chat(options=options)
        for asked, reply in pairwise(said):
            if asked.role == "user" and reply.role == "assistant":
                answered = Answer(reply.content, (), AnswerStats(question=asked.content))
                conversation.turns.append(Exchange(asked.content, asked.content, answered))
        answer = written(conversation.stream(said[-1].content), show)
    citations = [citation.to_json() for citation in answer.citations]
    counts = _usage(answer.stats.prompt_tokens, answer.stats.new_tokens)
    finish = "length" if answer.stats.cut else "stop"
    return answer.text, finish, {"citations": citations, "found": answer.found}, counts


def _plain(call: Call, body: WritingBody, messages: list[Message], show: Show) -> Reply:
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    sampling = Sampling(
        temperature=body.temperature or 0.0, top_p=1.0 if body.top_p is None else body.top_p, seed=body.seed or 0,
        stop=stop, max_tokens=body.max_tokens or 256,
    )  # fmt: skip
    pieces = []
    with call.library.assistant(llm=body.model or "") as assistant:
        for text in _written(assistant.write, _without_tools(messages), sampling):
            pieces.append(text)
            if show is not None:
                show(text)
        stats = assistant.generator.stats
    if stats is None:
        return "".join(pieces), "stop", {}, _usage(0, 0)
    finish = "length" if stats.finish == "length" else "stop"
    return "".join(pieces), finish, {}, _usage(stats.prompt_tokens, stats.new_tokens)


def _written(write: Callable[..., Iterator[str]], messages: list[Message], sampling: Sampling) -> Iterator[str]:
    urgency, cancel = current_urgency(), threading.Event()
    with urgency.heard(cancel.set):
        for text in write(messages, sampling, cancel):
            urgency.check()
            yield text
        urgency.check()


def spoken(messages: Iterable[tuple[str, ChatMessage]]) -> list[Message]:
    found = []
    for name, message in messages:
        content, place = message.content, f"the field `{name}.content`"
        if isinstance(content, list):
            texts = [part if isinstance(part, str) else part.text for part in content]
            if None in texts:
                raise HttpRefusal(422, f"{place} has a part without a `text`: pictures and sound cannot be read")
            content = "\n".join(text for text in texts if text is not None)
        if content is None:
            if not message.tool_calls and not message.function_call:
                raise HttpRefusal(422, f"{place} is missing")
            content = ""
        found.append(Message("system" if message.role == "developer" else message.role, content))
    if not found:
        raise HttpRefusal(422, "there are no messages")
    return found


def _without_tools(messages: list[Message]) -> list[Message]:
    """A conversation in the roles that every model knows: a tool's result is told with the message before the call."""
    found: list[Message] = []
    for message in messages:
        if message.role in _TOOLS:
            before = found.pop().content if found and found[-1].role == "user" else ""
            found.append(Message("user", f"{before}\n\nResult of a tool: {message.content}".strip()))
        elif message.content or message.role != "assistant":
            found.append(message)
    return found


def _usage(prompt: int, new: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}


class Item(Struct, kw_only=True):
    """One item of a conversation: a message, a call of a tool, what a tool returned, or thoughts."""

    type: str | None = None
    role: str | None = None
    content: Parts | None = None
    output: Parts | None = None


_PLAIN = {"format": {"type": "text"}}
_TEXTS = ({}, _PLAIN, *({**_PLAIN, "verbosity": verbosity} for verbosity in ("low", "medium", "high")))
_REFUSED_IN_RESPONSES: dict[str, tuple[Any, ...]] = {
    "background": (False,), "background_options": (), "include": ([], ["reasoning.encrypted_content"]), "image": (),
    "moderation": (), "prompt": (), "text": _TEXTS, "tool_choice": ("none", "auto"), "top_logprobs": (0,),
    "truncation": ("auto", "disabled"),
}  # fmt: skip
_HARMLESS_IN_RESPONSES = (
    "access_programs", "context_management", "max_tool_calls", "metadata", "parallel_tool_calls", "prompt_cache_key",
    "prompt_cache_options", "prompt_cache_retention", "reasoning", "safety_identifier", "service_tier", "store",
    "stream_options", "tools", "user",
)  # fmt: skip


@with_idle(_REFUSED_IN_RESPONSES, _HARMLESS_IN_RESPONSES)
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


class Block(ChatPart):
    """A part of a message: text, a call of a tool, or what a tool returned."""

    type: str = "text"
    content: Parts | None = None


class Turn(Struct, kw_only=True):
    """One message of a conversation."""

    role: str
    content: str | Annotated[list[Block], Meta(max_length=MOST_PARTS)]


_CHOICES = tuple(
    {"type": kind, **more} for kind in ("auto", "none") for more in ({}, {"disable_parallel_tool_use": True})
)
_EFFORTS = tuple({"effort": effort} for effort in ("low", "medium", "high", "xhigh", "max"))
_REFUSED_IN_MESSAGES: dict[str, tuple[Any, ...]] = {
    "tool_choice": _CHOICES, "output_config": ({}, *_EFFORTS), "container": (), "mcp_servers": ([],), "thread": (),
    "top_k": (),
}  # fmt: skip
_HARMLESS_IN_MESSAGES = (
    "betas", "billing_policy", "cache_control", "compaction", "context_management", "diagnostics",
    "fallback_credit_token", "fallbacks", "inference_geo", "metadata", "service_tier", "speed", "thinking", "tools",
    "user_profile_id", "workspace_id",
)  # fmt: skip


@with_idle(_REFUSED_IN_MESSAGES, _HARMLESS_IN_MESSAGES)
class CountBody(Struct, kw_only=True):
    """A conversation whose tokens are counted."""

    messages: Annotated[list[Turn], Meta(max_length=MOST_MESSAGES)]
    model: str | None = None
    system: Parts | None = None


@with_options(AskOptions)
class MessagesBody(CountBody, kw_only=True):
    """A conversation, whose last message is answered."""

    max_tokens: Whole | None = None
    top_p: float | None = None
    stop_sequences: Annotated[list[str], Meta(max_length=MOST_STOPS)] | None = None
    stream: bool | None = None


def _said(body: CountBody) -> Iterator[tuple[str, ChatMessage]]:
    """The messages as OpenAI has them, each with its place: there a result of a tool is a message of its own."""
    if body.system:
        yield "system", ChatMessage(role="system", content=body.system)
    for number, turn in enumerate(body.messages):
        place, called = f"messages[{number}]", False
        parts: list[str | ChatPart] = []
        for block in [Block(text=turn.content)] if isinstance(turn.content, str) else turn.content:
            if block.type == "tool_result":
                yield place, ChatMessage(role="tool", content=block.content or "")
            elif block.type == "tool_use":
                called = True
            elif block.type not in ("thinking", "redacted_thinking"):
                parts.append(block)
        if parts or called or not turn.content:
            yield place, ChatMessage(role=turn.role, content=parts or None, tool_calls=called)


def messages(call: Call, body: MessagesBody) -> dict[str, Any] | None:
    """Answers the last message. The `model` is as for `/v1/chat/completions`, and so is what it answers from."""
    said, events = spoken(_said(body)), call.events
    options = {name: getattr(body, name) for name in AskOptions.options()}
    asked = ChatBody(messages=[], model=body.model, top_p=body.top_p, stop=body.stop_sequences, **options)
    reply = {"id": f"msg_{uuid4().hex}", "type": "message", "role": "assistant", "model": body.model or ""}
    if events is None:
        text, finish, more, counts = replied(call, asked, said, None, "stop_sequences")
        content = [{"type": "text", "text": text}]
        return {**reply, "content": content, **_stopped(finish), "usage": _counted(counts), **more}

    def send(kind: str, **members: Any) -> None:
        events.put(kind, {"type": kind, **members})

    send("message_start", message={**reply, "content": [], **_stopped(None), "usage": _counted({})})
    send("content_block_start", index=0, content_block={"type": "text", "text": ""})

    def show(text: str) -> None:
        send("content_block_delta", index=0, delta={"type": "text_delta", "text": text})

    _, finish, more, counts = replied(call, asked, said, show, "stop_sequences")
    send("content_block_stop", index=0)
    send("message_delta", delta=_stopped(finish), usage=_counted(counts), **more)
    send("message_stop")
    return None


def count_tokens(call: Call, body: CountBody) -> dict[str, Any]:
    """Counts the tokens of a conversation's texts, as the model that would answer counts them."""
    text = "\n".join(message.content for message in spoken(_said(body)))
    llm = body.model or "" if writes_alone(call, body.model) else ""
    with call.library.assistant(llm=llm) as assistant:
        return {"input_tokens": assistant.generator.count(text)}


def _stopped(finish: str | None) -> dict[str, Any]:
    """Why an answer ended; None while it is written. A sequence that ends answers is not told from their own end."""
    reason = {"length": "max_tokens", "stop": "end_turn"}.get(finish or "")
    return {"stop_reason": reason, "stop_sequence": None}


def _counted(counts: dict[str, int]) -> dict[str, int]:
    return {"input_tokens": counts.get("prompt_tokens", 0), "output_tokens": counts.get("completion_tokens", 0)}


PATHS = (
    ServedPath("POST", "/v1/chat/completions", completions, ChatBody, shape=openai, for_person=True),
    ServedPath("POST", "/v1/completions", text_completions, CompletionBody, shape=openai, for_person=True),
    ServedPath("POST", "/v1/responses", responses, ResponsesBody, shape=failed, for_person=True),
    ServedPath("POST", "/v1/messages", messages, MessagesBody, shape=anthropic, for_person=True),
    ServedPath("POST", "/v1/messages/count_tokens", count_tokens, CountBody, shape=anthropic),
)
