"""Letters and papers of other programs: RTF, LaTeX, BibTeX, and the messages that Outlook saves."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import pytest

from edge.apps.documents.base import Mail, Skipped
from edge.apps.documents.latex import plain
from tests.apps.documents.conftest import Read

_RTF = (
    rb"{\rtf1\ansi\ansicpg1252{\fonttbl{\f0\fcharset0 Arial;}}{\stylesheet{\s0 Normal;}}\pard The notary is Mrs. "
    rb"H\u229?llingd\'e5l\b !\b0\par{\*\generator x}{\pict\pngblip "
    + b"0123456789abcdef" * 40
    + b"\n"
    + b"89504e470d0a1a0a" * 40
    + rb"}{\pict\wmetafile8\bin4 "
    + b"}\xff\\{"
    + rb"}{\pict\jpegblip\bin ffd8}Caf\'e9 and "
    + "naïve".encode("cp1252")
    + rb"\par\trowd Region\cell Rain\cell\row North\cell 112\cell\row}"
)  # fmt: skip
_END = -2
"""The end of a chain of sectors (MS-CFB, 2.1)."""


def chains(datas: Sequence[bytes], size: int) -> tuple[bytes, list[int], list[int]]:
    """Data in sectors of a size, one behind the other: the sectors, their table, and where each begins."""
    sectors, table, starts = b"", list[int](), list[int]()
    for data in datas:
        count = max(1, -(-len(data) // size))
        starts.append(len(table))
        table += [*range(len(table) + 1, len(table) + count), _END]
        sectors += data.ljust(count * size, b"\0")
    return sectors, table, starts


def compound_file(streams: Mapping[str, bytes]) -> bytes:
    """An OLE compound file of small streams and of storages, by their paths."""
    names = sorted({path.rpartition("/")[0] for path in streams if "/" in path} | set(streams))
    entries = ["", *names]
    children = {name: [each for each in names if each.rpartition("/")[0] == name] for name in entries}
    small, small_table, begins = chains(list(streams.values()), 64)
    starts = dict(zip(streams, begins, strict=True))
    directory = b""
    for name in entries:
        siblings = children[name.rpartition("/")[0]] if name else []
        following = siblings[siblings.index(name) + 1 :][:1] if name else []
        label = (name.rpartition("/")[2] or "Root Entry").encode("utf-16-le") + b"\0\0"
        kind = 5 if not name else 2 if name in streams else 1
        directory += struct.pack(
            "<64sHBBiii16sIQQiQ", label, len(label), kind, 1, -1, entries.index(following[0]) if following else -1,
            entries.index(children[name][0]) if children[name] else -1, bytes(16), 0, 0, 0,
            starts[name] if kind == 2 else 0, len(streams[name]) if kind == 2 else 0 if name else len(small),
        )  # fmt: skip
    tables = struct.pack(f"<{len(small_table)}i", *small_table).ljust(512, b"\xff")
    sectors, fat, (root, mini_table, _) = chains([directory, tables, small], 512)
    # The entry of the root begins the stream of the small ones, whose place is known only now.
    sectors = sectors[:116] + struct.pack("<i", len(fat) - -(-len(small) // 512)) + sectors[120:]
    fat.append(-3)
    header = struct.pack("<8s16sHHHHH6sIIiIIiIiI", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", bytes(16), 62, 3, 0xFFFE, 9, 6,
                         bytes(6), 0, 1, root, 0, 4096, mini_table, 1, _END, 0)  # fmt: skip
    table = struct.pack("<128i", *fat, *[-1] * (128 - len(fat)))
    return header + struct.pack("<109i", len(fat) - 1, *[-1] * 108) + sectors + table


class EightBit(bytes):
    """A text of a message that is not in Unicode."""


def properties(header: bytes, texts: Mapping[int, str | bytes | int]) -> tuple[bytes, dict[str, bytes]]:
    """The stream of properties (MS-OXMSG, 2.4) and the streams of their values."""
    rows, values = header, dict[str, bytes]()
    for identity, value in texts.items():
        if isinstance(value, int):
            rows += struct.pack("<HHIII", 0x0003, identity, 6, value, 0)
            continue
        kind, data = (0x001F, value.encode("utf-16-le")) if isinstance(value, str) else (0x0102, value)
        kind = 0x001E if isinstance(value, EightBit) else kind
        rows += struct.pack("<HHIII", kind, identity, 6, len(data), 0)
        values[f"__substg1.0_{identity:04X}{kind:04X}"] = data
    return rows, values


def outlook(texts: Mapping[int, str | bytes | int], attached: Mapping[int, str | bytes | int]) -> bytes:
    rows, values = properties(struct.pack("<8xIIII8x", 0, 1, 0, 1), texts)
    inner, inner_values = properties(bytes(8), attached)
    folder = "__attach_version1.0_#00000000"
    return compound_file({
        "__properties_version1.0": rows, **values, f"{folder}/__properties_version1.0": inner,
        **{f"{folder}/{name}": data for name, data in inner_values.items()},
    })  # fmt: skip


def test_rtf(read: Read) -> None:
    found = [(block.kind, block.text) for block in read("a.rtf", _RTF).blocks]
    assert found == [
        ("paragraph", "The notary is Mrs. Hållingdål!"),
        ("paragraph", "Café and naïve"),
        ("table", "Region | Rain\nNorth | 112"),
    ]


def test_a_message_of_outlook(read: Read) -> None:
    data = outlook(
        {0x0037: "Keys", 0x0C1A: "Ann Reed", 0x0C1F: "ann@example.org", 0x1000: "The key is under the mat.\r\n",
         0x007D: "Date: Mon, 03 Mar 2025 10:00:00 +0000\r\nMessage-ID: <1@a>\r\n"},
        {0x3707: "note.txt", 0x3701: b"The spare key hangs in the shed."},
    )  # fmt: skip
    document = read("a.msg", data)
    texts = [block.text for block in document.blocks]
    assert texts[1:] == ["The key is under the mat.", "Attachment: note.txt", "The spare key hangs in the shed."]
    assert document.mails == {
        0: Mail('"Ann Reed" <ann@example.org>', "", "Keys", "2025-03-03T10:00:00+00:00", "1@a", "1@a")
    }
    written = read("b.msg", b"From: ann@example.org\nTo: bo@example.org\nSubject: Keys\n\nUnder the mat.\n")
    assert written.mails[0].subject == "Keys"
    with pytest.raises(Skipped, match="an old binary Office file"):
        read("a.dot", data)


@pytest.mark.parametrize(
    ("page", "encoding", "subject"),
    [(65001, "cp1252", "Schlüssel für Jörg"), (950, "big5", "格式測試"), (1252, "cp1252", "Schlüssel")],
)
@pytest.mark.parametrize("body", [0x1000, 0x1013])
def test_a_message_of_outlook_may_name_a_false_encoding(
    read: Read, page: int, encoding: str, subject: str, body: int
) -> None:
    text = f"{subject} 12".encode(encoding)
    said: dict[int, str | bytes | int] = {
        0x3FFD: page, 0x3FDE: page, 0x0037: EightBit(subject.encode(encoding)),
        body: EightBit(text) if body == 0x1000 else b"<p>" + text + b"</p>",
    }  # fmt: skip
    document = read("a.msg", outlook(said, {}))
    assert document.title == subject
    assert [block.text for block in document.blocks][1] == f"{subject} 12"


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (r"H\"a{\o}vik, J{\'o}n, {\v S}ebek, Fran\c{c}ois, M{\"{u}}ller, \AA{}s, \ss",
         "Häøvik, Jón, Šebek, François, Müller, Ås, ß"),
        (r"{T}idal \emph{salt}\textbf{water}, 12\,\% \cite[p.~3]{a} of \$5 \& more",
         "Tidal saltwater, 12 % of $5 & more"),
        (r"``Old'' ice--cold \href{https://a.org}{page} $x^{2}_i$", "“Old” ice–cold page (https://a.org) $x^{2}_i$"),
    ],
)  # fmt: skip
def test_commands_of_latex(written: str, shown: str) -> None:
    assert plain(written) == shown


def test_latex_and_bibtex(read: Read) -> None:
    paper = (
        "\\documentclass{article}\n\\section{Methods \\& more}\\label{m}\nSalt % not said\nwater.\n\n"
        "\\begin{verbatim}\na_{b} % c\n\\end{verbatim}\n"
    )
    blocks = list(read("a.tex", paper).blocks)
    assert [(block.line_start, block.path, block.text) for block in blocks] == [
        (2, ("Methods & more",), "Methods & more"), (3, ("Methods & more",), "Salt\nwater."),
        (7, ("Methods & more",), "a_{b} % c"),
    ]  # fmt: skip
    entries = (
        '% no\n@article{h20,\n  title = "{T}idal\n    power", year=2020, pages = {1--2},\n}\n@book{b, author={Bo}}\n'
    )
    (first, second) = read("a.bib", entries).blocks
    assert (first.text, first.lines) == ("article h20\ntitle: Tidal power\nyear: 2020\npages: 1–2", (2, 3, 4, 4))
    assert (second.text, second.line_start) == ("book b\nauthor: Bo", 6)
    assert [block.text for block in read("b.tex", "\\newcommand{\\x}{y}\n").blocks] == ["\\newcommand{\\x}{y}"]
