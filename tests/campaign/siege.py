"""A siege of one server: clients that ask for mixed work, clients that misbehave, and a kill in between."""

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
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from campaign.base import Attack, Case
from campaign.contents import words
from campaign.program import EDGE, Home, end
from campaign.sampler import Sampler

_CLIENTS = 6
_PATHS = ("/memories", "/v1/rerank", "/v1/embeddings", "/v1/search", "/v1/ask")
_ROOM = 50 * 10**6
"""Bytes beyond the smallest limit, with which a server that searches also remembers."""

_SHORT = (413, 429, 503)
"""A client may be refused with these, because memory is short or others wait at this moment."""


class Siege(Attack):
    name = "siege"
    promise = "a besieged server keeps its limit and every confirmed write, also when it is killed meanwhile"
    quick = 1
    needs = ("starlette", "uvicorn")

    def prepare(self, place: Path) -> None:
        self.home = Home(place / "home").with_tiny_models()
        (self.home.work / "texts").write_text("\n\n".join(words(random.Random(n), 20, 200) for n in range(400)))
        assert self.home.edge("index", "texts", "-c", "col").code == 0

    def cases(self, chance: random.Random) -> Iterator[Case]:
        while True:
            yield Case("little more than the smallest limit", (chance.uniform(8, 12), chance.getrandbits(32)))

    def attempt(self, case: Case, place: Path) -> str | None:
        seconds, seed = case.data
        self.problems: list[str] = []
        self.kept: dict[str, str] = {}
        serve = ("serve", "-c", "col", "--memory-path", str(place / f"memory-{seed}"), "--port")
        smallest = self.home.edge(*serve, "0", "--memory", "20MB").named
        if smallest is None:
            return "20MB is not refused with a number"
        limit, self.port = smallest + _ROOM, 0
        for number in range(2):
            with subprocess.Popen(
                [*EDGE, *serve, str(self.port), "--memory", f"{limit}B"], cwd=self.home.work,
                env=self.home.environment(XDG_RUNTIME_DIR=str(self.home.path)), stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, text=True, start_new_session=True,
            ) as process, Sampler(process.pid) as sampler:  # fmt: skip
                try:
                    self.port = int(re.search(r"http://[\d.]+:(\d+)", process.stdout.readline())[1])
                    self._missing()
                    for path in _PATHS:  # every model is open before memory is compared
                        self._ask(random.Random(number), path)
                    self._besiege(seconds / 2, seed + number, process if number == 0 else None)
                    if number:
                        self._missing()
                        process.send_signal(signal.SIGINT)
                        _, said = process.communicate(timeout=60)
                        if process.returncode or said.strip():
                            self.problems.append(f"ended with {process.returncode} and said {said[-300:]!r}")
                finally:
                    end(process)
            if sampler.peak > limit:
                self.problems.append(f"took {sampler.peak:,} bytes, {sampler.peak / limit:.3f} times the limit")
        if not self.kept:
            self.problems.append("nothing was remembered")
        return "; ".join(self.problems) or None

    def _besiege(self, seconds: float, seed: int, killed: subprocess.Popen[str] | None) -> None:
        """Half of the clients misbehave. A server to be killed is killed when the time is over, and the clients ask on
        until they notice."""
        done = threading.Event()

        def work(number: int) -> None:
            chance = random.Random(f"{seed}:{number}")
            while not done.is_set() and len(self.problems) < 100:
                with contextlib.suppress(OSError, HTTPException):
                    chance.choice(_MISCHIEF)(self.port, chance) if number % 2 else self._ask(chance)

        with ThreadPoolExecutor(_CLIENTS) as clients:
            working = [clients.submit(work, number) for number in range(_CLIENTS)]
            time.sleep(seconds)
            if killed is not None:
                killed.kill()
            done.set()
        for each in working:
            each.result()

    def _ask(self, chance: random.Random, path: str = "") -> None:
        text = f"{words(chance, 4, 6)} {chance.random()}"
        path = path or chance.choice(_PATHS)
        content: dict[str, Any] = {
            "/memories": {"messages": text, "user_id": "siege"},
            "/v1/rerank": {"query": text, "documents": [words(chance, 20, 120) for _ in range(20)]},
            "/v1/embeddings": {"input": [words(chance, 5, 100) for _ in range(chance.randint(1, 8))]},
            "/v1/search": {"query": text, "rerank": chance.random() < 0.3},
            "/v1/ask": {"question": f"where is the {text}?", "llm": "extractive"},
        }[path]
        status, answer = _answered(self.port, "POST", path, json.dumps(content).encode())
        if status == 200 and path == "/memories":
            self.kept[answer["results"][0]["id"]] = text
        elif status != 200 and status not in _SHORT:
            self.problems.append(f"{path} was answered {status}: {str(answer)[:200]}")

    def _missing(self) -> None:
        """Notes confirmed writes that are not there."""
        _, found = _answered(self.port, "GET", f"/memories?user_id=siege&limit={len(self.kept) + 1000}")
        known = {memory["id"]: memory["memory"] for memory in found["results"]}
        lost = [name for name, text in self.kept.items() if known.get(name) != text]
        if lost:
            self.problems.append(f"{len(lost)} confirmed writes are lost, such as {lost[0]}")


def _answered(port: int, method: str, path: str, body: bytes | None = None) -> tuple[int, Any]:
    """The status and the content of an answer."""
    with contextlib.closing(HTTPConnection("127.0.0.1", port, timeout=120)) as connection:
        connection.request(method, path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


def _head(length: int) -> bytes:
    return b"POST /v1/rerank HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % length


def _sent(port: int, *parts: bytes, pause: float = 0.0) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as raw:
        for part in parts:
            raw.sendall(part)
        time.sleep(pause)


_MISCHIEF = (
    lambda port, chance: _sent(port, _head(10_000), b"{" * chance.randint(1, 9_999), pause=0.1 * chance.random()),
    lambda port, chance: _sent(port, _head(1 << 40), *[b"x" * 65536] * chance.randint(1, 400)),
    lambda port, chance: _sent(port, _head(chance.randint(1, 5000)), chance.randbytes(5000)),
    lambda port, chance: _sent(port, chance.randbytes(chance.randint(1, 5000))),
    lambda port, chance: _answered(
        port, "POST", "/v1/rerank", b'{"query": "x", "documents": [' + b",".join([b"{}"] * 500_000) + b"]}"
    ),
    lambda port, chance: _answered(port, "POST", "/mcp", chance.choice((b"{", b"[" * 50_000, b"\xff\xfe", b"null"))),
)
"""A body that never ends, one too long, noise as a body and as a request, a million marks, and odd JSON."""
