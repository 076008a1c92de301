"""The bounds of a server, and the threads that work on requests, each with the urgency of its request."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from edge.apps.serve.refusals import HttpRefusal
from edge.errors import CapabilityError
from edge.scheduling.waiting_line import BATCH, PERSON, PROGRAM, Urgency, urgent

if TYPE_CHECKING:
    from anyio import CapacityLimiter
    from starlette.requests import Request

    from edge.budget import OperationPlan
    from edge.config import Config


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one server; sizes in bytes, times in seconds. `connections`: for one more, the one ends that has waited
    longest for its client; if all are at work, the new one is told to come again. `workers`: requests that are worked
    on at once. `pause_s`: between two pieces of a body, and for a client to take a piece of the answer; `idle_s`:
    between two requests. `rate`: requests a minute for each token, or for each address where none is asked for; 0 for
    no bound."""

    body: int = 8 << 20
    connections: int = 64
    workers: int = 24
    head_s: float = 10.0
    body_s: float = 60.0
    pause_s: float = 20.0
    idle_s: float = 15.0
    request_s: float = 300.0
    rate: int = 0


CONNECTION_BYTES = 104 << 10
"""Memory of an open connection: its head, the buffers of both directions, and the transport of one that is turned
away."""

RETRY_S = "2"
"""After so many seconds a client that was turned away may come again."""

WORKER_BYTES = 160 << 10
"""Memory of a working thread: the touched part of its stack, Python's frames and objects."""


GRACE_S = 3.0
"""When the server ends, requests may go on for so long."""

LEAVE_S = 5.0
"""Then they are withdrawn, their threads have so long to notice, and stores and models so long to close."""

LIBRARIES = ("anyio", "h11", "starlette.applications", "starlette.responses", "uvicorn", "msgspec")


def load_libraries() -> None:
    """Imports the libraries of HTTP and JSON. Call it before opening a budget, so that its baseline includes them."""
    import importlib

    try:
        for name in LIBRARIES:
            importlib.import_module(name)
    except ImportError as error:
        raise CapabilityError(
            "the server needs Starlette, uvicorn and msgspec: pip install 'edge-rag[serve]'"
        ) from error


def server_nbytes(limits: Limits) -> int:
    return limits.connections * CONNECTION_BYTES + (limits.workers + 1) * WORKER_BYTES


def serving_plan(config: Config, limits: Limits) -> OperationPlan:
    from edge.apps.store.models import retrieval_plan
    from edge.apps.verbs.requests import POOL
    from edge.budget import OperationPlan, OperationStage

    plan = retrieval_plan(
        "the server", config, embedder=None, reranker=None, rerank=True, candidates=2 * POOL, databases=1
    )
    return OperationPlan(plan.operation, (OperationStage("its connections", kept=server_nbytes(limits)), *plan.stages))


Result = TypeVar("Result")

PRIORITY, TIMEOUT = "x-edge-priority", "x-edge-timeout"
"""Headers: `person`, `program` or `batch`; seconds after which the result is of no use."""

_PRIORITIES = {"person": PERSON, "program": PROGRAM, "batch": BATCH}


def urgency_of(request: Request, limits: Limits, default: int = PROGRAM) -> Urgency:
    name = request.headers.get(PRIORITY, "")
    if name and name not in _PRIORITIES:
        raise HttpRefusal(422, f"the header {PRIORITY} is person, program or batch, not {name[:40]!r}")
    given = request.headers.get(TIMEOUT, "")
    try:
        seconds = float(given) if given else limits.request_s
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise HttpRefusal(422, f"the header {TIMEOUT} is a number of seconds above 0, not {given[:40]!r}")
    return Urgency(_PRIORITIES.get(name, default), seconds=min(seconds, limits.request_s))


class Workers:
    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.busy = 0
        self._changed = threading.Condition()
        self._limiters: tuple[CapacityLimiter, CapacityLimiter] | None = None

    async def run(self, urgency: Urgency, work: Callable[[], Result], *, large: bool = False) -> Result:
        """The result of `work` in a thread, when one is free; large requests use at most half. A cancelled task
        withdraws the work and waits for the thread: the request's memory is not given back while its work uses it."""
        import anyio

        if self._limiters is None:  # they belong to the event loop
            most = self.limits.workers
            self._limiters = anyio.CapacityLimiter(most), anyio.CapacityLimiter(max(1, most // 2))
        threads, half = self._limiters

        def counted() -> Result:
            urgency.check()
            self._count(1)
            try:
                with urgent(urgency):
                    return work()
            finally:
                self._count(-1)

        async with half if large else nullcontext(), threads:
            alone = anyio.CapacityLimiter(1)  # the thread need not wait any more
            thread = asyncio.ensure_future(anyio.to_thread.run_sync(counted, limiter=alone))
            with anyio.CancelScope(shield=True):
                cancelled = await settled(thread, urgency.cancel)
        if cancelled:
            with suppress(Exception, asyncio.CancelledError):
                thread.result()
            raise asyncio.CancelledError
        return thread.result()

    def ended(self, seconds: float) -> bool:
        """Waits until no thread works on a request; returns whether that is so after some seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self.busy, seconds)

    def _count(self, more: int) -> None:
        with self._changed:
            self.busy += more
            self._changed.notify_all()


@asynccontextmanager
async def attending(receive: Callable[[], Awaitable[Any]], urgency: Urgency) -> AsyncIterator[None]:
    """Withdraws the work of a request, whose body has been read, when its client goes away."""

    async def attend() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        urgency.cancel()

    task = asyncio.ensure_future(attend())
    try:
        yield
    finally:
        task.cancel()


async def settled(work: asyncio.Future[Any], withdraw: Callable[[], None]) -> bool:
    """Waits for the end of some work; each time that this task is cancelled, `withdraw` is called. Returns whether it
    was."""
    cancelled = False
    while not await _awaited(work):
        cancelled = True
        withdraw()
    return cancelled


async def _awaited(work: asyncio.Future[Any]) -> bool:
    try:
        await asyncio.wait([work])
    except asyncio.CancelledError:
        return False
    return True
