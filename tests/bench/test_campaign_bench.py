"""`campaign`: what it counts at a naive server, and a short run with tiny models and a kill."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner
from naive.program import settings_of

from bench.campaign import _QUESTIONS, Client, Tally, campaign, missing


class _Naive(BaseHTTPRequestHandler):
    """Answers chats with the next text of a list, where a number is a refusal and None a broken connection."""

    replies: Iterator[str | int | None] = iter(())
    ends = threading.Event()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        reply = next(_Naive.replies, None)
        if reply is None:
            _Naive.ends.set()
        if reply in (None, 0):
            self.connection.close()
            return
        self._put(reply if isinstance(reply, int) else 200, {"choices": [{"message": {"content": reply}}]})

    def do_GET(self) -> None:
        self._put(200, {"results": [{"memory": "a"}]})

    def _put(self, status: int, found: object) -> None:
        data = json.dumps(found).encode()
        self.send_response(status)
        if status == 503:
            self.send_header("Retry-After", "2")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *values: object) -> None:
        """Says nothing."""


@pytest.fixture
def port() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Naive) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def test_every_outcome_is_counted(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.campaign._KINDS", {"chat": 1})
    _Naive.ends.clear()
    _Naive.replies = iter(["right", "right", "wrong", 503, 429, 500, 0, "right"])
    tally = Tally()
    Client(port, tally, ["right"] * _QUESTIONS, 3, _Naive.ends).run(1)
    assert tally.outcomes == {"answered": 3, "other": 1, "refused": 1, "untimed": 1, "lost": 2, "cut": 1}


def test_acknowledged_memories_that_are_not_there_are_missing(port: int) -> None:
    tally = Tally()
    for text in "ab":
        tally.count("answered", "ann", text)
    assert missing(port, tally.kept) == 1


def test_a_short_campaign_loses_nothing(tmp_path: Path, tiny_models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("starlette", "uvicorn", "llama_cpp"):
        pytest.importorskip(library)
    (tmp_path / "models").symlink_to(tiny_models)
    for name, value in settings_of(tmp_path, EDGE_THREADS="1").items():
        monkeypatch.setenv(name, value)
    options = ["--clients", "8", "--seconds", "6", "--kills", "1", "--threads", "1", "--memory", "1GB"]
    ended = CliRunner().invoke(campaign, [*options, "--work-dir", str(tmp_path / "work"), "--json"])
    assert ended.exit_code == 0, ended.output
    found = json.loads(ended.stdout)
    assert found["answered"] > 0
    assert found["different"] > _QUESTIONS // 2, "the expected texts differ, so a swapped one would be noticed"
    assert (found["other"], found["lost"], found["untimed"], found["missing"]) == (0, 0, 0, 0)
    assert found["cut"] <= 8
    assert found["peak"] <= found["conditions"]["limit"]
