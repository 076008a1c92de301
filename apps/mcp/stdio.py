"""`serve`: an MCP server over stdin and stdout that holds every message under a lease while it is answered.

The SDK reads lines of any length, parses them, and starts a task for each. So a client could make it use any amount of
memory. This module reads a line piece by piece under a lease, and refuses a line that is too long without keeping it.
If there is too little memory for the next message, that message waits in the client's pipe until others have been
answered.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from edge.apps.mcp.envelope import Envelope, Id, parsed_nbytes
from edge.apps.mcp.protocol import ANSWER
from edge.budget import Lease, MemoryBudget
from edge.config import format_size
from edge.errors import BudgetExceeded
from edge.text.control_characters import escaped

if TYPE_CHECKING:
    from mcp.server import MCPServer

MOST_BYTES = 4 << 20
"""Longest message in bytes. An agent's memory or question has a few kilobytes."""

_PIECE = 1 << 16
"""Bytes of one read."""

_PER_MESSAGE = 256 << 10
"""Memory of a message besides its content: tasks, contexts, the objects of the protocol, a small answer."""

_TOO_LARGE, _NO_MEMORY, _NO_MESSAGE = -32600, -32000, -32700
"""JSON-RPC error codes: an invalid request, an error of the server, and a message that cannot be parsed."""

_ANSWERED = re.compile(r'"id":("(?:[^"\\]|\\.)*"|-?\d+)')
_HEAD = 300


def serve(server: MCPServer[Any], budget: MemoryBudget) -> None:
    """Serves requests until stdin ends.

    Meanwhile, descriptor 0 is the null device and descriptor 1 is stderr, so that no other output gets between the
    messages.
    """
    import anyio

    with _diverted() as (source, target):
        anyio.run(_serve, server, budget, source, target)


async def _serve(server: MCPServer[Any], budget: MemoryBudget, source: int, target: int) -> None:
    from mcp.server.stdio import stdio_server

    output = Output(target)
    messages = Messages(source, output, budget)
    output.answered = messages.answered
    watch: Any = messages.watch
    server.middleware.append(watch)
    lowlevel = server._lowlevel_server
    streams: Any = {"stdin": messages, "stdout": output}  # they have the methods of files that the SDK calls
    async with stdio_server(**streams) as (incoming, outgoing):
        await lowlevel.run(incoming, outgoing, lowlevel.create_initialization_options())


class Output:
    """Writes lines to a descriptor, one at a time, from any task."""

    def __init__(self, descriptor: int) -> None:
        import anyio

        self._descriptor = descriptor
        self._lock = anyio.Lock()
        self.answered: Any = lambda identifier: None

    async def write(self, line: str) -> None:
        """Writes a whole line. Then releases the memory of the message that the line answers."""
        import anyio

        async with self._lock:
            await anyio.to_thread.run_sync(_write, self._descriptor, line)
        found = _ANSWERED.search(line[:_HEAD])
        if found is not None:
            self.answered(json.loads(found[1]))

    async def flush(self) -> None:
        """Does nothing, because `write` does not buffer."""


class Messages:
    """The lines of a descriptor. Each is held under a lease from its first byte until its answer is written."""

    def __init__(self, descriptor: int, output: Output, budget: MemoryBudget, *, most_bytes: int = MOST_BYTES) -> None:
        import anyio

        self._descriptor = descriptor
        self._output = output
        self._budget = budget
        self._most = most_bytes
        self._rest = b""
        self._ended = False
        self._held: dict[Id, list[Lease]] = {}
        self._notification: Lease | None = None
        self._changed = anyio.Event()

    def __aiter__(self) -> Messages:
        return self

    async def __anext__(self) -> str:
        """The next message, without its end of line."""
        if self._notification is not None:  # a notification gets no answer, and the SDK has now received it
            self._notification.release()
            self._notification = None
        while True:
            lease = self._budget.reserve("messages", 0)
            try:
                # Leased before the message is read. Until then, the message waits in the client's pipe.
                await self._grow(lease, _PER_MESSAGE)
                line = await self._line(lease)
            except BaseException:
                lease.release()
                raise
            if line is not None:
                return line
            lease.release()

    def answered(self, identifier: Id) -> None:
        """Releases the memory of a message that has been answered."""
        for lease in self._held.pop(identifier, ()):
            lease.release()
        self._changed.set()

    async def watch(self, context: Any, call_next: Any) -> Any:
        """Middleware that holds the memory of a tool's answer until the answer is written. It releases the memory of a
        cancelled request when the tool has ended, because such a request gets no answer."""
        import anyio

        leases = self._held.get(context.request_id)
        if leases is not None:
            ANSWER.set(leases)
        try:
            return await call_next(context)
        except anyio.get_cancelled_exc_class():
            self.answered(context.request_id)
            raise

    async def _line(self, lease: Lease) -> str | None:
        """Reads to the end of the line; None if the line was refused."""
        envelope = Envelope()
        line = bytearray()
        length = 0
        reason = ""
        while True:
            piece = await self._piece()
            if not piece and not length:
                raise StopAsyncIteration
            envelope.feed(piece)
            length += len(piece)
            if length > self._most and not reason:
                reason = f"it is longer than the {format_size(self._most)} that a message may have"
            if not reason and not await self._grow(lease, _needed(length, envelope)):
                reason = f"it needs {format_size(_needed(length, envelope))} of memory, more than the limit leaves"
            if reason:
                line.clear()
                lease.release()
            else:
                line += piece
            if not piece or piece.endswith(b"\n"):
                break
        code = _TOO_LARGE if length > self._most else _NO_MEMORY
        text = ""
        if not reason:
            text, reason = _message(line)
            code = _NO_MESSAGE
        if reason:
            await self._refuse(envelope.id, code, f"the message of {format_size(length)} was not read: {reason}")
            return None
        if envelope.id is None or envelope.id in self._held:
            if self._notification is not None:
                self._notification.release()
            self._notification = lease
        else:
            self._held[envelope.id] = [lease]
        return text

    async def _piece(self) -> bytes:
        """The next bytes, at most up to the end of a line; empty at the end of the input."""
        import anyio

        if not self._rest and not self._ended:
            self._rest = await anyio.to_thread.run_sync(os.read, self._descriptor, _PIECE, abandon_on_cancel=True)
            self._ended = not self._rest
        end = self._rest.find(b"\n") + 1 or len(self._rest)
        piece, self._rest = self._rest[:end], self._rest[end:]
        return piece

    async def _grow(self, lease: Lease, nbytes: int) -> bool:
        """Resizes a lease, if necessary after other messages have been answered. False if it still does not fit."""
        import anyio

        while not _fits(lease, nbytes):
            if not self._held:
                return False
            self._changed = anyio.Event()
            await self._changed.wait()
        return True

    async def _refuse(self, identifier: Id, code: int, text: str) -> None:
        if identifier is None:
            print(f"edge: {escaped(text)}", file=sys.stderr, flush=True)
            return
        error = {"code": code, "message": escaped(text)}
        await self._output.write(json.dumps({"jsonrpc": "2.0", "id": identifier, "error": error}) + "\n")


def _message(line: bytearray) -> tuple[str, str]:
    """A line as text, or the reason why it is not a message. The SDK would not answer an invalid message."""
    from mcp_types import jsonrpc_message_adapter

    text = line.decode("utf-8", "replace")
    if not text.strip():
        return text, ""
    try:
        jsonrpc_message_adapter.validate_json(text, by_name=False)
    except ValueError as error:
        details: list[Any] = getattr(error, "errors", list)()
        what = details[0]["msg"] if details else type(error).__name__
        return "", f"it is no message of the protocol ({what[:_HEAD]})"
    return text, ""


def _needed(length: int, envelope: Envelope) -> int:
    return _PER_MESSAGE + parsed_nbytes(length, envelope.structure, wide=envelope.wide)


def _fits(lease: Lease, nbytes: int) -> bool:
    try:
        lease.resize(max(lease.nbytes, nbytes))
    except BudgetExceeded:
        return False
    return True


def _write(descriptor: int, line: str) -> None:
    data = memoryview(line.encode("utf-8", "replace"))
    while data:
        data = data[os.write(descriptor, data) :]


@contextmanager
def _diverted() -> Iterator[tuple[int, int]]:
    """Private duplicates of stdin and stdout. Meanwhile, the null device and stderr take their places."""
    sys.stdout.flush()
    source, target = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    try:
        yield source, target
    finally:
        os.dup2(source, 0)
        os.dup2(target, 1)  # both duplicates stay open, because a thread may still read from one
