"""`ServerEvent` from the messages of servers that do not keep to anything, and `EventReader` over endless ones."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from edge.runtimes.generation.openai_http import EventReader, ServerEvent


class Response:
    """One whose body comes in these parts."""

    def __init__(self, parts: Iterable[bytes]) -> None:
        self.headers: dict[str, str] = {}
        self.extensions: dict[str, Any] = {}
        self._parts = parts

    def iter_raw(self) -> Iterator[bytes]:
        yield from self._parts


def read(parts: Iterable[bytes]) -> list[ServerEvent]:
    with EventReader(lambda: nullcontext(Response(parts)), lambda _: None) as reader:
        return list(reader.events(threading.Event()))


def said(text: str, *logprobs: tuple[str, Any]) -> ServerEvent:
    """The event of a text, whose tokens and log-probabilities are given."""
    content = [{"token": token, "logprob": logprob} for token, logprob in logprobs]
    message = {"choices": [{"delta": {"content": text}, "logprobs": {"content": content}}]}
    return ServerEvent.of(json.loads(json.dumps(message)))


@pytest.mark.parametrize(
    ("given", "known"),
    [
        (-0.5, -0.5),
        (-9999, -9999.0),  # the number that vLLM sends in place of minus infinity
        (0.004, 0.0),
        (1000.0, None),
        (0.5, None),
        (float("nan"), None),
        (float("inf"), None),
        (float("-inf"), None),
        (10**400, None),
        ("-0.5", None),
        (None, None),
    ],
)
def test_what_is_no_log_probability_is_unknown(given: Any, known: float | None) -> None:
    """`math.exp` of each that is known is a probability."""
    assert said("Yes", ("Yes", given)).tokens == (("Yes", known),)


@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        ('{"prompt_tokens": 5, "completion_tokens": 2}', (5, 0, 2)),
        ('{"prompt_tokens": 5.0, "completion_tokens": 0}', (5, 0, 0)),
        ('{"prompt_tokens": -7, "completion_tokens": 2}', None),
        ('{"prompt_tokens": 5, "completion_tokens": -5}', None),
        ('{"prompt_tokens": 1e999, "completion_tokens": 2}', None),
        ('{"prompt_tokens": 5, "completion_tokens": NaN}', None),
        ('{"prompt_tokens": 5, "completion_tokens": 1' + "0" * 400 + "}", None),
        ('{"prompt_tokens": "5", "completion_tokens": 2}', None),
        ('{"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": -3}}', (5, 0, 2)),
        ('{"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 9}}', (5, 5, 2)),
    ],
)
def test_only_counts_are_counted(usage: str, counted: tuple[int, int, int] | None) -> None:
    assert ServerEvent.of(json.loads(f'{{"choices": [], "usage": {usage}}}')).usage == counted


def test_tokens_are_counted_by_their_log_probabilities() -> None:
    assert said("").count == 0
    assert said("all of it").count == 1
    assert said("abc", ("a", -1), ("bc", -1)).count == 2
    emoji = said("\U0001f642", ("\ufffd", -1), ("\ufffd", -1), ("\ufffd", -1))
    assert (len(emoji.tokens), emoji.count) == (1, 3)
    assert said("", ("\ufffd", -1)).count == 0, "a thought, or a part of a character: a limit of text is not its"


EMPTY = b'data: {"choices": [{"delta": {"content": ""}}], "pad": "%b"}\n' % (b"x" * 250_000)
TOKEN = b'data: {"choices": [{"delta": {"content": "a"}}]}\n'


@pytest.mark.parametrize(
    ("part", "taken"),
    [
        (b": still here" + b"." * 250_000 + b"\n", 68),
        (EMPTY, 68),
        (b": ping\n\n" * 8192, 5),
        (b"\n" * 50_000, 2),
    ],
)
def test_what_holds_no_token_is_not_read_for_ever(part: bytes, taken: int) -> None:
    """Comments, empty lines, messages without text; long ones, and many."""
    lines, nbytes = taken * part.count(b"\n"), taken * len(part)
    with pytest.raises(ValueError, match=f"no token in {lines:,} lines and {nbytes:,} bytes"):
        read([part] * 100)


def test_signs_of_life_between_tokens_are_no_end() -> None:
    assert len(read([*[EMPTY] * 50, TOKEN] * 2)) == 102


def test_a_server_whose_answer_nobody_wants_hears_of_it_at_once() -> None:
    """Not when its next bytes are refused: where buffers are full, it waits for room and sends none."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as client,
        listening.accept()[0] as server,
    ):
        response = Response([TOKEN])
        response.extensions["network_stream"] = SimpleNamespace(get_extra_info=lambda _: client)
        with EventReader(lambda: nullcontext(response), lambda _: None) as reader:
            assert len(list(reader.events(threading.Event()))) == 1
        client.close()
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            server.send(b"more")
