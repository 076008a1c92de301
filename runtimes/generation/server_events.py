"""The stream of a server with OpenAI's chat completions: its messages, and a thread that waits for them."""

from __future__ import annotations

import json
import math
import queue
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any

from edge.runtimes.generation.base import Finish

_LONGEST_LINE = 1 << 18
"""Largest number of bytes in a message. A longer message is an error."""

_SILENT_LINES = 1 << 16
_SILENT_NBYTES = 1 << 24
"""Largest number of bytes without a token. While a server computes, or its model reasons, it sends comments and
messages without text: two lines and about 500 bytes per token of reasoning. So this limit allows 30,000 such tokens."""

_ROUNDING = 0.01
"""A log-probability may be above 0 by this much, because of rounding in a server that computes in half precision."""

_MOST_TOKENS = 1 << 32
"""Largest number of tokens that is accepted as a server's count."""

_WAITING = 16
"""Number of messages that are read in advance. With the message that is being read they take at most 5 MB."""

_LOOK_S = 0.1
"""Seconds between checks for cancellation."""


_RESET = struct.pack("hh" if sys.platform == "win32" else "ii", 1, 0)
"""Value of SO_LINGER with which closing resets the connection. A server that waits for room in full buffers would
otherwise notice the end only after a minute."""


class ServerFailed(Exception):
    """The server sent an error in the middle of its answer. The message is the server's."""


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One message of the server.

    Attributes:
        tokens: text and log-probability of each token; None if the server gives none or an invalid one.
        count: number of tokens in the text. Only log-probabilities show it; without them it is 1.
        finish: the reason for the end, in the message that ends the answer.
        usage: prompt tokens, cached prompt tokens and tokens of the answer, in the last message of a server that counts
            them. None if the server gives invalid numbers.
    """

    tokens: tuple[tuple[str, float | None], ...]
    count: int
    finish: Finish | None
    usage: tuple[int, int, int] | None

    @classmethod
    def of(cls, event: dict[str, Any]) -> ServerEvent:
        """Reads a message. A field may be missing or null. ValueError, TypeError, KeyError, AttributeError or
        OverflowError if `event` does not have a message's form."""
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
        """Takes what sends the question and returns an `httpx.Response` with an unread body, and what raises an error
        if the response is not an answer."""
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
        """The messages as they arrive, until the stream ends, or soon after `cancel` is set. Errors of the reading
        thread are raised."""
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
