"""The parts of a passage, those that can be quoted, and windows of neighbouring units."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.apps.assistant.units import WORDS, units, windows

WRAPPED = """Running Single Tests
We can pass the name of any test function to cargo test in
order to run only that test:
$ cargo test one_hundred
   Compiling adder v0.1.0 (file:///projects/adder)
running 1 test
test tests::one_hundred ... ok

Only the test with the name one_hundred ran; the other two in there
Tests did not match."""


def kinds(text: str) -> list[tuple[str, str]]:
    return [(unit.kind, unit.text) for unit in units(text)]


def quoted(text: str) -> list[str]:
    return [unit.text for unit in units(text) if unit.quotable]


def test_wrapped_lines_are_joined_and_headings_stand_alone() -> None:
    found = kinds(WRAPPED)
    assert found[0] == ("heading", "Running Single Tests")
    assert found[1] == (
        "sentence",
        "We can pass the name of any test function to cargo test in order to run only that test:",
    )
    assert found[2] == ("code", "$ cargo test one_hundred")
    assert found[-1][1] == "Only the test with the name one_hundred ran; the other two in there Tests did not match."


def test_code_is_a_unit_of_its_own_and_keeps_its_lines() -> None:
    text = (
        "The loop counts down to zero and then it ends.\nfor (i = 9; i; i--) {\n    step(i);\n}\n\n"
        "To count up, write this instead of the loop above:\n    i += 1;\n\n"
    )
    assert quoted(text) == [
        "The loop counts down to zero and then it ends.",
        "for (i = 9; i; i--) {\n    step(i);\n}",
        "To count up, write this instead of the loop above:",
        "i += 1;",
    ]
    lines = "".join(f"step({i});\n" for i in range(30))
    assert [text.count("\n") for text in quoted(lines)] == [11, 11, 5]


def test_items_of_a_list_stay_whole() -> None:
    text = (
        "- flour, as much as two hands can hold at once. Not more.\n- water\n"
        "2. salt and a lot of patience,\n   says the baker"
    )
    assert kinds(text) == [
        ("item", "flour, as much as two hands can hold at once. Not more."),
        ("item", "water"),
        ("item", "salt and a lot of patience, says the baker"),
    ]


def test_a_long_item_is_cut_into_sentences() -> None:
    text = "- " + "Words are counted here. " * 20
    assert quoted(text)[0] == "Words are counted here."


@pytest.mark.parametrize(
    "table",
    [
        "| Tool | First word |\n|---|:-:|\n| ours | 0.72 s |\n| theirs | none |",
        "Tool | First word\nours | 0.72 s\ntheirs | none",
    ],
)
def test_rows_of_a_table_carry_the_names_of_their_columns(table: str) -> None:
    found = units(f"These are the times that were measured:\n\n{table}\n\nThey were measured once.")
    assert [(unit.kind, unit.text) for unit in found] == [
        ("sentence", "These are the times that were measured:"),
        ("heading", "Tool, First word"),
        ("row", "Tool: ours, First word: 0.72 s"),
        ("row", "Tool: theirs, First word: none"),
        ("sentence", "They were measured once."),
    ]


@pytest.mark.parametrize(
    "line",
    [
        "Home | Products | Support | Contact",
        "You are here: Home > Visit > Opening hours",
        "[Home](/) / [News](/news)",
        "- [Products](products.html)",
        "[![build](https://ci.example/b.svg)](https://ci.example)",
        "[Install](#install) · [Usage](#usage)",
        "A B C D E F G H I J K",
        "Previous page | Next page",
        "[Impressum] [Datenschutz] [Login]",
    ],
)
def test_menus_are_not_quoted(line: str) -> None:
    text = f"{line}\n\nThe museum opens at nine on weekdays.\n"
    assert kinds(text)[0][0] == "navigation"
    assert quoted(text) == ["The museum opens at nine on weekdays."]


@pytest.mark.parametrize(
    "line", ["Range: 5 | 10 | 15 metres.", "The price is 5 > 3, says he.", "See the page - it is long - and the other."]
)
def test_sentences_with_bars_are_no_menus(line: str) -> None:
    assert kinds(line)[0][0] != "navigation"


def test_labels_do_not_continue_the_line_before() -> None:
    text = (
        "Batteries: collection boxes in every supermarket and in the town hall of the city\n"
        "Glass: containers by colour, blue counts as green"
    )
    assert len(quoted(text)) == 2


def test_a_lone_question_mark_ends_no_sentence() -> None:
    text = "Rust provides the operator ? to make this easier."
    assert quoted(text) == ["Rust provides the operator `?` to make this easier."]


@given(st.text(alphabet="aB .:?\n-(){};$1|#\"'= \t", max_size=120))
def test_nothing_is_invented_and_units_stand_where_they_are_said_to(text: str) -> None:
    last = 0
    for unit in units(text):
        assert last <= unit.start < unit.end <= len(text)
        last = unit.start
        if "`" not in unit.text and ":" not in unit.text:
            assert {*filter(str.isalnum, unit.text)} <= {*text}


OPTIONS = """SYNOPSIS
     tmux [-V]

     -n, --line-number
             Prefix each line of output with its number.

     -r
             Read all files under each directory.
"""


def shown(text: str) -> list[str]:
    return [window.text for window in windows(units(text))]


def test_an_option_is_shown_with_what_it_does() -> None:
    assert shown(OPTIONS) == [
        "-n, --line-number\nPrefix each line of output with its number.",
        "-r\nRead all files under each directory.",
    ]


def test_windows_of_a_long_section_overlap_and_have_its_heading() -> None:
    text = "# Rent\n\n" + " ".join(f"In month {n} the rent is due at once, says the contract." for n in range(20))
    found = windows(units(text))
    assert len(found) > 2
    for window, following in pairwise(found):
        assert window.text.startswith("Rent\n")
        assert sum(len(unit.text.split()) for unit in window.units) <= WORDS
        assert window.units[-1] in following.units, "what is cut in one window is whole in the next"


def test_code_stays_with_the_words_that_lead_up_to_it() -> None:
    words = " ".join(["word"] * 50)
    assert shown(f"It is {words}. Run this:\n    install(it);\n    and(" + "x, " * 10 + ");\n")[0].endswith(");")


def test_menus_and_empty_sections_are_not_shown() -> None:
    assert shown("Home | Rivers | Contact\n\n# Floods\n\n# Rivers\n\nThe river floods.") == [
        "Rivers\nThe river floods."
    ]
    assert shown("# Floods") == ["Floods"]
    many = shown("\n\n".join(f"# The flood of year {n}" for n in range(100)))
    assert max(len(text.split()) for text in many) <= WORDS
    assert shown("y = f(x)\n\nz = g(y)\n") == ["y = f(x)\nz = g(y)"]
    assert shown("") == []


@given(st.text(alphabet="aB .:?\n-#(){};$1|\"'= \t", max_size=200))
def test_every_unit_that_is_no_menu_is_in_a_window(text: str) -> None:
    """Headings are, unless nothing stands below them."""
    found = windows(units(text))
    every = [unit for unit in units(text) if unit.kind != "navigation"] or units(text)
    held = {unit for window in found for unit in window.shown}
    assert held <= set(every)
    assert {unit for unit in every if unit.kind != "heading"} <= held
    assert bool(found) == bool(every)
    for window in found:
        assert list(window.shown) == sorted(window.shown, key=lambda unit: unit.start)
