"""An agent's long conversation with an MCP server over stdio: every tool, wrong arguments, messages up to 60 MB."""

from __future__ import annotations

import json
import random
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from campaign.program import Home
from campaign.sessions.base import Ended, Live, Session

_HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "campaign", "version": "1"}}
_MOST_OPEN = 6
"""Requests that wait for their answers at the same time."""

Answer = dict[str, Any]
Then = Callable[[Answer], None]

_WRONG: tuple[Any, ...] = (
    None, True, -1, 0, 10**30, 0.5, "", "text", "a\0b", "\u202e\u2066\x9b31m", [], [[]], [None], {}, {"a": {"b": [1]}},
    "x" * 100_000, list(range(10_000)), {"AND": [{"a": {"in": list(range(5_000))}}]}, "2026-13-45", "9" * 5_000,
)  # fmt: skip


class Client:
    """A client that may have several requests open, and takes every answer once.

    Attributes:
        asked: messages that were sent.
        problems: things that no server may do.
    """

    def __init__(self, live: Live) -> None:
        self.asked = 0
        self.problems: list[str] = []
        self._live = live
        self._open: dict[int, Then] = {}
        self._seen = 0
        self._said = ""

    def greet(self) -> None:
        """Opens the conversation."""
        self.request("initialize", _HELLO)
        self.settle()
        self.send(message("notifications/initialized", {}))

    def request(self, method: str, params: Any, then: Then = lambda answer: None) -> None:
        """Sends a request."""
        self.send(message(method, params, self.begin(then)))

    def begin(self, then: Then = lambda answer: None) -> int:
        """The number of a new request, which the caller sends."""
        self.asked += 1
        self._open[self.asked] = then
        return self.asked

    def send(self, line: bytes) -> None:
        """Sends a line."""
        self._said = line[:200].decode("utf-8", "replace") + f" ({len(line):,} bytes)"
        self._live.say(line + b"\n")

    def settle(self, most_open: int = 0) -> None:
        """Waits until at most so many requests are open."""

        def few() -> bool:
            self._take()
            return len(self._open) <= most_open

        if not self._live.wait(few):
            self.problems.append(f"{len(self._open)} requests were never answered, the first is {min(self._open)}")
            self._open.clear()
        self._live.note(self._said)

    def _take(self) -> None:
        while self._seen < len(self._live.lines):
            line = self._live.lines[self._seen]
            self._seen += 1
            try:
                answer = json.loads(line)
            except ValueError:
                self.problems.append(f"a line that is no JSON: {line[:100]!r}")
                continue
            then = self._open.pop(answer.get("id"), None)
            if then is not None:
                then(answer)
            elif "id" in answer:
                self.problems.append(f"an answer that nobody waits for: {line[:100]!r}")


class Mcp(Session):
    """Half of the messages are those of a careful client, and half are not."""

    needs = ("mcp",)

    def run(self, home: Home, limit: int, chance: random.Random, count: int) -> Ended:
        self.begin(chance)
        with Live(home, self.arguments(home), limit) as live:
            client = Client(live)
            client.greet()
            while client.asked < count and not client.problems:
                if chance.random() < 0.5:
                    self.careful(client, chance)
                else:
                    chance.choice(self.careless)(self, client, chance)
                client.settle(chance.randrange(_MOST_OPEN))
            client.settle()
            finished = live.finish()
        problem = client.problems[0] if client.problems else self.judge(home)
        return Ended(finished, client.asked, problem, live.suspect)

    @abstractmethod
    def begin(self, chance: random.Random) -> None:
        """Forgets the run before."""

    @abstractmethod
    def careful(self, client: Client, chance: random.Random) -> None:
        """Calls a tool as its description says."""

    @abstractmethod
    def tool(self, chance: random.Random) -> tuple[str, dict[str, Any]]:
        """A tool that changes nothing when one of its arguments is wrong, with good arguments."""

    def judge(self, home: Home) -> str | None:
        """Looks for everything that was confirmed."""
        return None

    def _wrong_argument(self, client: Client, chance: random.Random) -> None:
        name, arguments = self.tool(chance)
        arguments[chance.choice([*arguments, "unknown"])] = chance.choice(_WRONG)
        client.request("tools/call", {"name": name, "arguments": arguments})

    def _wrong_call(self, client: Client, chance: random.Random) -> None:
        name, arguments = self.tool(chance)
        params = chance.choice(
            (
                {"name": name},
                {"name": "no such tool", "arguments": {}},
                {"name": name, "arguments": 3},
                {},
                [],
                None,
                {"name": {"a": 1}, "arguments": arguments},
                {"name": name, "arguments": arguments, "_meta": {"x": [1] * 999}},
            )
        )
        method = chance.choice(
            ("tools/call", "tools/list", "resources/read", "prompts/get", "ping", "no/such", "\u202e")
        )
        client.request(method, params)

    def _huge(self, client: Client, chance: random.Random) -> None:
        """A request of up to 60 MB, as one text or as many small parts."""
        name, _ = self.tool(chance)
        size = int(10 ** chance.uniform(5, 7.78))
        number = client.begin()
        head = b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"%s","arguments":{"query":'
        filling = chance.choice(
            (b'"%s"' % (b"x" * size), b"[%s1]" % (b"1," * (size // 2)), b'"%s"' % ("é" * (size // 2)).encode())
        )
        client.send(head % (number, name.encode()) + filling + b"}}}")

    def _broken(self, client: Client, chance: random.Random) -> None:
        """No message of the protocol, and a request behind it."""
        client.send(
            chance.choice(
                (
                    b"[" * chance.randint(1, 10**6),
                    b"{" * 1000,
                    b"null",
                    b"3",
                    b'""',
                    b"\xff\xfe\x00",
                    b'{"jsonrpc":"2.0"}',
                    chance.randbytes(chance.randint(1, 10**5)).replace(b"\n", b" ").replace(b'"id"', b"    "),
                    b"",
                    b'{"jsonrpc":"1.0","method":"ping"}',
                )
            )
        )
        client.request("ping", {})

    def _cut(self, client: Client, chance: random.Random) -> None:
        """A request that is cut off, or whose text holds half a character."""
        number = client.begin()
        head = b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":' % number
        client.send(
            head + chance.choice((b"", b"{", b'{"name":"\\ud800"}}', b'{"name":"\xff"}}', b"[1,2", b'"\\u12"}'))
        )

    def _notification(self, client: Client, chance: random.Random) -> None:
        """Notifications are not answered, with any content."""
        method = chance.choice(
            ("notifications/cancelled", "notifications/progress", "notifications/none", "tools/call")
        )
        params = chance.choice(
            ({}, {"requestId": 10**9}, {"requestId": "x", "reason": "y" * 10_000}, {"progress": "x"})
        )
        client.send(message(method, params))
        client.request("ping", {})

    careless = (_wrong_argument, _wrong_argument, _wrong_call, _huge, _broken, _cut, _notification)


def message(method: str, params: Any, number: int | None = None) -> bytes:
    known = {} if number is None else {"id": number}
    return json.dumps({"jsonrpc": "2.0", "method": method, "params": params, **known}).encode()
