from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.apps.documents.decoding import clean
from edge.text.control_characters import escaped


@pytest.mark.parametrize(
    ("name", "on_the_terminal"),
    [
        ("/a/plain é 日本.txt", "/a/plain é 日本.txt"),
        ("\x1b]0;title\x07red\x1b[31m", "\\u001b]0;title\\u0007red\\u001b[31m"),
        ("two\nlines\tand\rmore", "two\\nlines\\tand\\rmore"),
        ("\x9b31m\x7f\x00", "\\u009b31m\\u007f\\u0000"),
        ("half \udcff", "half \\udcff"),
        ("back\\slash", "back\\slash"),
    ],
)
def test_what_steers_a_terminal_is_escaped(name: str, on_the_terminal: str) -> None:
    assert escaped(name) == on_the_terminal


@given(st.text(st.characters() | st.characters(max_codepoint=160)))
def test_what_is_shown_is_one_clean_line(name: str) -> None:
    text = escaped(name)
    assert clean(text) == text
    assert "\n" not in text
    assert "\t" not in text
