"""`OpenAIGenerator`: a server that speaks OpenAI's chat completions, for people who run their own.

On this machine only, unless told otherwise: questions and documents would leave it.
"""

from __future__ import annotations

import ipaddress
import json
import math
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from edge.control_characters import CONTROL
from edge.errors import CapabilityError, ConfigError, InputError, ModelError
from edge.runtimes.generation.base import (
    Document,
    Finish,
    GenerationStats,
    Message,
    Piece,
    Sampling,
    answer_room,
    check_messages,
    numbered,
)
from edge.runtimes.generation.server_events import EventReader, ServerEvent, ServerFailed, beginning, whole_characters
from edge.runtimes.generation.stopping import Stopping

_BYTES_PER_TOKEN = 3.5
"""Of English text in the vocabularies of common models, on the low side, so that estimates are high."""

DEFAULT_CONTEXT = 4096
_CONNECT_S = 5.0
_REASON_NBYTES = 1 << 16
_REASON_CHARACTERS = 200


class OpenAIGenerator:
    """A `Generator` behind `POST {url}/chat/completions`. Tokens are estimated: the vocabulary is the server's."""

    follows_instructions = True

    def __init__(
        self,
        url: str,
        *,
        model: str = "",
        key: str = "",
        context: int = DEFAULT_CONTEXT,
        remote: bool = False,
        timeout: float = 120.0,
    ) -> None:
        """Checks the address; nothing is sent yet.

        Args:
            url: base address, such as `http://127.0.0.1:8080/v1`.
            model: its name at the server; empty takes the server's only one.
            key: sent as a bearer token, if any.
            context: tokens the server's model holds.
            remote: allows an address that is not this machine's.
            timeout: seconds without a sign of life before giving up.

        Raises:
            ConfigError: the address is none, or not this machine's though `remote` was not asked for.
            CapabilityError: httpx is not installed.
        """
        _check(url, remote)
        try:
            import httpx
        except ImportError as error:
            raise CapabilityError('a server as generator needs httpx: pip install "edge-rag[llm]"') from error
        self.name = model or urlsplit(url).netloc
        self.context = context
        self._model = model
        self._url = url.rstrip("/")
        self._httpx = httpx
        # What is read is bounded in bytes, which would say nothing about what compressed ones expand to.
        headers = {"Accept-Encoding": "identity"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        # A proxy from the environment would take a question to this machine elsewhere first.
        self._client = httpx.Client(
            headers=headers,
            timeout=httpx.Timeout(timeout, connect=_CONNECT_S),
            trust_env=remote,
        )
        self._stats: GenerationStats | None = None

    @property
    def stats(self) -> GenerationStats | None:
        """What the last answer took; None before the first. Prompt tokens are the server's count if it gives one."""
        return self._stats

    def count(self, text: str) -> int:
        """Tokens of a text, estimated from its bytes."""
        return math.ceil(len(text.encode("utf-8", errors="replace")) / _BYTES_PER_TOKEN)

    def stream(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        *,
        documents: Sequence[Document] = (),
        cancel: threading.Event | None = None,
    ) -> Iterator[Piece]:
        """Answers, token by token; see `Generator.stream`."""
        check_messages(messages)
        turns, estimated, dropped = self._turns(messages, documents, sampling.max_tokens)
        request = {
            "messages": [{"role": message.role, "content": message.content} for message in turns],
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
            "seed": sampling.seed,
            "logprobs": True,
        }
        if self._model:
            request["model"] = self._model
        if sampling.min_p:
            request["min_p"] = sampling.min_p  # not OpenAI's, but known to llama.cpp's and vLLM's servers
        run = _Run(time.perf_counter(), sampling.max_tokens, estimated, dropped)
        return self._answer(request, run, Stopping(sampling.stop), cancel or threading.Event())

    def close(self) -> None:
        """Closes connections."""
        self._client.close()

    def _turns(
        self, messages: Sequence[Message], documents: Sequence[Document], max_tokens: int
    ) -> tuple[list[Message], int, int]:
        """The conversation with the documents in its system message; estimated tokens, and documents left out."""
        turns = list(messages)
        used = sum(self.count(message.content) for message in turns)
        room = self.context - used - answer_room(self.context, max_tokens)
        if used >= self.context:
            raise InputError(
                f"the conversation has about {used:,} tokens and the context of {self.name} holds {self.context:,}: "
                f"ask for less, or say with --context (EDGE_CONTEXT) how many the server's model holds"
            )
        texts: list[str] = []
        for number, document in enumerate(documents, 1):
            text = numbered(document, number)
            if self.count(text) > room:
                break
            room -= self.count(text)
            used += self.count(text)
            texts.append(text)
        if texts:
            place = next(i for i, message in enumerate(turns) if message.role in ("system", "user"))
            turn, block = turns[place], "".join(texts)
            content = f"{turn.content}\n\n{block}" if turn.role == "system" else f"{block}{turn.content}"
            turns[place] = Message(turn.role, content.strip())
        return turns, used, len(documents) - len(texts)

    def _answer(
        self, request: dict[str, Any], run: _Run, stopping: Stopping, cancel: threading.Event
    ) -> Iterator[Piece]:
        try:
            with EventReader(partial(self._client.stream, "POST", self._endpoint, json=request), self._check) as reader:
                for event in self._events(reader, cancel):
                    for text, logprob in run.take(event):
                        yield from stopping.push_text(text, None, logprob)
                    if stopping.stopped:
                        run.finish = "stop"
                        return
                    if run.cut:
                        break
            if cancel.is_set():
                return
            if run.finished is None and not reader.done:
                raise ModelError(f"{self._endpoint} {_unfinished(reader)}")
            yield from stopping.finish()
            run.finish = run.finished or "stop"
        finally:
            self._stats = run.stats()

    @property
    def _endpoint(self) -> str:
        return f"{self._url}/chat/completions"

    def _check(self, response: Any) -> None:
        encoding = response.headers.get("content-encoding", "").strip()
        if encoding.lower() not in ("", "identity"):
            raise ModelError(
                f"{self._endpoint} answers {response.status_code} compressed ({_line(encoding)}), though asked not "
                f"to be: turn that off in the server, or in a proxy before it"
            )
        if response.status_code != 200:
            raise ModelError(
                f"{self._endpoint} answers {response.status_code}: {_reason(beginning(response, _REASON_NBYTES))}"
            )

    def _events(self, reader: EventReader, cancel: threading.Event) -> Iterator[ServerEvent]:
        """The server's messages.

        Raises:
            ModelError: it cannot be reached, refuses, breaks off, or answers something else.
        """
        url = self._endpoint
        try:
            yield from reader.events(cancel)
        except ServerFailed as error:
            raise ModelError(f"{url} failed while it answered: {_reason(str(error).encode())}") from error
        except self._httpx.TimeoutException as error:
            raise ModelError(f"{url} gave no sign of life within {self._client.timeout.read:g} seconds") from error
        except (self._httpx.RemoteProtocolError, self._httpx.ReadError, self._httpx.WriteError) as error:
            raise ModelError(f"{url} broke off before the answer's end") from error
        except self._httpx.HTTPError as error:
            raise ModelError(f"{url} cannot be reached ({error}); is the server running?") from error
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            raise ModelError(f"{url} does not answer as an OpenAI-compatible server does: {error}") from error


@dataclass(slots=True)
class _Run:
    """One answer under way; `finished` is what the server said, `finish` what became of it. `new` are the tokens that
    came, `counted` those that the server says it wrote."""

    called: float
    longest: int
    prompt: int
    dropped: int
    first: float = 0.0
    cached: int = 0
    new: int = 0
    counted: int | None = None
    cut: bool = False
    finished: Finish | None = None
    finish: Finish = "cancelled"

    def take(self, event: ServerEvent) -> Sequence[tuple[str, float | None]]:
        """Counts an event; gives those of its tokens that the longest answer has room for.

        The answer is `cut` by the first token after, not by its last: a server that keeps to the length asked for has
        its counts yet to say.
        """
        tokens = event.tokens[: max(0, self.longest - self.new)]
        if tokens:
            self.first = self.first or time.perf_counter()
        if event.usage:
            self.prompt, self.cached, self.counted = event.usage
        self.finished = event.finish or self.finished
        if len(tokens) < len(event.tokens):
            self.cut, self.finished = True, "length"
            self.new += len(tokens)
        else:
            self.new += event.count
        return tokens

    def stats(self) -> GenerationStats:
        ended = time.perf_counter()
        return GenerationStats(
            prompt_tokens=self.prompt,
            cached_tokens=self.cached,
            new_tokens=self.new if self.counted is None else self.counted,
            ttft_s=(self.first or ended) - self.called,
            seconds=ended - self.called,
            dropped_documents=self.dropped,
            finish=self.finish,
        )


def _unfinished(reader: EventReader) -> str:
    """What is wrong with an answer that has no end."""
    if reader.streamed:
        return "broke off before the answer's end"
    kind = _line(reader.content_type.partition(";")[0]) or "something of no type"
    return f"does not stream: it answers with {kind}, and an OpenAI-compatible server with text/event-stream"


def _reason(body: bytes) -> str:
    """What a server gave as its reason."""
    text = body.decode("utf-8", errors="replace")
    try:
        found = json.loads(text)["error"]
        text = str(found["message"] if isinstance(found, dict) else found)
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    return _line(text) or "no reason given"


def _line(text: str) -> str:
    """What a server said, as it may stand in an error: on one line, not endless, and nothing that steers a terminal."""
    return " ".join(CONTROL.sub(" ", whole_characters(text)).split())[:_REASON_CHARACTERS]


def _check(url: str, remote: bool) -> None:
    parts = urlsplit(url)
    try:
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is no number
        known = False
    if not known or not parts.hostname:
        raise ConfigError(f"{url!r} is no address of a server; write it like http://127.0.0.1:8080/v1")
    if remote or parts.hostname == "localhost":
        return
    try:
        loopback = ipaddress.ip_address(parts.hostname).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise ConfigError(
            f"{parts.hostname} is not this machine, and questions and documents would be sent there; "
            f"allow it with EDGE_LLM_REMOTE=1, or use an address such as http://127.0.0.1:8080/v1"
        )
