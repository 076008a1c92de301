"""What comes into a memory and goes out. The arguments of `Memory.add` (strings, messages, and lists of either) become
memories to store, or the facts that a generator finds in them. Export and import are JSON Lines, one memory per line in
the form of `get`, with its history, and depend on no model."""

from __future__ import annotations

import json
import os
import sys
import uuid as uuids
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import TextIOBase, TextIOWrapper
from typing import Any, BinaryIO, TextIO, cast

from edge.apps.memory.arguments import (
    Clock,
    Scope,
    check_metadata,
    check_path,
    check_text,
    check_unicode,
    parse_local,
    parse_moment,
    spoken,
    stamp,
)
from edge.apps.memory.records import (
    KINDS,
    SELECT,
    TURN,
    HistoryLine,
    Record,
    advance,
    find_record,
    held_records,
    insert_record,
    note_changes,
    read_history,
    read_links,
    read_records,
    restore_history,
    stored,
)
from edge.apps.memory.store import MadeFrom, MemoryStore, Vectors
from edge.apps.memory.writing import index_records
from edge.apps.store.rows import JsonSize
from edge.budget import Lease
from edge.config import format_size
from edge.errors import InputError, as_storage_error
from edge.files.named_file import open_input, open_output, read_line
from edge.ivf.base import Connection
from edge.runtimes.generation.base import Generator as LanguageModel
from edge.runtimes.generation.base import Message, Sampling

TOGETHER = 256
"""The number of lines that are embedded and stored in one transaction."""

NBYTES_TOGETHER = 4 << 20
"""The bytes of memory of the lines of one transaction. A single line may need more."""

PER_LINE = 2_000
"""Memory of a line in bytes besides its content."""

ALWAYS_READ = 1 << 20
"""A line of so many bytes is read even if little memory is free."""

LINES_BESIDE = 10
"""The free memory in units of the longest line that is read before its need is known."""

_PIECE = 1 << 16
_MOST_SIMILAR = 1.001


@dataclass(frozen=True, slots=True)
class Line:
    """A memory to import, with its history, the `uuid` of the turn before it, and its links to similar memories."""

    record: Record
    history: list[HistoryLine]
    follows: str | None
    links: list[tuple[str, float]]


def export_jsonl(store: MemoryStore, scope: Scope, target: str | os.PathLike[str] | TextIO) -> int:
    if not isinstance(target, str | os.PathLike) and hasattr(target, "write"):
        return _write(store, scope, target)
    path = check_path(target)
    with (
        as_storage_error(f"{path} cannot be written"),
        open_output(path) as file,
        TextIOWrapper(file, encoding="utf-8") as text,
    ):
        return _write(store, scope, text)


def _write(store: MemoryStore, scope: Scope, file: TextIO) -> int:
    count = 0
    for _, document in exported(store, scope):
        file.write(json.dumps(document, ensure_ascii=False) + "\n")
        count += 1
    return count


def exported(store: MemoryStore, scope: Scope, after: int = 0) -> Generator[tuple[int, dict[str, Any]], None, None]:
    """The memories of a scope as an export has them, oldest first, each with its number."""
    sql, params = scope.condition()
    with store.read() as db:
        rows = db.execute(f"{SELECT} WHERE {sql} AND memories.id > ? ORDER BY memories.id", (*params, after))
        for record in (one for row in rows for one in held_records(db, [row])):
            document = {**record.to_json(), "history": read_history(db, [record.uuid], scope)}
            if links := read_links(db, record):
                document["links"] = links
            if record.follows is not None:
                document["follows"] = read_records(db, [record.follows])[record.follows].uuid
            yield record.id, document


class _Encoded:
    def __init__(self, text: TextIO) -> None:
        self._text = text

    def readline(self, size: int = -1) -> bytes:
        return self._text.readline(size).encode("utf-8", "surrogatepass")


def import_jsonl(
    store: MemoryStore, scope: Scope, source: str | os.PathLike[str] | BinaryIO | TextIO, clock: Clock
) -> int:
    """Imports lines of `export_jsonl`, or memories and answers of mem0; returns how many are new. Lines without the ids
    of `scope` get them."""
    if not isinstance(source, str | os.PathLike) and hasattr(source, "read"):
        lines = _Encoded(source) if isinstance(source, TextIOBase) else source
        return _import(store, scope, cast("BinaryIO", lines), "the stream", clock)
    path = check_path(source)
    with as_storage_error(f"{path} cannot be read"), open_input(path) as file:
        return _import(store, scope, file, str(path), clock)


@dataclass(slots=True)
class Intake:
    """Memories that wait to be stored, `TOGETHER` at a time; with `dry_run` those that are new are only counted."""

    store: MemoryStore
    clock: Clock
    lease: Lease
    dry_run: bool = False
    waiting: list[Line] = field(default_factory=list)
    new: int = 0

    def make_room(self, nbytes: int) -> None:
        """For a line; where it is too much beside those that wait, they are stored before."""
        if self.waiting and (len(self.waiting) >= TOGETHER or self.lease.nbytes + nbytes > NBYTES_TOGETHER):
            self.end()
        self.lease.resize(self.lease.nbytes + nbytes)

    def end(self) -> int:
        """Stores those that wait. Returns how many of all were new."""
        lines, self.waiting = self.waiting, []
        self.new += store_lines(self.store, lines, self.clock, dry_run=self.dry_run) if lines else 0
        self.lease.resize(0)
        return self.new


def _import(store: MemoryStore, scope: Scope, file: BinaryIO, source: str, clock: Clock) -> int:
    number = 0
    with store.budget.reserve("imported lines", 0) as lease:
        intake = Intake(store, clock, lease)
        while (read := read_line(file, max(ALWAYS_READ, store.budget.free // LINES_BESIDE)))[1]:
            line, length = read
            number += 1
            if not line.strip():
                continue
            size = JsonSize()
            for start in range(0, len(line), _PIECE):
                size.feed(line[start : start + _PIECE])
            try:
                if length > len(line):
                    raise InputError(f"it has {format_size(length)}, more than the memory limit has room for")
                intake.make_room(PER_LINE + size.nbytes())
                documents = _read(line)
                lease.resize(lease.nbytes + PER_LINE * max(0, len(documents) - 1))
                intake.waiting += [read_memory(document, scope, stamp(clock())) for document in documents]
            except InputError as error:
                intake.end()
                raise InputError(f"{source}, line {number}: {error}") from None
        return intake.end()


def _read(line: bytes) -> list[dict[str, Any]]:
    try:
        document = json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise InputError(f"not valid UTF-8 (byte {error.start} of the line)") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"not valid JSON ({error})") from None
    if not isinstance(document, dict):
        raise InputError("not a JSON object")
    return [document] if document.get("results") is None else _objects(document, "results")


def read_memory(document: dict[str, Any], scope: Scope, now: str) -> Line:
    text = check_text(document.get("memory"), '"memory"')
    whose = Scope.of(document).within(scope)
    if not whose:
        raise InputError("it has no user_id, agent_id or run_id")
    created = parse_moment(document["created_at"], "created_at") if document.get("created_at") else now
    fields = stored({name: document.get(name) for name in KINDS if name not in ("local_timestamp", "created_at")})
    if document.get("timestamp") is not None and document.get("local_timestamp") is not None:
        moment, fields["local_timestamp"] = parse_local(document["local_timestamp"], "local_timestamp")
        if moment != fields["timestamp"]:
            raise InputError('"local_timestamp" is another moment than "timestamp"')
    fields |= {"created_at": created, "updated_at": fields["updated_at"] or created}
    record = Record.new(
        check_text(document.get("id") or str(uuids.uuid4()), '"id"'), text, whose, now,
        metadata=check_metadata(document.get("metadata")), pinned=document.get("pinned") is True, **fields,
    )  # fmt: skip
    changes = [_change(change, created) for change in _objects(document, "history")]
    links = [_link(link) for link in _objects(document, "links")]
    return Line(record, changes, _text_or_none(document, "follows"), links)


def _objects(document: dict[str, Any], name: str) -> list[dict[str, Any]]:
    value = document.get(name)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise InputError(f'"{name}" is a list of objects')
    return value


def _link(link: dict[str, Any]) -> tuple[str, float]:
    similarity = link.get("similarity")
    if isinstance(similarity, bool) or not isinstance(similarity, int | float) or not abs(similarity) <= _MOST_SIMILAR:
        raise InputError('"similarity" of a link is a number from -1 to 1')
    return check_text(link.get("id"), '"id" of a link'), float(similarity)


def _change(change: dict[str, Any], created: str) -> HistoryLine:
    moments = stored({name: change.get(name) for name in ("created_at", "updated_at")})
    return HistoryLine(
        old=_text_or_none(change, "old_memory"),
        new=_text_or_none(change, "new_memory"),
        event=check_text(change.get("event"), '"event" of a change'),
        **{name: moment or created for name, moment in moments.items()},
    )


def _text_or_none(document: dict[str, Any], name: str) -> str | None:
    value = document.get(name)
    return None if value is None else check_text(value, f'"{name}"')


def store_lines(store: MemoryStore, lines: list[Line], clock: Clock, *, dry_run: bool) -> int:
    """Stores the memories that do not exist yet. Returns their number."""
    with store.read() as db:  # known ones, such as those of an interrupted import, need no vectors
        lines = [line for line in lines if find_record(db, line.record.uuid, Scope()) is None]
    if dry_run or not lines:
        return len(lines)
    store.claimed_index()
    vectors = _embed(store, lines)
    now = stamp(clock())
    with store.write() as db:
        new: dict[str, int] = {}
        for number, line in enumerate(lines):
            if find_record(db, line.record.uuid, Scope()) is None:
                new.setdefault(line.record.uuid, number)
        chosen = [lines[number] for number in new.values()]
        records = []
        for line in chosen:  # a turn comes after the one that it follows, or that one is stored already
            before = None if line.follows is None else _same_scope(db, line.follows, line.record)
            records.append(insert_record(db, replace(line.record, follows=None if before is None else before.id)))
        index_records(db, store, records, vectors[list(new.values())])
        for line, record in zip(chosen, records, strict=True):
            restore_history(db, record, line.history)
            for uuid, similarity in line.links:
                other = _same_scope(db, uuid, record)
                if other is not None and other.id < record.id:
                    db.execute("INSERT OR IGNORE INTO links VALUES (?, ?, ?)", (record.id, other.id, similarity))
        advance(db)
        note_changes(db, ((None, record, "IMPORT") for record in records), now)
    store.upkeep.wrote(len(records))
    return len(records)


def _same_scope(db: Connection, uuid: str, record: Record) -> Record | None:
    found = find_record(db, uuid, record.scope)
    return found if found is not None and found.scope == record.scope else None


def _embed(store: MemoryStore, lines: list[Line]) -> Vectors:
    texts = {line.record.uuid: line.record.text for line in lines}
    with store.read() as db:
        for line in lines:
            if line.follows is not None and line.follows not in texts:
                before = find_record(db, line.follows, line.record.scope)
                if before is not None:
                    texts[line.follows] = before.text
    return store.source.vectors([MadeFrom(line.record.text, texts.get(line.follows or "")) for line in lines])


_ROLES_LEFT_OUT = frozenset({"system"})
"""System messages are instructions to a model, not memories (as in mem0)."""

_COPIES, _PER_ENTRY = 8, 2_000
"""Memory of an entry while it is stored: bytes per byte of its text, and bytes besides. Measured with texts of 1 MB and
20 MB, and with 100,000 words."""


def read_entries(messages: object, shared: Record) -> list[Record]:
    """The memories of a string, a message, or a list of both. A message is a mapping with `role` and `content`, as for
    chat models, whose texts alone are used; it is a turn (`TURN`), and may have its own `name`, `metadata` and fields
    of `_OF_MESSAGE`. System messages and messages without text are left out."""
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


_OF_MESSAGE = ("timestamp", "expiration_date", "importance")


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
            **stored({each: message[each] for each in _OF_MESSAGE if message.get(each) is not None}),
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
    generator: LanguageModel, entries: list[Record], shared: Record, instructions: str | None = None
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
