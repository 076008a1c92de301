"""`Server`: everything that one server holds, and the application that speaks for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edge.apps.collection.searching import POOL
from edge.apps.planning import retrieval_plan
from edge.apps.serve.body import Requests
from edge.apps.serve.documents import Editor
from edge.apps.serve.lent import ModelPool
from edge.apps.serve.library import Library
from edge.apps.serve.limits import CLOSE_S, CONNECTION_BYTES, LEAVE_S, WORKER_BYTES, Limits
from edge.apps.serve.metrics import EngineRoom, Metrics, Recording
from edge.apps.serve.working import Workers
from edge.budget import MemoryBudget, OperationPlan, OperationStage
from edge.config import Config
from edge.errors import CapabilityError
from edge.resident import Closing, anonymous_resident
from edge.runtimes.tuning import Tuning
from edge.trace import Trace

LIBRARIES = ("anyio", "h11", "starlette.applications", "starlette.responses", "uvicorn")


def load_libraries() -> None:
    """Imports the HTTP libraries. Called before a budget is opened, what they hold is part of the budget's baseline.

    Raises:
        CapabilityError: one is missing.
    """
    import importlib

    try:
        for name in LIBRARIES:
            importlib.import_module(name)
    except ImportError as error:
        raise CapabilityError("the server needs Starlette and uvicorn: pip install 'edge-rag[serve]'") from error


@dataclass(frozen=True, slots=True)
class Access:
    """Who may use a server.

    Attributes:
        hosts: further names by which this machine is called.
        origins: of sites whose pages may use the server.
        token: SHA-256 of the token that requests must bring, in hexadecimal; empty if none is needed.
    """

    hosts: Sequence[str] = ()
    origins: Sequence[str] = ()
    token: str = ""


@dataclass(slots=True)
class Server(Closing):
    """A context manager; `application` serves while it is open.

    Attributes:
        cut_off: whether something was still at work when the server was closed.
    """

    config: Config
    limits: Limits = field(default_factory=Limits)
    access: Access = field(default_factory=Access)
    collections: Sequence[str] = ()
    memory: Path | None = None
    llm: str = ""
    tuning: Tuning | None = None
    editor: Editor = field(default_factory=lambda: Editor(""))
    trace: Trace = field(default_factory=Trace)
    budget: MemoryBudget = field(init=False)
    pool: ModelPool = field(init=False)
    library: Library = field(init=False)
    requests: Requests = field(init=False)
    workers: Workers = field(init=False)
    metrics: Metrics = field(init=False)
    recording: Recording = field(init=False)
    room: EngineRoom = field(init=False)
    cut_off: bool = field(default=False, init=False)
    _leave_by: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        """Takes the memory of connections and threads, and nothing else before it is asked for.

        Raises:
            CapabilityError: the HTTP libraries are missing.
            BudgetExceeded: a search does not fit beside that; the error names the smallest limit that works.
        """
        load_libraries()
        plan = serving_plan(self.config, self.limits)
        held = anonymous_resident()
        if held + plan.nbytes > self.config.memory:
            raise plan.refusal(self.config.memory, held)
        self.budget = MemoryBudget(self.config.memory)
        self.budget.reserve("server", server_nbytes(self.limits))
        self.pool = ModelPool(self.budget, self.config, self.trace, self.tuning)
        self.library = Library(
            self.pool, self.collections, memory=self.memory, llm=self.llm, longest_s=self.limits.request_s
        )
        self.requests = Requests(self.budget, self.limits, held + plan.nbytes)
        self.workers = Workers(self.limits)
        self.metrics = Metrics()
        self.recording = Recording(self.trace, self.budget)
        self.room = EngineRoom(self.pool, self.requests, self.workers, self.metrics, self.recording)

    def application(self) -> Any:
        """The ASGI application."""
        from edge.apps.serve.application import application

        return application(self)

    def withdraw(self) -> None:
        """Begins the time in which all work must end: its requests have just been withdrawn."""
        self._leave_by = time.monotonic() + LEAVE_S

    def close(self) -> None:
        """Closes everything that was opened, once no thread uses it any more. If one does for too long, all is left to
        the end of the process, and `cut_off` is true. Some work is not counted by `workers`, such as that of tools, so
        closing itself may wait for it, and is not waited for without end either."""
        begun = time.monotonic()
        leave_by = max(begun + CLOSE_S, self._leave_by or begun + LEAVE_S)
        errors: list[BaseException] = []

        def close() -> None:
            try:
                if self.workers.ended(leave_by - time.monotonic()):
                    self.library.close()
            except BaseException as error:
                errors.append(error)

        closing = threading.Thread(target=close, name="edge-closing", daemon=True)
        closing.start()
        closing.join(leave_by - begun)
        self.cut_off = closing.is_alive() or self.workers.busy > 0
        if errors:
            raise errors.pop()


def server_nbytes(limits: Limits) -> int:
    """Memory of the connections and threads that may be there."""
    return limits.connections * CONNECTION_BYTES + (limits.workers + 1) * WORKER_BYTES


def serving_plan(config: Config, limits: Limits) -> OperationPlan:
    """What a server needs to answer one search."""
    plan = retrieval_plan(
        "the server", config, embedder=None, reranker=None, rerank=True, candidates=2 * POOL, databases=1
    )
    return OperationPlan(plan.operation, (OperationStage("its connections", kept=server_nbytes(limits)), *plan.stages))
