"""Mails and mailboxes of the shapes that common programs write, made byte by byte: every body, attachment, sender and
date arrives."""

from __future__ import annotations

import base64
import quopri
from email.header import Header
from typing import Any

import pytest

from edge.apps.documents.base import DocumentBlocks, Mail
from tests.apps.documents.conftest import Read

TEXTS = {
    "plain": ("The boiler man comes on Thursday at nine.", "us-ascii", "7bit"),
    "french": ("À bientôt, l'été est fini près du château = 20 €.", "windows-1252", "quoted-printable"),
    "latin-1 for windows": ("Le “château” est fermé – voilà.", "iso-8859-1", "8bit"),
    "german": ("Grüße aus Köln, die Straße ist gesperrt.", "utf-8", "base64"),
    "japanese": ("東京の会議は木曜日です。", "iso-2022-jp", "7bit"),
    "russian": ("Встреча в четверг в девять часов утра.", "koi8-r", "base64"),
    "chinese": ("会议在星期四上午九点举行。", "gb2312", "base64"),
    "swedish without a label": ("Smörgåsbord på torsdag för alla gäster.", "", "8bit"),
    "greek": ("Η συνάντηση είναι την Πέμπτη στις εννέα.", "iso-8859-7", "quoted-printable"),
}
"""Text, label and transfer encoding."""

PROGRAMS = {
    "Apple Mail": b"Mime-Version: 1.0 (Mac OS X Mail 16.0 \\(3731.700.6\\))\nX-Mailer: Apple Mail (2.3731.700.6)\n",
    "Thunderbird": b"MIME-Version: 1.0\nUser-Agent: Mozilla Thunderbird\nContent-Language: en-US\n",
    "Outlook": b"Thread-Topic: Plan\nThread-Index: AdZ0\nX-MS-Has-Attach: yes\nMIME-Version: 1.0\n",
    "Gmail": b"MIME-Version: 1.0\nDKIM-Signature: v=1; a=rsa-sha256; d=gmail.com;\n\ts=20230601; bh=x\n",
    "mutt": b"Mime-Version: 1.0\nContent-Disposition: inline\nUser-Agent: Mutt/2.2\n",
    "mailman": b"MIME-Version: 1.0\nList-Id: <list.x.org>\nSender: list-bounces@x.org\nPrecedence: list\n",
}


def part(kind: str, text: str, label: str, transfer: str, more: bytes = b"") -> bytes:
    codec = {"iso-8859-1": "cp1252", "": "utf-8"}.get(label, label)
    data = text.encode(codec)
    if transfer == "base64":
        data = base64.encodebytes(data)
    elif transfer == "quoted-printable":
        data = quopri.encodestring(data)
    charset = f'; charset="{label}"' if label else ""
    return f"Content-Type: {kind}{charset}\nContent-Transfer-Encoding: {transfer}\n".encode() + more + b"\n" + data


def several(kind: str, *parts: bytes) -> bytes:
    several.number += 1  # type: ignore[attr-defined]
    mark = b"----=_NextPart_%d_=" % several.number  # type: ignore[attr-defined]
    inside = b"".join(b"--" + mark + b"\n" + one + b"\n" for one in parts)
    about = f"Content-Type: multipart/{kind}; \n\tboundary=".encode()
    return (
        about + b'"' + mark + b'"\n\nThis is a multi-part message in MIME format.\n' + inside + b"--" + mark + b"--\n"
    )


several.number = 0  # type: ignore[attr-defined]

FILE = part(
    "text/plain",
    "The attached minutes say seven.",
    "utf-8",
    "base64",
    b"Content-Disposition: attachment; filename=a.txt\n",
)
PICTURE = part(
    "image/png", "no picture", "", "base64", b"Content-ID: <p1>\nContent-Disposition: inline; filename=p.png\n"
)
SEAL = part(
    "application/pkcs7-signature; name=smime.p7s",
    "seal",
    "",
    "base64",
    b"Content-Disposition: attachment; filename=smime.p7s\n",
)
FOOTER = part("text/plain", "_______\nList mailing list of the footer\n", "us-ascii", "7bit")


def shapes(text: str, label: str, transfer: str) -> dict[str, tuple[bytes, list[str]]]:
    """The body of a mail by its shape, with what must be read of it."""
    body = f"{text}\n\nFrom here on it is the second paragraph.\n"
    plain = part("text/plain", body, label, transfer)
    html = part(
        "text/html",
        f"<html><body><p>{text}</p><p>From here on it is the second paragraph.</p></body></html>",
        label,
        transfer,
    )
    both = several("alternative", plain, html)
    minutes = "The attached minutes say seven."
    inner = b"From: Inner <inner@i.org>\nSubject: Before\nDate: Mon, 2 Mar 2026 09:00:00 +0000\n" + plain
    signed = 'signed; protocol="application/pkcs7-signature"; micalg=sha-256'
    forwarded = b"Content-Type: message/rfc822\nContent-Disposition: inline\n\n" + inner
    return {
        "one part": (plain, []),
        "HTML alone": (html, []),
        "alternative": (both, []),
        "mixed": (several("mixed", both, FILE), [minutes]),
        "related": (several("alternative", plain, several("related", html, PICTURE)), []),
        "related outside": (several("related", both, PICTURE), []),
        "attached inside": (several("alternative", plain, several("mixed", html, FILE)), [minutes]),
        "signed": (several(signed, several("mixed", plain, FILE), SEAL), [minutes]),
        "forwarded": (several("mixed", FOOTER, forwarded), ["Inner <inner@i.org>"]),
        "footer": (several("mixed", plain, FOOTER), ["List mailing list of the footer"]),
        "digest": (several("mixed", FOOTER, several("digest", b"\n" + inner)), ["Inner <inner@i.org>"]),
    }


SENT = b"Date: Thu, 05 Mar 2026 10:00:00 +0100\n"
MOMENT = "2026-03-05T10:00:00+01:00"
ENVELOPE = b"From ann@a.org Thu Mar  5 09:00:00 2026\n"


def headers(program: str, sender: str = "Ann Lee <ann@a.org>", sent: bytes = SENT) -> bytes:
    to = b"To: bo@b.org,\n\tCara <c@c.org>\nSubject: Plan for\n Thursday\nMessage-ID:\n <1@a.org>\n"
    return (
        b"Received: from x by y; Thu, 05 Mar 2026 10:00:09 +0100\nFrom: "
        + sender.encode()
        + b"\n"
        + to
        + sent
        + PROGRAMS[program]
    )


def said(document: DocumentBlocks, page: int | None = None) -> str:
    return " ".join(" ".join(block.text.split()) for block in document.blocks if block.page == page)


MAIL = Mail("Ann Lee <ann@a.org>", "bo@b.org, Cara <c@c.org>", "Plan for Thursday", MOMENT, "1@a.org", "1@a.org")


@pytest.mark.parametrize("boxed", [False, True], ids=["mail", "mailbox"])
@pytest.mark.parametrize("shape", list(shapes("", "", "7bit")))
@pytest.mark.parametrize("language", list(TEXTS))
def test_a_shape_in_a_language(read: Read, language: str, shape: str, boxed: bool) -> None:
    text, label, transfer = TEXTS[language]
    body, more = shapes(text, label, transfer)[shape]
    program = list(PROGRAMS)[(len(language) + len(shape)) % len(PROGRAMS)]
    data = headers(program) + body
    pages: list[int | None] = [None]
    if boxed:  # with stuffed lines, between other mails
        stuffed = b"\n".join(b">" + line if line.startswith(b"From ") else line for line in data.split(b"\n"))
        other = (
            ENVELOPE + b"From: Other <o@o.org>\nDate: Wed, 4 Mar 2026 08:00:00 -0000\nSubject: x\n\nAnother mail.\n\n"
        )
        data, pages = other + ENVELOPE + stuffed + b"\n\n" + other, [2]
    document = read("a.mbox" if boxed else "a.eml", data)
    shown = said(document, pages[0])
    for wanted in (text, "From here on it is the second paragraph.", *more):
        assert shown.count(wanted) == 1, (program, wanted, shown)
    assert document.mails[pages[0] or 0] == MAIL
    assert not document.warning or "p.png" in document.warning
    if boxed:
        assert [document.mails[page].sent for page in (1, 3)] == ["2026-03-04T08:00:00"] * 2


@pytest.mark.parametrize("way", ["b", "q", "8bit", "folded", "latin-1"])
@pytest.mark.parametrize("name", ["Zoë Müller", "Łukasz Żak", "山田 太郎", "Анна Ли"])
def test_a_sender(read: Read, name: str, way: str) -> None:
    written: Any = name.encode()
    if way == "folded":
        written = b"\n ".join(Header(char, "utf-8").encode().encode() for char in (name[:3], name[3:]))
    elif way in ("b", "q"):
        charset = "utf-8" if way == "b" else "iso-8859-1" if name.startswith("Zoë") else "utf-8"
        quoted = quopri.encodestring(name.encode(charset), header=True).replace(b"\n", b"")
        code = base64.b64encode(name.encode(charset)) if way == "b" else quoted
        written = b"=?%s?%s?%s?=" % (charset.encode(), way.encode(), code)
    elif way == "latin-1":
        name = "Zoë Müller"
        written = name.encode("latin-1")
    document = read("a.eml", b"From: " + written + b" <z@z.org>\nSubject: x\n" + SENT + b"\nText.\n")
    assert document.mails[0].sender == f"{name} <z@z.org>"


@pytest.mark.parametrize(
    ("date", "expected"),
    [
        (b"Date: Thu, 5 Mar 2026 10:00 +0100\n", "2026-03-05T10:00:00+01:00"),
        (b"date: Thu, 05-Mar-26 10:00:00 GMT\n", "2026-03-05T10:00:00+00:00"),
        (b"Date: Thu,\n 5 Mar 2026 10:00:00 EST (the east)\n", "2026-03-05T10:00:00-05:00"),
        (b"Date: 2026-03-05 10:00:00+01:00\n", "2026-03-05T10:00:00+01:00"),
        (b"Date: Thu Mar  5 10:00:00 2026\n", "2026-03-05T10:00:00"),
        (b"Date: 5 Mar 2026 10:00:00 -0000\n", "2026-03-05T10:00:00"),
        (b"Date: Do, 05 M\xe4rz 2026 10:00:00 +0100\n", "2026-03-05T10:00:09+01:00"),
        (b"Date: Thu, 35 Mar 2026 99:00:00 +0100\n", "2026-03-05T10:00:09+01:00"),
        (b"Date: Thu, 5 Mar 2026 10:00:00 +9900\n", "2026-03-05T10:00:09+01:00"),
        (b"Date: yesterday\n", "2026-03-05T10:00:09+01:00"),
        (b"Date:\n", "2026-03-05T10:00:09+01:00"),
        (b"", "2026-03-05T10:00:09+01:00"),
    ],
)
def test_a_date(read: Read, date: bytes, expected: str) -> None:
    document = read("a.eml", headers("mutt", sent=date) + b"\nText.\n")
    assert document.mails[0].sent == expected


def test_a_mail_without_any_date_has_that_of_its_envelope(read: Read) -> None:
    document = read("a.mbox", ENVELOPE + b"From: a@a.org\nSubject: x\n\nText.\n")
    assert document.mails[1].sent == "2026-03-05T09:00:00"
    assert read("a.eml", b"From: a@a.org\nSubject: x\n\nText.\n").mails[0] == Mail("a@a.org", "", "x")


@pytest.mark.parametrize(
    "header",
    [
        "Content-Disposition: attachment; filename=\"Bericht März.txt\"",
        "Content-Disposition: attachment; filename*=utf-8''Bericht%20M%C3%A4rz.txt",
        "Content-Disposition: attachment;\n filename*0*=iso-8859-1'de'Bericht%20M;\n filename*1*=%E4rz.txt",
        "Content-Disposition: attachment; filename=\"=?utf-8?B?QmVyaWNodCBNw6Ryei50eHQ=?=\"",
        "Content-Disposition: attachment; filename=\"=?iso-8859-1?Q?Bericht_M=E4rz.txt?=\"",
        "X-None: 1\nContent-Type: application/octet-stream; name=\"=?utf-8?Q?Bericht_M=C3=A4rz.txt?=\"",
    ],
)  # fmt: skip
def test_the_name_of_an_attachment(read: Read, header: str) -> None:
    kind = "" if "Content-Type" in header else "Content-Type: application/octet-stream\n"
    attached = f"{kind}{header}\nContent-Transfer-Encoding: base64\n\n".encode() + base64.encodebytes(
        b"It says seven.\n"
    )
    body = several("mixed", part("text/plain", "See below.", "utf-8", "7bit"), attached)
    shown = said(read("a.eml", headers("Outlook") + body))
    assert "Attachment: Bericht März.txt It says seven." in shown


@pytest.mark.parametrize(("delsp", "cut"), [("", 3), ("", 9), ("; delsp=yes", 3), ("; delsp=yes", 9)])
def test_flowed_text(read: Read, delsp: str, cut: int) -> None:
    text = "東京の会議は木曜日の朝九時です。" if delsp else "The man who mends boilers comes on Thursday at nine."
    words = [text[i : i + cut] for i in range(0, len(text), cut)] if delsp else text.split()
    lines = [*words] if delsp else [" ".join(words[i : i + cut]) for i in range(0, len(words), cut)]
    flowed = " \n".join(lines) + "\n\n> Is it \n> Thursday?\n>> Yes.\n From the end.\n-- \nAnn\n"
    data = headers("Apple Mail") + part(f"text/plain; format=flowed{delsp}", flowed, "utf-8", "8bit")
    shown = [block.text for block in read("a.eml", data).blocks]
    assert text in shown
    assert "From the end." in shown
    assert any("Is it Thursday?" in one for one in shown) == (not delsp)
