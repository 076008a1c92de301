"""`Server`: everything that one server holds, and the application that speaks for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from edge.apps.collection.searching import POOL
from edge.apps.planning import retrieval_plan
from edge.apps.serve.body import Requests
from edge.apps.serve.documents import Editor
from edge.apps.serve.lent import ModelPool
from edge.apps.serve.library import Library
from edge.apps.serve.limits import CONNECTION_BYTES, LEAVE_S, WORKER_BYTES, Limits
from edge.apps.serve.metrics import EngineRoom, Metrics, Recording
from edge.apps.serve.working import Workers
from edge.budget import MemoryBudget
from edge.config import Config
from edge.errors import CapabilityError
from edge.plan import Plan, Stage
from edge.resident import anonymous_resident
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
class Server:
    """A context manager; `application` serves while it is open."""

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

    def close(self) -> None:
        """Closes everything that was opened. What a thread still uses is left to the end of the process."""
        if self.workers.ended(LEAVE_S):
            self.library.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def server_nbytes(limits: Limits) -> int:
    """Memory of the connections and threads that may be there."""
    return limits.connections * CONNECTION_BYTES + (limits.workers + 1) * WORKER_BYTES


def serving_plan(config: Config, limits: Limits) -> Plan:
    """What a server needs to answer one search."""
    plan = retrieval_plan(
        "the server", config, embedder=None, reranker=None, rerank=True, candidates=2 * POOL, databases=1
    )
    return Plan(plan.operation, (Stage("its connections", kept=server_nbytes(limits)), *plan.stages))
