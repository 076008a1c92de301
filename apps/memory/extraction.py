"""Extracts facts from messages with a generator. If the extraction fails, the messages themselves are stored."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from edge.apps.memory.entries import Entry
from edge.apps.memory.moments import spoken
from edge.runtimes.generation.base import Generator, Message, Sampling

INSTRUCTIONS = """\
You keep the long-term memory of an assistant. From the conversation, write down every fact worth remembering about
the people in it: preferences, plans, events, relations, decisions, and what was promised or found out.
Each fact is one sentence that can be understood alone: use names instead of pronouns, and absolute dates where the
conversation allows it. Add nothing that was not said. Write in the language of the conversation.
Answer with JSON only: {"facts": ["...", "..."]}. If nothing is worth remembering, answer {"facts": []}."""

_MOST_FACTS = 100
_LONGEST_FACT = 2_000
_MOST_TOKENS = 1_024


@dataclass(frozen=True, slots=True)
class Extraction:
    """Entries to store.

    Attributes:
        entries: the facts; or the original messages if the extraction failed.
        failure: the reason of the failure; None if there was none.
    """

    entries: Sequence[Entry]
    failure: str | None = None


def extract(
    generator: Generator, entries: Sequence[Entry], shared: Entry, instructions: str | None = None
) -> Extraction:
    """Asks the generator for the facts in `entries`. If that fails for any reason, the entries are returned instead.

    Args:
        shared: an entry with the values of every fact: metadata, expiry, and a timestamp for messages without one.
        instructions: replaces `INSTRUCTIONS`; the answer must have the same form.
    """
    said = "\n".join(_line(entry) for entry in entries)
    messages = [Message("system", instructions or INSTRUCTIONS), Message("user", said)]
    try:
        answer = "".join(piece.text for piece in generator.stream(messages, Sampling(max_tokens=_MOST_TOKENS)))
        facts = parse_facts(answer)
    except Exception as error:  # a foreign generator may raise any exception, and the messages must not be lost
        return Extraction(entries, f"the extraction failed ({type(error).__name__}: {error})")
    if facts is None:
        return Extraction(entries, "the generator did not answer in the form it was asked for")
    latest = max((entry for entry in entries if entry.timestamp), key=lambda one: one.timestamp or "", default=shared)
    shared = replace(shared, timestamp=latest.timestamp, local_timestamp=latest.local_timestamp)
    return Extraction([replace(shared, text=fact) for fact in facts])


def parse_facts(answer: str) -> list[str] | None:
    """The facts in a generator's answer, without duplicates; None if the answer is malformed. Text around the JSON is
    ignored."""
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


def _line(entry: Entry) -> str:
    who = entry.actor_id or entry.role or "user"
    when = entry.local_timestamp or entry.timestamp
    return f"[{spoken(when)}] {who}: {entry.text}" if when else f"{who}: {entry.text}"
