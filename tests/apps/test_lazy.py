"""Groups of commands: names that are mistyped, and words that need no quotes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import pytest

from edge.apps.cli import edge as root
from edge.apps.options import CommandGroup

Verb = Callable[..., Any]


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
    assert "embedder      all-MiniLM-L6-v2  (default, not installed: edge models pull all-MiniLM-L6-v2)" in shown
    assert "llm           extractive" in shown


def test_memories_go_to_stdout_and_come_from_stdin(
    edge_verb: Verb, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import io
    import json
    import sys

    assert edge_verb("memory", "add", "I am allergic to nuts", "--path", "m").code == 0
    done = edge_verb("memory", "export", "-", "--path", "m")
    assert done.code == 0
    (line,) = done.out.splitlines()
    assert json.loads(line)["memory"] == "I am allergic to nuts"
    assert not (tmp_path / "-").exists()

    class Input:
        buffer = io.BytesIO(done.out.encode())

        def isatty(self) -> bool:
            return False

    monkeypatch.setattr(sys, "stdin", Input())
    done = edge_verb("memory", "import", "-", "--path", "other")
    assert (done.code, done.err) == (0, "1 new memory imported\n")
