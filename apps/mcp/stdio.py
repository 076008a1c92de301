"""`serve`: an MCP server over stdin and stdout that holds every message under a lease until its answer is written.

The SDK's transport reads lines of any length and starts a task for each, so a client could make it use any amount of
memory. It is given files of ours: lines have a bound, and if there is too little memory for the next message, that
message waits in the client's pipe until others have been answered.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO

from edge.apps.mcp.protocol import ANSWER
from edge.apps.store.rows import JsonSize
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

Id = str | int | None

_ID = rb'"id"\s*:\s*("(?:[^"\\]|\\.){0,200}"|-?\d{1,20})'
_FIRST = re.compile(rb'\s*\{(?:\s*"(?:jsonrpc|method)"\s*:\s*"[^"\\]*"\s*,)*\s*' + _ID)
_LAST = re.compile(rb",\s*" + _ID + rb"\s*\}\s*$")
"""The id of a message is its first member beside short ones, or its last one: clients write it before or after the
parameters. A message that is not read to be answered needs no more than these ends."""

_ENDS = 500
_LONGEST = 300
"""Characters of a fault that are repeated."""


def id_of(head: bytes, tail: bytes) -> Id:
    """The id of a message by its first and last bytes; None if they do not show one."""
    found = _FIRST.match(head) or _LAST.search(tail)
    try:
        identifier: Id = None if found is None else json.loads(found[1])
    except ValueError:  # no UTF-8, or a number such as 007
        return None
    return identifier


def serve(server: MCPServer[Any], budget: MemoryBudget) -> None:
    """Serves requests until stdin ends and all of them are answered.

    Meanwhile, descriptor 0 is the null device and descriptor 1 is stderr, so that no other output gets between the
    messages.
    """
    import anyio

    with _diverted() as (source, target):
        anyio.run(_serve, server, budget, source, target)


async def _serve(server: MCPServer[Any], budget: MemoryBudget, source: int, target: int) -> None:
    from mcp.server.stdio import stdio_server

    output = Output(target)
    messages = Messages(os.fdopen(source, "rb", closefd=False), output, budget)
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
        """Writes a whole line."""
        import anyio

        data = line.encode("utf-8", "replace")
        async with self._lock:
            await anyio.to_thread.run_sync(_write, self._descriptor, data)
        self.answered(id_of(data[:_ENDS], b""))

    async def flush(self) -> None:
        """Does nothing, because `write` does not buffer."""


class Messages:
    """The lines of a file. Each is held under a lease from its first byte until its answer is written."""

    def __init__(self, file: BinaryIO, output: Output, budget: MemoryBudget, *, most_bytes: int = MOST_BYTES) -> None:
        import anyio

        self._file = file
        self._output = output
        self._budget = budget
        self._most = most_bytes
        self._held: dict[Id, list[Lease]] = {}
        self._changed = anyio.Event()
        output.answered = self.answered

    def __aiter__(self) -> Messages:
        return self

    async def __anext__(self) -> str:
        """The next message, without its end of line. The end of the file comes when every message is answered."""
        self.answered(None)  # a notification gets no answer, and the SDK has now received it
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
        import anyio

        size, line, reason, code = JsonSize(), bytearray(), "", _TOO_LARGE
        head = tail = b""
        while True:
            piece = await anyio.to_thread.run_sync(self._file.readline, _PIECE, abandon_on_cancel=True)
            if not piece and not size.length:
                while self._held:
                    await self._change()
                raise StopAsyncIteration
            size.feed(piece)
            head, tail = (head + piece)[:_ENDS], (tail + piece)[-_ENDS:]
            needed = _PER_MESSAGE + size.nbytes()
            if not reason and size.length > self._most:
                reason = f"it is longer than the {format_size(self._most)} that a message may have"
            elif not reason and not await self._grow(lease, needed):
                reason, code = f"it needs {format_size(needed)} of memory, more than the limit leaves", _NO_MEMORY
            if reason:
                line.clear()
                lease.release()
            else:
                line += piece
            if not piece or piece.endswith(b"\n"):
                break
        identifier = id_of(head, tail)
        if not reason:
            reason, code, identifier = (*_fault(line, identifier),)
        if reason:
            await self._refuse(identifier, code, f"the message of {format_size(size.length)} was not read: {reason}")
            return None
        self._held.setdefault(identifier, []).append(lease)
        return line.decode("utf-8", "replace")

    async def _grow(self, lease: Lease, nbytes: int) -> bool:
        """Resizes a lease, if necessary after other messages have been answered. False if it still does not fit."""
        while not _fits(lease, nbytes):
            if not self._held:
                return False
            await self._change()
        return True

    async def _change(self) -> None:
        import anyio

        self._changed = anyio.Event()
        await self._changed.wait()

    async def _refuse(self, identifier: Id, code: int, text: str) -> None:
        if identifier is None:
            print(f"edge: {escaped(text)}", file=sys.stderr, flush=True)
            return
        error = {"code": code, "message": escaped(text)}
        await self._output.write(json.dumps({"jsonrpc": "2.0", "id": identifier, "error": error}) + "\n")


def _fault(line: bytearray, identifier: Id) -> tuple[str, int, Id]:
    """The fault of a line that is no message, which the SDK would not answer, with its error code; and its id."""
    from mcp_types import jsonrpc_message_adapter

    if not line.strip():
        return "", 0, None
    try:
        message = jsonrpc_message_adapter.validate_json(line.decode("utf-8", "replace"), by_name=False)
    except ValueError as error:
        details: list[Any] = getattr(error, "errors", list)()
        what = details[0]["msg"] if details else type(error).__name__
        return f"it is no message of the protocol ({what[:_LONGEST]})", _NO_MESSAGE, identifier
    return "", 0, getattr(message, "id", None) if hasattr(message, "method") else None


def _fits(lease: Lease, nbytes: int) -> bool:
    try:
        lease.resize(max(lease.nbytes, nbytes))
    except BudgetExceeded:
        return False
    return True


def _write(descriptor: int, line: bytes) -> None:
    data = memoryview(line)
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
