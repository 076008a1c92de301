"""The server under clients of which half misbehave: it keeps its limit, loses nothing, and serves the others."""

from __future__ import annotations

import contextlib
import json
import random
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from campaign.base import HELD, Attack, Case, Outcome, failed
from campaign.program import EDGE, Home
from campaign.sampler import Sampler

WORDS = ("river", "flood", "water", "bridge", "stone", "letter", "answer", "study")
_START_S = 60.0
_TOLD = (200, 413, 422, 429)
"""What a well-behaved client may be told: its answer, or that memory is short."""


class Server(Attack):
    name = "server"
    promise = "with half of the clients misbehaving a server keeps its limit, loses no write and serves the others"
    quick = 2

    def prepare(self, place: Path) -> None:
        import pytest

        for name in ("starlette", "uvicorn"):
            pytest.importorskip(name)
        self.home = Home(place / "home").with_tiny_models()
        documents = self.home.work / "documents"
        documents.mkdir()
        for number in range(12):
            text = " ".join(random.Random(number).choices(WORDS, k=120))
            (documents / f"{number}.md").write_text(f"# Part {number}\n\n{text}.\n", encoding="utf-8")
        made = self.home.edge("index", "documents", "-c", "col")
        assert made.code == 0, made

    def cases(self, chance: random.Random) -> Iterator[Case]:
        while True:
            clients, seconds = chance.choice((6, 12, 24)), chance.choice((4.0, 8.0))
            share = 0.0 if chance.random() < 0.5 else chance.random()
            yield Case(
                f"{clients} clients for {seconds:.0f} s, {share:.2f} of the way from the smallest limit to 1 GB",
                (clients, seconds, share, chance.randrange(2**31)),
            )

    def attempt(self, case: Case, place: Path) -> Outcome:
        clients, seconds, share, seed = case.data
        refused = self.home.edge("serve", "--port", "0", "-c", "col", "--memory", "20MB")
        if (smallest := refused.named) is None:
            return failed(f"20MB is not refused with a number: {refused}")
        limit = int(smallest + share * (10**9 - smallest))
        memory = place / f"memory-{seed}"
        with Running(self.home, limit, memory) as running:
            if running.port == 0:
                return failed(f"the server did not start: {running.said}")
            attack = Clients(running.port, clients, seconds, seed)
            attack.run()
            kept = _kept(running.port, attack.written)
            code, errors = running.end()
        if attack.problems:
            return failed(attack.problems[0])
        if running.peak > limit:
            return failed(f"took {running.peak:,} bytes of {limit:,}: {running.peak / limit:.3f} times the limit")
        if kept is not None:
            return failed(kept)
        if code != 0 or errors.strip():
            return failed(f"ended with {code} and said {errors[-300:]!r}")
        return HELD.at(running.peak, limit)


class Running:
    """A server that runs, sampled from outside.

    Args:
        port: 0 chooses a free one.
        options: further ones of `edge serve`.
    """

    def __init__(self, home: Home, limit: int, memory: Path, port: int = 0, options: Sequence[str] = ()) -> None:
        runtime = home.path / "run"
        runtime.mkdir(mode=0o700, exist_ok=True)
        self.process = subprocess.Popen(
            [
                *EDGE, "serve", "--port", str(port), "-c", "col", "--memory", f"{limit}B", "--memory-path", str(memory),
                *options,
            ],
            cwd=home.work, env=home.environment(XDG_RUNTIME_DIR=str(runtime)), stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self.sampler = Sampler(self.process.pid)
        self.said = ""
        self.port = 0
        self.peak = 0

    def __enter__(self) -> Running:
        self.sampler.__enter__()
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"http://[\d.]+:(\d+)", line)
        if found is None:
            self.said = line + (self.process.stderr.read() if self.process.stderr else "")
        else:
            self.port = int(found[1])
        return self

    def end(self) -> tuple[int, str]:
        """Ends it as Ctrl-C does; its exit code and its output on stderr."""
        self.process.send_signal(signal.SIGINT)
        try:
            _, errors = self.process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return -9, "it did not end after Ctrl-C"
        return self.process.returncode, errors

    def __exit__(self, *error: object) -> None:
        self.sampler.__exit__(None, None, None)
        self.peak = self.sampler.peak
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


class Clients:
    """Clients in threads, every other one of which misbehaves.

    Attributes:
        problems: faults that no well-behaved client may meet.
        written: texts that the server said it has remembered.
        seconds: of each request of a well-behaved client that was served.
    """

    def __init__(self, port: int, clients: int, seconds: float, seed: int) -> None:
        self.port = port
        self.problems: list[str] = []
        self.written: list[str] = []
        self.seconds: list[float] = []
        self._end = time.monotonic() + seconds
        self._threads = [
            threading.Thread(target=self._work, args=(random.Random(f"{seed}:{number}"), number % 2 == 1))
            for number in range(clients)
        ]

    def run(self) -> None:
        """Until the time is over and every client has ended."""
        for thread in self._threads:
            thread.start()
        for thread in self._threads:
            thread.join(180)
            if thread.is_alive():
                self.problems.append("a client has waited three minutes for its answer")
                return

    def _work(self, chance: random.Random, misbehaving: bool) -> None:
        while time.monotonic() < self._end and not self.problems:
            if misbehaving:
                with contextlib.suppress(OSError, HTTPException):  # it was thrown out
                    chance.choice(MISCHIEF)(self.port, chance)
            else:
                self._behave(chance)

    def _behave(self, chance: random.Random) -> None:
        words = " ".join(chance.choices(WORDS, k=4))
        texts = [" ".join(chance.choices(WORDS, k=chance.randint(5, 200))) for _ in range(chance.randint(1, 30))]
        remembered = f"{words} {chance.random()}"
        path, body = chance.choice([
            ("/v1/rerank", {"query": words, "documents": texts}),
            ("/v1/search", {"query": words, "top_k": 3}),
            ("/v1/embeddings", {"input": texts}),
            ("/v1/ask", {"question": f"where is the {words}?", "llm": "extractive"}),
            ("/memories", {"messages": remembered, "user_id": "campaign"}),
        ])  # fmt: skip
        started = time.monotonic()
        try:
            status, answer = post(self.port, path, json.dumps(body).encode())
        except (OSError, HTTPException) as error:
            self.problems.append(f"{path} was not answered: {type(error).__name__} {error}")
            return
        if status not in _TOLD:
            self.problems.append(f"{path} was answered {status}: {answer[:200]!r}")
        elif status == 200:
            self.seconds.append(time.monotonic() - started)
            if path == "/memories":
                self.written.append(remembered)


def post(port: int, path: str, body: bytes, timeout: float = 120) -> tuple[int, bytes]:
    """The status and the body of an answer."""
    connection = HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def _kept(port: int, written: list[str]) -> str | None:
    """The missing ones of the texts that the server said it has remembered."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", f"/memories?user_id=campaign&limit={len(written) + 10}")
        answer = connection.getresponse()
        found: dict[str, Any] = json.loads(answer.read())
    finally:
        connection.close()
    if answer.status == 422 and not written:
        return None
    if answer.status != 200:
        return f"the memories cannot be listed: {answer.status} {found}"
    known = {memory["memory"] for memory in found["results"]}
    lost = [text for text in written if text not in known]
    return f"{len(lost)} of {len(written)} remembered texts are lost, such as {lost[0]!r}" if lost else None


def _connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=10)


_HEAD = b"POST /v1/rerank HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"


def _slow(port: int, chance: random.Random) -> None:
    with _connected(port) as raw:
        for byte in b"POST /v1/rerank HTTP/1.1\r\nHost: localhost\r\n":
            raw.sendall(bytes([byte]))
            time.sleep(0.02 * chance.random())


def _vanishing(port: int, chance: random.Random) -> None:
    body = json.dumps({"query": "river", "documents": [" ".join(WORDS * 20)] * 200}).encode()
    with _connected(port) as raw:
        raw.sendall(_HEAD % len(body) + body[: chance.randrange(1, len(body) + 1)])
        time.sleep(0.1 * chance.random())


def _oversize(port: int, chance: random.Random) -> None:
    with _connected(port) as raw:
        raw.sendall(_HEAD % (1 << 40))
        for _ in range(chance.randint(1, 400)):
            raw.sendall(b"x" * 65536)


def _chunked(port: int, chance: random.Random) -> None:
    with _connected(port) as raw:
        raw.sendall(b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        piece = b'["' + b"a" * 65000 + b'",'
        for _ in range(chance.randint(1, 300)):
            raw.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))


def _malformed(port: int, chance: random.Random) -> None:
    body = chance.choice((b"{", b"[" * 50_000, b"\xff\xfe", b'{"query": 3}', b'{"input": [[1]]}', b"null"))
    path = chance.choice(("/v1/rerank", "/v1/search", "/v1/embeddings", "/memories", "/v1/chat/completions", "/mcp"))
    post(port, path, body)


def _noise(port: int, chance: random.Random) -> None:
    with _connected(port) as raw:
        raw.sendall(chance.randbytes(chance.randint(1, 5000)))
        raw.recv(1000)


def _many_marks(port: int, chance: random.Random) -> None:
    post(
        port, "/v1/rerank", b'{"query": "x", "documents": [' + b",".join([b"{}"] * chance.randint(1, 1_000_000)) + b"]}"
    )


def _deaf(port: int, chance: random.Random) -> None:
    """Asks for much and reads nothing."""
    body = json.dumps({"input": ["river"] * 2000, "encoding_format": "float"}).encode()
    with _connected(port) as raw:
        raw.sendall(b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        time.sleep(2 * chance.random())


def _stranger(port: int, chance: random.Random) -> None:
    with _connected(port) as raw:
        raw.sendall(
            b"POST /reset HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\nContent-Length: 0\r\n\r\n"
        )
        if b" 403 " not in raw.recv(200):
            raise AssertionError("a page of another site may reset the memory")


MISCHIEF: tuple[Callable[[int, random.Random], None], ...] = (
    _slow, _vanishing, _oversize, _chunked, _malformed, _noise, _many_marks, _deaf, _stranger,
)  # fmt: skip
