"""OpenAI's dialect: `/v1/embeddings`, `/v1/chat/completions`, `/v1/completions`, `/v1/models`, and `/v1/responses`, of
which none is stored."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import count, pairwise
from typing import Annotated, Any, Literal
from uuid import uuid4

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta, Struct

from edge.apps.assistant.answer import Answer, AnswerStats
from edge.apps.assistant.assistant import Turn
from edge.apps.serve.body import Whole, options_of, with_idle, with_options
from edge.apps.serve.endpoint import Call, ServedPath
from edge.apps.serve.library import OWN_LLM
from edge.apps.serve.refusals import HttpRefusal
from edge.apps.serve.search import Show
from edge.apps.verbs.requests import AskOptions
from edge.apps.verbs.work import written
from edge.runtimes.embedder import Embedder
from edge.runtimes.generation.base import Message, Sampling
from edge.runtimes.passes import RunStats
from edge.scheduling.waiting_line import current_urgency

Vectors = npt.NDArray[np.float32]

MOST_TEXTS = 8192
_FLOAT_BYTES, _BASE64_BYTES = 32, 8
"""Memory of one number of an answer: its text twice, and as base64 likewise."""

QUERIES = ("query", "search_query", "retrieval.query")
"""By which clients say that texts are questions: TEI's prompt names, Cohere's input types, Jina's tasks."""

Input = Annotated[
    str | Annotated[list[str | int | list[int]], Meta(max_length=MOST_TEXTS)],
    Meta(description="Texts. Numbers of tokens are refused: they mean other words to another model."),
]


@with_idle(harmless=("user",))
class EmbeddingsBody(Struct, kw_only=True):
    """Texts to embed, also with Jina's `task` or Cohere's `input_type`."""

    input: Input
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Whole | None = None
    task: str | None = None
    input_type: str | None = None


def embeddings(call: Call, body: EmbeddingsBody) -> dict[str, Any]:
    """Embeds texts: one vector of unit length for each. With fewer `dimensions` the first numbers are given, at unit
    length again."""
    texts, query = texts_of(body.input, "input"), (body.task or body.input_type) in QUERIES
    encoded = body.encoding_format == "base64"
    found, tokens = embedded(call, body.model or "", texts, query, body.dimensions, encoded=encoded)
    data = [{"object": "embedding", "index": i, "embedding": vector} for i, vector in enumerate(found)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    model = body.model or call.library.served_embedder("").name
    return {"object": "list", "data": data, "model": model, "usage": usage}


def texts_of(given: Input, name: str) -> list[str]:
    given = [given] if isinstance(given, str) else given
    texts = [text for text in given if isinstance(text, str)]
    if len(texts) < len(given):
        raise HttpRefusal(
            422,
            f"the field `{name}` holds numbers of tokens, which mean other words to another model: send the texts "
            f"(in LangChain's OpenAIEmbeddings with check_embedding_ctx_length=False)",
        )
    if not texts:
        raise HttpRefusal(422, f"the field `{name}` holds no text")
    return texts


def embedded(
    call: Call, model: str, texts: list[str], query: bool, dimensions: int | None, *, encoded: bool = False
) -> tuple[list[Any], int]:
    """The vectors of texts as JSON has them, in base64 if `encoded`; and the number of tokens."""
    passes: list[RunStats] = []
    held = call.lease.nbytes

    def embed(embedder: Embedder) -> Vectors:
        # Before the work: a request whose answer has no room must not cost the others any time.
        answer = len(texts) * embedder.dim * (_BASE64_BYTES if encoded else _FLOAT_BYTES)
        call.server.requests.hold(call.lease, held + answer)
        return embedder.embed(texts, query=query, watch=passes.append)

    vectors = call.library.served_embedder(model).run(embed)
    each = _in_base64 if encoded else _as_json
    written: list[Any] = []
    for vector in _shortened(vectors, dimensions):
        call.urgency.check()
        written.append(each(vector))
    return written, sum(stats.tokens for stats in passes)


def _shortened(vectors: Vectors, dimensions: int | None) -> Vectors:
    if dimensions is None or dimensions == vectors.shape[1]:
        return vectors
    if dimensions > vectors.shape[1]:
        raise HttpRefusal(422, f"the model's vectors have {vectors.shape[1]} dimensions, fewer than {dimensions}")
    cut = vectors[:, :dimensions]
    return np.ascontiguousarray(cut / np.maximum(np.linalg.norm(cut, axis=1, keepdims=True), 1e-12))


def _as_json(vector: Vectors) -> msgspec.Raw:
    """One vector as JSON, written alone, so that other threads run between two of them."""
    return msgspec.Raw(msgspec.json.encode(vector.tolist()))


def _in_base64(vector: Vectors) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")


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


def models(call: Call) -> dict[str, Any]:
    """Lists the names that `model` may have: collections to answer from, generators, rerankers and embedders."""
    library = call.library
    names = [*library.names(), OWN_LLM, *library.pulled_generators(), *library.installed_names()]
    made = [{"id": name, "object": "model", "created": 0, "owned_by": "edge-rag"} for name in dict.fromkeys(names)]
    return {"object": "list", "data": made}


def model(call: Call) -> dict[str, Any]:
    """Describes one of the names that `model` may have."""
    name = call.named("name")
    for found in models(call)["data"]:
        if found["id"] == name:
            return dict(found)
    raise HttpRefusal(404, f"there is no model {name[:80]!a}; /v1/models lists the names")


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
                conversation.turns.append(Turn(asked.content, asked.content, answered))
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


_CODES = {401: "invalid_api_key", 404: "model_not_found", 413: "context_length_exceeded", 429: "rate_limit_exceeded"}


def openai(status: int, message: str) -> dict[str, Any]:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": _CODES.get(status)}}


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


def failed(status: int, message: str) -> dict[str, Any]:
    """As OpenAI writes it in an answer, and in a stream of responses."""
    found = openai(status, message)
    return {**found["error"], **found, "type": "error", "sequence_number": 0}


PATHS = (
    ServedPath("POST", "/v1/embeddings", embeddings, EmbeddingsBody, shape=openai),
    ServedPath("GET", "/v1/models", models, shape=openai),
    ServedPath("GET", "/v1/models/{name:path}", model, shape=openai),
    ServedPath("POST", "/v1/chat/completions", completions, ChatBody, shape=openai, for_person=True),
    ServedPath("POST", "/v1/completions", text_completions, CompletionBody, shape=openai, for_person=True),
    ServedPath("POST", "/v1/responses", responses, ResponsesBody, shape=failed, for_person=True),
)
