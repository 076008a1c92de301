"""Answers of tools: limited in length, and held under a lease until they are written."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from edge.apps.mcp.envelope import parsed_nbytes
from edge.apps.store.health import Health
from edge.budget import Lease, MemoryBudget
from edge.config import format_size
from edge.errors import EdgeError, InputError

MOST_BYTES = 1 << 20
"""Longest answer in bytes of JSON: more than a language model reads at once."""

_SMALL_BYTES = 8 << 10
"""Answers up to this size are covered by the lease of every message. So a completed action is never reported as an
error because its confirmation does not fit."""

_COPIES = 2
"""Copies of a result in an answer: the protocol sends it as structure and as text."""

ANSWER: ContextVar[list[Lease] | None] = ContextVar("edge_mcp_answer", default=None)
"""Leases of the request that is being answered. A tool's thread sees the leases of its own request."""

Tool = Callable[..., dict[str, Any]]


def bounded(tool: Tool, budget: MemoryBudget) -> Tool:
    """Wraps a tool so that its answers are limited, and our errors become sentences for the model.

    A result that is longer than `MOST_BYTES`, or that needs more memory on its way to the client than is free, becomes
    such a sentence, too.
    """

    @functools.wraps(tool)
    def answer(*args: Any, **kwargs: Any) -> dict[str, Any]:
        from mcp.server.mcpserver.exceptions import ToolError

        try:
            result = tool(*args, **kwargs)
            _hold(result, budget)
        except EdgeError as error:
            raise ToolError(str(error)) from error
        return result

    return answer


def healthy(tool: Tool, health: Callable[[], Health]) -> Tool:
    """Wraps a tool so that its answers report, as `health`, any unfinished work and damage in its store."""

    @functools.wraps(tool)
    def answer(*args: Any, **kwargs: Any) -> dict[str, Any]:
        result = tool(*args, **kwargs)
        found = health()
        return result if found else {"health": found.to_json(), **result}

    return answer


def _hold(result: dict[str, Any], budget: MemoryBudget) -> None:
    length = structure = 0
    wide = False
    for part in json.JSONEncoder(ensure_ascii=False).iterencode(result):
        length += len(part.encode("utf-8", "replace"))
        structure += part in ("[", "{", ", ", ": ") or part[:1] in "[{,"
        wide = wide or not part.isascii()
        if length > MOST_BYTES:
            raise InputError(
                f"the answer is longer than {format_size(MOST_BYTES)}: ask for less at a time, with a smaller top_k or "
                f"a narrower filter"
            )
    if length <= _SMALL_BYTES:
        return
    lease = budget.reserve("answers", _COPIES * parsed_nbytes(length, structure, wide=wide))
    held = ANSWER.get()
    if held is None:
        lease.release()
    else:
        held.append(lease)
