"""Progress bars, looked at as a terminal shows them."""

from __future__ import annotations

import io
import os
import re
import sys

import pytest

from edge.apps.console import ProgressBar


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
