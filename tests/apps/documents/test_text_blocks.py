"""Plain text, reStructuredText, Markdown and source code: no visible character is lost, and every line number holds.

Markdown is parsed a part at a time: in bounded memory, with the blocks of the whole.
"""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from edge.apps.documents.base import Block, Chunk, DocumentBlocks, Outline
from edge.apps.documents.chunking import chunks_of, estimate_pieces
from edge.apps.documents.decoding import decode
from edge.apps.documents.file_types import choose, load
from edge.apps.documents.markdown import markdown_blocks
from edge.apps.documents.opened import OpenedFile
from tests.apps.documents.conftest import Read

SUFFIXES = ("txt", "md", "rst", "py", "c", "yaml")
PIECES = (
    "word", "Two words.", "  indented", "    code", "\tx", "", "", " ", "# Heading", "## Sub", "====", "----", "Title",
    "```", "~~~", "- item", "1. item", "> quote", "| a | b |", "|---|---|", "[ref]: http://x", "<div>", "</div>",
    ".. note:: x", "::", "+---+", "def f(x):", "class A:", "    def g(self):", "@decorator", "# comment", "x = '''",
    "'''", "int main() {", "}", "return 1;", "[section]", "key: value", "---", "+++", "title: T", "e.g. this", "a\x0cb",
    "A sentence ends here. Another begins! And a third? Yes.", "日本語の文。次の文。", "é" * 40, "x" * 300, "\\",
    "<!--",
)  # fmt: skip


def squeezed(text: str) -> str:
    return "".join(text.split())


def assert_whole(text: str, blocks: list[Block], chunks: list[Chunk], most: int) -> None:
    """Blocks and chunks each hold all visible characters once, in order, on the lines that they name."""
    lines = text.split("\n")
    assert "".join(squeezed(block.text) for block in blocks) == squeezed(text)
    assert "".join(squeezed(chunk.text) for chunk in chunks) == squeezed(text)
    for block in blocks:
        assert block.text == "\n".join(lines[block.line_start - 1 : block.line_end]).rstrip()
        assert block.text.split("\n", 1)[0].strip()
    before = 0
    for chunk in chunks:
        where = lines[chunk.line_start - 1 : chunk.line_end]
        assert squeezed(chunk.text) in squeezed("\n".join(where))
        for line in (where[0], where[-1]):  # no line more than needed
            assert line.strip()
        assert squeezed(chunk.text)[0] in where[0]
        assert squeezed(chunk.text)[-1] in where[-1]
        assert estimate_pieces(chunk.text) <= most
        assert chunk.line_start >= before
        before = chunk.line_end


def extracted(folder: Path, name: str, text: str) -> DocumentBlocks:
    (folder / name).write_bytes(text.encode())
    with OpenedFile(folder / name) as file:
        return load(choose(file.name, file.head).extractor)(file)


@pytest.mark.parametrize("suffix", SUFFIXES)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pieces=st.lists(st.sampled_from(PIECES), min_size=1, max_size=40),
    ends=st.sampled_from(["\n", "\r\n", "\r"]),
    most=st.sampled_from([32, 64, 220]),
)
@example(pieces=["---", "title: T", "---"], ends="\n", most=32)
@example(pieces=["- item", "", "    code", "word", "[ref]: http://x", "", "[ref]: http://x"], ends="\n", most=32)
@example(pieces=["# Heading", "## Sub", "word7 " * 60, "x" * 300 + " 山" * 10 + "é" * 100], ends="\n", most=32)
def test_nothing_is_lost_and_lines_hold(suffix: str, tmp_path: Path, pieces: list[str], ends: str, most: int) -> None:
    text = ends.join(pieces) + ends
    if not text.strip():
        return
    document = extracted(tmp_path, f"file.{suffix}", text)
    chunks = list(chunks_of(document.blocks, "title", max_tokens=most))
    assert_whole(decode(text.encode()), document.blocks, chunks, most)


def shape(document: DocumentBlocks) -> list[tuple[int, int, str, tuple[str, ...]]]:
    return [(block.line_start, block.line_end, block.kind, block.path) for block in document.blocks]


def test_markdown(read: Read) -> None:
    text = (
        "---\ntitle: 'The title'\n---\n\nIntro with a\nsecond line.\n\nFirst *heading* [x](y)\n===\n- one\n- two\n\n"
        "## Code `here`\n~~~\n# no heading\n\n~~~\n[a]: http://x\n\n"
        "| a | b |\n|---|---|\n| 1 | 2 |\n\n> quoted\n# Next\n"
    )
    document = read("a.md", text)
    assert document.title == "The title"
    first, code = "First heading x", "Code here"
    assert shape(document) == [
        (1, 3, "settings", ()), (5, 6, "prose", ()), (8, 9, "heading", (first,)), (10, 11, "prose", (first,)),
        (13, 13, "heading", (first, code)), (14, 17, "code", (first, code)), (18, 18, "lines", (first, code)),
        (20, 22, "table", (first, code)), (24, 24, "prose", (first, code)), (25, 25, "heading", ("Next",)),
    ]  # fmt: skip


def test_restructured_text(read: Read) -> None:
    text = (
        "=====\nTitle\n=====\n\nText::\n\n   literal\n\n   more\n\nProse.\n\n.. code-block:: python\n\n   x = 1\n\n"
        "Part\n----\n\n.. note:: be careful\n\n   Still the note.\n\nTable\n~~~~~\n"
    )
    document = read("a.rst", text)
    assert shape(document) == [
        (1, 3, "heading", ("Title",)),
        (5, 5, "prose", ("Title",)),
        (7, 7, "code", ("Title",)),
        (9, 9, "code", ("Title",)),
        (11, 11, "prose", ("Title",)),
        (13, 13, "lines", ("Title",)),
        (15, 15, "code", ("Title",)),
        (17, 18, "heading", ("Title", "Part")),
        (20, 20, "lines", ("Title", "Part")),
        (22, 22, "prose", ("Title", "Part")),
        (24, 25, "heading", ("Title", "Part", "Table")),
    ]


def test_python(read: Read) -> None:
    text = (
        '"""Module."""\nimport os\n\n# about f\n@cache\ndef f(\n    x,\n):\n    return x\n\n\n'
        "class Small:\n    def g(self): ...\n"
        "\n\nclass Large:\n    '''Doc.'''\n\n    a = 1\n\n    def g(self):\n"
        + "        pass\n" * 40
        + "\n    async def h(self):\n        pass\n\nx = 1; y = 2\n"
    )
    assert shape(read("a.py", text)) == [
        (1, 2, "code", ()), (4, 9, "code", ("f",)), (12, 13, "code", ("Small",)), (16, 19, "code", ("Large",)),
        (21, 61, "code", ("Large", "g")), (63, 64, "code", ("Large", "h")), (66, 66, "code", ()),
    ]  # fmt: skip


def test_a_coding_cookie_counts(read: Read) -> None:
    document = read("a.py", "# -*- coding: iso-8859-2 -*-\nname = 'źródło'\n".encode("iso8859_2"))  # type: ignore[arg-type]
    assert "źródło" in document.blocks[0].text


@pytest.mark.parametrize(
    ("suffix", "source", "name"),
    [
        ("c", "static int\nlevel(int year)\n{\n", ""),
        ("c", "static const char *level(int year,\n    int month)\n{\n", "level"),
        ("c", "// for the year\nstruct river {\n", "river"),
        ("c", "if (x) {\n", ""),
        ("cpp", "std::vector<int> River::levels(int year) const {\n", "River::levels"),
        ("js", "export default async function level(year) {\n", "level"),
        ("js", "export const level = async (year) => {\n", "level"),
        ("ts", "export interface River {\n", "River"),
        ("rs", "pub(crate) fn level<'a>(year: u32) -> f32 {\n", "level"),
        ("rs", "impl<T> River for T {\n", "River"),
        ("go", "func (r *River) Level(year int) float64 {\n", "Level"),
        ("java", "public final class River extends Water {\n", "River"),
        ("sql", "CREATE TABLE IF NOT EXISTS rivers (\n", "rivers"),
        ("toml", "[tool.rivers]\nlevel = 8\n", "tool.rivers"),
        ("rb", "def level(year)\n", "level"),
    ],
)
def test_heads_of_functions_and_types(read: Read, suffix: str, source: str, name: str) -> None:
    document = read(f"a.{suffix}", source + "  body\n")
    assert document.blocks[0].path == ((name,) if name else ())


@pytest.mark.parametrize("hostile", ["a" + "*" * 280, "a* " * 90, "const " * 40, "x(" * 100, "[" * 280, "create " * 35])
def test_long_odd_lines_of_code_take_no_time(read: Read, hostile: str) -> None:
    """A pattern that backtracks would not end before the test run does."""
    read("a.c", f"{hostile}\n" * 50)


WHOLE = 10**9

SHORT = (
    "# A heading", "Setext\n======", "A paragraph\nof two lines", "- one\n- two\n\n  more of two",
    "1. first\n2. second", "> quoted\nlazily\n> - a list", "```\n# code\n\n- code\n```", "    indented\n\n    code",
    "| a | b |\n|---|---|\n| c | d |", "<div>\nhtml\n</div>", "[name]: /where 'what'", "---", "***", "",
    "- - nested\n    - deeper", "text | with | pipes",
)  # fmt: skip

DENSE = {
    "items": "- a\n",
    "nested items": "- - - - - - a\n",
    "numbers": "1. a\n",
    "quotes": ">>>>>> a\n",
    "lists in quotes": "> - a\n",
    "loose items": "- a\n\n",
    "table": "| a | b |\n|---|---|\n" + "| c | d |\n" * 60_000,
    "wide table": "|" * 20_000 + "\n" + "|-" * 10_000 + "|\n",
    "a fence that never ends": "```\n" + "- a\n" * 60_000,
    "rules": "---\n",
}


def blocks(text: str, most: int) -> list[Block]:
    return list(markdown_blocks(text.split("\n"), Outline(), most=most))


@settings(max_examples=60)
@given(st.lists(st.sampled_from(SHORT), max_size=30), st.integers(60, 200))
def test_parts_have_the_blocks_of_the_whole(pieces: list[str], most: int) -> None:
    """Wherever a part ends: between blocks, in a list, in a fence. Each block here is shorter than a part, and headings
    keep lists from becoming one."""
    text = "\n\n# Next\n\n".join(pieces)
    assert blocks(text, most) == blocks(text, WHOLE)


@settings(max_examples=60)
@given(st.lists(st.sampled_from([*SHORT, *("- item\n" * n for n in (5, 40))]), max_size=12), st.integers(8, 60))
def test_no_character_is_lost_where_a_block_is_cut(pieces: list[str], most: int) -> None:
    text = "\n".join(pieces)
    found = blocks(text, most)
    assert squeezed("".join(block.text for block in found)) == squeezed(text)
    lines = text.split("\n")
    for block in found:
        assert squeezed(block.text) == squeezed("\n".join(lines[block.line_start - 1 : block.line_end]))


@pytest.mark.parametrize("unit", DENSE.values(), ids=DENSE.keys())
def test_the_densest_documents_take_a_bounded_part(unit: str) -> None:
    text = (unit * (20_000 // len(unit) + 1))[:20_000]
    blocks("- a", WHOLE)  # the parser is there
    tracemalloc.start()
    try:
        found = blocks(text, 10_000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert squeezed("".join(block.text for block in found)) == squeezed(text)
    assert peak < 8_000_000


@pytest.mark.parametrize(
    "text", ["| a | b |\n|---|---|\n" + "| c | d |\n" * 100, "~~~~\n" + "- a\n~~~\n" * 50 + "~~~~\n"]
)
def test_a_long_table_or_fence_stays_one_block(text: str) -> None:
    table, paragraph = blocks(text + "\nA paragraph.", 200)
    assert (table.kind, table.text) == ("table" if "|" in text else "code", text.rstrip())
    assert (paragraph.kind, paragraph.text) == ("prose", "A paragraph.")
