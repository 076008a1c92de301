"""MCP over streamable HTTP: the tools of `edge mcp`, each message under its request's lease.

Every request is one exchange: no session is kept, so a client that goes leaves nothing behind. The SDK is imported at
the first request, and its memory is charged then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from edge.apps.collection.collection import Collection
from edge.apps.collection.together import Together
from edge.apps.mcp.protocol import ANSWER
from edge.apps.serve.endpoint import Call
from edge.apps.serve.library import Library
from edge.apps.serve.refusals import Refusal
from edge.budget import Lease, MemoryBudget
from edge.scheduling.urgency import urgent

if TYPE_CHECKING:
    from mcp.server import MCPServer

_LIBRARIES = ("mcp.server", "mcp.server.streamable_http_manager")


class McpTools:
    """An endpoint for the tools of one MCP server, which is made at the first request."""

    def __init__(
        self,
        budget: MemoryBudget,
        stores: Callable[[], Mapping[str, Any]],
        making: Callable[[Mapping[str, Any]], MCPServer[Any]],
    ) -> None:
        """
        Args:
            stores: finds the open stores of this moment, by name.
            making: makes the MCP server of some stores.
        """
        self._budget = budget
        self._stores = stores
        self._making = making
        self._used: Mapping[str, Any] = {}
        self._manager: Any = None
        self._starting: asyncio.Lock | None = None
        self._task: asyncio.Task[None] | None = None

    async def post(self, call: Call) -> Any:
        """One message of the Model Context Protocol, and its answer."""
        body = await call.requests.read(call.request, call.lease)
        manager = await self._started(call)
        urgency = call.urgency()

        async def answer(scope: Any, receive: Any, send: Any) -> None:
            sent = False
            held: list[Lease] = []

            async def replay() -> Any:
                nonlocal sent
                if not sent:
                    sent = True
                    return {"type": "http.request", "body": body, "more_body": False}
                return await receive()

            async def attend() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                urgency.cancel()

            token = ANSWER.set(held)
            attending = asyncio.ensure_future(attend())
            try:
                with urgent(urgency):
                    await manager.handle_request(scope, replay, send)
            except asyncio.CancelledError:
                urgency.cancel()
                raise
            finally:
                attending.cancel()
                ANSWER.reset(token)
                for lease in held:
                    lease.release()

        return answer

    async def other(self, call: Call) -> Any:
        """No stream is kept open, and no session is there to be ended."""
        raise Refusal(405, "only POST is answered here: there are no sessions", {"Allow": "POST"})

    async def _started(self, call: Call) -> Any:
        self._starting = self._starting or asyncio.Lock()
        async with self._starting:
            stores = await call.workers.run(call.urgency(), self._stores)
            if self._manager is None or not _same(stores, self._used):
                if self._task is not None:  # another store was put in the place of one; requests on the old one may end
                    asyncio.get_running_loop().call_later(call.requests.limits.request_s, self._task.cancel)
                server = await call.workers.run(call.urgency(), lambda: self._made(stores))
                self._used, (self._task, self._manager) = stores, await _running(server)
            return self._manager

    def _made(self, stores: Mapping[str, Any]) -> MCPServer[Any]:
        from edge.apps.mcp.protocol import load_sdk

        self._budget.hold_libraries(_LIBRARIES)
        load_sdk()
        return self._making(stores)


async def _running(server: MCPServer[Any]) -> tuple[asyncio.Task[None], Any]:
    """A manager of requests whose tasks run until the loop ends."""
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    manager = StreamableHTTPSessionManager(server._lowlevel_server, json_response=True, stateless=True)
    ready = asyncio.Event()

    async def run() -> None:
        async with manager.run():
            ready.set()
            await asyncio.Event().wait()

    task = asyncio.get_running_loop().create_task(run())
    await ready.wait()
    return task, manager


def _same(stores: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    return stores.keys() == others.keys() and all(stores[name] is others[name] for name in stores)


def files_tools(library: Library) -> McpTools:
    """Search, get, get_documents and status of the served collections."""

    def stores() -> Mapping[str, Any]:
        names = [name for name, path in library.names().items() if Collection.exists(path)]
        distinct = {library.names()[name]: name for name in reversed(names)}
        return library.together(list(reversed(list(distinct.values())))).collections

    def make(stores: Mapping[str, Any]) -> MCPServer[Any]:
        from edge.apps.mcp.files import files_server

        return files_server(Together(stores))

    return McpTools(library.pool.budget, stores, make)


def memory_tools(library: Library) -> McpTools:
    """The tools of the default user's memory."""

    def make(stores: Mapping[str, Any]) -> MCPServer[Any]:
        from edge.apps.mcp.memory import memory_server

        return memory_server(stores[""])

    return McpTools(library.pool.budget, lambda: {"": library.own_memory()}, make)
