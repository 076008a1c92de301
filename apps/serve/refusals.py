"""`HttpRefusal`: the answer to a request that is not served. Every error becomes one, with its HTTP status, and is
written in the shape of the request's dialect."""

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


def jina(status: int, message: str) -> dict[str, Any]:
    """As Jina and vLLM write it, with the member that Cohere's first version reads."""
    return {**plain(status, message), "message": message}


def cohere(status: int, message: str) -> dict[str, Any]:
    return {"message": message}


def tei(status: int, message: str) -> dict[str, Any]:
    kinds = {413: "Validation", 422: "Validation", 429: "Overloaded", 424: "Backend"}
    return {"error": message, "error_type": kinds.get(status, "Validation" if status < 500 else "Backend")}


def ollama(status: int, message: str) -> dict[str, Any]:
    return {"error": message}


_OPENAI = {401: "invalid_api_key", 404: "model_not_found", 413: "context_length_exceeded", 429: "rate_limit_exceeded"}


def openai(status: int, message: str) -> dict[str, Any]:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": _OPENAI.get(status)}}


def failed(status: int, message: str) -> dict[str, Any]:
    """As OpenAI writes it in an answer, and in a stream of responses."""
    found = openai(status, message)
    return {**found["error"], **found, "type": "error", "sequence_number": 0}


_ANTHROPIC = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large",
    429: "rate_limit_error", 503: "overloaded_error", 504: "timeout_error",
}  # fmt: skip


def anthropic(status: int, message: str) -> dict[str, Any]:
    kind = _ANTHROPIC.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


def refused(error: HttpRefusal, shape: Shape = plain, headers: Mapping[str, str] | None = None) -> Any:
    from starlette.responses import JSONResponse

    content = shape(error.status, escaped(error.message))
    return JSONResponse(content, error.status, {"Cache-Control": "no-store", **(headers or {}), **error.headers})
