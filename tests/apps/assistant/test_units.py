"""The parts of a passage, and those that can be quoted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.apps.assistant.units import units

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
