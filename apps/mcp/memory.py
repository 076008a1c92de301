"""The tools of the memory server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edge.apps.mcp.protocol import Tool, make_server
from edge.apps.memory.memory import Memory

if TYPE_CHECKING:
    from mcp.server import MCPServer

_INSTRUCTIONS = (
    "Long-term memory of this user, kept on this machine. Search it before answering about people, preferences, plans "
    "or earlier conversations; add what will matter later, one self-contained sentence at a time."
)


_ECHO = 500
"""The most characters of a stored text that an answer repeats. The client has just sent the text."""


def memory_server(memory: Memory) -> MCPServer[Any]:
    """A server for one memory. The memory should be bound to a scope, which clients cannot leave.

    Raises:
        CapabilityError: the package `mcp` is missing.
    """

    def add_memory(
        text: str,
        metadata: dict[str, Any] | None = None,
        timestamp: str | None = None,
        expiration_date: str | None = None,
        run_id: str | None = None,
    ) -> dict[str, Any]:
        """Remember a text.

        Args:
            text: one fact, preference, event or decision, understandable alone.
            metadata: fields to filter by later, such as {"category": "health"}.
            timestamp: when it was said or happened, such as 2026-05-08 or 2026-05-08T13:56.
            expiration_date: the last day on which the memory is valid, such as 2026-12-31.
            run_id: the session that the memory belongs to, to keep it apart from others.
        """
        added = memory.add(text, metadata=metadata, timestamp=timestamp, expiration_date=expiration_date, run_id=run_id)
        return added | {"results": [_abridged(result) for result in added["results"]]}

    def search_memory(
        query: str,
        top_k: int = 5,
        filters: dict[str, Any] | None = None,
        run_id: str | None = None,
        neighbours: int = 0,
    ) -> dict[str, Any]:
        """Find memories about a subject, best first.

        Args:
            query: a question or a description.
            top_k: number of results.
            filters: conditions on metadata and dates, such as {"category": "health"} or {"timestamp": {"gte":
                "2026-05-01", "lt": "2026-06-01"}}; operators eq ne gt gte lt lte in nin contains icontains, joined by
                AND, OR and NOT.
            run_id: only memories of this session.
            neighbours: number of conversation turns to add before and after each result.
        """
        return memory.search(query, top_k, filters=filters, run_id=run_id, neighbours=neighbours)

    def list_memories(
        top_k: int = 20, filters: dict[str, Any] | None = None, run_id: str | None = None
    ) -> dict[str, Any]:
        """List memories, newest first.

        Args:
            top_k: number of memories.
            filters: as for search_memory.
            run_id: only memories of this session.
        """
        return memory.get_all(top_k=top_k, filters=filters, run_id=run_id)

    def update_memory(
        memory_id: str,
        text: str | None = None,
        metadata: dict[str, Any] | None = None,
        expiration_date: str | None = None,
    ) -> dict[str, Any]:
        """Correct a memory; omitted arguments stay unchanged.

        Args:
            memory_id: the id from a search or a list.
            text: the new text.
            metadata: keys to set.
            expiration_date: the last day on which the memory is valid.
        """
        if expiration_date is None:
            return memory.update(memory_id, text, metadata)
        return memory.update(memory_id, text, metadata, expiration_date)

    def delete_memory(memory_id: str) -> dict[str, Any]:
        """Delete a memory.

        Args:
            memory_id: the id from a search or a list.
        """
        return memory.delete(memory_id)

    tools: list[Tool] = [add_memory, search_memory, list_memories, update_memory, delete_memory]
    return make_server("edge-memory", _INSTRUCTIONS, tools, memory.budget, memory.health)


def _abridged(result: dict[str, Any]) -> dict[str, Any]:
    """The result of an addition, with long texts shortened and without metadata. The client knows both."""
    similar = [_abridged(memory) for memory in result.get("similar", ())]
    shown = {name: value for name, value in result.items() if name not in ("metadata", "similar")}
    text = shown.get("memory")
    if isinstance(text, str) and len(text) > _ECHO:
        shown["memory"] = f"{text[:_ECHO]} ... ({len(text):,} characters)"
    return shown | ({"similar": similar} if similar else {})
