"""What a tool may answer: bounded in length, and held under a lease until it is written."""

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
"""Of an answer as JSON: more than a language model reads at once."""

_SMALL_BYTES = 8 << 10
"""An answer of so many bytes is part of what every message is leased: what has been done is never refused for its
confirmation."""

_COPIES = 2
"""The protocol carries a result twice, as structure and as text."""

ANSWER: ContextVar[list[Lease] | None] = ContextVar("edge_mcp_answer", default=None)
"""What is held for the request that is being answered; a tool's thread sees its request's."""

Tool = Callable[..., dict[str, Any]]


def bounded(tool: Tool, budget: MemoryBudget) -> Tool:
    """The tool, whose errors of ours become sentences that the model gets to read, and whose answers have a bound.

    A result that is longer than `MOST_BYTES`, or whose way to the client needs more memory than there is, becomes such
    a sentence, too.
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
    """The tool, whose answers say as `health` what is unfinished or damaged in what it works on, if anything is."""

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
