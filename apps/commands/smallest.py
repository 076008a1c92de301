"""The smallest memory limit of each operation, from the plans by which operations are refused, each in a new process
that imports what the verb does."""

from __future__ import annotations

import importlib
import json
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from edge.budget import SPREAD, OperationPlan
from edge.config import Config
from edge.errors import EdgeError
from edge.interpreter import python
from edge.resident import anonymous_resident

_SECONDS = 60.0
_TEXT = "A passage of about sixty words, as long as most passages of an index are. " * 4
_CHILD = "from edge.apps.commands.smallest import say; say(sys.argv[1])"


@dataclass(frozen=True, slots=True)
class Operation:
    """The modules that the verb imports before it begins, its memory plan, and what imports an extra's libraries."""

    modules: tuple[str, ...]
    plan: Callable[[Config], OperationPlan]
    load: Callable[[], object] = tuple


def smallest_limits() -> dict[str, int | str]:
    """In bytes for one short request, or a sentence why there is none."""
    return {name: _asked(name) for name in OPERATIONS}


def say(name: str) -> None:
    """Prints the smallest limit of an operation, or an error, as JSON."""
    operation = OPERATIONS[name]
    try:
        operation.load()
        for module in ("edge.apps.cli", *operation.modules):
            importlib.import_module(module)
        config = Config.load()
        plan = operation.plan(config)
        # The verb's own process may hold a little more than this one.
        found: dict[str, int | str] = {"bytes": plan.refusal(0, anonymous_resident()).needed + SPREAD}
    except EdgeError as error:
        found = {"error": str(error)}
    print(json.dumps(found))


def _asked(name: str) -> int | str:
    try:
        done = subprocess.run(python(_CHILD, name), capture_output=True, timeout=_SECONDS, check=True)
        found = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return f"cannot be computed here ({type(error).__name__})"
    return found["bytes"] if "bytes" in found else str(found["error"])


def _retrieving(operation: str, config: Config, **more: Any) -> OperationPlan:
    from edge.apps.store.models import retrieval_plan

    return retrieval_plan(operation, config, embedder=None, reranker=None, databases=1, **more)


def _searching(config: Config) -> OperationPlan:
    from edge.apps.verbs.requests import POOL

    return _retrieving("searching", config, rerank=True, candidates=2 * POOL)


def _indexing(config: Config) -> OperationPlan:
    from edge.apps.store.models import INDEXING

    return _retrieving("indexing", config, rerank=False, candidates=0, writes=True, extra=INDEXING)


def _answering(config: Config) -> OperationPlan:
    from edge.apps.verbs.requests import AskOptions

    return _retrieving("answering", config, rerank=True, candidates=2 * AskOptions().pool)


def _remembering(config: Config) -> OperationPlan:
    from edge.apps.memory.searching import DEPTH

    return _retrieving("remembering", config, rerank=True, candidates=DEPTH, writes=True)


def _ranking(config: Config) -> OperationPlan:
    from edge.apps.store.models import texts_plan

    return texts_plan("ranking", "reranker", config, [_TEXT], None, "a query")


def _embedding(config: Config) -> OperationPlan:
    from edge.apps.store.models import texts_plan

    return texts_plan("embedding", "embedder", config, [_TEXT], None)


def _demonstrating(config: Config) -> OperationPlan:
    from edge.apps.demo import shown_texts
    from edge.apps.store.models import texts_plan

    return texts_plan("the demo", "reranker", config, shown_texts(), None, "a question")


def _load_sdk() -> None:
    from edge.apps.mcp.protocol import load_sdk

    load_sdk()


def _load_server() -> None:
    from edge.apps.serve.limits import load_libraries

    load_libraries()


def _serving(config: Config) -> OperationPlan:
    from edge.apps.serve.limits import Limits, serving_plan

    return serving_plan(config, Limits())


OPERATIONS: Mapping[str, Operation] = {
    "demo": Operation(("edge.apps.demo", "edge.runtimes.reranker"), _demonstrating),
    "index": Operation(("edge.apps.commands.index", "edge.apps.collection.writing"), _indexing),
    "search": Operation(
        ("edge.apps.commands.search", "edge.apps.verbs.work", "edge.apps.collection.collection"), _searching
    ),
    "ask": Operation(("edge.apps.assistant.ask",), _answering),
    "memory": Operation(("edge.apps.memory.command", "edge.apps.memory.memory"), _remembering),
    "rerank": Operation(("edge.apps.commands.texts", "edge.apps.verbs.work", "edge.runtimes.reranker"), _ranking),
    "embed": Operation(("edge.apps.commands.texts", "edge.apps.verbs.work", "edge.runtimes.embedder"), _embedding),
    "mcp": Operation(("edge.apps.mcp.command", "edge.apps.mcp.tools", "edge.apps.mcp.protocol"), _searching, _load_sdk),
    "serve": Operation(("edge.apps.serve.command", "edge.apps.serve.listening"), _serving, _load_server),
}
"""The operations by verb; `mcp` stands for both MCP servers."""
