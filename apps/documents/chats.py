"""Exports of chats (WhatsApp's text, Telegram's and Slack's JSON) and transcripts (SubRip, WebVTT, Whisper's JSON).
Each day of a chat is a page with the date and the people as a mail has them, and lines are those of the file. Lines of
a transcript are seconds since the beginning."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import TYPE_CHECKING

from edge.apps.documents.agenda import spelled
from edge.apps.documents.base import CHAT, TRANSCRIPT, Block, DocumentBlocks, Mail, sent_at
from edge.apps.documents.opened import OpenedFile
from edge.apps.documents.plain import extract as extract_text

if TYPE_CHECKING:
    from edge.apps.documents.json_files import Leaf

_TIME = r"(?:(\d{1,3}):)?(\d{1,2}):(\d{1,2})[.,]\d{1,3}"
_CUE = re.compile(rf"\s*{_TIME}\s*-->\s*{_TIME}")
_VOICE = re.compile(r"<v(?:\.[\w.-]*)?[ \t]+([^<>]{1,100})>")
_TAG = re.compile(r"</?[a-zA-Z0-9][^<>\n]{0,200}>|\{\\[^{}\n]{0,200}\}")
_PAUSE = 4  # Seconds without words that end a paragraph.
_MOST_LINES = 60
_REPEATED = 3  # Lines that a rolling subtitle may show again.


@dataclass(frozen=True, slots=True)
class Said:
    """Words with the seconds of their beginning and end."""

    text: str
    begin: int
    end: int


def extract_transcript(file: OpenedFile) -> DocumentBlocks:
    """Reads subtitles; as plain text if there are none."""
    text = file.text()
    blocks = list(said_blocks(_without_repetitions(_cues(text))))
    return DocumentBlocks("", blocks) if blocks else extract_text(file)


def _cues(text: str) -> Iterator[Said]:
    """The lines of subtitles. Behind a cue's times they go on to a blank line."""
    begin = end = -1
    for line in text.split("\n"):
        if (cue := _CUE.match(line)) is not None:
            times = [int(part or 0) for part in cue.groups()]
            begin, end = ((hours * 60 + minutes) * 60 + seconds for hours, minutes, seconds in (times[:3], times[3:]))
        elif not line.strip():
            begin = -1
        elif begin >= 0:
            words = " ".join(html.unescape(_TAG.sub("", _VOICE.sub(r"\1: ", line))).split())
            if words:
                yield Said(words, begin, end)


def _without_repetitions(said: Iterable[Said]) -> Iterator[Said]:
    before: list[str] = []
    for each in said:
        if each.text not in before:
            yield each
        before = [*before[1 - _REPEATED :], each.text]


def said_blocks(said: Iterable[Said]) -> Iterator[Block]:
    """Paragraphs of what was said, which end where nobody speaks for a while."""
    open_: list[Said] = []
    for each in sorted(said, key=lambda each: each.begin):
        if open_ and (each.begin - open_[-1].end >= _PAUSE or len(open_) == _MOST_LINES):
            yield _paragraph(open_)
            open_ = []
        open_.append(each)
    if open_:
        yield _paragraph(open_)


def _paragraph(said: list[Said]) -> Block:
    return Block.of(((each.text, max(1, each.begin)) for each in said), "paragraph")


_WHATSAPP = re.compile(
    r"[\u200e\u200f\ufeff]?\[?(\d{1,4})([./-])(\d{1,2})\2(\d{2,4}),?[ \u00a0]+(\d{1,2})[:.](\d{2})(?:[:.]\d{2})?"
    r"(?:[ \u00a0\u202f]?([AaPp])\.?[ ]?[Mm]\.?)?(?:\]|[ ]-)[ ](?:([^:\n]{1,80}):[ ]?)?(.*)"
)
_HEAD = 4000
_LEVELS = frozenset({"DEBUG", "INFO", "WARNING", "WARN", "ERROR", "CRITICAL", "FATAL", "TRACE"})

_LEFT_OUT = re.compile(
    r"<[^<>\n]{1,40}(?:omitted|ausgeschlossen|weggelassen|omis|omitido)[^<>\n]{0,20}>"
    r"|\u200e\w{1,20} (?:omitted|weggelassen)"
)

_MARKUP = re.compile(r"<([@#!]?)([^<>|\s]{1,300})(?:\|([^<>]{0,300}))?>")
_TELEGRAM = re.compile(r'"messages"\s*:\s*\[')
_TELEGRAM_KEYS = re.compile(r'"(?:from_id|date_unixtime|text_entities|actor_id)"\s*:')
_SLACK = re.compile(r'\[\s*\{(?:(?!\}\s*,\s*\{).){0,4000}?"ts"\s*:\s*"\d{9,11}\.\d{6}"', re.DOTALL)
_SLACK_TYPE, _SLACK_HEAD = re.compile(r'"type"\s*:\s*"message"'), 16_000
_WHISPER = re.compile(r'"segments"\s*:\s*\[\s*\{')
_WHISPER_KEYS = re.compile(r'"start"\s*:\s*\d[^\[\]{}]{0,2000}"end"\s*:\s*\d')


@dataclass(slots=True)
class Message:
    """`when` is None if it is unknown, and the line is the first of its text."""

    chat: str = ""
    sender: str = ""
    text: str = ""
    when: datetime | None = None
    line: int = 0


def is_chat(head: bytes) -> bool:
    lines = [line for line in head[:_HEAD].decode("utf-8", "replace").splitlines() if line.strip()][:20]
    if not lines or _WHATSAPP.match(lines[0]) is None:
        return False
    senders = [match[8] for line in lines if (match := _WHATSAPP.match(line)) is not None and match[8]]
    return len(senders) >= 2 and not any(sender.strip().upper() in _LEVELS for sender in senders)


def extract(file: OpenedFile) -> DocumentBlocks:
    text = file.text()
    lines = text.split("\n")
    return _document(_messages(lines, _order(lines)), in_lines=True)


def _messages(lines: Sequence[str], order: str) -> Iterator[Message]:
    message: Message | None = None
    for number, line in enumerate([*lines, ""], 1):
        match = _WHATSAPP.match(line)
        if message is not None and (match is not None or number > len(lines)):
            message.text = _LEFT_OUT.sub("", message.text).replace("\u200e", "")
            yield message
        if match is not None:
            message = Message("", (match[8] or "").strip("~\u202f \u200e"), match[9], _when(match, order), number)
        elif message is not None and line.strip():
            message.text += f"\n{line}"


def _order(lines: Iterable[str]) -> str:
    first = second = 0
    halves = False
    for match in filter(None, map(_WHATSAPP.match, lines)):
        first, second = max(first, int(match[1])), max(second, int(match[3]))
        halves = halves or match[7] is not None
    if first > 31:
        return "year"
    return "month" if second > 12 or (halves and first <= 12) else "day"


def _when(match: re.Match[str], order: str) -> datetime | None:
    first, second, third, hour, minute = (int(part) for part in match.group(1, 3, 4, 5, 6))
    year, month, day = {
        "year": (first, second, third), "month": (third, first, second), "day": (third, second, first),
    }[order]  # fmt: skip
    if match[7]:
        hour = hour % 12 + (12 if match[7] in "Pp" else 0)
    with suppress(ValueError):
        return datetime(year + (2000 if year < 100 else 0), month, day, hour, minute)
    return None


def kind_of_json(text: str) -> Callable[[Iterable[Leaf]], DocumentBlocks] | None:
    if _TELEGRAM.search(text) and _TELEGRAM_KEYS.search(text):
        return _telegram
    head = text[:_SLACK_HEAD].lstrip()
    if _SLACK.match(head) and _SLACK_TYPE.search(head):
        return _slack
    found = _WHISPER.search(text)
    return _whisper if found and _WHISPER_KEYS.search(text, found.start(), found.start() + _HEAD) else None


def _telegram(leaves: Iterable[Leaf]) -> DocumentBlocks:
    messages: dict[tuple[object, ...], Message] = {}
    names: dict[tuple[object, ...], str] = {}
    for leaf in leaves:
        if leaf.path[-1:] == ("name",) and "messages" not in leaf.path:
            names[leaf.path[:-1]] = leaf.value
        if "messages" not in leaf.path:
            continue
        at = leaf.path.index("messages")
        key, inner = leaf.path[: at + 2], leaf.path[at + 2 :]
        message = messages.setdefault(key, Message(names.get(leaf.path[:at], ""), line=leaf.line))
        if inner == ("date",):
            with suppress(ValueError):
                message.when = datetime.fromisoformat(leaf.value)
        elif inner == ("date_unixtime",):
            message.when = message.when or _at(leaf.value)
        elif inner in (("from",), ("actor",)):
            message.sender = leaf.value if leaf.value != "null" else ""
        elif inner[:1] == ("text",) and (len(inner) < 3 or inner[-1] == "text"):
            message.text += leaf.value
        elif inner in (("file_name",), ("title",), ("poll", "question"), ("contact_information", "first_name")):
            message.text += f"\n{leaf.value}"
    return _document(messages.values())


def _slack(leaves: Iterable[Leaf]) -> DocumentBlocks:
    messages: list[Message] = []
    people: dict[str, str] = {}
    for _, group in groupby((leaf for leaf in leaves if len(leaf.path) > 1), lambda leaf: leaf.path[0]):
        message, said, attached = Message(), dict[object, str](), ""
        for leaf in group:
            name = leaf.path[-1] if len(leaf.path) == 2 or leaf.path[1] == "user_profile" else None
            if name is not None:
                said.setdefault(name, leaf.value)
            elif leaf.path[1] in ("files", "attachments") and leaf.path[-1] in ("title", "text"):
                attached += f"\n{leaf.value}"
            message.line = leaf.line if name == "text" or not message.line else message.line
        message.sender = next(filter(None, map(said.get, ("real_name", "display_name", "username", "user"))), "")
        message.text = said.get("text", "") + attached
        people[said.get("user", "")] = message.sender
        message.when = _at(said.get("ts", ""))
        messages.append(message)

    def shown(match: re.Match[str]) -> str:
        mark, name, label = match.groups()
        if mark in ("@", "#", "!"):
            return f"{'#' if mark == '#' else '@'}{label or people.get(name, name)}"
        return f"{label} ({name})" if label and label != name else name

    for message in messages:
        message.text = html.unescape(_MARKUP.sub(shown, message.text))
    return _document(messages)


def _at(seconds: str) -> datetime | None:
    with suppress(ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(float(seconds))
    return None


def _whisper(leaves: Iterable[Leaf]) -> DocumentBlocks:
    found: dict[object, dict[object, str]] = {}
    for leaf in leaves:
        if len(leaf.path) == 3 and leaf.path[0] == "segments":
            found.setdefault(leaf.path[1], {})[leaf.path[2]] = leaf.value
    return DocumentBlocks("", list(said_blocks(_segments(found.values()))), kind=TRANSCRIPT)


def _segments(found: Iterable[dict[object, str]]) -> Iterator[Said]:
    speaker = ""
    for each in found:
        words = " ".join(each.get("text", "").split())
        begin, end = (_seconds(each.get(name, "")) for name in ("start", "end"))
        if words and each.get("speaker", "") != speaker:
            speaker = each.get("speaker", "")
            words = f"{speaker}: {words}" if speaker else words
        if words:
            yield Said(words, begin, end)


def _seconds(value: str) -> int:
    try:
        return min(max(int(float(value)), 0), 10**6)
    except (ValueError, OverflowError):
        return 0


def _document(messages: Iterable[Message], *, in_lines: bool = False) -> DocumentBlocks:
    kept = (message for message in messages if message.text.strip())
    days = groupby(kept, lambda message: (message.chat, message.when and message.when.date()))
    blocks: list[Block] = []
    mails: dict[int, Mail] = {}
    for page, ((chat, day), of_day) in enumerate(days, 1):
        path = tuple(filter(None, (chat, "" if day is None else spelled(day))))
        said = list(of_day)
        for message in said:
            about = ", ".join(filter(None, (message.sender, f"{message.when:%H:%M}" if message.when else "")))
            lines = [" ".join(line.split()) for line in message.text.strip().split("\n") if line.strip()]
            text = f"{about}: " * bool(about) + "\n".join(lines)
            if in_lines:
                blocks.append(Block(text, message.line, message.line + text.count("\n"), page, "item", path))
            else:
                blocks.append(Block.of([(text, message.line)], "item", path, page))
        people = ", ".join(dict.fromkeys(message.sender for message in said if message.sender))
        when = said[0].when
        mails[page] = Mail(people, "", chat, "" if when is None else sent_at(when))
    return DocumentBlocks(mails[1].subject if mails else "", blocks, mails=mails, kind=CHAT)
