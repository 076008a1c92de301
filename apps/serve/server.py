"""`HttpServer`: everything that one server holds, and what it counts and records. `application` serves it.
`Editor`: the command with which the owner's program opens a document, and the system's own."""

from __future__ import annotations

import os
import shlex
import shutil
import stat
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge.apps.serve.body import Requests
from edge.apps.serve.library import ServedLibrary, ServedModels
from edge.apps.serve.limits import LEAVE_S, Limits, Workers, load_libraries, server_nbytes, serving_plan
from edge.apps.serve.security import Access
from edge.budget import Lease, MemoryBudget
from edge.config import Config
from edge.errors import CapabilityError, ConfigError
from edge.resident import Closing, anonymous_resident
from edge.runtimes.engine import Tuning
from edge.trace import Trace

if TYPE_CHECKING:
    from edge.apps.cluster.calling import Places

_BOUNDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper ends of the classes of request times, in seconds."""


class Metrics:
    def __init__(self) -> None:
        self.known: frozenset[str] = frozenset()
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._within: Counter[tuple[str, float]] = Counter()
        self._seconds: Counter[str] = Counter()

    def count(self, path: str, method: str, status: int, seconds: float) -> None:
        name = path if path in self.known else "other"
        method = method if method in ("GET", "POST", "PUT", "DELETE", "PATCH") else "other"
        with self._lock:
            self._requests[name, method, status] += 1
            for bound in _BOUNDS:
                self._within[name, bound] += seconds <= bound
            self._seconds[name] += seconds  # type: ignore[assignment]

    @property
    def served(self) -> int:
        with self._lock:
            return sum(self._requests.values())

    def text(self, budget: MemoryBudget, trace: Trace, levels: Mapping[str, float]) -> str:
        lines = [
            "# TYPE edge_memory_limit_bytes gauge", f"edge_memory_limit_bytes {budget.limit}",
            "# TYPE edge_memory_leased_bytes gauge",
            *(f'edge_memory_leased_bytes{{owner="{_label(name)}"}} {size}' for name, size in budget.holders().items()),
            "# TYPE edge_memory_resident_bytes gauge", f"edge_memory_resident_bytes {anonymous_resident()}",
        ]  # fmt: skip
        for name, value in levels.items():
            lines += [f"# TYPE edge_{name} gauge", f"edge_{name} {value:g}"]
        with self._lock:
            lines.append("# TYPE edge_requests_total counter")
            for (path, method, status), count in sorted(self._requests.items()):
                lines.append(f'edge_requests_total{{path="{path}",method="{method}",status="{status}"}} {count}')
            lines.append("# TYPE edge_request_seconds histogram")
            counts: Counter[str] = Counter()
            for (path, _, _), count in self._requests.items():
                counts[path] += count
            for path, count in sorted(counts.items()):
                lines += [
                    f'edge_request_seconds_bucket{{path="{path}",le="{bound:g}"}} {self._within[path, bound]}'
                    for bound in _BOUNDS
                ]
                lines += [
                    f'edge_request_seconds_bucket{{path="{path}",le="+Inf"}} {count}',
                    f'edge_request_seconds_sum{{path="{path}"}} {self._seconds[path]:.6f}',
                    f'edge_request_seconds_count{{path="{path}"}} {count}',
                ]
        lines.append("# TYPE edge_engine_total counter")
        for name, amount in sorted(trace.snapshot().items()):
            lines.append(f'edge_engine_total{{counter="{_label(name)}"}} {amount:g}')
        return "\n".join(lines) + "\n"


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")


MOST_EVENTS = 8192
_EVENT_BYTES = 1536


class TraceRecording:
    """A recording of the engine's work in Chrome's format. The memory of the most events is held meanwhile."""

    def __init__(self, trace: Trace, budget: MemoryBudget) -> None:
        self.trace = trace
        self._lease: Lease = budget.reserve("trace", 0)

    def state(self) -> dict[str, Any]:
        return {"recording": self.trace.recording, "events": self.trace.recorded, "most": MOST_EVENTS}

    def begin(self) -> None:
        self._lease.resize(MOST_EVENTS * _EVENT_BYTES)
        self.trace.record(MOST_EVENTS)

    def end(self) -> None:
        self.trace.forget()
        self._lease.release()


_PATH, _LINE, _PAGE = "{path}", "{line}", "{page}"

_PASSIVE = frozenset({
    ".pdf", ".docx", ".pptx", ".xlsx", ".odt", ".odp", ".ods", ".epub", ".txt", ".md", ".csv", ".tsv", ".eml", ".png",
    ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".webp", ".gif",
})  # fmt: skip
"""Names of files that programs only show: no pages, macros, launchers or scripts."""


def system_command() -> str:
    if sys.platform in ("darwin", "win32"):
        return f"{'open' if sys.platform == 'darwin' else 'explorer'} {_PATH}"
    screen = os.environ.get("WAYLAND_DISPLAY") or os.environ.get("DISPLAY")
    return f"xdg-open {_PATH}" if screen and shutil.which("xdg-open") else ""


def is_passive(path: Path) -> bool:
    """Whether the system's command may get this file: a plain file of `_PASSIVE`, also where a link leads, that nobody
    may execute."""
    try:
        real = path.resolve(strict=True)
        mode = real.stat().st_mode
    except (OSError, RuntimeError):
        return False
    programs = 0 if sys.platform == "win32" else stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH
    return {path.suffix.lower(), real.suffix.lower()} <= _PASSIVE and stat.S_ISREG(mode) and not mode & programs


class Editor:
    """A command that opens a file, named when the server starts. Thread-safe. The system's own command gets passive
    files only, since it would run a document that is a program."""

    def __init__(self, command: str) -> None:
        """`command`: words as for a shell, such as `code --goto {path}:{line}`, which no shell sees; empty for no
        editor."""
        try:
            self._words = shlex.split(command)
        except ValueError as error:
            raise ConfigError(f"the editor's command {command!r} cannot be read: {error}") from None
        if self._words and not any(_PATH in word for word in self._words[1:]):
            raise ConfigError(
                f"the editor's command has the path in it as {_PATH}, such as 'code --goto {_PATH}:{_LINE}'"
            )
        self._running: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()

    @property
    def is_named(self) -> bool:
        return bool(self._words)

    def open(self, path: Path, line: int, page: int) -> None:
        values = ((_PATH, str(path)), (_LINE, str(line)), (_PAGE, str(page)))
        words = [self._words[0]]
        for word in self._words[1:]:
            for name, value in reversed(values):  # the path last: it may hold braces of its own
                word = word.replace(name, value)
            words.append(word)
        nothing = subprocess.DEVNULL
        with self._lock:
            self._running = [process for process in self._running if process.poll() is None]
            try:
                self._running.append(
                    subprocess.Popen(words, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True)
                )
            except OSError as error:
                raise CapabilityError(f"the editor {words[0]!r} cannot be started: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """What a server serves, to whom, and within which bounds. Without `collections`, the usual one and all that have a
    name; `opener` opens a document in the program of its type; `adds_folders`: clients may have folders indexed;
    `usual`: options of questions that do not say;
    `private`: it answers its owner's commands only, about any collection; after `idle_s` without use it ends (0: it
    does not); `places`: of the shards of its one collection."""

    limits: Limits = field(default_factory=Limits)
    access: Access = field(default_factory=Access)
    collections: Sequence[str] = ()
    memory: Path | None = None
    llm: str = ""
    tuning: Tuning | None = None
    editor: Editor = field(default_factory=lambda: Editor(""))
    opener: Editor = field(default_factory=lambda: Editor(""))
    adds_folders: bool = False
    usual: Mapping[str, Any] = field(default_factory=dict)
    private: bool = False
    idle_s: float = 0.0
    places: Places | None = None


@dataclass(slots=True)
class HttpServer(Closing):
    """A context manager; its application serves while it is open. `drawing` is held while a page is drawn, `writing`
    ends answers by name; `cut_off`: something still worked at the end; `needed`: the smallest limit that answers one
    search."""

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
        return bool(self.options.idle_s) and time.monotonic() - self.used > self.options.idle_s

    def withdraw(self) -> None:
        """Begins the time in which all work must end."""
        self._leave_by = time.monotonic() + LEAVE_S

    def close(self) -> None:
        """Closes everything once no thread uses it. If one does for too long, all is left to the end of the process
        (`cut_off`). Some work is not counted by `workers`, such as that of tools, so closing is not waited for without
        end either."""
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
