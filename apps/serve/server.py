"""`HttpServer`: everything that one server holds. `application` serves it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge.apps.serve.body import Requests
from edge.apps.serve.editor import Editor
from edge.apps.serve.library import ServedLibrary, ServedModels
from edge.apps.serve.limits import LEAVE_S, Limits, Workers, load_libraries, server_nbytes, serving_plan
from edge.apps.serve.metrics import Metrics, TraceRecording
from edge.apps.serve.security import Access
from edge.budget import MemoryBudget
from edge.config import Config
from edge.resident import Closing, anonymous_resident
from edge.runtimes.engine import Tuning
from edge.trace import Trace

if TYPE_CHECKING:
    from edge.apps.cluster.calling import Places


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """What a server serves, to whom, and within which bounds.

    Attributes:
        collections: names and directories of those that are served; if there are none, the usual one and all that have
            a name (`edge collections`).
        memory: directory of the memory; the usual one if not given.
        llm: the generator, where a request does not choose one (see `Assistant`); by default the configuration's.
        opener: opens a document in the program of its type.
        usual: options of questions that do not say, see `AskOptions`.
        private: whether it answers its owner's commands only, and those about any collection.
        idle_s: the server ends when it was not used for so many seconds; 0: it does not.
        places: of the shards, if its one collection is in shards; the caller closes them.
    """

    limits: Limits = field(default_factory=Limits)
    access: Access = field(default_factory=Access)
    collections: Sequence[str] = ()
    memory: Path | None = None
    llm: str = ""
    tuning: Tuning | None = None
    editor: Editor = field(default_factory=lambda: Editor(""))
    opener: Editor = field(default_factory=lambda: Editor(""))
    usual: Mapping[str, Any] = field(default_factory=dict)
    private: bool = False
    idle_s: float = 0.0
    places: Places | None = None


@dataclass(slots=True)
class HttpServer(Closing):
    """A context manager; its application serves while it is open.

    Attributes:
        drawing: held while a page is drawn.
        writing: what ends each answer that is being written, by the names that the owner's programs gave them.
        url: its address, as a browser takes it.
        started: when the server was made, in seconds since 1970.
        cut_off: whether something was still at work when the server was closed.
        used: when the last request ended that was not about the server itself, by `time.monotonic`.
        needed: the smallest limit under which it answers one search, in bytes.
    """

    config: Config
    options: ServerOptions = field(default_factory=ServerOptions)
    used: float = field(default_factory=time.monotonic, init=False)
    trace: Trace = field(default_factory=Trace)
    budget: MemoryBudget = field(init=False)
    pool: ServedModels = field(init=False)
    library: ServedLibrary = field(init=False)
    requests: Requests = field(init=False)
    workers: Workers = field(init=False)
    metrics: Metrics = field(init=False)
    recording: TraceRecording = field(init=False)
    drawing: threading.Lock = field(default_factory=threading.Lock, init=False)
    writing: dict[str, Callable[[], None]] = field(default_factory=dict, init=False)
    url: str = field(default="", init=False)
    started: float = field(default_factory=time.time, init=False)
    cut_off: bool = field(default=False, init=False)
    needed: int = field(init=False)
    _leave_by: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        """Takes the memory of connections and threads, and nothing else before it is asked for."""
        load_libraries()
        limits = self.options.limits
        plan = serving_plan(self.config, limits)
        held = anonymous_resident()
        self.needed = held + plan.nbytes
        if self.needed > self.config.memory:
            raise plan.refusal(self.config.memory, held)
        self.budget = MemoryBudget(self.config.memory)
        self.budget.reserve("server", server_nbytes(limits))
        self.pool = ServedModels(self.budget, self.config, self.trace, self.options.tuning)
        self.library = ServedLibrary(self.pool, self.options)
        self.requests = Requests(self.budget, limits, self.needed)
        self.workers = Workers(limits)
        self.metrics = Metrics()
        self.recording = TraceRecording(self.trace, self.budget)

    @property
    def is_idle(self) -> bool:
        """Whether it was not used for so long that it ends."""
        return bool(self.options.idle_s) and time.monotonic() - self.used > self.options.idle_s

    def withdraw(self) -> None:
        """Begins the time in which all work must end: its requests have just been withdrawn."""
        self._leave_by = time.monotonic() + LEAVE_S

    def close(self) -> None:
        """Closes everything that was opened, once no thread uses it any more. If one does for too long, all is left to
        the end of the process, and `cut_off` is true. Some work is not counted by `workers`, such as that of tools, so
        closing itself may wait for it, and is not waited for without end either."""
        leave_by = self._leave_by or time.monotonic() + LEAVE_S
        errors: list[BaseException] = []

        def close() -> None:
            try:
                self.library.close()
            except BaseException as error:
                errors.append(error)

        self.cut_off = not self.workers.ended(leave_by - time.monotonic())
        if not self.cut_off:
            closing = threading.Thread(target=close, name="edge-closing", daemon=True)
            closing.start()
            closing.join(LEAVE_S)
            self.cut_off = closing.is_alive()
        if errors:
            raise errors.pop()
