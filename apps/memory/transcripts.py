"""Conversations that other programs have written, and how they come into a memory: streamed, each turn once, without
keys and tokens. Sessions of Claude Code (`~/.claude/projects/*/*.jsonl`), Codex
(`~/.codex/sessions/**/rollout-*.jsonl`), Gemini CLI (`~/.gemini/tmp/*/chats/session-*.json`) and Copilot
(`~/.copilot/session-state/*/events.jsonl`, VS Code's `chatSessions/*.json`); what `opencode export` writes;
`conversations.json` of ChatGPT and Claude; memories of mem0; Markdown notes with observations (Basic Memory). Only the
last is specified by its maker."""

from __future__ import annotations

import json
import re
import uuid as uuids
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from edge.apps.documents.secrets import without_secrets
from edge.apps.memory.arguments import Clock, Scope, stamp
from edge.apps.memory.records import Record, stored
from edge.apps.memory.selection import split
from edge.apps.memory.store import MemoryStore
from edge.apps.memory.transfer import ALWAYS_READ, LINES_BESIDE, PER_LINE, Intake, Line, read_memory
from edge.errors import InputError, StorageError
from edge.files.named_file import open_input, read_input, read_line

_PIECE = 1 << 16
_MARKS = re.compile(rb'\\.|["{}\[\]]', re.DOTALL)
_DEEPEST = 2
"""The brackets around the array of an export: its own, and those of an object with `results`."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """Something that was said. `key` names it among all turns of its format, the same each time; `run`: the
    conversation, if any; `when`: as `parse_local` takes it; `document`: the object of a memory of mem0."""

    key: str
    run: str
    role: str | None
    text: str
    when: Any = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    document: Mapping[str, Any] | None = None


@dataclass(slots=True)
class ImportReport:
    files: int = 0
    turns: int = 0
    new: int = 0
    secrets: int = 0
    skipped: int = 0

    def to_json(self) -> dict[str, int]:
        return asdict(self)


def files_of(source: Path) -> list[Path]:
    """The files to read: `source`, or those below it that may hold transcripts, in the order of their names."""
    found = [source] if not source.is_dir() else sorted(p for p in source.rglob("*") if p.suffix in _SUFFIXES)
    found = [path for path in found if path.is_file()]
    if not found:
        raise InputError(f"{source} has no files to import: {', '.join(_SUFFIXES)}")
    return found


def stamps(source: Path) -> dict[Path, tuple[int, int]]:
    found = {path: path.stat() for path in files_of(source)}
    return {path: (stat.st_size, stat.st_mtime_ns) for path, stat in found.items()}


_SUFFIXES = (".json", ".jsonl", ".md")


def turns(path: Path, most: int, report: ImportReport) -> Iterator[Spoken]:
    """The turns of a file whose format its first entry shows. An entry of more than `most` bytes is skipped."""
    if path.suffix == ".md":
        yield from _note(path, read_input(path, most=most).decode("utf-8", "replace"))
        return
    session = ""
    read: Callable[[dict[str, Any], str], Iterator[Spoken]] | None = None
    with open_input(path) as file:
        entries = _lines(file, most, report) if path.suffix == ".jsonl" else _elements(file, most, report)
        for number, entry in entries:
            session = _session(entry) or session
            read = read or next((each.turns for each in _FORMATS if each.knows(entry)), None)
            if read is None and isinstance(entry.get("memory"), str) | isinstance(entry.get("results"), list):
                read = _mem0
            if read is not None:
                yield from read(entry, f"{session or path.stem}:{number}")
    if read is None:
        raise InputError(f"{path} is no transcript of a known format: {', '.join(FORMATS)}")


def _object(data: bytes) -> dict[str, Any] | None:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _lines(file: BinaryIO, most: int, report: ImportReport) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of JSON Lines with the numbers of their lines."""
    number = 0
    while (read := read_line(file, most))[1]:
        line, length = read
        number += 1
        document = _object(line) if length <= most else None
        if document is not None:
            yield number, document
        elif line.strip():
            report.skipped += 1


def _elements(file: BinaryIO, most: int, report: ImportReport) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of an array, which is the whole document or a member of its object, with their numbers."""
    opened: list[bytes] = []
    kept = bytearray()
    quoted, inside, number = False, 0, 0
    while piece := file.read(_PIECE):
        while piece.endswith(b"\\") and (more := file.read(1)):  # an escape is not cut
            piece += more
        start = 0
        for match in _MARKS.finditer(piece):
            mark, place = match[0], match.start()
            if mark == b'"':
                quoted = not quoted
            elif quoted or mark.startswith(b"\\"):
                continue
            elif mark in b"{[":
                if mark == b"{" and not inside and opened[-1:] == [b"["] and len(opened) <= _DEEPEST:
                    inside, start = len(opened) + 1, place
                opened.append(mark)
            elif opened:
                opened.pop()
                if inside and len(opened) < inside:
                    kept += piece[start : place + 1]
                    number, inside = number + 1, 0
                    document = _object(bytes(kept)) if len(kept) <= most else None
                    kept.clear()
                    if document is None:
                        report.skipped += 1
                    else:
                        yield number, document
        if inside and len(kept) <= most:
            kept += piece[start:]


def _session(entry: Mapping[str, Any]) -> str:
    paths = {"session_meta": "payload.id", "session.start": "data.sessionId"}
    return str(_at(entry, paths.get(str(entry.get("type")), "")) or "")


def _texts(content: Any) -> str:
    """The text of a message, which may have parts, without those of `_WRAPPED`."""
    parts = content if isinstance(content, list) else [content]
    texts = (part.get("text") if isinstance(part, dict) else part for part in parts)
    said = (text for text in texts if isinstance(text, str) and text.strip())
    return "\n".join(text for text in said if not text.lstrip().startswith(_WRAPPED))


_WRAPPED = (
    "<environment_context>", "<user_instructions>", "<command-", "<local-command-", "<system-reminder>", "<bash-",
    "<task-notification>", "<ide_", "<user-prompt-submit-hook>", "<INSTRUCTIONS>", "<skill>", "<turn_aborted>",
    "<user_shell_command>", "<subagent_notification>", "<goal_context>", "<codex_internal_context",
    "# AGENTS.md instructions for ", "Caveat: The messages below were generated", "[Request interrupted by user",
    "This session is being continued from a previous conversation", "<state_snapshot>",
    "Another language model started to solve this problem and produced",
)  # fmt: skip
"""Texts that a coding agent writes in the user's name begin with one of these, as a summary after a compaction does."""

_UNSPOKEN = ("isMeta", "isSidechain", "isCompactSummary")
"""Marks of Claude Code for what was said to or by no person: notes, the talk with an agent that it asked, summaries."""


def _at(entry: Any, path: str) -> Any:
    """What stands in an object under names that dots join; None if it is not there."""
    for name in path.split("."):
        entry = entry.get(name) if isinstance(entry, dict) else None
    return entry


@dataclass(frozen=True, slots=True)
class Format:
    """A format of conversations: what an entry holds by which it is known (a type, or one of some texts), and where
    things stand in its `parts`, the turns; `run` and `more` in the entry itself, which may be a conversation
    (`alone`)."""

    name: str
    holds: Mapping[str, type | tuple[str, ...]]
    role: str = "role"
    text: str = "text"
    key: str = "id"
    when: str = "timestamp"
    milliseconds: bool = False
    run: tuple[str, ...] = ()
    more: Mapping[str, str] = field(default_factory=dict)
    alone: bool = False
    parts: Callable[[dict[str, Any]], Iterable[dict[str, Any]]] = lambda entry: [entry]

    def knows(self, entry: dict[str, Any]) -> bool:
        found = ((_at(entry, name), wanted) for name, wanted in self.holds.items())
        return all(
            value in wanted if isinstance(wanted, tuple) else value is not None and isinstance(value, wanted)
            for value, wanted in found
        )

    def turns(self, entry: dict[str, Any], place: str) -> Iterator[Spoken]:
        """The turns of an entry at `place`, the session and the number of the entry."""
        named = (_at(entry, path) for path in self.run)
        run = next(filter(None, named), place if self.alone else place.rpartition(":")[0])
        found = {name: _at(entry, path) for name, path in self.more.items()}
        metadata = {name: value for name, value in found.items() if isinstance(value, str) and value}
        for number, part in enumerate(self.parts(entry)):
            role, text, when = _ROLES.get(str(_at(part, self.role))), _texts(_at(part, self.text)), _at(part, self.when)
            if self.milliseconds:
                when = when / 1000 if isinstance(when, int | float) else None
            if role and text:
                key = _at(part, self.key) or (f"{place}:{number}" if self.alone else place)
                yield Spoken(str(key), str(run), role, text, when, metadata)


_ROLES = {
    "user": "user", "human": "user", "user.message": "user", "assistant": "assistant", "gemini": "assistant",
    "assistant.message": "assistant",
}  # fmt: skip


def _opencode(entry: dict[str, Any]) -> Iterator[dict[str, Any]]:
    said = [p for p in entry["parts"] if isinstance(p, dict) and p.get("type") == "text" and not p.get("synthetic")]
    if entry["info"].get("summary") is not True:  # what a compaction left
        yield {**entry, "text": said}


def _copilot_chat(entry: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The question and the answer of a request; parts that have a kind tell what was done for it."""
    if isinstance(entry.get("message"), dict):
        key, when = entry["requestId"], entry.get("timestamp")
        values = [part.get("value") for part in entry["response"] if isinstance(part, dict) and "kind" not in part]
        yield {"role": "user", "text": entry["message"].get("text"), "id": key, "timestamp": when}
        yield {"role": "assistant", "text": values, "id": f"{key}:answer", "timestamp": when}


def _chatgpt(entry: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The turns from the root to the current node, or else to the last one. Calls of tools (not sent to `all`) and what
    a person never sees are none."""
    nodes = entry["mapping"]
    name = entry.get("current_node") or next(reversed(nodes), None)
    path: list[Any] = []
    while isinstance(node := nodes.get(name), dict) and len(path) <= len(nodes):
        path.append(node.get("message"))
        name = node.get("parent")
    for message in reversed(path):
        hidden = _at(message, "metadata.is_visually_hidden_from_conversation")
        if isinstance(message, dict) and not hidden and message.get("recipient", "all") == "all":
            yield message


def _claude(entry: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The turns of a conversation. A later message after the same one replaced the earlier one with all after it."""
    messages = [message if isinstance(message, dict) else {} for message in entry["chat_messages"]]
    latest = {message.get("parent_message_uuid"): message.get("uuid") for message in messages}
    replaced: set[Any] = set()
    for message in messages:
        before, own = message.get("parent_message_uuid"), message.get("uuid")
        if before and (before in replaced or latest[before] != own):
            replaced.add(own)
        else:
            yield {**message, "text": _texts(message.get("content")) or message.get("text")}


_FORMATS = (
    Format(
        "Claude Code", {"type": ("user", "assistant"), "message": dict}, "message.role", "message.content", "uuid",
        run=("sessionId",), more={"cwd": "cwd"},
        parts=lambda entry: [] if any(entry.get(mark) for mark in _UNSPOKEN) else [entry],
    ),
    Format(
        "Codex", {"type": ("session_meta", "response_item"), "payload": dict}, "payload.role", "payload.content", key=""
    ),
    Format("Codex", {"type": ("message",), "content": object}, text="content", key=""),
    Format("Gemini CLI", {"type": ("user", "gemini"), "content": object, "id": object}, "type", "content"),
    Format(
        "OpenCode", {"info": dict, "parts": list}, "info.role", key="info.id", when="info.time.created",
        milliseconds=True, run=("info.sessionID",), parts=_opencode,
    ),
    Format("Copilot", {"type": ("session.start", "user.message"), "data": dict}, "type", "data.content"),
    Format("Copilot", {"requestId": object, "response": list}, milliseconds=True, parts=_copilot_chat),
    Format(
        "ChatGPT", {"mapping": dict}, "author.role", "content.parts", when="create_time",
        run=("conversation_id", "id"), more={"title": "title"}, alone=True, parts=_chatgpt,
    ),
    Format(
        "Claude", {"chat_messages": list}, "sender", key="uuid", when="created_at", run=("uuid",),
        more={"title": "name"}, alone=True, parts=_claude,
    ),
)  # fmt: skip
FORMATS = (*dict.fromkeys(each.name for each in _FORMATS), "mem0", "Markdown")


def _mem0(entry: dict[str, Any], place: str) -> Iterator[Spoken]:
    if isinstance(entry.get("results"), list):  # a line of JSON Lines may be a whole answer
        for number, one in enumerate(entry["results"]):
            if isinstance(one, dict):
                yield from _mem0(one, f"{place}:{number}")
    elif isinstance(entry.get("memory"), str) and entry["memory"].strip():
        yield Spoken(str(entry.get("id") or place), "", None, entry["memory"], document=entry)


_OBSERVATION = re.compile(r"^[-*] \[(?P<category>[^\]\[]{2,60})\] +(?P<text>\S.*)$")
_RELATION = re.compile(r"^[-*] (?P<kind>[\w ]{1,60}) \[\[(?P<target>[^\]]+)\]\]")
_FRONT = re.compile(r"\A---\n(?P<front>.*?)\n---\n", re.DOTALL)
_FIELD = re.compile(r"^(?P<name>title|permalink|created): *[\"']?(?P<value>.*?)[\"']?$", re.MULTILINE)


def _note(path: Path, text: str) -> Iterator[Spoken]:
    """The observations and relations of a note or, if it has none, its paragraphs."""
    text = text.replace("\r\n", "\n")
    front = _FRONT.match(text)
    fields = {match["name"]: match["value"] for match in _FIELD.finditer(front["front"])} if front else {}
    title, body = fields.get("title") or path.stem, text[front.end() :] if front else text
    name, found = fields.get("permalink") or path.stem, 0
    for line in body.splitlines():
        observed, related = _OBSERVATION.match(line), _RELATION.match(line)
        if observed or related:
            found += 1
            said = observed["text"] if observed else f"{title} {related['kind']} {related['target']}" if related else ""
            metadata = {"title": title} | ({"category": observed["category"]} if observed else {})
            yield Spoken(f"{name}:{said}", "", None, said, fields.get("created"), metadata)
    for start, end in () if found else split(body):
        yield Spoken(f"{name}:{body[start:end]}", "", None, body[start:end], fields.get("created"), {"title": title})


_NAMES = uuids.UUID("5b0a6ed9-0d5c-4a75-9a0f-5b3f7a1f2f6c")
_PER_CHARACTER = 16


def import_transcripts(store: MemoryStore, scope: Scope, source: Path, clock: Clock, *, dry_run: bool) -> ImportReport:
    report = ImportReport()
    with store.budget.reserve("imported turns", 0) as lease:
        intake = Intake(store, clock, lease, dry_run)
        for line in _read(store, scope, source, clock, report):
            intake.make_room(PER_LINE + _PER_CHARACTER * len(line.record.text))
            intake.waiting.append(line)
        report.new = intake.end()
    return report


def _read(store: MemoryStore, scope: Scope, source: Path, clock: Clock, report: ImportReport) -> Iterator[Line]:
    files = files_of(source)
    for path in files:
        before: tuple[Spoken, Record] | None = None
        most = max(ALWAYS_READ, store.budget.free // LINES_BESIDE)
        try:
            for turn in turns(path, most, report):
                try:
                    line = _line(turn, before, scope, stamp(clock()), report)
                except InputError:
                    report.skipped += 1
                    continue
                before = (turn, line.record)
                report.turns += 1
                yield line
        except OSError as error:
            raise StorageError(f"{path} cannot be read: {error.strerror or error}") from error
        except InputError:
            if len(files) == 1:
                raise
            report.skipped += 1  # a folder may hold other files
            continue
        report.files += 1


def _line(turn: Spoken, before: tuple[Spoken, Record] | None, scope: Scope, now: str, report: ImportReport) -> Line:
    text, secrets = without_secrets(turn.text)
    name = str(uuids.uuid5(_NAMES, "\n".join((*(str(value) for value in scope), turn.run, turn.key))))
    report.secrets += secrets
    if turn.document is not None:
        return read_memory({"id": name, **turn.document, "memory": text}, scope, now)
    whose = replace(scope, run_id=scope.run_id or turn.run or None)
    said = stored({"timestamp": turn.when})
    record = Record.new(name, text, whose, now, role=turn.role, metadata=dict(turn.metadata), **said)
    follows = None
    if before is not None and turn.run and before[0].run == turn.run and record.goes_on(before[1]):
        follows = before[1].uuid
    return Line(record, [], follows, [])
