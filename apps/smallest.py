"""The smallest memory limit of each operation, by the plans that its refusals go by.

What a process holds when an operation begins belongs to its limit. So each number is computed in a new process, which
imports what the verb imports.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from edge.config import Config
from edge.errors import EdgeError
from edge.plan import Plan
from edge.resident import anonymous_resident

_SECONDS = 60.0
_TEXT = "A passage of about sixty words, as long as most passages of an index are. " * 4
_CHILD = "import sys; sys.path[:] = sys.argv[2:]; from edge.apps.smallest import say; say(sys.argv[1])"


@dataclass(frozen=True, slots=True)
class Operation:
    """What a limit is computed for.

    Attributes:
        modules: that the verb imports before it begins.
        plan: what it will need.
    """

    modules: tuple[str, ...]
    plan: Callable[[Config], Plan]


def smallest_limits() -> dict[str, int | str]:
    """By operation the smallest limit in bytes for one short request, or a sentence on why there is none."""
    return {name: _asked(name) for name in OPERATIONS}


def say(name: str) -> None:
    """Prints the smallest limit of an operation, or why there is none, as JSON. Run in a process of its own."""
    operation = OPERATIONS[name]
    try:
        for module in ("edge.apps.cli", *operation.modules):
            importlib.import_module(module)
        config = Config.load()
        plan = operation.plan(config)
        found: dict[str, int | str] = {"bytes": plan.refusal(0, anonymous_resident()).needed}
    except (EdgeError, ImportError) as error:
        found = {"error": str(error)}
    print(json.dumps(found))


def _asked(name: str) -> int | str:
    path = [entry for entry in sys.path if isinstance(entry, str)]
    try:
        done = subprocess.run(
            [sys.executable, "-c", _CHILD, name, *path], capture_output=True, timeout=_SECONDS, check=True
        )
        found = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return f"cannot be computed here ({type(error).__name__})"
    return found["bytes"] if "bytes" in found else str(found["error"])


def _searching(config: Config) -> Plan:
    from edge.apps.collection.searching import POOL
    from edge.apps.planning import retrieval_plan

    return retrieval_plan(
        "searching", config, embedder=None, reranker=None, rerank=True, candidates=2 * POOL, databases=1
    )


def _indexing(config: Config) -> Plan:
    from edge.apps.collection.writing import INDEXING
    from edge.apps.planning import retrieval_plan

    return retrieval_plan(
        "indexing", config, embedder=None, reranker=None, rerank=False, candidates=0, extra=INDEXING, databases=1
    )


def _answering(config: Config) -> Plan:
    from edge.apps.assistant.base import AskOptions
    from edge.apps.planning import retrieval_plan

    count = 2 * AskOptions().pool
    return retrieval_plan("answering", config, embedder=None, reranker=None, rerank=True, candidates=count, databases=1)


def _remembering(config: Config) -> Plan:
    from edge.apps.memory.searching import DEPTH
    from edge.apps.planning import retrieval_plan

    return retrieval_plan("searching", config, embedder=None, reranker=None, rerank=True, candidates=DEPTH, databases=1)


def _ranking(config: Config) -> Plan:
    from edge.apps.planning import texts_plan

    return texts_plan("ranking", "reranker", config, [_TEXT], None, "a query")


def _embedding(config: Config) -> Plan:
    from edge.apps.planning import texts_plan

    return texts_plan("embedding", "embedder", config, [_TEXT], None)


def _demonstrating(config: Config) -> Plan:
    from edge.apps.demo.command import shown_texts
    from edge.apps.planning import texts_plan

    return texts_plan("the demo", "reranker", config, shown_texts(), None, "a question")


OPERATIONS: Mapping[str, Operation] = {
    "demo": Operation(("edge.apps.demo.command", "edge.runtimes.reranker"), _demonstrating),
    "index": Operation(("edge.apps.files.index",), _indexing),
    "search": Operation(("edge.apps.files.search",), _searching),
    "ask": Operation(("edge.apps.assistant.ask",), _answering),
    "memory": Operation(("edge.apps.memory.command",), _remembering),
    "rerank": Operation(("edge.apps.rerank",), _ranking),
    "embed": Operation(("edge.apps.embed",), _embedding),
    "mcp": Operation(("edge.apps.mcp.command", "edge.apps.mcp.files", "edge.apps.mcp.stdio", "mcp.server"), _searching),
}
"""By their verbs; `mcp` stands for both servers."""
