"""Refusals: which HTTP status an error becomes, and how each dialect of the endpoints writes an error."""

from __future__ import annotations

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
    Withdrawn,
)
from edge.text.control_characters import escaped


@dataclass(eq=False)
class Refusal(Exception):
    """A request that is not served.

    Attributes:
        status: of HTTP.
        message: one sentence, with the number that would do where there is one.
        headers: that the answer carries besides.
    """

    status: int
    message: str
    headers: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.message


def ending() -> Refusal:
    """The answer to a request that is not done when the server ends."""
    return Refusal(503, "the server is ending: nothing more is done on this request", {"Connection": "close"})


_STATUS: tuple[tuple[type[EdgeError], int], ...] = (
    (BudgetExceeded, 413),
    (CollectionMissing, 404),
    (InputError, 422),
    (ConfigError, 422),
    (CapabilityError, 501),
    (ModelError, 424),
    (DeadlinePassed, 504),
    (Withdrawn, 499),
)
"""The status of a request whose work raised an error; the first that fits counts. Other errors are the server's own."""


def refusal(error: EdgeError) -> Refusal:
    """The answer to a request whose work met an error of ours."""
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
    return Refusal(status, str(error))


def unexpected(error: Exception) -> Refusal:
    """The answer to a request whose work met an error that nobody expected. The error is reported in a file, and in
    one sentence on stderr."""
    print(f"edge: {escaped(report(error, 'edge serve'))}", file=sys.stderr, flush=True)
    return Refusal(500, "the server met an error that it did not expect")


Shape = Callable[[int, str], dict[str, Any]]
"""An error as a dialect writes it, from the status and the sentence."""


def plain(status: int, message: str) -> dict[str, Any]:
    """This project's own, and FastAPI's, which Jina's and vLLM's servers use: `detail`."""
    return {"detail": escaped(message), "status": status}


def openai(status: int, message: str) -> dict[str, Any]:
    """OpenAI's."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": escaped(message), "type": kind, "param": None, "code": status}}


def cohere(status: int, message: str) -> dict[str, Any]:
    """Cohere's."""
    return {"message": escaped(message)}


def tei(status: int, message: str) -> dict[str, Any]:
    """That of text-embeddings-inference."""
    kinds = {413: "Validation", 422: "Validation", 429: "Overloaded", 424: "Backend"}
    return {"error": escaped(message), "error_type": kinds.get(status, "Validation" if status < 500 else "Backend")}
