"""The parts that both servers share: loading the SDK, making a server from functions, and short errors.

The SDK repeats in its errors the input of the client: names of tools, prompts and resources, and wrong arguments. It
also lets some exceptions of its own handlers escape, and prints their tracebacks to stderr.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from edge.apps.last_resort import report
from edge.apps.mcp.answers import Tool, bounded, healthy
from edge.apps.mcp.marking import marked
from edge.apps.store.health import Health
from edge.budget import MemoryBudget
from edge.control_characters import escaped, harmless
from edge.errors import CapabilityError

if TYPE_CHECKING:
    from mcp.server import MCPServer


_LONGEST = 1_000
"""The most characters of a repeated text."""

_INTERNAL = -32603
"""JSON-RPC error code of an internal error."""

Handler = Callable[[Any], Awaitable[Any]]


def load_sdk() -> type[MCPServer[Any]]:
    """Loads the SDK's server class. Call it before opening a budget, whose baseline then includes the SDK's memory.

    Raises:
        CapabilityError: the package `mcp` is missing, or older than version 2.
    """
    try:
        from mcp.server import MCPServer
    except ImportError as error:
        raise CapabilityError("the MCP servers need mcp 2 or newer: pip install 'edge-rag[mcp]'") from error
    server: type[MCPServer[Any]] = MCPServer
    return server


def make_server(
    name: str, instructions: str, tools: Sequence[Tool], budget: MemoryBudget, health: Callable[[], Health]
) -> MCPServer[Any]:
    """Makes an MCP server with these functions as its tools. Clients see the functions' names, type hints and
    docstrings. Our errors become sentences for the model, answers are limited (`answers.bounded`), and retrieved text
    is marked as data (`marking.marked`).

    Args:
        health: called for every answer; unfinished work and damage are reported in the answer as `health`.

    Raises:
        CapabilityError: as for `load_sdk`.
    """
    # Messages of the SDK go to stderr; stdout belongs to the protocol.
    version = importlib.metadata.version("edge-rag")
    server = load_sdk()(name, version=version, instructions=instructions, log_level="WARNING")
    for tool in tools:
        server.add_tool(marked(bounded(healthy(tool, health), budget), name))
    errors: Any = plain_errors(name)
    server.middleware.append(errors)
    return server


def plain_errors(server: str) -> Callable[[Any, Handler], Awaitable[Any]]:
    """Middleware of the SDK that makes every error of a request a short text without control characters.

    An unexpected exception is reported in a file and becomes a sentence, and the server continues.

    Args:
        server: the server's name for the report.
    """

    async def handle(context: Any, call_next: Handler) -> Any:
        from mcp.shared.exceptions import MCPError

        try:
            result = await call_next(context)
        except MCPError as error:
            # `data` repeats the input of the client. The message names it already.
            raise MCPError(error.code, _short(escaped(error.message))) from None
        except Exception as error:
            unknown = context.method == "prompts/get" and isinstance(error, ValueError)
            said = _short(escaped(str(error))) if unknown else report(error, f"{server} {escaped(context.method)}")
            raise MCPError(_INTERNAL, said) from None
        if isinstance(result, dict) and result.get("isError"):
            for part in result.get("content", ()):
                if isinstance(part.get("text"), str):
                    part["text"] = _short(harmless(part["text"]))
        return result

    return handle


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ... ({len(text):,} characters)"
