"""How blocks become passages, and which line of the document each line of a passage is."""

from __future__ import annotations

import base64
import importlib.resources
import itertools
import math
import random
import re
import string
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.apps.documents.base import Block, packed, unpacked
from edge.apps.documents.chunking import MOST_PER_CHARACTER, _cut, chunks_of, estimate_pieces, units_of
from edge.models.registry import DEFAULT_RERANKER
from tests.apps.documents.conftest import Cut


def prose(words: int, line: int = 1, **fields: object) -> Block:
    return Block(" ".join(["word"] * (words - 1) + ["end."]), line, line, **fields)  # type: ignore[arg-type]


def pieces_of_runs(text: str) -> float:
    """The word pieces of a text, run by run."""
    found = 0.0
    for run in re.findall(r"[A-Za-z]{1,24}|[0-9]{1,24}|[!-/:-@\[-`{-~]|[^\x00-\x7f]", text):
        if run[0].isascii() and run[0].isalpha():
            found += 1 + 0.12 * min(max(len(run) - 3, 0), 7) + 0.5 * max(len(run) - 10, 0)
        elif run[0].isascii() and run[0].isdecimal():
            found += max(1, 0.5 * len(run))
        else:
            found += 1 + ("\uac00" <= run <= "\ud7a3") + 2 * ("\u00c0" <= run <= "\u024f")
    return found


@given(st.text(st.sampled_from(f"{string.printable}\x00\x7f\x80\xdf\xe9\u024f\u0250\u05d0\ud55c\u6f22\ud800\U0001f600"))
       | st.text() | st.integers(0, 200).map(lambda n: "x" * n + "7" * (200 - n)))  # fmt: skip
def test_the_estimate_is_that_of_each_run(text: str) -> None:
    assert math.isclose(estimate_pieces(text), pieces_of_runs(text), abs_tol=1e-9)


def test_a_heading_stays_with_what_it_heads() -> None:
    blocks = []
    for n in range(12):
        blocks.append(Block(f"Heading {n}", 4 * n + 1, 4 * n + 1, kind="heading", path=(f"Heading {n}",)))
        blocks.append(prose(40 + 13 * n, 4 * n + 3, path=(f"Heading {n}",)))
    for chunk in chunks_of(blocks, ""):
        assert not chunk.text.splitlines()[-1].startswith("Heading")


@pytest.mark.parametrize(
    "text",
    [
        "See Fig. 3 for that. Next one.",
        "It was J. R. Tolkien. Next one.",
        "Rivers, e.g. Elbe and Oder, flood. Next one.",
        "Version 1.2 is out. Next one.",
        "He asked “Why?” and left. Next one.",
        "Costs 5 p. A pound more. Next one.".replace("p. A", "p. a"),
    ],
)
def test_dots_that_end_no_sentence(text: str) -> None:
    units = list(units_of(Block(text, 1, 1), 0, 1000))
    assert [text[unit.start : unit.end].strip() for unit in units] == [text.removesuffix(" Next one."), "Next one."]


def test_items_of_a_list_are_units() -> None:
    text = "Things:\n- one\n  goes on\n- two\n3. three"
    units = list(units_of(Block(text, 5, 9), 0, 1000))
    assert [(unit.first, unit.last) for unit in units] == [(0, 0), (1, 2), (3, 3), (4, 4)]


def test_code_is_cut_after_blank_lines_and_at_the_margin() -> None:
    body = "\n".join(f"    statement_{n} = call(argument_{n})" for n in range(12))
    text = f"def first():\n{body}\n\ndef second():\n{body}\n\ndef third():\n{body}"
    chunks = list(chunks_of([Block(text, 1, text.count("\n") + 1, kind="lines")], "", max_tokens=200))
    assert [chunk.text.split("(")[0] for chunk in chunks] == ["def first", "def second", "def third"]
    assert [(chunk.line_start, chunk.line_end) for chunk in chunks] == [(1, 13), (15, 27), (29, 41)]


def test_context_is_title_and_headings_that_the_text_does_not_show() -> None:
    heading = Block("# B", 1, 1, kind="heading", path=("A", "B"))
    blocks = [heading, prose(150, 3, path=("A", "B")), prose(150, 5, path=("A", "B"))]
    first, second = chunks_of(blocks, "The  title")
    assert first.context == "The title > A"
    assert second.context == "The title > A > B"
    merged = [prose(20, 1, path=("A", "B")), prose(20, 3, path=("A", "C"))]
    assert [chunk.context for chunk in chunks_of(merged, "T")] == ["T > A"]
    assert [chunk.context for chunk in chunks_of([prose(5, path=("Same", "B"))], "Same")] == ["Same > B"]


def test_a_long_context_leaves_room_for_the_text() -> None:
    path = tuple(f"a heading that goes on for very long and then some {n}" for n in range(30))
    blocks = [prose(400, 1, path=path)]
    for chunk in chunks_of(blocks, "title " * 100, max_tokens=100):
        assert estimate_pieces(chunk.context) <= 25
        assert estimate_pieces(chunk.text) + estimate_pieces(chunk.context) <= 100
    assert chunk.context.startswith("title")
    assert chunk.context


def test_lines_are_counted_from_the_first_that_is_shown() -> None:
    (chunk,) = chunks_of([Block("\n\n  \nfirst\nsecond", 1, 5, kind="lines")], "title")
    assert chunk.text == "  \nfirst\nsecond"
    assert chunk.lines == (3, 4, 5)


def every_cut(n: int) -> list[list[tuple[int, int]]]:
    found = []
    for count in range(n):
        for ends in itertools.combinations(range(1, n), count):
            edges = [0, *ends, n]
            found.append(list(itertools.pairwise(edges)))
    return found


def test_many_blank_lines_shrink_to_one() -> None:
    text = "a\n" + "\n" * 50 + "b\n\nc"
    (chunk,) = chunks_of([Block(text, 1, 54, kind="lines")], "")
    assert chunk.text == "a\n\nb\n\nc"
    assert (chunk.line_start, chunk.line_end) == (1, 54)


@given(
    st.lists(st.tuples(st.integers(5, 120), st.sampled_from(["", "A", "A/x", "A/y", "B"])), min_size=1, max_size=8),
    st.data(),
)
def test_the_cut_is_the_cheapest_of_all(parts: list[tuple[int, str]], data: st.DataObject) -> None:
    """Against the cost of every possible cut, as the module's docstring has it."""
    blocks = [
        prose(words, 2 * n + 1, path=tuple(path.split("/")) if path else ()) for n, (words, path) in enumerate(parts)
    ]
    units = [unit for n, block in enumerate(blocks) for unit in units_of(block, n, 220)]
    room = 220.0
    runs = _cut(blocks, units, [room] * len(units))

    def cost(cut: list[tuple[int, int]]) -> float:
        total = 0.0
        for number, (first, end) in enumerate(cut):
            filled = sum(unit.pieces for unit in units[first:end])
            if filled > room:
                return math.inf
            total += (1 - filled / room) ** 2
            changed = [blocks[units[i].block].path != blocks[units[i - 1].block].path for i in range(first, end)]
            if number and not changed[0]:
                total += units[first].cost
            for i in range(first + 1, end):
                if changed[i - first]:
                    total += boundary(blocks[units[i - 1].block].path, blocks[units[i].block].path)
        return total

    def boundary(before: tuple[str, ...], here: tuple[str, ...]) -> float:
        if here[: len(before)] == before:
            return 0.175
        return 0.35 if len(here) > 1 and here[:1] == before[:1] else 0.8

    best = min(map(cost, every_cut(len(units))))
    assert cost(runs) == pytest.approx(best)


@pytest.mark.parametrize("lines", [True, False], ids=["lines", "one line"])
@pytest.mark.parametrize("code", [base64.b64encode, bytes.hex])
def test_encoded_bytes_are_no_passages(cut: Cut, code: Callable[[bytes], Any], lines: bool) -> None:
    encoded = code(random.Random(1).randbytes(3000))
    text = encoded if isinstance(encoded, str) else encoded.decode()
    text = "\n".join(text[at : at + 64] for at in range(0, len(text), 64)) if lines else text
    found = cut("a.txt", f"Before it.\n\n{text}\n\n-----BEGIN CERTIFICATE-----\n{text}\n-----END\n\nBehind it.\n")
    assert " ".join(chunk.text for chunk in found).split() == ["Before", "it.", "Behind", "it."]
    assert cut("a.txt", "word" * 300) != []


TEXTS = {
    "prose": "The river leaves its bed in spring, when the snow in the mountains melts; the roads are impassable then, "
    "and nobody in the village can say for how long it will last this year. ",
    "german": "Der Fluss tritt im Frühjahr über die Ufer, wenn der Schnee in den Bergen schmilzt, und die Straßen "
    "werden für die Dorfbewohner unpassierbar. ",
    "russian": "Река выходит из берегов весной, когда тает снег в горах, и дороги становятся непроходимыми. ",
    "chinese": "河流在春天泛滥，因为山上的雪融化了，村民们无法通过道路。",
    "korean": "봄에 산의 눈이 녹으면 강이 범람하고 마을 사람들은 길을 지날 수 없게 됩니다. ",
    "html": '<div class="nav-item"><a href="https://example.org/a/b.html?x=1&y=2">Link</a></div>\n',
    "numbers": "1997-08-23T12:00:00Z 8.2, 13.75, 1000000; 0x1f9a 192.168.17.255\n",
}


@pytest.fixture(scope="session")
def pieces() -> object:
    """The bundled reranker's tokenizer, uncut: the vocabulary that the rule is fitted to."""
    from tokenizers import Tokenizer

    models = importlib.resources.files("edge.models") / "bundled"
    tokenizer = Tokenizer.from_file(str(models / DEFAULT_RERANKER / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize("kind", [*TEXTS, "code"])
def test_the_estimate_is_close_enough_for_a_chunk_to_fit_an_embedder(kind: str, pieces: object) -> None:
    """220 estimated pieces must be fewer than 254 real ones, and not so few that chunks become small."""
    if kind == "code":
        text = (Path(sysconfig.get_path("stdlib")) / "textwrap.py").read_text("utf-8")
    else:
        text = TEXTS[kind] * 10
    assert callable(pieces)
    assert 0.8 < pieces(text) / estimate_pieces(text) < 254 / 220


@given(st.text())
def test_no_text_has_more_pieces_than_stated(text: str) -> None:
    assert 0 <= estimate_pieces(text) <= MOST_PER_CHARACTER * len(text)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30))
def test_numbers_survive_the_database(numbers: list[int]) -> None:
    assert unpacked(packed(numbers), numbers[0], numbers[-1], len(numbers)) == tuple(numbers)


def test_old_rows_have_none_and_end_where_the_passage_ends() -> None:
    assert packed(None) is None
    assert unpacked(None, 5, 7, 3) == (5, 6, 7)
    assert unpacked(None, 5, 6, 4) == (5, 6, 6, 6)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.md", "# One\n\n\n\nText of one.\n\n\n\n\n\nMore of\nit here.\n\n## Two\n\n- an item\n- b\n\n\n\nEnd.\n"),
        ("a.txt", "\n\n\nFirst.\n\n\n\n\nSecond one.\nThird.\n\n\n\n\n\n\n\nFourth.\n"),
        ("a.py", "import os\n\n\nclass A:\n    x = 1\n\n\n\n    y = 2\n\n\ndef f():\n    return os\n\n\n# the end\n"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("most", [32, 60, 220])
def test_every_line_of_a_passage_is_that_line_of_the_file(cut: Cut, name: str, text: str, most: int) -> None:
    file = text.split("\n")
    seen = 0
    for chunk in cut(name, text, most):
        lines = chunk.text.split("\n")
        numbers = unpacked(packed(chunk.lines), chunk.line_start, chunk.line_end, len(lines))
        assert len(numbers) == len(lines)
        assert numbers[0] == chunk.line_start
        for number, line in zip(numbers, lines, strict=True):
            if line.strip():
                assert line.strip() in file[number - 1]
                seen += 1
    assert seen >= sum(bool(line.strip()) for line in file)
