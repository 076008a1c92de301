"""A server that runs, sampled from outside, and the ways in which clients of a siege misbehave."""

from __future__ import annotations

import json
import random
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from http.client import HTTPConnection
from pathlib import Path

from campaign.program import EDGE, Home
from campaign.sampler import Sampler

WORDS = ("river", "flood", "water", "bridge", "stone", "letter", "answer", "study")


class Running:
    """A server that runs, sampled from outside."""

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


def post(port: int, path: str, body: bytes, timeout: float = 120) -> tuple[int, bytes]:
    """The status and the body of an answer."""
    connection = HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


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
