"""The command line: groups, options, Ctrl-C, and a ground that is missing."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from naive.program import EDGE, settings_of

from edge.apps import cli, options
from edge.apps.cli import edge
from edge.apps.cli import edge as root
from edge.apps.options import CommandGroup

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


def groups(command: click.Command, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], click.Command]]:
    """Every group of the command line."""
    found: list[tuple[tuple[str, ...], click.Command]] = []
    if isinstance(command, click.Group):
        found.append((path, command))
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            found += groups(inner, (*path, name))
    return found


@pytest.mark.parametrize(
    ("path", "group"), groups(root), ids=lambda value: " ".join(value) if type(value) is tuple else ""
)
def test_every_group_suggests_what_was_meant(edge_verb: Verb, path: tuple[str, ...], group: click.Command) -> None:
    assert isinstance(group, CommandGroup)
    name = group.list_commands(click.Context(group))[-1]
    done = edge_verb(*path, name[:-1] + "qq" if len(name) > 5 else name + "q")
    assert done.code == 2
    assert f"did you mean `{' '.join(('edge', *path, name))}" in done.err


def test_what_is_like_nothing_gets_the_list(edge_verb: Verb) -> None:
    done = edge_verb("qqqq")
    assert done.code == 2
    assert "did you mean" not in done.err
    assert "the commands are " in done.err
    assert "search" in done.err


def test_words_need_no_quotes(edge_verb: Verb, tmp_path: Any) -> None:
    (tmp_path / "docs.txt").write_text("the river floods\nbread needs time\n")
    joined = edge_verb("rerank", "when", "does", "it", "flood", "--docs", "docs.txt")
    assert joined.code == 0
    assert joined.out == edge_verb("rerank", "when does it flood", "--docs", "docs.txt").out
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "river.md").write_text("The river floods in spring.\n")
    place = ("-c", "collection")
    assert edge_verb("index", "notes", *place).code == 0
    one, other = (edge_verb("search", *words, *place) for words in (("river", "floods"), ("river floods",)))
    assert one.code == 0
    assert one.out == other.out
    assert edge_verb("ask", "when", "does", "the", "river", "flood", *place).code in (0, 1)
    assert edge_verb("search", *place).code == 2


def test_a_file_is_not_called_a_dash_by_accident(edge_verb: Verb, tmp_path: Any) -> None:
    (tmp_path / "docs.txt").write_text("a river\n")
    done = edge_verb("rerank", "q", "--docs", "docs.txt", "--trace", "-")
    assert done.code == 2
    assert "./- for a file named -" in done.err
    assert not (tmp_path / "-").exists()


def test_settings_show_the_models(edge_verb: Verb) -> None:
    shown = edge_verb("config", "show", "--resolved", EDGE_RERANKER="", EDGE_EMBEDDER="", EDGE_LLM="").out
    assert "reranker      edge-reranker-minilm-l6  (default, in " in shown
    assert "embedder      all-MiniLM-L6-v2  (default, in " in shown
    assert "llm           extractive" in shown


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
    assert {"plan rag --rate", "serve --timeout"} <= found.keys(), "of groups and verbs"
    for parameter in found.values():
        for text in ("nan", "inf"):
            with pytest.raises(click.BadParameter):
                parameter.type.convert(text, parameter, None)


_CODE = """
import signal
import time
from edge.apps import cli

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background has it ignored

class Ending:
    def __del__(self):
        raise KeyboardInterrupt

def command(**_):
    Ending()
    time.sleep(30)
    print("it went on")

cli.edge.main = command
cli.main()
"""


def test_an_interrupt_in_what_cannot_raise_ends_the_command() -> None:
    done = subprocess.run([sys.executable, "-c", _CODE], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "edge: interrupted\n")
