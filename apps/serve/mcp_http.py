"""MCP over streamable HTTP: the tools of `edge mcp`, each message under its request's lease. No session is kept. The
SDK is imported at the first request, and its memory charged then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from edge.apps.collection.collection import Together
from edge.apps.mcp.protocol import ANSWER
from edge.apps.memory.command import DEFAULT_USER
from edge.apps.serve.endpoint import Call, ServedPath
from edge.apps.serve.limits import attending
from edge.apps.serve.refusals import HttpRefusal
from edge.apps.serve.server import HttpServer
from edge.budget import Lease, import_nbytes
from edge.config import format_size
from edge.scheduling.waiting_line import urgent

if TYPE_CHECKING:
    from mcp.server import MCPServer

_LIBRARIES = ("mcp.server", "mcp.server.streamable_http_manager")

_TOOLS_BYTES = 4 << 20
"""Memory of the servers with their tools; 2.1 MB were measured."""


class McpTools:
    """An endpoint for the tools of one MCP server, which is made at the first request."""

    def __init__(
        self,
        server: HttpServer,
        stores: Callable[[], Mapping[str, Any]],
        making: Callable[[Mapping[str, Any]], MCPServer[Any]],
    ) -> None:
        """`stores` finds the open stores of this moment by name, `making` makes the MCP server of them."""
        self._server = server
        self._stores = stores
        self._making = making
        self._used: Mapping[str, Any] = {}
        self._manager: Any = None
        self._starting: asyncio.Lock | None = None
        self._task: asyncio.Task[None] | None = None

    async def post(self, call: Call) -> Any:
        """Answers one message of the Model Context Protocol."""
        body = await call.server.requests.read(call.request, call.lease, typed=False)
        manager = await self._started(call)
        urgency = call.urgency

        async def answer(scope: Any, receive: Any, send: Any) -> None:
            sent = False
            held: list[Lease] = []

            async def replay() -> Any:
                nonlocal sent
                if not sent:
                    sent = True
                    return {"type": "http.request", "body": body, "more_body": False}
                return await receive()

            token = ANSWER.set(held)
            try:
                async with attending(receive, urgency):
                    with urgent(urgency):
                        await manager.handle_request(scope, replay, send)
            except asyncio.CancelledError:
                urgency.cancel()
                raise
            finally:
                ANSWER.reset(token)
                for lease in held:
                    lease.release()

        return answer

    async def other(self, call: Call) -> Any:
        """Refuses: no stream is kept open, and there are no sessions that could be ended."""
        raise HttpRefusal(405, "only POST is answered here: there are no sessions", {"Allow": "POST"})

    async def _started(self, call: Call) -> Any:
        self._starting = self._starting or asyncio.Lock()
        async with self._starting:
            stores = await call.server.workers.run(call.urgency, self._stores)
            if self._manager is None or stores != self._used:
                if self._task is not None:  # another store was put in the place of one; requests on the old one may end
                    asyncio.get_running_loop().call_later(call.server.options.limits.request_s, self._task.cancel)
                server = await call.server.workers.run(call.urgency, lambda: self._made(stores))
                self._used, (self._task, self._manager) = stores, await _running(server)
            return self._manager

    def _made(self, stores: Mapping[str, Any]) -> MCPServer[Any]:
        from edge.apps.mcp.protocol import load_sdk

        self._check_room()
        self._server.budget.hold_libraries(_LIBRARIES)
        load_sdk()
        return self._making(stores)

    def _check_room(self) -> None:
        """Modules stay loaded, so they are imported only where a search still fits beside them."""
        server, needed = self._server, self._server.needed + import_nbytes(_LIBRARIES) + _TOOLS_BYTES
        if needed > server.config.memory:
            raise HttpRefusal(
                413,
                f"the tools of MCP do not fit beside a search: the limit is {format_size(server.config.memory)}, and "
                f"--memory {format_size(needed, up=True).replace(' ', '')} is the smallest that works",
            )


async def _running(server: MCPServer[Any]) -> tuple[asyncio.Task[None], Any]:
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


def tool_paths(server: HttpServer) -> list[ServedPath]:
    """`/mcp` with the tools of the served collections, `/mcp/memory` with those of the default user's memory."""
    library = server.library

    def collections() -> Mapping[str, Any]:
        names = [name for name, path in library.names().items() if library.holds(path)]
        distinct = {library.names()[name]: name for name in reversed(names)}
        return library.together(list(reversed(list(distinct.values())))).collections

    def files(stores: Mapping[str, Any]) -> MCPServer[Any]:
        from edge.apps.mcp.tools import files_server

        only = stores.get("")
        return files_server(only if isinstance(only, Together) else Together(stores))

    def memory(stores: Mapping[str, Any]) -> MCPServer[Any]:
        from edge.apps.mcp.tools import memory_server

        return memory_server(stores[""])

    found = []
    for path, tools in (
        ("/mcp", McpTools(server, collections, files)),
        ("/mcp/memory", McpTools(server, lambda: {"": library.memory(DEFAULT_USER)}, memory)),
    ):
        found += [ServedPath("POST", path, tools.post)]
        found += [ServedPath(method, path, tools.other) for method in ("GET", "DELETE")]
    return found
