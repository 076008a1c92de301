"""What both servers share: the SDK, and making a server of functions."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from edge.apps.mcp.answers import Tool, bounded, healthy
from edge.apps.mcp.marking import marked
from edge.apps.store.health import Health
from edge.budget import MemoryBudget
from edge.errors import CapabilityError

if TYPE_CHECKING:
    from mcp.server import MCPServer


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


def make_server(
    name: str, instructions: str, tools: Sequence[Tool], budget: MemoryBudget, health: Callable[[], Health]
) -> MCPServer[Any]:
    """An MCP server with these functions as its tools; their names, type hints and docstrings are what clients see.
    Errors of ours that they raise are told to the model, their answers are bounded (`answers.bounded`), and what they
    retrieved is marked as data (`marking.marked`).

    Args:
        health: asked for every answer; what is unfinished or damaged is said in it as `health`.

    Raises:
        CapabilityError: as `load_sdk`.
    """
    # Notices go to stderr; stdout belongs to the protocol.
    version = importlib.metadata.version("edge-rag")
    server = load_sdk()(name, version=version, instructions=instructions, log_level="WARNING")
    for tool in tools:
        server.add_tool(marked(bounded(healthy(tool, health), budget), name))
    return server
