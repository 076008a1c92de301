"""A server inside this process, for tests that decide themselves when each part of a request arrives."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Result = TypeVar("Result")


def in_a_loop(work: Coroutine[Any, Any, Result]) -> Result:
    """Runs a coroutine in a thread of its own: a browser of other tests may keep a loop running in this one."""

    async def bounded() -> Result:
        return await asyncio.wait_for(work, 300)

    with ThreadPoolExecutor(1) as apart:
        return apart.submit(asyncio.run, bounded()).result()


class Asked:
    """One request to an ASGI application, whose body comes in the parts that `send` gives. `taken` is set each time the
    application asks for a part that is not there yet."""

    def __init__(self, application: Any, path: str, *, key: str = "", address: str = "127.0.0.1") -> None:
        headers = [(b"host", b"localhost"), *([(b"x-api-key", key.encode())] if key else [])]
        self._scope = {
            "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"",
            "headers": headers, "client": (address, 1), "server": ("127.0.0.1", 8777), "scheme": "http",
            "http_version": "1.1", "asgi": {"version": "3.0"}, "root_path": "",
        }  # fmt: skip
        self.taken = asyncio.Event()
        self._parts: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._body = bytearray()
        self._status = 0
        self._headers: dict[str, str] = {}
        self.task = asyncio.create_task(application(self._scope, self._receive, self._send))

    def send(self, part: bytes, *, last: bool = False) -> None:
        """Sends a part of the body."""
        self.taken.clear()
        self._parts.put_nowait({"type": "http.request", "body": part, "more_body": not last})

    def leave(self) -> None:
        """Closes the connection."""
        self._parts.put_nowait({"type": "http.disconnect"})

    async def answer(self) -> tuple[int, Any, dict[str, str]]:
        """Status, JSON and headers of the answer."""
        await self.task
        return self._status, json.loads(self._body), self._headers

    @property
    def status(self) -> int:
        """The status of the answer; 0 before it."""
        return self._status

    @property
    def text(self) -> str:
        """The body of the answer."""
        return self._body.decode()

    async def _receive(self) -> dict[str, Any]:
        if self._parts.empty():
            self.taken.set()
        return await self._parts.get()

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            self._body += message.get("body", b"")


async def ask(application: Any, path: str, content: Any, **named: str) -> tuple[int, Any, dict[str, str]]:
    """The answer to a request that is sent as a whole."""
    asked = Asked(application, path, **named)
    asked.send(json.dumps(content).encode(), last=True)
    return await asked.answer()
