"""MCP over stdin and stdout: leases, long lines, and the ids of messages that are not read."""

from __future__ import annotations

import json
import os
import threading
import tracemalloc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from naive.mcp_answers import data_of
from naive.waiting import result_of

from edge.apps.mcp.protocol import _ENDS, ANSWER, MOST_BYTES, Messages, Output, answering, id_of
from edge.apps.store.failures import Health
from edge.budget import MemoryBudget

anyio = pytest.importorskip("anyio")
pytest.importorskip("mcp", reason="the extra `mcp` is not installed")

MB = 1 << 20


def request(identifier: object, text: str = "", **more: object) -> bytes:
    return (
        json.dumps({"jsonrpc": "2.0", "method": "m", "params": {"text": text, **more}, "id": identifier}).encode()
        + b"\n"
    )


class Client:
    """Both ends of the two pipes of a server whose ledger has `limit` bytes."""

    def __init__(self, limit: int, most_bytes: int = MB) -> None:
        self._source, self._sink = os.pipe()
        self._answers, target = os.pipe()
        self.budget = MemoryBudget(limit, baseline=0)
        self.output = Output(target)
        self.messages = Messages(os.fdopen(self._source, "rb"), self.output, self.budget, most_bytes=most_bytes)

    def send(self, *lines: bytes) -> None:
        """Writes in a thread: a pipe holds 64 kB, and further bytes wait to be read."""

        def write() -> None:
            for line in lines:
                os.write(self._sink, line)
            os.close(self._sink)

        threading.Thread(target=write, daemon=True).start()

    def answer(self) -> Any:
        """The next line that the server wrote."""
        data = b""
        while not data.endswith(b"\n"):
            data += os.read(self._answers, 1)
        return json.loads(data)


def talking(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """A test that runs in an event loop."""

    async def limited() -> None:
        with anyio.fail_after(60):
            await test()

    return lambda: result_of(limited())


def identifier(line: str) -> object:
    return json.loads(line)["id"]


@talking
async def test_a_message_that_is_too_long_is_refused_and_the_next_one_is_read() -> None:
    client = Client(40 * MB)
    client.send(
        request(1),
        request("long", "x" * 3 * MB),
        b'{"jsonrpc":"2.0","method":"no id","t":"' + b"y" * 2 * MB + b'"}\n',
        request(3),
    )
    assert identifier(await anext(client.messages)) == 1
    most = 0
    reserve = client.budget._resize

    def watched(lease: Any, nbytes: int, **named: Any) -> None:
        nonlocal most
        reserve(lease, nbytes, **named)
        most = max(most, client.budget.used)

    client.budget._resize = watched  # type: ignore[method-assign]
    tracemalloc.start()
    assert identifier(await anext(client.messages)) == 3
    assert tracemalloc.get_traced_memory()[1] < 2 * MB, "what is refused is not held"
    tracemalloc.stop()
    refusal = client.answer()
    assert refusal["id"] == "long"
    assert "3.15 MB was not read: it is longer than the 1.05 MB" in refusal["error"]["message"]
    assert most < 10 * MB  # as far as it was read: eight times a megabyte
    client.messages.answered(1)
    client.messages.answered(3)
    with pytest.raises(StopAsyncIteration):
        await anext(client.messages)


@talking
async def test_what_has_many_parts_is_refused_by_what_they_would_take() -> None:
    client = Client(20 * MB)
    client.send(request(1, parts=[[]] * 200_000), request(2, "x" * 800_000))
    assert identifier(await anext(client.messages)) == 2
    assert "more than the limit leaves" in client.answer()["error"]["message"]
    assert client.budget.holders()["messages"] > 6 * MB


@talking
async def test_answers_give_memory_back_and_nothing_is_left_at_the_end() -> None:
    client = Client(10 * MB)
    client.send(*(request(number, "x" * 700_000) for number in range(5)), b'{"jsonrpc": "2.0", "method": "notice"}\n')
    seen: list[object] = []

    async def answer() -> None:
        while True:
            await anyio.sleep(0.01)
            for number in tuple(seen):
                await client.output.write(
                    json.dumps({"jsonrpc": "2.0", "id": number, "result": {}}).replace(" ", "") + "\n"
                )

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(answer)
        async for line in client.messages:
            seen.append(json.loads(line).get("id"))
            assert client.budget.used <= 10 * MB
        tasks.cancel_scope.cancel()
    assert seen == [0, 1, 2, 3, 4, None]
    assert client.budget.used == 0


def test_an_answer_is_bounded_and_held_until_it_is_written() -> None:
    from mcp.server.mcpserver.exceptions import ToolError

    def asked(content: dict[str, Any], budget: MemoryBudget) -> Any:
        return data_of(answering(lambda: content, "test", budget, Health)())

    budget = MemoryBudget(60 * MB, baseline=0)
    leases: list[Any] = []
    ANSWER.set(leases)
    assert asked({"text": "x" * 1000}, budget)["text"] == "x" * 1000
    assert budget.used == 0  # part of the memory that every message holds
    assert asked({"text": "x" * 10_000}, budget)["text"] == "x" * 10_000
    assert budget.used == sum(lease.nbytes for lease in leases) > 10_000
    with pytest.raises(ToolError, match="the answer is longer than"):
        asked({"texts": ["x" * 1000] * (MOST_BYTES // 1000)}, budget)
    with pytest.raises(ToolError, match="answers needs"):
        asked({"text": "\u4e00" * 300_000}, MemoryBudget(MB, baseline=0))


LONG = {"text": 'a "quoted\\" {id}: 3, ["' + "x" * 1000, "id": 9}
MESSAGES = [
    ({"jsonrpc": "2.0", "id": 7, "method": "m", "params": LONG}, 7),
    ({"id": "first", "method": "m", "params": LONG}, "first"),
    ({"jsonrpc": "2.0", "method": "m", "id": -5, "params": LONG}, -5),
    ({"method": "m", "params": LONG, "jsonrpc": "2.0", "id": "last"}, "last"),
    ({"method": "m", "params": LONG, "id": 'with "quotes" and \\'}, 'with "quotes" and \\'),
    ({"method": "m", "params": LONG}, None),
    ({"method": "m", "params": "x" * 1000 + ',"id":5}'}, None),
    ({"params": {"id": 1}, "method": "m" * 1000}, None),
    ({"method": "m", "params": LONG, "id": None}, None),
    ({"method": "m", "params": LONG, "id": True}, None),
    ({"method": "m", "params": LONG, "id": "x" * 1000}, None),
]


@pytest.mark.parametrize(("message", "identifier"), MESSAGES)
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_the_id_is_found_at_either_end(message: object, identifier: object, separators: tuple[str, str]) -> None:
    data = json.dumps(message, separators=separators).encode() + b"\n"
    assert id_of(data[:_ENDS], data[-_ENDS:]) == identifier


@pytest.mark.parametrize("data", [b"", b"\xff\xfe{", b'{"id"', b'{"id": }', b"]]]}}}", b'"id": 3', b'{"id": 007}'])
def test_other_bytes_have_no_id(data: bytes) -> None:
    assert id_of(data, data) is None
