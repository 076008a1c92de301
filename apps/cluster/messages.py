"""Requests to a shard and its answers, as bytes: JSON, and raw numbers beside it. JSON keeps every bit of a float.

A request is (verb, JSON, raw bytes), an answer (JSON, raw bytes). Errors of the shard are raised again by the caller.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from edge.apps.collection.excerpts import NotIndexed
from edge.apps.collection.filters import NoSuchType
from edge.errors import EdgeError, InputError, StorageError, Unreachable

Call = Callable[[str, bytes, bytes], tuple[bytes, bytes]]
"""Sends a request, and returns its answer. Raises `ShardLost` if there is none."""


class ShardLost(Unreachable):
    """A shard cannot be reached, or did not answer in time.

    Attributes:
        shard: its name.
        changed: it was started again, and has changed since the version that was asked for.
    """

    def __init__(self, shard: str, why: str, *, changed: bool = False) -> None:
        super().__init__(f"shard {shard} does not answer: {why}")
        self.shard = shard
        self.changed = changed


class NoSuchVersion(StorageError):
    """A shard does not hold the version of the collection that a search asks for."""


_ERRORS: dict[str, type[EdgeError]] = {
    kind.__name__: kind for kind in (NoSuchType, NotIndexed, NoSuchVersion, InputError, StorageError)
}
"""Errors that keep their kind. Others arrive as `StorageError`."""


def asked(call: Call, verb: str, raw: bytes = b"", **arguments: Any) -> tuple[Any, bytes]:
    """Sends a request to a shard.

    Returns:
        The answer, and the raw bytes beside it.

    Raises:
        ShardLost: there is no answer.
        EdgeError: the shard refused.
    """
    head, beside = call(verb, json.dumps(arguments, ensure_ascii=False).encode(), raw)
    answer = json.loads(head)
    if "error" in answer:
        kind, text = answer["error"]
        raise _ERRORS.get(kind, StorageError)(text)
    return answer["answer"], beside


def answered(work: Callable[..., tuple[Any, bytes]], head: bytes, raw: bytes) -> tuple[bytes, bytes]:
    """The answer of `work(raw, **arguments)`, or the error that it raises."""
    try:
        answer, beside = work(raw, **json.loads(head))
    except EdgeError as error:
        kind = next((kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _ERRORS), "StorageError")
        return json.dumps({"error": [kind, str(error)]}).encode(), b""
    return json.dumps({"answer": answer}, ensure_ascii=False).encode(), beside
