"""What callers hand to `Memory.add`, as entries: strings, messages, and lists of either."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from edge.apps.memory.arguments import check_metadata, check_share, check_text, check_unicode
from edge.apps.memory.moments import hours_between, parse_day, parse_local
from edge.errors import InputError

_ROLES_LEFT_OUT = frozenset({"system"})
"""Instructions to a model are no memories (as in mem0)."""

_PAUSE_HOURS = 6
"""What is said within this time goes on with what was said before, whatever the day: people talk past midnight."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One text to remember.

    Attributes:
        role, actor_id: who said it, where it is a message.
        turn: it is a message, so that what was said before it is its context.
        timestamp, local_timestamp: when it was said or happened, as `moments.parse_local` gives it.
        importance: 0 ... 1, if the caller said.
    """

    text: str
    role: str | None = None
    actor_id: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    timestamp: str | None = None
    local_timestamp: str | None = None
    expiration_date: str | None = None
    importance: float | None = None
    turn: bool = False

    def said(self, moment: object) -> Entry:
        """The same, said at a moment that a caller passed.

        Raises:
            InputError: it is none.
        """
        timestamp, local = parse_local(moment)
        return replace(self, timestamp=timestamp, local_timestamp=local)


def read_entries(messages: object, shared: Entry) -> list[Entry]:
    """Entries of a string, a message, or a list of strings and messages.

    A message is a mapping with `role` and `content` as chat models take it (`content` may be a list of parts, of which
    the texts count), and may carry its own `name`, `timestamp`, `metadata`, `expiration_date` and `importance`.
    System messages and messages without text are left out.

    Args:
        shared: what holds for every entry that does not say otherwise; metadata are merged.

    Raises:
        InputError: something is neither text nor a message.
    """
    if isinstance(messages, str | Mapping):
        messages = [messages]
    if not isinstance(messages, list | tuple):
        raise InputError(f"a memory is a string, a message, or a list of them, not {type(messages).__name__}")
    entries: list[Entry] = []
    for number, message in enumerate(messages, 1):
        if isinstance(message, str):
            entries.append(replace(shared, text=_text(message, number), role="user"))
        elif isinstance(message, Mapping):
            entries += _message(message, shared, number)
        else:
            raise InputError(f"message {number} is neither a string nor a mapping with role and content")
    return entries


class Said(Protocol):
    """What was said some time: an `Entry`, or a `Record`."""

    @property
    def timestamp(self) -> str | None: ...

    @property
    def local_timestamp(self) -> str | None: ...


def goes_on(earlier: Said, later: Said) -> bool:
    """Whether two turns of a run are of one conversation: said on the same day, where they were said, or within some
    hours. Turns without a timestamp are of one with each other."""
    if earlier.timestamp is None or later.timestamp is None:
        return earlier.timestamp == later.timestamp
    days = {(one.local_timestamp or one.timestamp or "")[:10] for one in (earlier, later)}
    return len(days) == 1 or hours_between(earlier.timestamp, later.timestamp) <= _PAUSE_HOURS


def _text(value: str, number: int) -> str:
    return check_text(value, f"message {number}")


def _message(message: Mapping[str, Any], shared: Entry, number: int) -> list[Entry]:
    role, content = message.get("role", "user"), message.get("content")
    check_unicode(role, f"the role of message {number}")
    name = message.get("name")
    if name is not None:
        check_unicode(name, f"the name in message {number}")
    if isinstance(content, list | tuple):
        texts = [part["text"] for part in content if isinstance(part, Mapping) and "text" in part]
        content = "\n".join(check_unicode(text, f"a text of message {number}") for text in texts)
    if content is not None and not isinstance(content, str):
        raise InputError(f"message {number} has a content that is no text: {type(content).__name__}")
    if role in _ROLES_LEFT_OUT or not content or not content.strip():
        return []
    entry = replace(
        shared,
        text=_text(content, number),
        role=role,
        actor_id=name,
        turn=True,
        metadata={**shared.metadata, **check_metadata(message.get("metadata"))},
    )
    if message.get("timestamp") is not None:
        entry = entry.said(message["timestamp"])
    if message.get("expiration_date") is not None:
        entry = replace(entry, expiration_date=parse_day(message["expiration_date"]))
    if message.get("importance") is not None:
        entry = replace(entry, importance=check_share(message["importance"], "importance"))
    return [entry]
