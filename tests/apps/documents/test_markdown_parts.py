"""Markdown is parsed a part at a time: in bounded memory, with the blocks of the whole."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.apps.documents.base import Block, Outline
from edge.apps.documents.markdown import markdown_blocks

WHOLE = 10**9

SHORT = (
    "# A heading",
    "Setext\n======",
    "A paragraph\nof two lines",
    "- one\n- two\n\n  more of two",
    "1. first\n2. second",
    "> quoted\nlazily\n> - a list",
    "```\n# code\n\n- code\n```",
    "    indented\n\n    code",
    "| a | b |\n|---|---|\n| c | d |",
    "<div>\nhtml\n</div>",
    "[name]: /where 'what'",
    "---",
    "***",
    "",
    "- - nested\n    - deeper",
    "text | with | pipes",
)

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


def visible(text: str) -> str:
    return "".join(text.split())


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
    assert visible("".join(block.text for block in found)) == visible(text)
    lines = text.split("\n")
    for block in found:
        assert visible(block.text) == visible("\n".join(lines[block.line_start - 1 : block.line_end]))


@pytest.mark.parametrize("unit", DENSE.values(), ids=DENSE.keys())
def test_the_densest_documents_take_a_bounded_part(unit: str) -> None:
    text = (unit * (30_000 // len(unit) + 1))[:30_000]
    blocks("- a", WHOLE)  # the parser is there
    tracemalloc.start()
    try:
        found = blocks(text, 10_000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert visible("".join(block.text for block in found)) == visible(text)
    assert peak < 8_000_000


@pytest.mark.parametrize(
    "text", ["| a | b |\n|---|---|\n" + "| c | d |\n" * 100, "~~~~\n" + "- a\n~~~\n" * 50 + "~~~~\n"]
)
def test_a_long_table_or_fence_stays_one_block(text: str) -> None:
    table, paragraph = blocks(text + "\nA paragraph.", 200)
    assert (table.kind, table.text) == ("table" if "|" in text else "code", text.rstrip())
    assert (paragraph.kind, paragraph.text) == ("prose", "A paragraph.")
