"""Events of calendars (iCalendar, RFC 5545) and contacts of address books (vCard, RFC 6350). An event is a page of a
file of several, with its date and people as a mail has them. Lines are those of the file, in which a long one is
folded."""

from __future__ import annotations

import quopri
import re
from array import array
from collections.abc import Container, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time, timedelta

from edge.apps.documents.base import Block, DocumentBlocks, Mail, sent_at
from edge.apps.documents.decoding import decode
from edge.apps.documents.opened import OpenedFile
from edge.apps.documents.plain import text_blocks
from edge.errors import InputError
from edge.text.languages import MONTHS, WEEKDAYS

_MOST = 100_000
_LINE = re.compile(r"(?:[\w-]+\.)?([\w-]+)((?:;[^:;\"]*(?:\"[^\"]*\"[^:;\"]*)*)*):(.*)", re.DOTALL)
_PARAMETER = re.compile(r";([^=;:\"]*)(?:=((?:\"[^\"]*\"|[^;\"])*))?")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_UNFOLDED = re.compile(r"(?<!\\);")
_MOMENT = re.compile(r"(\d{4})-?(\d\d)-?(\d\d)(?:T(\d\d):?(\d\d)(?::?\d\d)?(Z|[+-]\d\d:?\d\d)?)?")
_DURATION = re.compile(r"P(?:(\d{1,4})W)?(?:(\d{1,5})D)?(?:T(?:(\d{1,5})H)?(?:(\d{1,6})M)?(?:\d{1,6}S)?)?")
_BINARY = frozenset({"PHOTO", "LOGO", "SOUND", "KEY", "ATTACH"})
_ORDINALS = {"1": "the first ", "2": "the second ", "3": "the third ", "4": "the fourth ", "-1": "the last "}
_EVERY = {"DAILY": "day", "WEEKLY": "week", "MONTHLY": "month", "YEARLY": "year", "HOURLY": "hour"}
_CALENDAR = "VCALENDAR"
_EVENTS = {"VEVENT": "Event", "VTODO": "Task", "VJOURNAL": "Note", _CALENDAR: ""}
_CARD = {
    "FN": "Name", "NICKNAME": "Nickname", "ORG": "Organization", "TITLE": "Title", "ROLE": "Role", "TEL": "Phone",
    "EMAIL": "Mail", "ADR": "Address", "URL": "Web", "IMPP": "Chat", "BDAY": "Birthday", "ANNIVERSARY": "Anniversary",
    "RELATED": "Related", "CATEGORIES": "Categories", "NOTE": "Note",
}  # fmt: skip
_UNSAID = frozenset({"INTERNET", "VOICE", "PREF", "OTHER", "TYPE"})


@dataclass(frozen=True, slots=True)
class _Property:
    """A line: its name and parameters in capitals, its value, and the number of its first line."""

    name: str
    parameters: Mapping[str, str]
    value: str
    number: int

    @property
    def text(self) -> str:
        return _ESCAPE.sub(lambda match: "\n" if match[1] in "nN" else match[1], self.value).strip()

    @property
    def parts(self) -> list[str]:
        return [_ESCAPE.sub(r"\1", part).strip() for part in _UNFOLDED.split(self.value)]


@dataclass(slots=True)
class _Component:
    kind: str
    properties: list[_Property] = field(default_factory=list)

    def get(self, *names: str) -> _Property | None:
        return next((each for name in names for each in self.properties if each.name == name), None)

    def text(self, name: str) -> str:
        found = self.get(name)
        return "" if found is None else found.text


def extract_calendar(file: OpenedFile) -> DocumentBlocks:
    title, blocks, mails = events(file.read())
    return DocumentBlocks(title, blocks, mails=mails)


def events(data: bytes, *, declared: str | None = None) -> tuple[str, list[Block], dict[int, Mail]]:
    name, blocks, mails = "", list[Block](), dict[int, Mail]()
    for event in _components(data, declared, _EVENTS):
        if event.kind == _CALENDAR:
            name = " ".join(event.text("X-WR-CALNAME").split())
        elif shown := list(_event(event, len(mails) + 1)):
            blocks += shown
            people = [_person(each) for each in event.properties if each.name == "ATTENDEE"]
            organizer, start = event.get("ORGANIZER"), _start(event)
            mails[len(mails) + 1] = Mail(
                "" if organizer is None else _person(organizer), ", ".join(filter(None, people)),
                " ".join(event.text("SUMMARY").split()), "" if start is None else _iso(start.value),
            )  # fmt: skip
    if len(mails) == 1:
        return name, [replace(block, page=None) for block in blocks], {0: mails[1]}
    return name, blocks, mails


def _components(data: bytes, declared: str | None, kinds: Container[str]) -> Iterator[_Component]:
    """Those inside another, such as alarms, are left out."""
    open_: list[_Component] = []
    count = 0
    for line in _properties(data, declared):
        if line.name == "BEGIN":
            open_.append(_Component(line.value.strip().upper()))
        elif line.name != "END" and open_:
            open_[-1].properties.append(line)
        elif line.name == "END" and open_ and (found := open_.pop()).kind in kinds:
            count += 1
            if count > _MOST:
                raise InputError(f"more than {_MOST:,} events or contacts, the most that is read")
            yield found
    yield from (each for each in open_ if each.kind in kinds)  # the file is cut off


def _properties(data: bytes, declared: str | None) -> Iterator[_Property]:
    """Unfolded before they are decoded, because a fold may divide a letter."""
    joined, numbers = bytearray(), array("L")
    quoted = False
    data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    for number, match in enumerate(re.finditer(rb"[^\n]*\n?", data), 1):
        line = match[0].removesuffix(b"\n")
        if line[:1] in (b" ", b"\t") and numbers:
            joined += line[1:]
        elif quoted and joined.endswith(b"="):
            joined[-1:] = line
        elif line.strip():
            joined += b"\n" * bool(numbers) + line
            numbers.append(number)
            quoted = b"QUOTED-PRINTABLE" in line.partition(b":")[0].upper()
    lines = re.finditer("[^\n]+", decode(bytes(joined), declared=declared))
    for number, found in zip(numbers, lines, strict=False):
        parts = _LINE.match(found[0])
        if parts is None or (name := parts[1].upper()) in _BINARY:
            continue
        parameters: dict[str, str] = {}
        for key, value in _PARAMETER.findall(parts[2]):
            if not value and key:  # as vCard 2.1 writes types
                key, value = "TYPE", key
            known = parameters.get(key.upper(), "")
            parameters[key.upper()] = _ESCAPE.sub(r"\1", f"{known},{value.strip()}".strip(",").replace('"', ""))
        value = parts[3]
        if "QUOTED-PRINTABLE" in ",".join(parameters.values()).upper():
            value = decode(quopri.decodestring(value.encode()), declared=parameters.get("CHARSET"))
        yield _Property(name, parameters, value, number)


def _event(event: _Component, page: int | None) -> Iterator[Block]:
    summary, lines = event.get("SUMMARY"), list[tuple[str, int]]()
    title = "" if summary is None else " ".join(summary.text.split())
    if title:
        assert summary is not None
        cancelled = " (cancelled)" if event.text("STATUS").upper() == "CANCELLED" else ""
        lines.append((f"{_EVENTS[event.kind]}: {title}{cancelled}", summary.number))
    start, rule = _start(event), event.get("RRULE")
    if start is not None and (when := _when(start, event)):
        due = event.kind == "VTODO" and start.name == "DUE"
        lines.append((f"{'Due' if due else 'When'}: {when}", start.number))
    if rule is not None and (repeats := _repeats(rule.value)):
        lines.append((f"Repeats: {repeats}", rule.number))
    for name, label in (("LOCATION", "Where"), ("CATEGORIES", "Categories"), ("URL", "Web")):
        if found := event.get(name):
            lines.append((f"{label}: {' '.join(found.text.split())}", found.number))
    organizer = [f"{_person(each)} (organizer)" for each in event.properties if each.name == "ORGANIZER"]
    people = [*organizer, *(_person(each) for each in event.properties if each.name == "ATTENDEE")]
    if people := list(dict.fromkeys(filter(None, people))):
        found = event.get("ORGANIZER", "ATTENDEE")
        assert found is not None
        lines.append((f"Who: {', '.join(people)}", found.number))
    path = tuple(filter(None, (title,)))
    if lines:
        yield Block.of(lines, "fields", path, page)
    for each in event.properties:
        if each.name in ("DESCRIPTION", "COMMENT"):
            for block in text_blocks(each.text):
                yield Block.of([(block.text, each.number)], block.kind, (*path, *block.path), page)


def _start(event: _Component) -> _Property | None:
    return event.get("DUE", "DTSTART") if event.kind == "VTODO" else event.get("DTSTART")


def _moment(value: str) -> date | None:
    """A time without a zone is local."""
    match = _MOMENT.match(value.strip())
    if match is None:
        return None
    with suppress(ValueError):
        day = date(*map(int, match.group(1, 2, 3)))
        if match[4] is None:
            return day
        found = datetime.combine(day, time(int(match[4]), int(match[5])))
        if match[6] is None:
            return found
        zone = "+00:00" if match[6] == "Z" else match[6]
        return datetime.fromisoformat(f"{found.isoformat()}{zone[:3]}:{zone[-2:]}")
    return None


def _iso(value: str) -> str:
    moment = _moment(value)
    if moment is None:
        return ""
    return sent_at(moment if isinstance(moment, datetime) else datetime.combine(moment, time()))


def spelled(day: date) -> str:
    """A date as people and as programs write it."""
    return f"{WEEKDAYS[day.weekday()]}, {day.day} {MONTHS[day.month - 1]} {day.year} ({day.isoformat()})"


def _when(start: _Property, event: _Component) -> str:
    begin, last = _moment(start.value), event.get("DTEND")
    if begin is None:
        return ""
    end = None if last is None else _moment(last.value)
    match = _DURATION.fullmatch(event.text("DURATION"))
    with suppress(OverflowError):
        if end is None and match is not None:
            weeks, days, hours, minutes = (int(part or 0) for part in match.groups())
            end = begin + timedelta(weeks=weeks, days=days, hours=hours, minutes=minutes)
        if not isinstance(begin, datetime):
            end = None if end is None else end - timedelta(days=1)  # the end is the day behind the last one
            return spelled(begin) if end is None or end <= begin else f"{spelled(begin)} to {spelled(end)}"
    if not isinstance(begin, datetime):
        return spelled(begin)
    text = f"{spelled(begin.date())}, {begin:%H:%M}"
    if isinstance(end, datetime) and end.date() == begin.date():
        text += f" to {end:%H:%M}"
    elif isinstance(end, datetime):
        text += f" to {spelled(end.date())}, {end:%H:%M}"
    zone = "UTC" if begin.tzinfo == UTC else start.parameters.get("TZID", "")
    return f"{text}, {zone}" if zone else text


def _repeats(rule: str) -> str:
    parts = dict(part.upper().partition("=")[::2] for part in rule.split(";"))
    unit = _EVERY.get(parts.get("FREQ", ""))
    if unit is None:
        return ""
    interval = parts.get("INTERVAL", "1")
    text = f"every {unit}" if interval == "1" else f"every {interval} {unit}s"
    days = [
        _ORDINALS.get(code[:-2], "") + day
        for code in parts.get("BYDAY", "").split(",")
        for day in WEEKDAYS
        if code[-2:] == day[:2].upper()
    ]
    days += [f"day {day}" for day in parts.get("BYMONTHDAY", "").split(",") if day.isdecimal()]
    if days:
        text += f" on {', '.join(days)}"
    if (until := _moment(parts.get("UNTIL", ""))) is not None:
        text += f", until {until.strftime('%Y-%m-%d')}"
    return f"{text}, {parts['COUNT']} times" if parts.get("COUNT", "").isdecimal() else text


def _person(found: _Property) -> str:
    address = re.sub(r"(?i)^mailto:", "", found.text)
    name = found.parameters.get("CN", "").strip()
    return f"{name} <{address}>" if name and "@" in address and name != address else name or address


def extract_contacts(file: OpenedFile) -> DocumentBlocks:
    blocks: list[Block] = []
    for card in _components(file.read(), None, {"VCARD"}):
        lines = list(_fields(card))
        if lines:
            name = next((text.partition(": ")[2] for text, _ in lines if text.startswith("Name: ")), "")
            blocks.append(Block.of(lines, "row", tuple(filter(None, (name,)))))
    return DocumentBlocks("", blocks)


def _fields(card: _Component) -> Iterator[tuple[str, int]]:
    if not card.text("FN") and (full := card.get("N")) is not None:
        family, given = [*full.parts, "", ""][:2]
        yield f"Name: {' '.join(filter(None, (given, family)))}", full.number
    for name, label in _CARD.items():
        for each in card.properties:
            if each.name != name:
                continue
            shown = ", ".join(filter(None, each.parts)) if name in ("ADR", "ORG") else each.text
            if name in ("BDAY", "ANNIVERSARY") and (day := _moment(each.value)) is not None:
                shown = spelled(day)
            kinds = [kind for kind in each.parameters.get("TYPE", "").upper().split(",") if kind not in _UNSAID]
            about = f" ({', '.join(kinds).lower()})" if kinds and kinds != [""] else ""
            text = "\n".join(" ".join(line.split()) for line in shown.split("\n") if line.strip())
            if text:
                yield f"{label}{about}: {text}", each.number
