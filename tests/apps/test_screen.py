"""What is printed: no character that steers a terminal, progress, numbers with nouns, labels of modelled figures."""

from __future__ import annotations

import ast
import io
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import edge.apps
from edge.apps.assistant.answer import AnswerStats, figures, measured
from edge.apps.console import ProgressBar, Screen, modelled
from edge.config import counted
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


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_time_left_follows_from_the_average_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bar that begins with a guess at its length, or whose last step was slow, announced hours for seconds."""
    import tqdm

    now = [1000.0]
    monkeypatch.setattr(tqdm.tqdm, "_time", None, raising=False)
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    with ProgressBar("B", "packing x") as bar:
        bar(10_000, 20_000_000)
        assert bar._bar is not None
        bar._bar._time = lambda: now[0]
        bar._bar.start_t = now[0]
        now[0] += 1.0
        bar(5_010_000, 20_000_000)
        now[0] += 1.0
        bar(10_010_000, 20_000_000)
        figures = bar._bar.format_dict
        assert figures["total"] == 20_000_000
        rate = figures["rate"] or (figures["n"] - figures["initial"]) / figures["elapsed"]
        assert rate == pytest.approx(5_000_000)


def test_the_length_may_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    with ProgressBar(" passages") as bar:
        bar(0, 100)
        bar(50, 80)
        assert bar._bar is not None
        assert (bar._bar.n, bar._bar.total) == (50, 80)
        bar(90, 80)  # an estimate that was too low
        assert (bar._bar.n, bar._bar.total) == (90, 90)


def test_a_terminal_that_reports_no_size_shows_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()  # of 0 columns, until one is set
    os.set_blocking(ours, False)
    assert os.get_terminal_size(theirs).columns == 0
    with os.fdopen(theirs, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        with ProgressBar(" passages") as bar:
            bar(1, 4)
        assert b"25%|" in os.read(ours, 1_000)
    os.close(ours)


def test_a_place_is_named_and_cut_at_the_width(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    with ProgressBar(" passages") as bar:
        bar(0, 100, "0 of 9 files")
        assert bar._bar is not None
        bar._bar.mininterval = 0
        bar(50, 200, "4 of 9 files: a\x1b[2J.md")
        bar(50, 200, f"5 of 9 files: {'long name ' * 20}")
    first, second, third = [text for text in stream.getvalue().split("\r") if " files" in text]
    assert "0 of 9 files" in first
    assert re.match(r" 25%, \d\d:\d\d left: 4 of 9 files: a", second)
    assert "4 of 9 files: a\\u001b[2J.md" in second
    assert "5 of 9 files: long name" in third
    assert {len(text) for text in (second, third)} <= set(range(80))


def test_no_bar_is_shown_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with ProgressBar(" passages") as bar:
        for done in (0, 1, 2):
            bar(done, 2, "1 of 2 files: a.md")
    assert stream.getvalue() == ""


APPS = Path(edge.apps.__file__).parent
STORES = ("collection", "commands", "memory", "store")
PLURAL = re.compile(r" (\w+ies|\w*[a-rt-z]s)\b")
NEVER_ONE = {"bytes", "characters"}
"""Bytes are counted in whole pages, and characters only where they are too many."""


def test_a_noun_goes_with_its_number() -> None:
    assert [counted(n, "file") for n in (0, 1, 2, 1234)] == ["0 files", "1 file", "2 files", "1,234 files"]
    assert [counted(n, "memory", "memories") for n in (1, 2)] == ["1 memory", "2 memories"]


def plurals(path: Path) -> list[str]:
    """The f-strings of a file that set a plural behind any number. One that is chosen by a condition is right."""
    found = []
    tree = ast.parse(path.read_text("utf-8"))
    chosen = {id(part) for node in ast.walk(tree) if isinstance(node, ast.IfExp) for part in (node.body, node.orelse)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.JoinedStr) or id(node) in chosen:
            continue
        for number, after in zip(node.values, node.values[1:], strict=False):
            if not isinstance(number, ast.FormattedValue) or not isinstance(after, ast.Constant):
                continue
            is_count = number.format_spec is not None and ast.unparse(number.format_spec) == "f','"
            is_constant = isinstance(number.value, ast.Name) and number.value.id.isupper()
            match = PLURAL.match(str(after.value))
            if is_count and not is_constant and match is not None and match[1] not in NEVER_ONE:
                found.append(f"{path.name}:{node.lineno}: {match[1]}")
    return found


def test_no_message_of_a_store_sets_a_plural_behind_a_number_that_may_be_one() -> None:
    files = [path for folder in STORES for path in sorted((APPS / folder).glob("*.py"))]
    assert len(files) > 50
    assert not [found for path in files for found in plurals(path)]


def test_an_answers_figures_name_what_a_model_says() -> None:
    stats = measured({"modelled.queries": 3, "modelled.seconds": 0.003, "modelled.joules": 0.25})
    (line,) = [line for line in figures(stats) if line.startswith("modelled")]
    assert "3 requests" in line
    assert "3 ms" in line
    assert "250 mJ" in line
    assert "nothing of that was measured" in line
    assert not [line for line in figures(AnswerStats()) if "modelled" in line]


def test_a_trace_without_a_modelled_device_has_no_such_figures() -> None:
    assert modelled({"lists.hits": 3}) == {}
    counters = {"modelled.queries": 2, "modelled.seconds": 0.5, "modelled.joules": 1.0}
    assert modelled(counters) == {"modelled": {"queries": 2, "seconds": 0.5, "joules": 1.0}}
