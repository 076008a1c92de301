"""`OpenAIGenerator`: a client for a server with OpenAI's chat completions; by default only of this machine."""

from __future__ import annotations

import ipaddress
import json
import math
import queue
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from edge.errors import CapabilityError, ConfigError, InputError, ModelError
from edge.runtimes.generation.base import (
    Document,
    Finish,
    GenerationStats,
    Message,
    Piece,
    Sampling,
    Stopping,
    answer_room,
    check_messages,
    numbered,
)
from edge.text.control_characters import CONTROL

_BYTES_PER_TOKEN = 3.5
"""Bytes of English text per token, low, so that estimates of tokens are high."""

DEFAULT_CONTEXT = 4096
_CONNECT_S, _SILENT_S = 5.0, 120.0
_REASON_NBYTES = 1 << 16
_REASON_CHARACTERS = 200


class OpenAIGenerator:
    """A `Generator` behind `POST {url}/chat/completions`. Tokens are estimated, since the server has the vocabulary."""

    follows_instructions = True
    elsewhere = True

    def __init__(
        self,
        url: str,
        *,
        model: str = "",
        key: str = "",
        context: int = DEFAULT_CONTEXT,
        remote: bool = False,
    ) -> None:
        """Checks the address; sends nothing yet. `model` is empty for a server with a single one; `remote` allows
        another machine."""
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
        # The number of bytes that are read is bounded. Compressed bytes could expand to any size.
        headers = {"Accept-Encoding": "identity"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        # A proxy from the environment would send questions for this machine to another one first.
        self._client = httpx.Client(
            headers=headers, timeout=httpx.Timeout(_SILENT_S, connect=_CONNECT_S), trust_env=remote
        )
        self._stats: GenerationStats | None = None

    @property
    def stats(self) -> GenerationStats | None:
        """The figures of the last answer; None before the first. Prompt tokens are the server's count, if it counts."""
        return self._stats

    def count(self, text: str) -> int:
        return math.ceil(len(text.encode("utf-8", errors="replace")) / _BYTES_PER_TOKEN)

    def stream(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        *,
        documents: Sequence[Document] = (),
        cancel: threading.Event | None = None,
    ) -> Iterator[Piece]:
        check_messages(messages)
        turns, estimated, dropped = self._turns(messages, documents, sampling.max_tokens)
        request = {
            "messages": [{"role": message.role, "content": message.content} for message in turns], "stream": True,
            "stream_options": {"include_usage": True}, "temperature": sampling.temperature, "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens, "seed": sampling.seed, "logprobs": True,
        }  # fmt: skip
        if self._model:
            request["model"] = self._model
        run = _Run(time.perf_counter(), sampling.max_tokens, estimated, dropped)
        return self._answer(request, run, Stopping(sampling.stop), cancel or threading.Event())

    def close(self) -> None:
        self._client.close()

    def _turns(
        self, messages: Sequence[Message], documents: Sequence[Document], max_tokens: int
    ) -> tuple[list[Message], int, int]:
        """The conversation with the documents in its system message, the estimated tokens, and documents left out."""
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
            if not reader.chosen:
                raise ModelError(f"{self._endpoint} does not answer as an OpenAI-compatible server does: no choices")
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
        url = self._endpoint
        try:
            yield from reader.events(cancel)
        except ServerFailed as error:
            raise ModelError(f"{url} failed while it answered: {_reason(str(error).encode())}") from error
        except self._httpx.TimeoutException as error:
            raise ModelError(f"{url} gave no sign of life within {_SILENT_S:g} seconds") from error
        except (self._httpx.RemoteProtocolError, self._httpx.ReadError, self._httpx.WriteError) as error:
            raise ModelError(f"{url} broke off before the answer's end") from error
        except self._httpx.HTTPError as error:
            raise ModelError(f"{url} cannot be reached ({error}); is the server running?") from error
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            raise ModelError(f"{url} does not answer as an OpenAI-compatible server does: {error}") from error


@dataclass(slots=True)
class _Run:
    """One answer that is being read. `finished` is the server's reason for the end, `finish` the final one; `new`
    tokens were read, `counted` stated."""

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
        """Counts an event's tokens, and returns those that fit the longest answer; `cut` only when one does not."""
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
    if reader.streamed:
        return "broke off before the answer's end"
    kind = _line(reader.content_type.partition(";")[0]) or "something of no type"
    return f"does not stream: it answers with {kind}, and an OpenAI-compatible server with text/event-stream"


def _reason(body: bytes) -> str:
    text = body.decode("utf-8", errors="replace")
    try:
        found = json.loads(text)["error"]
        text = str(found["message"] if isinstance(found, dict) else found)
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    return _line(text) or "no reason given"


def _line(text: str) -> str:
    """A server's text in a form for error messages: one line of limited length, without control characters."""
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


_LONGEST_LINE = 1 << 18
"""Largest number of bytes in a message. A longer message is an error."""

_SILENT_LINES = 1 << 16
_SILENT_NBYTES = 1 << 24
"""Largest number of bytes without a token, about 30,000 tokens of reasoning in two lines each."""

_ROUNDING = 0.01
"""A log-probability may be above 0 by this much, because of rounding in a server that computes in half precision."""

_MOST_TOKENS = 1 << 32
"""Largest number of tokens that is accepted as a server's count."""

_WAITING = 16
"""Number of messages that are read in advance. With the message that is being read they take at most 5 MB."""

_LOOK_S = 0.1
"""Seconds between checks for cancellation."""


_RESET = struct.pack("hh" if sys.platform == "win32" else "ii", 1, 0)
"""Value of SO_LINGER with which closing resets the connection, so that a server with full buffers notices."""


class ServerFailed(Exception):
    """The server sent an error in the middle of its answer. The message is the server's."""


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One message of the server: text and log-probability of each token (None if invalid), their number (1 without
    log-probabilities), the reason for the end, and counts of prompt, cached and answer tokens."""

    tokens: tuple[tuple[str, float | None], ...]
    count: int
    finish: Finish | None
    usage: tuple[int, int, int] | None

    @classmethod
    def of(cls, event: dict[str, Any]) -> ServerEvent:
        """Reads a message, in which a field may be missing or null. ValueError, TypeError, KeyError, AttributeError or
        OverflowError for another form."""
        choices = event.get("choices") or ()
        usage = _counted(event.get("usage") or {})
        if not choices:
            return cls((), 0, None, usage)
        choice = choices[0]
        text = whole_characters((choice.get("delta") or {}).get("content") or "")
        known = [(whole_characters(token["token"]), _logprob(token.get("logprob"))) for token in _logprobs(choice)]
        tokens: tuple[tuple[str, float | None], ...] = ((text, None),) if text else ()
        if text and "".join(token for token, _ in known) == text:
            tokens = tuple(known)
        elif text and len(known) == 1:  # for a token that is part of a character the two texts differ
            tokens = ((text, known[0][1]),)
        reason = choice.get("finish_reason")
        finish: Finish | None = None if not reason else "length" if reason == "length" else "stop"
        return cls(tokens, max(1, len(known)) if text else 0, finish, usage)


class EventReader(AbstractContextManager["EventReader"]):
    """Reads an answer in a separate thread, so that a cancelled answer ends at once, even if the server is silent."""

    def __init__(self, request: Callable[[], AbstractContextManager[Any]], check: Callable[[Any], None]) -> None:
        """Takes what returns an `httpx.Response` with an unread body, and what raises an error if it is no answer."""
        self._request = request
        self._check = check
        self._found: queue.Queue[ServerEvent | BaseException | None] = queue.Queue(_WAITING)
        self._ended = threading.Event()
        self._silent_lines = self._silent_nbytes = 0
        self._response: Any = None
        self.content_type = ""
        """Content type of the response; empty before there is one."""
        self.streamed = False
        """Whether a message has been read."""
        self.done = False
        """Whether the server has sent its end mark."""
        self.chosen = False
        """Whether a message had a choice, be it empty."""
        threading.Thread(target=self._read, name="edge-server", daemon=True).start()

    def events(self, cancel: threading.Event) -> Iterator[ServerEvent]:
        """The messages as they arrive, until the end or soon after `cancel`. Raises the thread's errors."""
        while not cancel.is_set():
            try:
                found = self._found.get(timeout=_LOOK_S)
            except queue.Empty:
                continue
            if found is None:
                return
            if isinstance(found, BaseException):
                try:
                    raise found
                finally:
                    del found  # it would keep this frame, and the frame would keep it
            yield found

    def __exit__(self, *error: object) -> None:
        """Ends the connection, so that the server notices and stops writing."""
        self._ended.set()
        response = self._response
        if response is not None:
            with suppress(KeyError, AttributeError, OSError):
                connection = response.extensions["network_stream"].get_extra_info("socket")
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                # Only a shutdown of the socket wakes a read that waits in another thread.
                connection.shutdown(socket.SHUT_RDWR)

    def _read(self) -> None:
        last: BaseException | None = None
        try:
            with self._request() as response:
                self._response = response
                self.content_type = response.headers.get("content-type", "")
                self._check(response)
                for data in _messages(self._parts(response)):
                    if data == "[DONE]":
                        self.done = True
                    if self.done or self._ended.is_set():
                        break
                    self.streamed = True
                    event = json.loads(data)
                    if event.get("error"):
                        raise ServerFailed(data)
                    found = ServerEvent.of(event)
                    self.chosen = self.chosen or bool(event.get("choices"))
                    if found.tokens:
                        self._silent_lines = self._silent_nbytes = 0
                    self._hand_over(found)
        except BaseException as error:
            last = error
        self._hand_over(last)

    def _parts(self, response: Any) -> Iterator[bytes]:
        for part in response.iter_raw():
            self._silent_lines += part.count(b"\n")
            self._silent_nbytes += len(part)
            if self._silent_lines > _SILENT_LINES or self._silent_nbytes > _SILENT_NBYTES:
                raise ValueError(f"no token in {self._silent_lines:,} lines and {self._silent_nbytes:,} bytes")
            yield part

    def _hand_over(self, item: ServerEvent | BaseException | None) -> None:
        while not self._ended.is_set():
            with suppress(queue.Full):
                self._found.put(item, timeout=_LOOK_S)
                return


def beginning(response: Any, nbytes: int) -> bytes:
    """The first bytes of a response's body, without decompression. A body with an error may be of any length."""
    body = b""
    for part in response.iter_raw():
        body += part
        if len(body) >= nbytes:
            break
    return body[:nbytes]


def whole_characters(text: str) -> str:
    """The text with each half of a surrogate pair, which JSON may contain, replaced by a replacement mark."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _messages(parts: Iterator[bytes]) -> Iterator[str]:
    """The data of server-sent events. Lines end at line feeds alone, since JSON may hold Unicode's other line ends."""
    held = b""
    for part in parts:
        *lines, held = (held + part).split(b"\n")
        if len(held) > _LONGEST_LINE:
            raise ValueError(f"a message of more than {_LONGEST_LINE:,} bytes")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[len(b"data:") :].strip().decode()
    if held.startswith(b"data:"):
        yield held[len(b"data:") :].strip().decode()


def _logprobs(choice: dict[str, Any]) -> Sequence[dict[str, Any]]:
    known: Sequence[dict[str, Any]] = (choice.get("logprobs") or {}).get("content") or ()
    return known


def _logprob(given: Any) -> float | None:
    """A log-probability; None if the value is no number, is not finite, or is above 0 by more than rounding."""
    if isinstance(given, int | float) and -math.inf < given <= _ROUNDING:
        return min(float(given), 0.0)
    return None


def _counted(usage: dict[str, Any]) -> tuple[int, int, int] | None:
    prompt, new = _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
    if prompt is None or new is None:
        return None
    cached = _count((usage.get("prompt_tokens_details") or {}).get("cached_tokens")) or 0
    return prompt, min(cached, prompt), new


def _count(given: Any) -> int | None:
    return int(given) if isinstance(given, int | float) and 0 <= given <= _MOST_TOKENS else None
