"""E-mail: messages and mailboxes, made by Python's own library."""

from __future__ import annotations

import base64
import io
import mailbox
from datetime import datetime, timedelta, timezone
from email.message import EmailMessage
from email.utils import format_datetime
from pathlib import Path

import pytest
from making.pdf import pdf_bytes

from edge.apps.documents import file_types, mail
from edge.apps.documents.base import Block, DocumentBlocks, Extracted
from edge.apps.documents.extraction import Extractor
from edge.apps.documents.file_types import is_message
from edge.apps.documents.opened import Attempt, OpenedFile
from edge.budget import MemoryBudget
from edge.errors import InputError
from edge.trace import Trace
from tests.apps.documents.conftest import Bounds, Read


def message(subject: str, text: str, sender: str = "Ann <ann@a.org>", day: int = 1, html: str = "") -> EmailMessage:
    made = EmailMessage()
    made["From"], made["To"], made["Subject"] = sender, "bo@b.org", subject
    made["Date"] = format_datetime(datetime(2026, 3, day, 10, tzinfo=timezone(timedelta(hours=1))))
    made["Message-ID"] = f"<{day}@a.org>"
    if text:
        made.set_content(text)
    if html:
        made.add_alternative(html, subtype="html")
    return made


def texts(document: DocumentBlocks, page: int | None = None) -> list[str]:
    return [block.text for block in document.blocks if block.page == page]


def under(document: DocumentBlocks, text: str) -> Block:
    (found,) = [block for block in document.blocks if text in block.text]
    return found


def test_a_message(read: Read) -> None:
    made = message("Re: AW: The käse", "Grüße,\n\nthe cheese is here.\n\n-- \nAnn, Cheese Ltd.\n", day=5)
    document = read("a.eml", made.as_bytes())
    assert document.title == "The käse"
    path = ("The käse", "Ann, 2026-03-05")
    assert texts(document) == [
        "From: Ann <ann@a.org>\nTo: bo@b.org\nDate: Thu, 05 Mar 2026 10:00:00 +0100\nSubject: Re: AW: The käse",
        "Grüße,", "the cheese is here.", "Ann, Cheese Ltd.",
    ]  # fmt: skip
    assert [block.path for block in document.blocks] == [path, path, path, (*path, "signature")]
    assert [block.line_start for block in document.blocks] == [1, 5, 6, 7]


HTML_TEXT = "<p>The walrus fund rose by four percent in May.</p>"
STATED = "The walrus fund rose by four percent in May."


@pytest.mark.parametrize(
    ("plain", "shown"),
    [
        ("\n", [STATED]),
        (" \xa0\n\n", [STATED]),
        ("This message needs an HTML viewer.\n", [STATED]),
        ("Fund: http://a.org/\n", [STATED]),
        ("The walrus fund rose by 4 % in May.\n", ["The walrus fund rose by 4 % in May."]),
    ],
)
@pytest.mark.parametrize("order", [1, -1])
def test_html_is_read_where_the_plain_text_is_a_stub(read: Read, plain: str, shown: list[str], order: int) -> None:
    made = message("x", plain, html=HTML_TEXT)
    made.set_payload(made.get_payload()[::order])
    assert texts(read("a.eml", made.as_bytes()))[1:] == shown


def part(kind: str, body: bytes, *headers: str) -> bytes:
    return "\n".join([f"Content-Type: {kind}", *headers, "", ""]).encode() + body


def multipart(subtype: str, *parts: bytes) -> bytes:
    mark = f"{subtype}{len(parts)}{sum(map(len, parts))}"
    inner = b"".join(b"--%s\n%s\n" % (mark.encode(), each) for each in parts)
    return part(f"multipart/{subtype}; boundary={mark}", b"%s--%s--\n" % (inner, mark.encode()))


def mail_of(body: bytes) -> bytes:
    return b"From: Ann <ann@a.org>\nDate: x\nSubject: s\nMIME-Version: 1.0\n" + body


def test_files_inside_of_alternatives_are_read_and_pictures_of_html_are_not(read: Read) -> None:
    pdf = base64.encodebytes(pdf_bytes([[(72, 700, 11, "A page of a PDF.")]]))
    plain, html = part("text/plain", b"See attached."), part("text/html", b"<p>See attached.</p>")
    logo = part("image/png; name=logo.png", b"", "Content-ID: <1>")
    note = part("text/plain", b"The report counts walruses.", "Content-Disposition: attachment; filename=report.txt")
    inline = part("application/pdf", pdf, "Content-Transfer-Encoding: base64", "Content-Disposition: inline")
    rich = multipart("mixed", multipart("related", html, logo), inline, note)
    found = texts(read("a.eml", mail_of(multipart("alternative", plain, rich))))[1:]
    assert found == [
        "See attached.", "Attachment: without a name (application/pdf)", "A page of a PDF.",
        "Attachment: report.txt", "The report counts walruses.",
    ]  # fmt: skip
    signed = multipart("signed", plain, part("application/pgp-signature; name=signature.asc", b"iQEzBAEB"))
    assert texts(read("a.eml", mail_of(signed)))[1:] == ["See attached."]


def encoded_word(text: str, codec: str, label: str) -> str:
    return f"=?{label}?B?{base64.b64encode(text.encode(codec)).decode()}?="


def test_text_after_dashes_stays_and_a_signature_is_read_once(read: Read, tmp_path: Path) -> None:
    agenda = message("Minutes", "Item one: roof.\n--\nItem two: the pool leaks.\n")
    assert "Item two: the pool leaks." in "\n".join(texts(read("a.eml", agenda.as_bytes())))
    letters = [message("Hello", f"Call me {day}.\n-- \nAnn Reed\nMobile 0555\n", day=day) for day in (1, 2)]
    document = read("a.mbox", mbox(tmp_path, *letters))
    assert under(document, "Mobile 0555").path[2:] == ("signature",)
    assert under(document, "Call me 2.").page == 2


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("=?iso-8859-1?Q?The_landlord=92s_=80500?=", "The landlord’s €500"),
        (encoded_word("①金", "cp932", "x-sjis") + " " + encoded_word("曜", "cp932", "x-sjis"), "①金曜"),
        (encoded_word("図書", "iso2022_jp", "ISO-2022-JP") + " a", "図書 a"),
        ("=?utf-8?B?w7w=?= =?utf-8?Q?ber?=", "über"),
        ("=?no-such?Q?caf=E9?= a", "café a"),
        ("=?utf-8?B?x?= plain", "=?utf-8?B?x?= plain"),
    ],
)
def test_words_of_headers(read: Read, header: str, expected: str) -> None:
    document = read("a.eml", f"From: {header} <a@b.c>\nSubject: {header}\nDate: x\n\nText.\n".encode())
    assert texts(document)[0] == f"From: {expected} <a@b.c>\nDate: x\nSubject: {expected}"


def test_messages_as_programs_store_them(read: Read) -> None:
    body = message("River", "It floods.\n\nFrom here on, all is dry.\n\nFrom A to B.\n").as_bytes()
    counted = b"%d      \n" % len(body) + body + b"<?xml version='1.0'?><plist></plist>\n"
    assert texts(read("1.emlx", counted))[1:] == ["It floods.", "From here on, all is dry.", "From A to B."]
    for envelope in (b"From - Sun Mar  1 10:00:00 2026\n", b"From 17@xxx Sun Mar 01 09:00:00 +0000 2026\n"):
        document = read("Inbox", envelope + body + b"\n" + envelope + body)
        assert [block.text for block in document.blocks if block.page == 2][-1] == "From A to B."
        assert {block.page for block in document.blocks} == {1, 2}


def test_a_damaged_message_costs_no_mailbox(read: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = mail.parsedate_to_datetime

    def fail(date: str) -> datetime:
        if "02 Mar" in date:
            raise KeyError(date)
        return original(date)

    monkeypatch.setattr(mail, "parsedate_to_datetime", fail)
    data = mbox(tmp_path, *(message("River", f"Day {day}.\n", day=day) for day in (1, 2, 3)))
    document = read("a.mbox", data)
    assert [block.text for block in document.blocks if block.text.startswith("Day")] == ["Day 1.", "Day 3."]
    assert document.warning == "the parts of message 2 are damaged (KeyError)"


def mbox(tmp_path: Path, *messages: EmailMessage) -> bytes:
    path = tmp_path / "made"
    box = mailbox.mbox(path)
    for made in messages:
        box.add(made)
    box.close()
    return path.read_bytes()


def test_a_mailbox_has_pages_threads_and_no_text_twice(read: Read, tmp_path: Path) -> None:
    question = "When does the river flood this year?\nFrom what I know it is in May.\n"
    answer = (
        "On Sunday Ann wrote:\n> When does the river flood this year?\n> From what I know it is in May.\n"
        "> ok\n\nIn April, because it is warm.\n\n> Something nobody here has written before.\n\nThat, too.\n"
    )
    data = mbox(tmp_path, message("River", question), message("Re: River", answer, "Bo <bo@b.org>", 2))
    document = read("mail.mbox", data)
    assert {block.path[0] for block in document.blocks} == {"River"}
    assert {block.page for block in document.blocks} == {1, 2}
    assert "From what I know" in " ".join(texts(document, 1))
    second = texts(document, 2)[1:]
    assert second == [
        "In April, because it is warm.", "Something nobody here has written before.", "That, too.",
    ]  # fmt: skip
    assert under(document, "nobody here").path == ("River", "Bo, 2026-03-02", "quoted")
    assert under(document, "In April").path == ("River", "Bo, 2026-03-02")


def test_files_of_a_maildir_have_no_suffix(read: Read, tmp_path: Path) -> None:
    box = mailbox.Maildir(tmp_path / "maildir")
    box.add(message("River", "It floods in spring.\n"))
    (path,) = (tmp_path / "maildir" / "new").iterdir()
    assert texts(read(path.name, path.read_bytes()))[1:] == ["It floods in spring."]
    assert not is_message(b"Title: a text\nAuthor: me\n\nFrom: nobody")
    assert not is_message(b"From: me\n\nDate: a diary\n")


def nested(depth: int) -> bytes:
    data = mail_of(b"\nThe innermost text.\n")
    for number in range(depth):
        text = part("text/plain", b"Text %d." % number)
        data = mail_of(multipart("mixed", text, part("message/rfc822", data)))
    return data


def test_messages_in_messages_end(read: Read) -> None:
    document = read("a.eml", nested(50))
    assert len([block for block in document.blocks if block.text.startswith("Text ")]) == 4
    deep = nested(2000)
    with pytest.raises(InputError, match="nested too deep"):
        read("a.eml", deep)
    after = b"From a@b.c Sun Mar  1 10:00:00 2026\n" + message("River", "It floods.\n").as_bytes()
    document = read("a.mbox", b"From a@b.c Sun Mar  1 10:00:00 2026\n" + deep + b"\n" + after)
    assert "It floods." in texts(document, 2)
    assert "message 1" in document.warning


ENVELOPE = b"From a@b.c Sun Mar  1 10:00:00 2026\n"


def with_pictures(count: int, size: tuple[int, int]) -> bytes:
    image = pytest.importorskip("PIL.Image", reason="the extra `ocr` is not installed")
    made = message("Boiler", "The man comes on Thursday.\n")
    for number in range(count):
        picture = io.BytesIO()
        image.new("RGB", size, "white").save(picture, "PNG")
        made.add_attachment(picture.getvalue(), maintype="image", subtype="png", filename=f"{number}.png")
    made.add_attachment(b"# Last\n\nStill read.\n", maintype="text", subtype="plain", filename="last.md")
    return made.as_bytes()


def joined(found: Extracted) -> str:
    return "\n".join(chunk.text for chunk in found.chunks)


@pytest.mark.parametrize("memory", ["enough", "a small limit", "a small worker"])
def test_pictures_cost_no_message(tmp_path: Path, with_and_without_ocr: bool, bounds: Bounds, memory: str) -> None:
    path = tmp_path / "a.mbox"
    path.write_bytes(b"\n".join(ENVELOPE + with_pictures(count, (900, 900)) for count in (1, 3)))
    budget = MemoryBudget(10**10)
    left = 10**8 if memory == "a small limit" else budget.free
    bounds(most=(56 if memory == "a small worker" else 192) * 10**6)
    with budget.reserve("others", budget.free - left), Extractor(budget=budget) as reader:
        found = reader.extract(path)
    assert joined(found).count("Still read.") == joined(found).count("on Thursday") == 2
    said = {
        "enough": "",
        "a small limit": "the attachment 0.png is left out (it needs more memory than there is)",
        "a small worker": "the attachment 0.png is left out (needs more memory than there is)",
    }
    without = "the attachment 0.png is left out (pictures of text are read with the extra `ocr`"
    assert found.warning.startswith(said[memory] if with_and_without_ocr else without)
    assert found.warning or memory == "enough"


def test_a_large_attachment_costs_no_mailbox(tmp_path: Path, with_and_without_ocr: bool) -> None:
    film = base64.encodebytes(bytes(range(251)) * 60_000)
    video = part("video/mp4; name=film.mp4", film, "Content-Transfer-Encoding: base64")
    large = mail_of(multipart("mixed", part("text/plain", b"See below."), video))
    path = tmp_path / "a.mbox"
    path.write_bytes(b"\n".join(ENVELOPE + data for data in (large, message("Note", "A word.\n").as_bytes())))
    assert path.stat().st_size > 20 * 10**6
    trace = Trace()
    with Extractor(budget=MemoryBudget(10**10), trace=trace) as extractor:
        found = extractor.extract(path)
    assert {chunk.page for chunk in found.chunks} == {1, 2}
    assert "Attachment: film.mp4" in joined(found)
    assert "A word." in joined(found)
    assert found.warning == ""
    assert trace.counters["documents.worker_starts"] == 1  # the ordinary memory was enough


@pytest.mark.parametrize("wrapped", [True, False], ids=["lines", "one line"])
def test_attachments_that_stay_in_the_file_are_read_whole(read: Read, wrapped: bool) -> None:
    table = "name,place\n" + "".join(f"n{number},Öhringen {number}\n" for number in range(9000))
    encoded = base64.encodebytes(table.encode()) if wrapped else base64.b64encode(table.encode()) + b"\n"
    headers = "Content-Transfer-Encoding: base64", "Content-Disposition: attachment; filename=t.csv"
    note = part("text/plain", encoded + b"Words behind it.")
    document = read("a.eml", mail_of(multipart("mixed", part("text/csv", encoded, *headers), note)))
    blocks = list(document.blocks)
    assert [block.text for block in blocks if "Öhringen" in block.text] == [
        f"name: n{number}\nplace: Öhringen {number}" for number in range(9000)
    ]
    assert blocks[-1].text.replace("\n", "") == encoded.decode().replace("\n", "") + "Words behind it."


def test_an_attachment_costs_only_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def attached(attempt: Attempt, error: BaseException) -> DocumentBlocks:
        def fail(file: OpenedFile) -> DocumentBlocks:
            raise error

        loaded = {"edge.apps.documents.tables:extract": fail}
        monkeypatch.setattr(file_types, "load", lambda name: loaded.get(name, original(name)))
        made = message("Papers", "See below.\n")
        for name in ("a.md", "bad.csv", "b.md"):
            made.add_attachment(f"Words of {name}\n".encode(), maintype="text", subtype="plain", filename=name)
        path = tmp_path / "a.eml"
        path.write_bytes(made.as_bytes())
        with OpenedFile(path, attempt=attempt) as file:
            return mail.extract(file)

    original = file_types.load
    for error, said in (
        (MemoryError(), "the attachment bad.csv is left out (needs more memory than there is)"),
        (InputError("no table"), "the attachment bad.csv is left out (no table)"),
        (RuntimeError(), "the attachment bad.csv is left out (damaged: RuntimeError)"),
    ):
        document = attached(Attempt.LAST, error)
        assert texts(document)[2:] == ["Attachment: a.md", "Words of a.md", "Attachment: bad.csv", "Attachment: b.md",
                                       "Words of b.md"]  # fmt: skip
        assert document.warning == said
    with pytest.raises(MemoryError):
        attached(Attempt.FIRST, MemoryError())


def test_more_text_than_is_read_costs_the_attachment(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    made = message("Papers", "See below.\n")
    for number in range(2):
        made.add_attachment(b"words \n" * 90_000, maintype="text", subtype="plain", filename=f"{number}.txt")
    with monkeypatch.context() as fewer:
        fewer.setattr(mail, "MAX_TEXT_CHARS", 10**6)
        document = read("a.eml", made.as_bytes())
    assert [text for text in texts(document) if "Attachment" in text] == ["Attachment: 0.txt", "Attachment: 1.txt"]
    assert "the attachment 1.txt is left out (the texts have more than 1,000,000 characters" in document.warning
    long = message("Long", "Before it.\n")
    long.add_attachment("line of words\n" * 10**6, filename="long.txt", cte="7bit")
    document = read("a.eml", long.as_bytes())
    assert texts(document)[1:] == ["Before it.", "Attachment: long.txt"]
    assert "more than 12.0 MB" in document.warning
