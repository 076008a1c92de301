"""`HttpRefusal`: the answer to a request that is not served. Every error becomes one, with its HTTP status."""

from __future__ import annotations

import asyncio
import errno
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from edge.apps.console import report
from edge.errors import (
    BudgetExceeded,
    CapabilityError,
    CollectionMissing,
    ConfigError,
    DeadlinePassed,
    EdgeError,
    InputError,
    ModelError,
    Unreachable,
    Withdrawn,
)
from edge.text.control_characters import escaped


@dataclass(eq=False)
class HttpRefusal(Exception):
    status: int
    message: str
    headers: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.message


_STATUS: tuple[tuple[type[EdgeError], int], ...] = (
    (BudgetExceeded, 413),
    (CollectionMissing, 404),
    (InputError, 422),
    (ConfigError, 422),
    (CapabilityError, 501),
    (ModelError, 424),
    (DeadlinePassed, 504),
    (Withdrawn, 499),
    (Unreachable, 503),
)
"""The status of a request whose work raised an error; the first that fits counts. Other errors are the server's own."""


_SYSTEM: Mapping[object, int] = {
    errno.ENOSPC: 507, errno.EDQUOT: 507, "FullError": 507, errno.EMFILE: 503, errno.ENFILE: 503, "BusyError": 503,
    "LockedError": 503, "CantOpenError": 503,
}  # fmt: skip
"""The status for what the system or SQLite refused: a full disk, or something that passes."""


def _refused_by_the_system(error: BaseException | None) -> int:
    while error is not None:
        for key in (getattr(error, "errno", None), type(error).__name__):
            if key in _SYSTEM:
                return _SYSTEM[key]
        error = error.__cause__
    return 500


def refusal_of(error: BaseException) -> HttpRefusal:
    """The answer to a request whose work met an error. An unexpected one is reported in a file and on stderr."""
    if isinstance(error, HttpRefusal):
        return error
    if isinstance(error, EdgeError):
        own = next((status for kind, status in _STATUS if isinstance(error, kind)), 0)
        return HttpRefusal(own or _refused_by_the_system(error), str(error))
    if isinstance(error, OSError) and (status := _refused_by_the_system(error)) != 500:
        return HttpRefusal(status, f"the system refuses what the request needs: {error.strerror}")
    if isinstance(error, asyncio.CancelledError):
        return HttpRefusal(503, "the server is ending: nothing more is done on this request", {"Connection": "close"})
    if type(error).__name__ == "ClientDisconnect":  # of Starlette
        return HttpRefusal(499, "the client has gone")
    print(f"edge: {escaped(report(error, 'edge serve'))}", file=sys.stderr, flush=True)
    return HttpRefusal(500, "the server met an error that it did not expect")


Shape = Callable[[int, str], dict[str, Any]]
"""Writes an error as a dialect has it, from the status and the sentence."""


def plain(status: int, message: str) -> dict[str, Any]:
    """`detail`, as FastAPI writes it, which Jina's and vLLM's servers use."""
    return {"detail": message, "status": status}


def refused(error: HttpRefusal, shape: Shape = plain, headers: Mapping[str, str] | None = None) -> Any:
    from starlette.responses import JSONResponse

    content = shape(error.status, escaped(error.message))
    return JSONResponse(content, error.status, {"Cache-Control": "no-store", **(headers or {}), **error.headers})
