"""No character that steers a terminal reaches it, in any way."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.apps.console import Screen
from edge.text.control_characters import STEERING, escaped, harmless

HOSTILE = "a\x1b]0;t\x07b\x9bc\u202edlrow\u2066e\u200ff\u061cg\udcffh\rj\U000e0041"


@pytest.mark.parametrize("returns", [True, False])
def test_what_steers_is_written_as_an_escape(returns: bool) -> None:
    stream = io.StringIO()
    screen = Screen(stream, returns=returns)
    assert screen.write(HOSTILE) == len(HOSTILE)
    screen.writelines(["\x1b[1mbold\x1b[0m\tand\n", "plain é 日本\n"])
    begin = "a\\u001b]0;t\\u0007b\\u009bc\\u202edlrow\\u2066e\\u200ff\\u061cg\\udcffh" + ("\r" if returns else "\\r")
    assert stream.getvalue() == f"{begin}j\\udb40\\udc41\x1b[1mbold\x1b[0m\tand\nplain é 日本\n"


@given(st.text(st.characters() | st.sampled_from(HOSTILE)))
def test_what_is_harmless_can_be_written_and_read(text: str) -> None:
    shown = harmless(text)
    assert not STEERING.search(shown)
    shown.encode()
    line = escaped(text)
    assert "\n" not in line
    assert "\t" not in line


@pytest.mark.parametrize(
    "arguments",
    [
        (f"{HOSTILE}\n",),
        (f"--{HOSTILE}\n",),
        ("rerank", "q", "--docs", HOSTILE),
        ("rerank", "q", "--memory", HOSTILE),
        ("rerank", "q", "--runtime", HOSTILE),
        ("rerank", "q", f"--{HOSTILE}"),
        ("search", HOSTILE, "--collection", HOSTILE),
        ("search", "q", "--filter", HOSTILE),
        ("index", HOSTILE),
        ("models", "show", HOSTILE),
        ("models", "pull", HOSTILE),
        ("memory", HOSTILE),
        ("memory", "delete", HOSTILE),
        ("memory", "import", HOSTILE),
    ],
)
def test_arguments_are_repeated_without_what_steers(edge_verb: Callable[..., Any], arguments: tuple[str, ...]) -> None:
    done = edge_verb(*arguments)
    assert done.code in (1, 2)
    assert not STEERING.search(done.out + done.err)
    assert "edge: " in done.err or "Error: " in done.err


def test_texts_are_shown_without_what_steers(edge_verb: Callable[..., Any], tmp_path: Path) -> None:
    hostile = HOSTILE.replace("\udcff", "")
    (tmp_path / "docs.txt").write_text(f"the river {hostile} floods\n", encoding="utf-8")
    done = edge_verb("rerank", "river", "--docs", "docs.txt")
    assert (done.code, STEERING.search(done.out)) == (0, None)
    assert "\\u202edlrow" in done.out
    assert edge_verb("memory", "add", hostile, "--path", str(tmp_path / "memory")).code == 0
    listed = edge_verb("memory", "list", "--path", str(tmp_path / "memory"))
    assert "\\u202edlrow" in listed.out
    assert not STEERING.search(listed.out)
