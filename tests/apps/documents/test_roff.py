"""Manual pages in roff are read as a person sees them."""

from __future__ import annotations

import gzip
from typing import Any

import pytest

from edge.apps.documents.base import DocumentBlocks, Skipped
from edge.apps.documents.file_types import choose
from tests.apps.documents.conftest import Read

MAN = r""".\" A comment
.de Xx
.B not shown
..
.ie t .ds -- \(em
.el .ds -- --
.TH FLOW 1 2026\-01\-01
.SH NAME
flow \- moves \fIwater\fP
.SH OPTIONS
.TP
.BR \-f ", " \-\-fast [ =\fISPEED\fR ]
Flow faster.  The default
is
.IR slow .
.TP
.B \-k | \-\-keep
.TQ
.B \-K
(Keyword: keep)
.br
Keep it.
.IP
It stays\(em
for ever.
.if t \{\
Only on paper.
.\}
.IP \(bu 2
a bullet
.TP
.B alone
.PP
Plain again\&.
.nf
  flow \-f   \e
.fi
.SS Caf\['e] \[u00E9]
.TS
tab(@);
l l.
Key@T{
two
.B words
T}
_
q@quit
.TE
"""


def shape(document: DocumentBlocks) -> list[tuple[Any, ...]]:
    return [(block.kind, block.path[1:], block.text) for block in document.blocks]


def test_a_page_of_man(read: Read) -> None:
    document = read("flow.1", MAN)
    assert document.title == "flow(1)"
    assert shape(document) == [
        ("heading", (), "NAME"), ("paragraph", (), "flow - moves water"), ("heading", (), "OPTIONS"),
        ("item", (), "-f, --fast[=SPEED]\nFlow faster.  The default is slow."),
        ("item", (), "-k | --keep, -K\n(Keyword: keep) Keep it."),
        ("paragraph", ("-k | --keep, -K",), "It stays— for ever."), ("item", (), "•\na bullet"),
        ("paragraph", (), "alone"), ("paragraph", (), "Plain again."), ("code", (), "  flow -f   \\"),
        ("heading", ("Café é",), "Café é"), ("table", ("Café é",), "Key | two words\nq | quit"),
    ]  # fmt: skip
    assert [block.line_start for block in document.blocks][:4] == [8, 9, 10, 13]
    assert all(block.path[0] == "OPTIONS" for block in document.blocks[2:])


def test_a_long_description_stands_below_its_option(read: Read) -> None:
    long = "It flows. " * 40
    document = read(
        "flow.1", f".TH flow 1\n.SH OPTIONS\n.TP\n\\fB\\-f\\fR\n{long}\n.RS\n.TP\nsub\nShort.\n.RE\n.PP\nBehind.\n"
    )
    assert [(block.kind, block.path) for block in document.blocks] == [
        ("heading", ("OPTIONS",)), ("heading", ("OPTIONS", "-f")), ("paragraph", ("OPTIONS", "-f")),
        ("item", ("OPTIONS", "-f")), ("paragraph", ("OPTIONS",)),
    ]  # fmt: skip


def test_a_page_of_mdoc(read: Read) -> None:
    document = read(
        "flow.8",
        ".Dd May 1, 2026\n.Dt FLOW 8\n.Os\n.Sh NAME\n.Nm flow\n.Nd moves water\n.Sh SYNOPSIS\n.Nm\n.Op Fl fk\n"
        ".Op Fl -speed Ns = Ns Ar n\n.Ar\n.Sh OPTIONS\n.Bl -tag -width x\n.It Fl f , Fl -fast Ar speed\nSee\n"
        '.Xr tap 1 ,\n.Dq two words\n.Pq or Sy not .\n.It Xo\n.Cm run\n.Oo Ar x Oc\n.Xc\n.Pa "a b" .\n.El\n'
        ".Bd -literal\nflow \\-f\n.Ed\n",
    )
    assert document.title == "flow(8)"
    assert [block.text for block in document.blocks if block.kind != "heading"] == [
        "flow – moves water", "flow [-fk] [--speed=n] file ...",
        "-f, --fast speed\nSee tap(1), “two words” (or not).", "run [x]\na b.", "flow -f",
    ]  # fmt: skip


def test_a_packed_page_is_read_and_one_that_names_another_is_not(read: Read) -> None:
    document = read("flow.1.gz", gzip.compress(MAN.encode()))
    assert "-k | --keep, -K\n(Keyword: keep) Keep it." in [block.text for block in document.blocks]
    with pytest.raises(Skipped, match="no text"):
        read("river.1", ".so man1/flow.1\n")


@pytest.mark.parametrize(
    ("name", "head", "kind"),
    [
        ("flow.1", b"\n.TH FLOW 1\n", "manual"), ("flow", b"'\\\" t\n.Dd May 1\n", "manual"),
        ("flow.3pm", b'.\\" Made by Pod::Man\n.de Sp\n..\n.TH FLOW 1\n', "manual"),
        ("flow.txt", b".TH FLOW 1\n", "text"), ("diary.1", b"TH is short.\n", "text"),
    ],
)  # fmt: skip
def test_what_is_a_manual_page(name: str, head: bytes, kind: str) -> None:
    assert choose(name, head).name == kind
