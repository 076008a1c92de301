"""What both servers share: making one, and telling a model what went wrong in words it can act on."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from edge.errors import CapabilityError, EdgeError

if TYPE_CHECKING:
    from mcp.server import MCPServer


Tool = Callable[..., dict[str, Any]]


def load_sdk() -> type[MCPServer[Any]]:
    """The SDK's server class. Called before a budget is opened, what the SDK holds is part of the budget's baseline.

    Raises:
        CapabilityError: the package `mcp` is missing, or older than version 2.
    """
    try:
        from mcp.server import MCPServer
    except ImportError as error:
        raise CapabilityError("the MCP servers need mcp 2 or newer: pip install 'edge-rag[mcp]'") from error
    server: type[MCPServer[Any]] = MCPServer
    return server


def make_server(name: str, instructions: str, tools: list[Tool]) -> MCPServer[Any]:
    """An MCP server with these functions as its tools; their names, type hints and docstrings are what clients see.

    Raises:
        CapabilityError: as `load_sdk`.
    """
    # Notices go to stderr; stdout belongs to the protocol.
    version = importlib.metadata.version("edge-rag")
    server = load_sdk()(name, version=version, instructions=instructions, log_level="WARNING")
    for tool in tools:
        server.add_tool(tool)
    return server


@contextmanager
def told() -> Iterator[None]:
    """Errors of ours inside the block become tool errors, whose sentence the model gets to read."""
    from mcp.server.mcpserver.exceptions import ToolError

    try:
        yield
    except EdgeError as error:
        raise ToolError(str(error)) from error
