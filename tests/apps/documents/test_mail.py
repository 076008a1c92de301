"""E-mail: messages and mailboxes, made by Python's own library."""

from __future__ import annotations

import mailbox
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from email.message import EmailMessage
from email.utils import format_datetime
from pathlib import Path

import pytest

from edge.apps.documents.base import Block, Document, Reason, Skipped
from edge.apps.documents.file_types import is_message
from edge.errors import InputError

Read = Callable[[str, bytes], Document]
Make = Callable[..., bytes]


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


def texts(document: Document, page: int | None = None) -> list[str]:
    return [block.text for block in document.blocks if block.page == page]


def under(document: Document, text: str) -> Block:
    (found,) = [block for block in document.blocks if text in block.text]
    return found


def test_a_message(read: Read) -> None:
    made = message("Re: AW: The käse", "Grüße,\n\nthe cheese is here.\n\n-- \nAnn, Cheese Ltd.\n", day=5)
    document = read("a.eml", made.as_bytes())
    assert document.title == "The käse"
    path = ("The käse", "Ann, 2026-03-05")
    assert texts(document) == [
        "From: Ann <ann@a.org>\nTo: bo@b.org\nDate: Thu, 05 Mar 2026 10:00:00 +0100\nSubject: Re: AW: The käse",
        "Grüße,", "the cheese is here.",
    ]  # fmt: skip
    assert {block.path for block in document.blocks} == {path}
    assert [block.line_start for block in document.blocks] == [1, 5, 6]


def test_of_alternatives_the_plain_one_and_html_where_there_is_no_other(read: Read) -> None:
    both = message("x", "Plain words.\n", html="<p>Rich words.</p>")
    assert texts(read("a.eml", both.as_bytes()))[1:] == ["Plain words."]
    rich = message("x", "")
    rich.set_content("<h1>Offer</h1><p>Rich words.</p>", subtype="html")
    document = read("a.eml", rich.as_bytes())
    assert under(document, "Rich words.").path == ("x", "Ann, 2026-03-01", "Offer")


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


def test_attachments_are_read_as_files_are(read: Read, make_pdf: Make) -> None:
    made = message("Papers", "See below.\n")
    made.add_attachment(b"# Notes\n\nThe river floods.\n", maintype="text", subtype="plain", filename="notes.md")
    made.add_attachment(
        make_pdf([[(72, 700, 11, "A page of a PDF.")]]), maintype="application", subtype="pdf", filename="a.pdf"
    )
    made.add_attachment(bytes(range(256)) * 9, maintype="image", subtype="png", filename="p.png")
    made.add_attachment(b"%PDF-1.7 nothing", maintype="application", subtype="pdf", filename="bad.pdf")
    inner = message("Inner one", "Words inside.\n", "Cy <cy@c.org>")
    made.add_attachment(inner)
    document = read("a.eml", made.as_bytes())
    assert under(document, "The river floods.").path[2:] == ("attachment notes.md", "Notes")
    assert under(document, "A page of a PDF.").path[2:] == ("attachment a.pdf",)
    assert under(document, "Attachment: p.png")
    assert under(document, "Words inside.").path[2:] == ("Inner one", "Cy, 2026-03-01")
    assert "bad.pdf" in document.warning


def test_files_of_a_maildir_have_no_suffix(read: Read, tmp_path: Path) -> None:
    box = mailbox.Maildir(tmp_path / "maildir")
    box.add(message("River", "It floods in spring.\n"))
    (path,) = (tmp_path / "maildir" / "new").iterdir()
    assert texts(read(path.name, path.read_bytes()))[1:] == ["It floods in spring."]
    assert not is_message(b"Title: a text\nAuthor: me\n\nFrom: nobody")
    assert not is_message(b"From: me\n\nDate: a diary\n")


def nested(depth: int) -> bytes:
    headers = b"From: a@b.c\nDate: x\nSubject: s\n"
    data = headers + b"\nThe innermost text.\n"
    for number in range(depth):
        mark = b"b%d" % number
        data = (
            headers + b"MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=" + mark + b"\n\n--" + mark
            + b"\nContent-Type: text/plain\n\nText " + mark + b".\n--" + mark
            + b"\nContent-Type: message/rfc822\n\n" + data + b"\n--" + mark + b"--\n"
        )  # fmt: skip
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


def test_nothing_to_read(read: Read) -> None:
    with pytest.raises(Skipped) as nothing:
        read("a.eml", b"\n\n")
    assert nothing.value.reason is Reason.NO_TEXT


def test_damaged_headers_are_no_reason_to_lose_a_message(read: Read) -> None:
    data = (
        b"From: =?utf-8?q?bro=ken <a@\xff\xfe\nDate: yesterday\nSubject: =?x-no-such?b?!!!?=\nTo: a@b.c\n"
        b"Content-Type: text/plain; charset=no-such-thing\n\nStill read.\n"
    )
    assert texts(read("a.eml", data))[-1] == "Still read."
