"""A file that cannot be written is refused before the work, and does not take the results with it after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from edge.apps import options
from edge.apps.cli import edge

Verb = Callable[..., Any]
FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="this system has no device that is always full")


@pytest.fixture
def docs(tmp_path: Path) -> None:
    (tmp_path / "docs.txt").write_text("The river floods.\nBread needs time.\n", encoding="utf-8")


@pytest.mark.parametrize(
    "arguments",
    [
        ["embed", "--out", "absent/x.npy"],
        ["embed", "--trace", "absent/x.json"],
        ["rerank", "river", "--trace", "absent/x.json"],
        ["rerank", "river", "--trace", "docs.txt/x.json"],
    ],
)
def test_a_folder_that_does_not_exist_is_refused_before_anything_is_read(
    edge_verb: Verb, docs: None, arguments: list[str]
) -> None:
    ended = edge_verb(*arguments, "--docs", "not-looked-for.txt")
    folder, _, _ = arguments[-1].rpartition("/")
    assert ended.err == f"edge: {arguments[-1]} cannot be written: there is no folder {folder}\n"
    assert (ended.code, ended.out) == (2, "")


def test_a_place_that_may_not_be_written_is_refused(
    edge_verb: Verb, tmp_path: Path, docs: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").touch()
    asked: list[Path] = []
    monkeypatch.setattr(options.os, "access", lambda path, mode: bool(asked.append(path)))  # root may write anywhere
    for name in ("here", "new"):
        ended = edge_verb("embed", "--out", name, "--docs", "docs.txt")
        assert ended.err == f"edge: {name} cannot be written: Permission denied\n"
        assert ended.code == 2
    assert asked == [Path("here"), Path(".")], "of a file that exists, its own permission counts"


@needs_full
def test_a_ranking_is_printed_though_the_trace_cannot_be_written(edge_verb: Verb, tmp_path: Path, docs: None) -> None:
    for form in ([], ["--json"]):
        ended = edge_verb("rerank", "river", "--docs", "docs.txt", "--trace", str(FULL), *form)
        assert ended.code == 2
        assert "The river floods." in ended.out
        assert "No space left on device" in ended.err


@needs_full
def test_vectors_are_printed_though_the_trace_cannot_be_written(edge_verb: Verb, tmp_path: Path, docs: None) -> None:
    ended = edge_verb("embed", "--docs", "docs.txt", "--trace", str(FULL))
    assert ended.code == 2
    assert len(ended.out.splitlines()) == 2
    assert "the trace cannot be written" in ended.err
    assert edge_verb("embed", "--docs", "docs.txt", "--trace", str(FULL), "--out", "x.npy").code == 2
    assert (tmp_path / "x.npy").stat().st_size > 256


def float_options(command: click.Command, *names: str) -> Iterator[tuple[str, click.Parameter]]:
    """All options of all verbs that take a number within bounds."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from float_options(found, *names, name)
    for parameter in command.params:
        if isinstance(parameter.type, click.FloatRange):
            yield " ".join([*names, *parameter.opts]), parameter


def test_numbers_within_bounds_are_finite() -> None:
    found = dict(float_options(edge))
    assert len(found) > 5
    for parameter in found.values():
        for text in ("nan", "inf"):
            with pytest.raises(click.BadParameter):
                parameter.type.convert(text, parameter, None)
