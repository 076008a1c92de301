"""Ctrl-C in `edge ask` while the user's server writes the answer."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from edge.apps.serve.connection import Lost, Refused
from edge.apps.verbs.requests import Ask
from edge.apps.verbs.verb import ASK, served
from tests.apps.serve.conftest import Running

pytest.importorskip("httpx")

BEGINNING = "The river floods every spring [1]"
ENDLESS = "!"


class Writer(ThreadingHTTPServer):
    """A language model's server that writes until nobody reads any more. `asked`: an answer is being written; `left`:
    the reader of an answer has gone; `last`: the last request."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Writing)
        self.asked = threading.Event()
        self.left = threading.Event()
        self.closing = threading.Event()
        self.last: dict[str, Any] = {}


class Writing(BaseHTTPRequestHandler):
    server: Writer

    def do_POST(self) -> None:
        self.server.last = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()
        text = BEGINNING
        try:
            while not self.server.closing.wait(0.01):
                event = {"choices": [{"delta": {"content": text}, "finish_reason": None}]}
                self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
                self.server.asked.set()
                text = ENDLESS
        except OSError:
            self.server.left.set()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def writer() -> Iterator[Writer]:
    with Writer() as writer:
        thread = threading.Thread(target=writer.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield writer
        writer.closing.set()
        writer.shutdown()
        thread.join()


def interrupted(running: Running, *arguments: str) -> tuple[int, str, str]:
    """Runs `edge ask` and interrupts it when it has printed the beginning. Returns code, stdout and stderr, without
    the endless part of the text, whose length depends on the time."""
    run = subprocess.Popen(
        [sys.executable, "-u", "-c", "from edge.apps.cli import main; main()", "ask", "when does the river flood",
         "-c", str(running.folder / "collection"), "--no-check", "--min-score", "0", "--max-tokens", "100000",
         *arguments],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=running.environment,
        cwd=running.folder,
    )  # fmt: skip
    assert run.stdout is not None
    begun = run.stdout.read(len(BEGINNING))
    run.send_signal(signal.SIGINT)
    out, err = run.communicate(timeout=120)
    return run.returncode, (begun + out).decode().replace(ENDLESS, ""), err.decode()


@pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="the owner's socket, as Linux checks it")
def test_ctrl_c_prints_what_it_prints_without_a_server_and_ends_the_writing(
    start_server: Callable[..., Running], tmp_path: Path, writer: Writer
) -> None:
    address = f"http://127.0.0.1:{writer.server_address[1]}/v1"
    running = start_server(runtime=tmp_path / "run", EDGE_LLM=address)
    alone = interrupted(running, "--no-server")
    assert writer.left.wait(60)
    writer.left.clear()
    served = interrupted(running)
    assert writer.left.wait(60), "the server goes on reading what nobody wants"
    assert served == alone
    code, out, err = served
    assert code == 130
    assert err.count("\n") <= 1, "at most the warning of an uncertain answer"
    assert out.startswith(BEGINNING)
    assert re.search(r"\n\n\[1\] \S+\.md:\d+", out), "the sources of what was written"
    writer.left.clear()
    code, _, err = interrupted(running, "--stats")
    assert (code, f"server   used: process {running.pid}\n" in err) == (130, True)
    assert writer.left.wait(60)
    with running.client() as client:
        client.get("/health").raise_for_status()


class FakeConnection:
    """Answers with given events, and says of the end of an answer what it is told to say."""

    def __init__(self, ends: Any, *events: tuple[str, Any]) -> None:
        self.ends = ends
        self.names: list[Any] = []
        self._events = events

    def events(self, path: str, content: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        self.names.append(content["name"])
        yield from self._events

    def ask(self, path: str, content: dict[str, Any], seconds: float | None = None) -> dict[str, Any]:
        assert seconds is not None, "a person waits"
        self.names.append(content["name"])
        if isinstance(self.ends, Exception):
            raise self.ends
        return {"ended": self.ends}


TEXT = ("text", {"text": "It"})


class Interrupting:
    """A listener that presses Ctrl-C at the first piece, or before it."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def troubles(self, sentences: list[str]) -> None: ...

    def text(self, piece: str) -> None:
        self.heard.append(piece)
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(
    ("ends", "begun", "goes_on"),
    [
        (True, False, True),
        (True, True, True),
        (False, True, True),  # the answer has just ended, and its last part is on its way
        (False, False, False),
        (Lost("the server ended"), True, False),
        (Refused(429, "others hold the memory"), True, False),
    ],
    ids=str,
)
def test_a_command_waits_for_the_rest_only_if_it_comes(ends: Any, begun: bool, goes_on: bool) -> None:
    class Early(FakeConnection):
        def events(self, path: str, content: dict[str, Any]) -> Iterator[tuple[str, Any]]:
            if not begun:
                signal.raise_signal(signal.SIGINT)
            return super().events(path, content)

    events = [TEXT] if begun else []
    connection, listener = Early(ends, *events, ("answer", {"found": True})), Interrupting()
    asked: Any = connection
    if goes_on:
        assert served(asked, ASK, Ask(question="q"), listener)["found"]
        assert listener.heard == (["It"] if begun else [])
    else:
        with pytest.raises(KeyboardInterrupt):
            served(asked, ASK, Ask(question="q"), listener)
    assert len(set(connection.names)) == 1
