"""`Limits`: the bounds of a server. And what a server needs: its libraries, and memory for one search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edge.errors import CapabilityError

if TYPE_CHECKING:
    from edge.budget import OperationPlan
    from edge.config import Config


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one server; sizes in bytes, times in seconds.

    Attributes:
        body: of a request's body.
        connections: that are open at once. One more is closed before anything is read from it.
        workers: requests that are worked on at once. Others wait with their bodies read.
        head_s: for the first line and the headers of a request.
        body_s: for its body.
        pause_s: between two pieces of its body, and for a client to take a piece of the answer.
        idle_s: that a connection may stay open between two requests.
        request_s: for the work, unless the request says less.
        rate: requests a minute for each token, or for each address where no token is asked for; 0 for no bound.
    """

    body: int = 8 << 20
    connections: int = 64
    workers: int = 24
    head_s: float = 10.0
    body_s: float = 60.0
    pause_s: float = 20.0
    idle_s: float = 15.0
    request_s: float = 300.0
    rate: int = 0


CONNECTION_BYTES = 96 << 10
"""Memory of an open connection: what the HTTP library keeps of its head, the buffers of both directions."""

WORKER_BYTES = 160 << 10
"""Memory of a thread that works on a request: the touched part of its stack, Python's own frames and objects."""


GRACE_S = 3.0
"""When the server ends, requests may go on for so long."""

LEAVE_S = 5.0
"""Then they are withdrawn, and their threads have so long to notice. Whatever works longer is cut off."""

CLOSE_S = 1.0
"""Closing what is open has at least so long, even if all that time has passed."""


LIBRARIES = ("anyio", "h11", "starlette.applications", "starlette.responses", "uvicorn", "msgspec")


def load_libraries() -> None:
    """Imports the libraries of HTTP and JSON. Call it before opening a budget, so that its baseline includes them.

    Raises:
        CapabilityError: one is missing.
    """
    import importlib

    try:
        for name in LIBRARIES:
            importlib.import_module(name)
    except ImportError as error:
        raise CapabilityError(
            "the server needs Starlette, uvicorn and msgspec: pip install 'edge-rag[serve]'"
        ) from error


def server_nbytes(limits: Limits) -> int:
    """Memory of the connections and threads that may be there."""
    return limits.connections * CONNECTION_BYTES + (limits.workers + 1) * WORKER_BYTES


def serving_plan(config: Config, limits: Limits) -> OperationPlan:
    """The memory that a server needs to answer one search."""
    from edge.apps.collection.searching import POOL
    from edge.apps.planning import retrieval_plan
    from edge.budget import OperationPlan, OperationStage

    plan = retrieval_plan(
        "the server", config, embedder=None, reranker=None, rerank=True, candidates=2 * POOL, databases=1
    )
    return OperationPlan(plan.operation, (OperationStage("its connections", kept=server_nbytes(limits)), *plan.stages))
