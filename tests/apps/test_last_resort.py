"""An unexpected error ends in one sentence and a report."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edge.apps import console
from edge.apps.commands import doctor
from edge.config import Config


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("EDGE_DEBUG", raising=False)
    monkeypatch.setattr(console.platformdirs, "user_state_path", lambda *_, **__: tmp_path / "state")
    return tmp_path / "state"


def broken(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def load(*_: Any, **__: Any) -> Config:
        raise error

    monkeypatch.setattr(doctor.Config, "load", load)


def reports(state: Path) -> list[Path]:
    return sorted((state / "reports").glob("*"))


@pytest.mark.parametrize(
    "error",
    [KeyError("x"), AssertionError(), RecursionError("deep"), UnicodeEncodeError("utf-8", "\ud800", 0, 1, "no")],
    ids=lambda error: type(error).__name__,
)
def test_an_unexpected_error_is_one_sentence_and_a_report(
    edge_verb: Callable[..., Any], state: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    broken(monkeypatch, error)
    done = edge_verb("doctor")
    (path,) = reports(state)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"edge: {type(error).__name__}")
    assert str(path) in done.err
    assert done.err.count("\n") == 1
    text = path.read_text(encoding="utf-8")
    assert text.startswith("edge doctor\n")
    assert "Traceback" in text
    assert "in load" in text
    if os.name == "posix":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_developer_sees_the_traceback(
    edge_verb: Callable[..., Any], state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch, KeyError("\x1b[2J"))
    done = edge_verb("doctor", EDGE_DEBUG="1")
    assert "Traceback (most recent call last)" in done.err
    assert "\x1b" not in done.err


def test_no_argument_is_in_a_report(
    edge_verb: Callable[..., Any], state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge.apps.options.Config.load", lambda *_, **__: 1 / 0)
    assert edge_verb("rerank", "a private question", "--docs", "secret.txt").code == 2
    (path,) = reports(state)
    text = path.read_text(encoding="utf-8")
    assert "ZeroDivisionError" in text
    assert "private" not in text
    assert "secret" not in text


def test_the_message_of_an_error_is_shown_in_part(
    edge_verb: Callable[..., Any], state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch, ValueError("line\n" + "x" * 10_000))
    done = edge_verb("doctor")
    assert "line\\nxxx" in done.err
    assert len(done.err) < 600


def test_where_no_report_can_be_written_that_is_said(
    edge_verb: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "state").write_text("a file in the folder's place", encoding="utf-8")
    broken(monkeypatch, KeyError("x"))
    done = edge_verb("doctor")
    assert done.code == 2
    assert "no report could be written" in done.err


def test_the_newest_reports_are_kept(state: Path) -> None:
    (state / "reports").mkdir(parents=True)
    for number in range(30):
        (state / "reports" / f"20000101-0000{number:02}-1-1.txt").touch()
    console.report(KeyError("x"), "edge index")
    kept = reports(state)
    assert len(kept) == 20
    assert kept[-1].stat().st_size > 0
    assert kept[0].name == "20000101-000011-1-1.txt"


def test_an_error_in_a_thread_is_reported_too(
    edge_verb: Callable[..., Any], state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: Any, **__: Any) -> Config:
        thread = threading.Thread(target=lambda: 1 / 0)
        thread.start()
        thread.join()
        return Config()

    monkeypatch.setattr(doctor.Config, "load", load)
    monkeypatch.setattr(doctor, "smallest_limits", dict)  # of eight processes
    done = edge_verb("doctor")
    assert "ZeroDivisionError" in done.err
    assert "Traceback" not in done.err
    assert len(reports(state)) == 1


def test_exhausted_memory_is_no_error_of_the_program(
    edge_verb: Callable[..., Any], state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch, MemoryError())
    done = edge_verb("doctor")
    assert done.code == 2
    assert "no more memory" in done.err
    assert reports(state) == []
