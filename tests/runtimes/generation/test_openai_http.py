"""`OpenAIGenerator` against a server in this process."""

from __future__ import annotations

import gzip
import json
import socket
import struct
import threading
import time
import tracemalloc
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest
from naive.waiting import PATIENCE_S

from edge.errors import ConfigError, InputError, ModelError
from edge.runtimes.generation.base import Document, Message, Sampling
from edge.runtimes.generation.openai_http import EventReader, OpenAIGenerator, ServerEvent

pytest.importorskip("httpx")

QUESTION = [Message("system", "Be brief."), Message("user", "why?")]


class Server(ThreadingHTTPServer):
    """Answers every request with the same lines, and keeps the requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.status = 200
        self.lines: Sequence[str | bytes] = ()
        self.sent_headers: dict[str, str] = {}
        self.asked: list[dict[str, Any]] = []
        self.headers: dict[str, str] = {}
        self.silence: threading.Event | None = None
        self.resets = False
        self.left = threading.Event()
        """Set when nobody was there any more to read the answer."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def answer(self, *texts: str, reason: str = "stop") -> None:
        events: list[Any] = [{"choices": [{"delta": {"content": text}, "finish_reason": None}]} for text in texts]
        events.append({"choices": [{"delta": {}, "finish_reason": reason}]})
        self.lines = [*(f"data: {json.dumps(event)}" for event in events), "data: [DONE]"]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append({"path": self.path, **json.loads(body)})
        self.server.headers = dict(self.headers)
        if self.server.silence is not None and not self.server.lines:
            self.server.silence.wait(PATIENCE_S)
        self.send_response(self.server.status)
        for name, value in self.server.sent_headers.items():
            self.send_header(name, value)
        self.end_headers()
        try:
            for line in self.server.lines:
                self.wfile.write((line.encode() if isinstance(line, str) else line) + b"\n\n")
        except OSError:
            self.server.left.set()
        if self.server.resets:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            socket.close(self.connection.detach())
        if self.server.silence is not None:
            self.wfile.flush()
            self.server.silence.wait(PATIENCE_S)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def generator(server: Server) -> Iterator[OpenAIGenerator]:
    generator = OpenAIGenerator(server.url, key="secret")
    yield generator
    generator.close()


def test_streams_and_counts(server: Server, generator: OpenAIGenerator) -> None:
    server.answer("Be", "cau", "se.")
    sampling = Sampling(temperature=0.5, top_p=0.9, seed=3, max_tokens=7)
    pieces = list(generator.stream(QUESTION, sampling))
    assert [piece.text for piece in pieces] == ["Be", "cau", "se."]
    asked = server.asked[0]
    assert asked["path"] == "/v1/chat/completions"
    assert asked["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "why?"}]
    settings = {"temperature": 0.5, "top_p": 0.9, "seed": 3, "max_tokens": 7, "stream": True}
    assert settings.items() <= asked.items()
    assert "model" not in asked
    assert server.headers["Authorization"] == "Bearer secret"
    stats = generator.stats
    assert (stats.new_tokens, stats.finish) == (3, "stop")
    assert stats.prompt_tokens == generator.count("Be brief.") + generator.count("why?")


def test_numbers_of_the_server_count(server: Server, generator: OpenAIGenerator) -> None:
    usage = {"prompt_tokens": 40, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 30}}
    token = {"token": "Yes", "logprob": -0.5}
    events: list[Any] = [
        {"choices": [{"delta": {"role": "assistant", "content": None}}]},
        {"choices": [{"delta": {"content": "Yes"}, "logprobs": {"content": [token]}}]},
        {"choices": [{"delta": {"content": "YesYes"}, "logprobs": {"content": [token, token]}}]},
        {"choices": [{"delta": {}, "finish_reason": "length"}]},
        {"choices": [], "usage": usage},
    ]
    server.lines = [": a comment", *(f"data: {json.dumps(event)}" for event in events), "data: [DONE]"]
    pieces = list(generator.stream(QUESTION, Sampling()))
    assert [(piece.text, piece.logprob) for piece in pieces] == [("Yes", -0.5)] * 3
    stats = generator.stats
    assert (stats.prompt_tokens, stats.cached_tokens, stats.new_tokens, stats.finish) == (40, 30, 2, "length")


def test_documents_follow_the_system_message_as_far_as_the_context_holds_them(
    server: Server, generator: OpenAIGenerator
) -> None:
    server.answer("ok")
    documents = [Document("a", "First.", title="a.txt"), Document("b", "Second.")]
    list(generator.stream(QUESTION, Sampling(), documents=documents))
    assert server.asked[0]["messages"][0]["content"] == "Be brief.\n\n[1] a.txt\nFirst.\n\n[2] Second."
    list(generator.stream(QUESTION[1:], Sampling(), documents=documents[1:]))
    assert server.asked[1]["messages"] == [{"role": "user", "content": "[1] Second.\n\nwhy?"}]
    with_room = OpenAIGenerator(server.url, context=400)
    documents = [Document(str(number), "word " * 150) for number in range(4)]
    list(with_room.stream(QUESTION, Sampling(), documents=documents))
    assert with_room.stats.dropped_documents == 3
    with pytest.raises(InputError, match=r"about 458 tokens and the context of .* holds 400"):
        list(with_room.stream([Message("user", "why " * 400)], Sampling()))
    assert len(server.asked) == 3
    with_room.close()


@pytest.mark.parametrize(
    ("status", "lines", "message"),
    [
        (404, ['{"error": {"message": "no such\\nmodel"}}'], "answers 404: no such model"),
        (500, [], "answers 500: no reason given"),
        (503, ["<html>busy</html>"], "answers 503: <html>busy</html>"),
        (200, ['data: {"choices": [{"delta": {"content": "a"}}]}'], "broke off before the answer's end"),
        (200, ['data: {"error": {"message": "out of memory"}}'], "failed while it answered: out of memory"),
        (200, ["data: no json"], "does not answer as an OpenAI-compatible server"),
        (200, ["data: []"], "does not answer as an OpenAI-compatible server"),
        (200, ['data: {"choices": [3]}'], "does not answer as an OpenAI-compatible server"),
        (200, ['data: {"choices": [{"delta": {"content": 5}, "logprobs": {"content": [7]}}]}'], "does not answer as"),
        (200, ["hello"], "does not stream: it answers with something of no type"),
        (200, ["data: " + "x" * (2 << 20)], "a message of more than"),
        (200, [b"data: \xff\xfe"], "does not answer as"),
        (200, ["data: " + "[" * 100_000], "does not answer as an OpenAI-compatible server does: maximum recursion"),
        (
            200,
            ['data: {"choices": [{"logprobs": {"content": [{"token": "", "logprob": -1%s}]}}]}' % ("0" * 400)],
            "does not answer as",
        ),
        (500, ["[" * 60_000], r"answers 500: \[\[\["),
        (404, ["<b>\x1b[31mno\x07 \x9b2J</b>"], r"answers 404: <b> \[31mno 2J</b>$"),
        (404, [r'{"error": "\u001b]0;no\u0007 \ud83d"}'], "answers 404: ]0;no \ufffd$"),
        (200, [r'data: {"error": {"message": "on\u001b[5m fire"}}'], r"failed while it answered: on \[5m fire$"),
    ],
)
def test_what_servers_do_wrong(
    server: Server, generator: OpenAIGenerator, status: int, lines: list[str | bytes], message: str
) -> None:
    server.status, server.lines = status, lines
    with pytest.raises(ModelError, match=message):
        list(generator.stream(QUESTION, Sampling()))
    assert generator.stats.finish == "cancelled"


def said(server: Server, generator: OpenAIGenerator, *lines: str | bytes) -> str:
    server.lines = lines
    return "".join(piece.text for piece in generator.stream(QUESTION, Sampling()))


START = 'data: {"choices": [{"delta": {"content": "fine"}}]}'
END = 'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}'


@pytest.mark.parametrize(
    "lines",
    [
        (START, END),  # nothing after the reason
        (START, "data: [DONE]"),  # no reason
        (START, END, 'data: {"usage": {"prompt_tokens": 3, "completion_tokens": 1}}', "data: [DONE]"),
        (START, END, 'data: {"choices": null, "usage": {"prompt_tokens": 3, "completion_tokens": null}}'),
        ('data: {"choices": [{"delta": null}]}', START, END),
        ('data: {"error": null, "choices": [{"delta": {"content": "fine"}}]}', END),
        ('data: {"choices": [{"delta": {"content": "fine"}, "logprobs": {"content": [{"token": "fine"}]}}]}', END),
        (START, END.replace("data: ", "data:")),
    ],
)
def test_what_servers_leave_out(server: Server, generator: OpenAIGenerator, lines: tuple[str, ...]) -> None:
    assert said(server, generator, *lines) == "fine"
    assert generator.stats.finish == "stop"


def test_characters_that_end_lines_elsewhere_are_text(server: Server, generator: OpenAIGenerator) -> None:
    """But those that end lines on a terminal steer it. Half a character can be written."""
    text = "one\u2028two\u0085three\x1b[2J"
    event = json.dumps({"choices": [{"delta": {"content": text}}]}, ensure_ascii=False)
    assert said(server, generator, f"data: {event}", END) == "one\u2028twothree[2J"
    assert said(server, generator, START.replace("fine", r"a\ud83d"), END) == "a\ufffd"
    server.sent_headers = {"Content-Encoding": "Identity"}
    assert said(server, generator, START, END) == "fine", "also where a server says that it did as asked"


@pytest.mark.parametrize("begun", [False, True])
def test_cancelled_while_the_server_is_silent(server: Server, generator: OpenAIGenerator, begun: bool) -> None:
    """Before its answer begins, and in the middle."""
    server.lines = [START] * begun
    server.silence = threading.Event()
    cancel = threading.Event()
    threading.Timer(0.2, cancel.set).start()
    started = time.perf_counter()
    pieces = list(generator.stream(QUESTION, Sampling(), cancel=cancel))
    assert time.perf_counter() - started < PATIENCE_S / 2, "the server stays silent for longer"
    assert [piece.text for piece in pieces] == ["fine"] * begun
    assert generator.stats.finish == "cancelled"
    server.silence.set()


def test_a_server_that_writes_on_is_cut(server: Server, generator: OpenAIGenerator) -> None:
    """At the length that it was asked for; it notices."""
    event = {"choices": [{"delta": {"content": "on "}}], "pad": "x" * 10_000}
    server.lines = [f"data: {json.dumps(event)}"] * 2000  # more than the buffers between the two hold
    pieces = list(generator.stream(QUESTION, Sampling(max_tokens=3)))
    assert [piece.text for piece in pieces] == ["on "] * 3
    assert (generator.stats.new_tokens, generator.stats.finish) == (3, "length")
    assert server.left.wait(PATIENCE_S)
    server.lines = [START, START, END, 'data: {"usage": {"prompt_tokens": 3, "completion_tokens": 2}}', "data: [DONE]"]
    assert len(list(generator.stream(QUESTION, Sampling(max_tokens=2)))) == 2
    assert (generator.stats.prompt_tokens, generator.stats.finish) == (3, "stop"), "counts that follow are read"


def test_tokens_of_one_event_are_cut(server: Server, generator: OpenAIGenerator) -> None:
    """Even if the server's own count differs."""
    content = [{"token": token, "logprob": -0.5} for token in "abcde"]
    event = {"choices": [{"delta": {"content": "abcde"}, "logprobs": {"content": content}, "finish_reason": "stop"}]}
    usage = {"prompt_tokens": 9, "completion_tokens": 0}
    server.lines = [f"data: {json.dumps({**event, 'usage': usage})}"] * 4
    for longest, text in [(3, "abc"), (5, "abcde"), (12, "abcdeabcdeab")]:
        assert "".join(p.text for p in generator.stream(QUESTION, Sampling(max_tokens=longest))) == text
        assert generator.stats.finish == "length"
    assert "".join(p.text for p in generator.stream(QUESTION, Sampling(max_tokens=7, stop=("b",)))) == "a"
    assert generator.stats.finish == "stop"
    emoji = {"delta": {"content": "\U0001f642"}, "logprobs": {"content": [{"token": "\ufffd", "logprob": -0.5}] * 4}}
    server.lines = [f"data: {json.dumps({'choices': [emoji]})}", f"data: {json.dumps(event)}"]
    pieces = list(generator.stream(QUESTION, Sampling(max_tokens=3)))
    assert [piece.text for piece in pieces] == ["\U0001f642"], "a character is given whole, and its tokens count"


BOMB = gzip.compress(b"data: " + bytes(1 << 24))


@pytest.mark.parametrize(
    ("status", "lines", "encoding", "message"),
    [
        (200, [BOMB], "gzip\x1b[2J", r"answers 200 compressed \(gzip \[2J\), though asked not to be"),
        (500, [BOMB], "gzip", r"answers 500 compressed \(gzip\), though asked not to be"),
        (500, [b"x" * (1 << 20)] * 64, "identity", "answers 500: xxx"),
    ],
)
def test_no_more_is_read_than_needed(
    server: Server, generator: OpenAIGenerator, status: int, lines: list[bytes], encoding: str, message: str
) -> None:
    """Of a reason without end, and of few bytes that may be gigabytes; it was asked for others."""
    server.status, server.lines, server.sent_headers = status, lines, {"Content-Encoding": encoding}
    tracemalloc.start()
    with pytest.raises(ModelError, match=message):
        list(generator.stream(QUESTION, Sampling()))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < (2 << 20 if "gzip" in encoding else 8 << 20)
    assert server.headers["Accept-Encoding"] == "identity"


@pytest.mark.parametrize("lines", [[], [START]])
def test_a_connection_that_breaks_was_one(server: Server, generator: OpenAIGenerator, lines: list[str]) -> None:
    """A message that the server cannot be reached would send its reader to the wrong place."""
    server.lines, server.resets = lines, True
    with pytest.raises(ModelError, match="broke off before the answer's end"):
        list(generator.stream(QUESTION, Sampling()))
    server.resets, server.lines, server.sent_headers = False, ["hello"], {"Content-Type": "text/\x1b[5mhtml; charset=a"}
    with pytest.raises(ModelError, match=r"it answers with text/ \[5mhtml, and"):
        list(generator.stream(QUESTION, Sampling()))
    with pytest.raises(ModelError, match="cannot be reached"):  # at the discard port nobody listens
        list(OpenAIGenerator("http://127.0.0.1:9/v1").stream(QUESTION, Sampling()))


def test_only_this_machine_unless_allowed() -> None:
    for url in ("http://example.com/v1", "http://192.168.1.5:8080/v1", "http://localhost.example.com/v1"):
        with pytest.raises(ConfigError, match="not this machine"):
            OpenAIGenerator(url)
    for url in ("http://localhost:1/v1", "http://127.0.0.2/v1", "http://[::1]:8080"):
        OpenAIGenerator(url).close()
    OpenAIGenerator("https://example.com/v1", remote=True).close()
    for url in ("", "127.0.0.1:8080", "ftp://127.0.0.1", "http://", "http://127.0.0.1:port/v1"):
        with pytest.raises(ConfigError, match="no address of a server"):
            OpenAIGenerator(url)


@pytest.mark.parametrize("choices", [None, [], {}, 0, "", "absent"])
def test_a_server_that_gives_no_choice_has_not_answered(
    server: Server, generator: OpenAIGenerator, choices: object
) -> None:
    event = {"id": "1", "usage": {"prompt_tokens": 1, "completion_tokens": 0}}
    event |= {} if choices == "absent" else {"choices": choices}
    server.lines = [f"data: {json.dumps(event)}", "data: [DONE]"]
    with pytest.raises(ModelError, match="does not answer as an OpenAI-compatible server does: no choices"):
        list(generator.stream(QUESTION, Sampling()))
    server.lines = ['data: {"choices": [{"delta": null, "finish_reason": "stop"}]}', "data: [DONE]"]
    assert list(generator.stream(QUESTION, Sampling())) == []


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


def event_of(text: str, *logprobs: tuple[str, Any]) -> ServerEvent:
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
    assert event_of("Yes", ("Yes", given)).tokens == (("Yes", known),)


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
    assert event_of("").count == 0
    assert event_of("all of it").count == 1
    assert event_of("abc", ("a", -1), ("bc", -1)).count == 2
    emoji = event_of("\U0001f642", ("\ufffd", -1), ("\ufffd", -1), ("\ufffd", -1))
    assert (len(emoji.tokens), emoji.count) == (1, 3)
    assert event_of("", ("\ufffd", -1)).count == 0, "a thought, or a part of a character: a limit of text is not its"


EMPTY = b'data: {"choices": [{"delta": {"content": ""}}], "pad": "%b"}\n' % (b"x" * 250_000)
TOKEN = b'data: {"choices": [{"delta": {"content": "a"}}]}\n'


@pytest.mark.parametrize(
    ("part", "taken"),
    [(b": still here" + b"." * 250_000 + b"\n", 68), (EMPTY, 68), (b": ping\n\n" * 8192, 5), (b"\n" * 50_000, 2)],
)
def test_what_holds_no_token_is_not_read_for_ever(part: bytes, taken: int) -> None:
    """Comments, empty lines, messages without text; long ones, and many."""
    lines, nbytes = taken * part.count(b"\n"), taken * len(part)
    with pytest.raises(ValueError, match=f"no token in {lines:,} lines and {nbytes:,} bytes"):
        read([part] * 100)
    assert len(read([*[EMPTY] * 50, TOKEN] * 2)) == 102, "signs of life between tokens are no end"


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
