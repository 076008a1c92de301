"""Turns the arguments of `Memory.add` into memories to store: strings, messages, and lists of either."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from edge.apps.memory.arguments import check_metadata, check_text, check_unicode, spoken
from edge.apps.memory.records import TURN, Record, stored
from edge.errors import InputError
from edge.runtimes.generation.base import Generator, Message, Sampling

_ROLES_LEFT_OUT = frozenset({"system"})
"""System messages are instructions to a model, not memories (as in mem0)."""

_COPIES, _PER_ENTRY = 8, 2_000
"""Memory of an entry while it is stored: bytes per byte of its text, and bytes besides. Measured with texts of 1 MB and
20 MB, and with 100,000 words."""

_PAUSE = timedelta(hours=6)
"""A turn within this time of the turn before belongs to the same conversation, even past midnight."""


def read_entries(messages: object, shared: Record) -> list[Record]:
    """The memories of a string, a message, or a list of both. A message is a mapping with `role` and `content`, as for
    chat models, whose texts alone are used; it is a turn (`TURN`), and may have its own `name`, `metadata` and `_OWN`.
    System messages and messages without text are left out."""
    if isinstance(messages, str | Mapping):
        messages = [messages]
    if not isinstance(messages, list | tuple):
        raise InputError(f"a memory is a string, a message, or a list of them, not {type(messages).__name__}")
    entries: list[Record] = []
    for number, message in enumerate(messages, 1):
        if isinstance(message, str):
            entries.append(replace(shared, text=check_text(message, f"message {number}"), role="user"))
        elif isinstance(message, Mapping):
            entries += _message(message, shared, number)
        else:
            raise InputError(f"message {number} is neither a string nor a mapping with role and content")
    return entries


def held_nbytes(texts: Sequence[str]) -> int:
    return sum(_PER_ENTRY + _COPIES * sys.getsizeof(text) for text in texts)


def texts_of(messages: object) -> list[str]:
    given = messages if isinstance(messages, list | tuple) else [messages]
    return [text for message in given for text in _texts(message)]


def _texts(message: object) -> Iterator[str]:
    if isinstance(message, str):
        yield message
    elif isinstance(message, Mapping):
        yield from _texts(message.get("content"))
    elif isinstance(message, list | tuple):  # the parts of a message
        for part in message:
            if isinstance(part, Mapping):
                yield from _texts(part.get("text"))


def goes_on(earlier: Record, later: Record) -> bool:
    """Whether two turns of a run belong to one conversation: on one local day, or within `_PAUSE`, or without
    timestamps."""
    if earlier.timestamp is None or later.timestamp is None:
        return earlier.timestamp == later.timestamp
    days = {(one.local_timestamp or one.timestamp or "")[:10] for one in (earlier, later)}
    pause = datetime.fromisoformat(later.timestamp) - datetime.fromisoformat(earlier.timestamp)
    return len(days) == 1 or abs(pause) <= _PAUSE


_OWN = ("timestamp", "expiration_date", "importance")


def _message(message: Mapping[str, Any], shared: Record, number: int) -> list[Record]:
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
    return [
        replace(
            shared,
            text=check_text(content, f"message {number}"),
            role=role,
            actor_id=name,
            follows=TURN,
            metadata={**shared.metadata, **check_metadata(message.get("metadata"))},
            **stored({each: message[each] for each in _OWN if message.get(each) is not None}),
        )
    ]


INSTRUCTIONS = """\
You keep the long-term memory of an assistant. From the conversation, write down every fact worth remembering about
the people in it: preferences, plans, events, relations, decisions, and what was promised or found out.
Each fact is one sentence that can be understood alone: use names instead of pronouns, and absolute dates where the
conversation allows it. Add nothing that was not said. Write in the language of the conversation.
Answer with JSON only: {"facts": ["...", "..."]}. If nothing is worth remembering, answer {"facts": []}."""

_MOST_FACTS = 100
_LONGEST_FACT = 2_000
_MOST_TOKENS = 1_024


def extract(
    generator: Generator, entries: list[Record], shared: Record, instructions: str | None = None
) -> tuple[list[Record], str | None]:
    """Asks the generator for the facts in `entries`. If that fails, they are returned with the reason."""
    said = "\n".join(_line(entry) for entry in entries)
    messages = [Message("system", instructions or INSTRUCTIONS), Message("user", said)]
    try:
        answer = "".join(piece.text for piece in generator.stream(messages, Sampling(max_tokens=_MOST_TOKENS)))
        facts = parse_facts(answer)
    except Exception as error:  # a foreign generator may raise any exception, and the messages must not be lost
        return entries, f"the extraction failed ({type(error).__name__}: {error})"
    if facts is None:
        return entries, "the generator did not answer in the form it was asked for"
    latest = max((entry for entry in entries if entry.timestamp), key=lambda one: one.timestamp or "", default=shared)
    shared = replace(shared, timestamp=latest.timestamp, local_timestamp=latest.local_timestamp)
    return [replace(shared, text=fact) for fact in facts], None


def parse_facts(answer: str) -> list[str] | None:
    """The facts in a generator's answer, each once; None if it is malformed."""
    start = answer.find("{")
    while start >= 0:
        try:
            document, _ = json.JSONDecoder().raw_decode(answer, start)
        except (ValueError, RecursionError):
            document = None
        if isinstance(document, dict) and "facts" in document:
            return _checked(document["facts"])
        start = answer.find("{", start + 1)
    return None


def _checked(facts: Any) -> list[str] | None:
    if not isinstance(facts, list) or len(facts) > _MOST_FACTS:
        return None
    if not all(isinstance(fact, str) and fact.strip() and len(fact) <= _LONGEST_FACT for fact in facts):
        return None
    try:
        return [fact for fact in dict.fromkeys(fact.strip() for fact in facts) if fact.encode()]
    except UnicodeEncodeError:
        return None


def _line(entry: Record) -> str:
    who = entry.actor_id or entry.role or "user"
    when = entry.local_timestamp or entry.timestamp
    return f"[{spoken(when)}] {who}: {entry.text}" if when else f"{who}: {entry.text}"
