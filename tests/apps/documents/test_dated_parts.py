"""What people keep with a date: events, chats, subtitles and transcripts; and the contacts of their address books."""

from __future__ import annotations

import json
from datetime import datetime
from email.message import EmailMessage

import pytest

from edge.apps.documents.base import Mail, place_in
from edge.apps.documents.file_types import choose
from tests.apps.documents.conftest import Read

_EVENT = (
    "BEGIN:VCALENDAR\nBEGIN:VEVENT\nDTSTART;TZID=Europe/Oslo:20261214T093000\nDTEND;TZID=Europe/Oslo:20261214T101500\n"
    "RRULE:FREQ=MONTHLY;BYDAY=2MO;COUNT=3\nSUMMARY:Chimney\n  sweep\nLOCATION:Harbour Road 7\\, Bergen\n"
    'ORGANIZER;CN="Solheim, Marit":mailto:marit@example.org\nATTENDEE;CN=Bo:mailto:bo@example.org\n'
    "DESCRIPTION:Move the ca\n r before nine.\\nPhone 555-0142.\nATTACH;ENCODING=BASE64:AAAA\n"
    "BEGIN:VALARM\nDESCRIPTION:Reminder\nEND:VALARM\nEND:VEVENT\nEND:VCALENDAR\n"
)
_EVENT_READ = [
    "Event: Chimney sweep\nWhen: Monday, 14 December 2026 (2026-12-14), 09:30 to 10:15, Europe/Oslo\n"
    "Repeats: every month on the second Monday, 3 times\nWhere: Harbour Road 7, Bergen\n"
    "Who: Solheim, Marit <marit@example.org> (organizer), Bo <bo@example.org>",
    "Move the car before nine.\nPhone 555-0142.",
]
_HOLIDAY = "BEGIN:VEVENT\nDTSTART;VALUE=DATE:20270101\nDTEND;VALUE=DATE:20270104\nSUMMARY:Away\nEND:VEVENT\n"
_TASK = "BEGIN:VTODO\nDUE:20270301T120000Z\nSUMMARY:Pay\nSTATUS:CANCELLED\nEND:VTODO\n"
_CARDS = (
    "BEGIN:VCARD\nVERSION:2.1\nN:Solheim;Marit;;;\nTEL;CELL;VOICE:+47 555 01 99\n"
    "item1.EMAIL;TYPE=INTERNET;type=pref:marit@example.org\n"
    "NOTE;ENCODING=QUOTED-PRINTABLE;CHARSET=ISO-8859-1:Spielt f=FCr uns=0A=\nTuesdays only\n"
    "ADR;TYPE=home:;;Harbour Road 7;Bergen;;5003;Norway\nBDAY:19800412\nPHOTO;ENCODING=b:AAAA\n AAAA\nEND:VCARD\n"
    "BEGIN:VCARD\nFN:Bo\nORG:Boats;Sails\nEND:VCARD\n"
)
_SRT = (
    "1\n00:00:00,000 --> 00:00:03,500\n<i>The boiler</i> warranty runs out\n\n2\n00:03:12,500 --> 00:03:16,000\n"
    "{\\an8}in spring\n\n3\n00:03:16,000 --> 00:03:18,000\nin spring\nof 2031.\n"
)
_VTT = (
    "WEBVTT\n\nNOTE nobody\nsays this\n\nSTYLE\n::cue {}\n\nfirst\n01:02.000 --> 01:04.000 align:start\n"
    "<v Ann>Keep <00:01:03.000><c.a>the</c> receipt &amp; key\n"
)
_WHATSAPP = (
    "[12.05.24, 14:03:22] Ann: The cheese is here.\nAnd wine\n[12.05.24, 14:04:22] Bo Hansen: <Media omitted>\n"
    "\u200e[12.05.24, 14:05:22] Ann: \u200eimage omitted\n"
    "[13.05.24, 09:00:01] Bo Hansen: At nine: <3 keys, I omitted one\n"
)
_AMERICAN = "5/12/24, 2:03\u202fPM - Ann: Hello\n5/13/24, 2:04 AM - Bo: Bye\n"
_TELEGRAM = {
    "name": "Boats", "type": "private_group", "messages": [
        {"id": 1, "date": "2024-05-14T10:01:00", "from": "Ann", "from_id": "user1", "text": [
            "The key is ", {"type": "bold", "text": "here"}], "text_entities": [{"type": "plain", "text": "twice"}]},
        {"id": 2, "date_unixtime": str(int(datetime(2024, 5, 15, 10, 2).timestamp())), "from": "Bo", "from_id": "user2",
         "text": "Thanks"},
    ],
}  # fmt: skip
_SLACK = [
    {"type": "message", "user": "U1", "text": "<@U2> keeps <https://a.org|it> &amp; more", "ts": "1715680860.000100"},
    {"type": "message", "user": "U2", "text": "ok", "ts": "1715680920.000200", "user_profile": {"real_name": "Bo"}},
]
_WHISPER = {"text": " A. B.", "segments": [
    {"id": 0, "start": 0.0, "end": 4.2, "text": " Graft pears.", "tokens": [1], "speaker": "Ann"},
    {"id": 1, "start": 64.2, "end": 68.0, "text": " Use wax.", "speaker": "Ann"},
]}  # fmt: skip


Told = dict[int, tuple[str, str, str, str]]


@pytest.mark.parametrize(
    ("name", "data", "kind", "expected", "mails"),
    [
        ("one.ics", _EVENT, "calendar", _EVENT_READ,
         {0: ("Solheim, Marit <marit@example.org>", "Bo <bo@example.org>", "Chimney sweep", "2026-12-14T09:30")}),
        ("two.ics", f"{_HOLIDAY}{_TASK}", "calendar",
         ["Event: Away\nWhen: Friday, 1 January 2027 (2027-01-01) to Sunday, 3 January 2027 (2027-01-03)",
          "Task: Pay (cancelled)\nDue: Monday, 1 March 2027 (2027-03-01), 12:00, UTC"],
         {1: ("", "", "Away", "2027-01-01T00:00"), 2: ("", "", "Pay", "2027-03-01T12:00")}),
        ("a.vcf", _CARDS, "contacts",
         ["Name: Marit Solheim\nPhone (cell): +47 555 01 99\nMail: marit@example.org\n"
          "Address (home): Harbour Road 7, Bergen, 5003, Norway\nBirthday: Saturday, 12 April 1980 (1980-04-12)\n"
          "Note: Spielt für uns\nTuesdays only", "Name: Bo\nOrganization: Boats, Sails"], {}),
        ("a.srt", _SRT, "transcript", ["The boiler warranty runs out", "in spring\nof 2031."], {}),
        ("a.vtt", _VTT, "transcript", ["Ann: Keep the receipt & key"], {}),
        ("other.srt", "No subtitles.\n", "transcript", ["No subtitles."], {}),
        ("_chat.txt", _WHATSAPP, "chat",
         ["Ann, 14:03: The cheese is here.\nAnd wine", "Bo Hansen, 09:00: At nine: <3 keys, I omitted one"],
         {1: ("Ann", "", "", "2024-05-12T14:03"), 2: ("Bo Hansen", "", "", "2024-05-13T09:00")}),
        ("us.txt", _AMERICAN, "chat", ["Ann, 14:03: Hello", "Bo, 02:04: Bye"],
         {1: ("Ann", "", "", "2024-05-12T14:03"), 2: ("Bo", "", "", "2024-05-13T02:04")}),
        ("result.json", json.dumps(_TELEGRAM), "chat", ["Ann, 10:01: The key is here", "Bo, 10:02: Thanks"],
         {1: ("Ann", "", "Boats", "2024-05-14T10:01"), 2: ("Bo", "", "Boats", "2024-05-15T10:02")}),
        ("slack.json", json.dumps(_SLACK), "chat", ["@Bo keeps it (https://a.org) & more", "ok"],
         {1: ("U1, Bo", "", "", "2024-05-14T")}),
        ("whisper.json", json.dumps(_WHISPER), "transcript", ["Ann: Graft pears.", "Use wax."], {}),
    ],
)  # fmt: skip
def test_it_is_read_as_a_person_reads_it(
    read: Read, name: str, data: str, kind: str, expected: list[str], mails: Told
) -> None:
    """Its date and its people are those of a mail."""
    document = read(name, data)
    blocks = list(document.blocks)
    assert [block.text.partition(": ")[2] if "slack" in name else block.text for block in blocks] == expected
    assert (document.kind or choose(name, data.encode()).name) == kind
    found = {page: (mail.sender, mail.recipients, mail.subject) for page, mail in document.mails.items()}
    assert found == {page: fields[:3] for page, fields in mails.items()}
    assert not mails or {block.page or 0 for block in blocks} == set(mails)
    assert all(document.mails[page].sent.startswith(fields[3]) for page, fields in mails.items())


def test_the_place_of_what_was_said_is_its_time(read: Read) -> None:
    first, second = read("a.srt", _SRT).blocks
    assert place_in("transcript", first.line_start, first.page) == " 00:00:01"  # lines are counted from 1
    assert place_in("transcript", second.line_at(0), None) == " 00:03:12"
    assert place_in("text", 12, None) == ":12"
    assert place_in("pdf", 12, 3) == " p. 3"
    assert place_in("chat", 12, 3) == ":12"  # its lines are those of the file


@pytest.mark.parametrize(
    ("mail", "line"),
    [
        (Mail("Ann", "Bo", "Keys", "2026-01-02T10:00:00+01:00"), "Ann to Bo, 2026-01-02 10:00: Keys"),
        (Mail("", "", "Sweep", "2026-01-02T10:00:00"), "2026-01-02 10:00: Sweep"),
        (Mail("Ann, Bo", "", "", ""), "Ann, Bo"),
    ],
)
def test_a_line_about_it_names_what_there_is(mail: Mail, line: str) -> None:
    assert mail.line == line


@pytest.mark.parametrize(
    "log",
    ["2024-05-14 10:00:00 - INFO: started\n2024-05-14 10:00:01 - INFO: done\n", "12/05/2024 10:00 - ERROR: a\n" * 3],
)
def test_a_log_is_no_chat(read: Read, log: str) -> None:
    assert choose("a.txt", log.encode()).name == "text"


def test_a_date_that_no_clock_shows_costs_only_itself(read: Read) -> None:
    data = json.dumps(_TELEGRAM).replace("2024-05-14T", "0001-01-01T")
    document = read("result.json", data)
    assert [block.text for block in document.blocks] == ["Ann, 10:01: The key is here", "Bo, 10:02: Thanks"]


def test_an_invitation_in_a_mail_is_read(read: Read) -> None:
    made = EmailMessage()
    made["From"], made["Subject"] = "ann@a.org", "Invitation"
    made.set_content("Please come.")
    made.add_alternative("<p>Please come.</p>", subtype="html")
    made.add_alternative(_EVENT, subtype="calendar")
    texts = [block.text for block in read("a.eml", made.as_bytes()).blocks]
    assert texts[1:] == ["Please come.", *_EVENT_READ]
