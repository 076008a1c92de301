"""The command line where the ground is missing: closed standard streams, a working directory that is gone."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from naive.program import EDGE, settings_of

from edge.apps import cli

Verb = Callable[..., Any]
COMMAND = shlex.join(EDGE)
posix = pytest.mark.skipif(sys.platform == "win32", reason="closes streams with a POSIX shell")


@pytest.fixture
def shell(tiny_models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs `edge` in a shell, with its redirections after it, and preparing commands before it."""
    for name, value in settings_of(tmp_path, EDGE_MODELS_DIR=str(tiny_models)).items():
        monkeypatch.setenv(name, value)
    (tmp_path / "docs.txt").write_text("The river floods.\nBread needs time.\n", encoding="utf-8")

    def run(line: str, before: str = "") -> Any:
        command = f"{before}{COMMAND} {line}"
        return subprocess.run(command, shell=True, capture_output=True, cwd=tmp_path, check=False)

    return run


@posix
def test_nobody_wants_the_output(shell: Callable[..., Any]) -> None:
    for line in ("index docs.txt -c col >&-", "rerank river --docs docs.txt >&-"):
        done = shell(line)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b""), line
    assert shell("rerank river --docs absent.txt >&-").returncode == 2


@posix
def test_nobody_wants_the_messages(shell: Callable[..., Any]) -> None:
    done = shell("rerank river --docs docs.txt --stats 2>&-")
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 2
    assert shell("rerank river --docs absent.txt 2>&-").returncode == 2


@posix
def test_a_closed_input_is_an_error(shell: Callable[..., Any]) -> None:
    done = shell("rerank river --docs - <&-")
    assert (done.returncode, done.stderr) == (2, b"edge: stdin holds no text\n")


@posix
def test_no_file_gets_the_descriptor_of_a_closed_stream(tmp_path: Path) -> None:
    code = (
        "import json, os; from edge.apps.cli import _open_closed_streams as opened; opened(); "
        "places = [os.stat(os.devnull).st_rdev == os.fstat(n).st_rdev for n in range(3)]; "
        "json.dump([places, os.open(os.curdir, 0)], open('found.json', 'w'))"
    )
    subprocess.run(f'{sys.executable} -c "{code}" <&- >&- 2>&-', shell=True, cwd=tmp_path, check=True)
    places, descriptor = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert places == [True, True, True]
    assert descriptor > 2


@posix
def test_a_working_directory_that_is_gone_is_named(shell: Callable[..., Any]) -> None:
    done = shell("status", before="mkdir gone && cd gone && rmdir ../gone && ")
    assert done.stderr == b"edge: the working directory does not exist any more: No such file or directory\n"
    assert done.returncode == 2


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (OSError(28, "No space left on device"), "the output cannot be written"),
        (FileNotFoundError(2, "No such file or directory"), "the output cannot be written"),
        (PermissionError(13, "Permission denied", "x.txt"), "x.txt cannot be used"),
    ],
)
def test_where_we_stand_other_errors_are_what_they_were(error: OSError, what: str) -> None:
    assert cli._what_failed(error) == what


def test_an_empty_question_is_refused_by_the_demo_as_by_rerank(edge_verb: Verb) -> None:
    for arguments in (["demo", ""], ["rerank", "", "--docs", "docs.txt", "--memory", "4GB"]):
        Path("docs.txt").write_text("A text.\n", encoding="utf-8")
        ended = edge_verb(*arguments)
        assert (ended.code, ended.err) == (2, "edge: the query is empty\n")


@pytest.mark.parametrize("group", [[], ["memory"], ["models"], ["collections"]])
def test_a_group_without_a_verb_shows_its_help_in_lines(edge_verb: Verb, group: list[str]) -> None:
    alone, asked = edge_verb(*group), edge_verb(*group, "--help")
    assert (alone.code, asked.code) == (2, 0)
    assert alone.err.strip() == asked.out.strip()
