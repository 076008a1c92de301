"""`edge VERB | head -1`: every verb ends quietly if the reader of its output has gone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from naive.program import EDGE, environment_of, write_tiny_models

from edge.apps.cli import _VERBS

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="pipes of POSIX")

LINES: dict[str, list[str]] = {
    "": ["--help"],
    "ask": ["ask", "when does it flood", "-c", "col"],
    "ask, nothing found": ["ask", "who wrote the opera", "-c", "col"],
    "backup": ["backup", "copy.edge", "-c", "col"],
    "bench": ["bench", "--help"],
    "chat": ["chat", "-c", "col"],
    "check": ["check", "-c", "col"],
    "cluster": ["cluster", "status"],
    "collections": ["collections", "list"],
    "compact": ["compact", "-c", "col"],
    "config": ["config", "show"],
    "demo": ["demo"],
    "describe": ["describe", "docs", "rivers", "-c", "col"],
    "doctor": ["doctor"],
    "embed": ["embed", "--docs", "docs/river.txt"],
    "get": ["get", "docs/river.txt", "-c", "col"],
    "help": ["help", "search"],
    "index": ["index", "docs", "-c", "col"],
    "install": ["install", "--help"],
    "list": ["list", "-c", "col"],
    "mcp": ["mcp", "config"],
    "memory": ["memory", "add", "The river floods.", "--path", "mem"],
    "memory list": ["memory", "list", "--path", "mem"],
    "models": ["models", "list"],
    "plan": ["plan", "--help"],
    "profile": ["profile", "--help"],
    "remove": ["remove", "docs/other.txt", "-c", "col"],
    "repair": ["repair", "-c", "col"],
    "rerank": ["rerank", "river", "--docs", "docs/river.txt"],
    "restore": ["restore", "none.edge", "-c", "new"],
    "search": ["search", "river", "-c", "col", "-k", "200", "--json"],
    "search, wrong option": ["search", "river", "--no-such"],
    "serve": ["serve", "--stop"],
    "status": ["status", "-c", "col", "--json"],
    "watch": ["watch", "--help"],
}


ALSO_STDERR = {"", "ask, nothing found", "index", "memory", "search, wrong option"}
"""Verbs whose stderr goes to nobody, too: help, an answer, progress, a sentence, a refusal."""

STAND_IN = """
from edge.apps.commands import doctor
doctor.smallest_limits = lambda: dict.fromkeys(doctor.OPERATIONS, 100_000_000)
"""
"""Before the program: `doctor` would measure in eight processes."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("closed")
    write_tiny_models(place / "models")
    (place / "docs").mkdir()
    lines = (f"In the year {year} the river rose by {year % 7} metres.\n" for year in range(1000, 1400))
    (place / "docs" / "river.txt").write_text("".join(lines), "utf-8")  # more than a stream's buffer holds
    for number in range(60):
        (place / "docs" / f"{'long-name-' * 20}{number}.txt").write_text(f"Number {number}.\n", "utf-8")
    (place / "docs" / "other.txt").write_text("Bread needs time.\n", "utf-8")
    subprocess.run([*EDGE, *LINES["index"]], cwd=place, env=environment_of(place), capture_output=True, check=True)
    return place


def closed(command: Sequence[str], folder: Path, both: bool = False) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as gone:
        done = subprocess.run(
            command, cwd=folder, env=environment_of(folder, PYTHONUNBUFFERED=""), stdin=subprocess.DEVNULL,
            stdout=gone, stderr=gone if both else subprocess.PIPE, check=False,
        )  # fmt: skip
    assert done.returncode in (0, 1, 2), (both, done)
    said = done.stderr or b""
    signs = (b"Traceback", b"Exception ignored", b"roken pipe", b"report", b"command died")
    assert not [word for word in signs if word in said], said
    assert len(said.splitlines()) < 8, said


@pytest.mark.parametrize("name", [name for name in LINES if name != "doctor"])
def test_a_reader_that_has_gone_is_no_error(folder: Path, forked_command: tuple[str, ...], name: str) -> None:
    closed([*forked_command, *LINES[name]], folder)


@pytest.mark.parametrize("name", sorted({*ALSO_STDERR, "doctor", "search"}))
def test_nor_is_it_where_the_interpreter_ends(folder: Path, name: str) -> None:
    start, code, program = EDGE
    closed([start, code, (STAND_IN if name == "doctor" else "") + program, *LINES[name]], folder, name != "search")


def test_every_verb_is_tried() -> None:
    assert {line[0] for line in LINES.values()} >= set(_VERBS)
