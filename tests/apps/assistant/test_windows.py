"""What may be shown of a passage: windows of neighbouring units."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from edge.apps.assistant.units import units
from edge.apps.assistant.windows import WORDS, windows

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
