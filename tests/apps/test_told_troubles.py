"""Every way into a collection or a memory reports unfinished work and damage there. All are in one list: a new verb or
tool that is not in it fails."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from naive.mcp_answers import data_of
from naive.program import settings_of
from naive.waiting import result_of

from edge.apps.cli import edge
from edge.apps.collection.collection import Collection, Together
from edge.apps.memory.memory import Memory
from edge.apps.store.failures import note
from edge.config import Config

SAID = "a check found damage"

FILE_VERBS = {
    "index": ["index"],
    "search": ["search", "river", "--no-rerank"],
    "list": ["list"],
    "get": ["get", "river.md"],
    "describe": ["describe"],
    "remove": ["remove", "docs/bread.md"],
    "compact": ["compact"],
    "ask": ["ask", "when does the river flood", "--no-rerank"],
    "chat": ["chat", "--no-rerank"],
    "profile": ["profile", "--questions", "questions.txt", "--rounds", "1"],
}
MEMORY_VERBS = {
    "add": ["add", "The river froze."],
    "search": ["search", "river", "--no-rerank"],
    "list": ["list"],
    "get": ["get", "ID"],
    "update": ["update", "ID", "The river floods in May."],
    "supersede": ["supersede", "ID", "--undo"],
    "learn": ["learn", "given.jsonl"],
    "delete": ["delete", "ID"],
    "history": ["history", "ID"],
    "export": ["export", "out.jsonl"],
    "import": ["import", "given.jsonl"],
    "rebuild": ["rebuild"],
}
SAYS_IN_ITS_REPORT = {"status", "check", "repair"}
OPENS_NONE = {
    "collections", "watch", "backup", "restore", "memory", "mcp", "rerank", "embed", "models", "demo", "bench",
    "doctor", "config", "plan", "serve", "help", "cluster", "install",
}  # fmt: skip
"""Groups of verbs and verbs that open no store. A backup copies what is noted with the rest, `watch` is `index`, and
the answers of `serve` say it (`tests/apps/serve/test_serve_models.py`)."""

FILE_TOOLS: dict[str, dict[str, Any]] = {
    "search": {"query": "river", "rerank": False},
    "get": {"path": "docs/river.md"},
    "get_documents": {"targets": ["river.md"]},
    "status": {},
}
MEMORY_TOOLS: dict[str, dict[str, Any]] = {
    "add_memory": {"text": "The river froze."},
    "search_memory": {"query": "river"},
    "list_memories": {},
    "update_memory": {"memory_id": "ID", "text": "The river floods in May."},
    "memory_history": {"memory_id": "ID"},
    "supersede_memory": {"memory_id": "ID"},
    "delete_memory": {"memory_id": "ID"},
}
IN_JSON = {
    *((name,) for name in ("search", "ask", "chat", "status")),
    *(("memory", n) for n in ("search", "list", "status")),
}
"""Verbs whose JSON form says it, too."""


@pytest.fixture(scope="module")
def first_place(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The place before any verb has run in it, under another name, and the id of a memory."""
    folder = tmp_path_factory.mktemp("places") / "place"
    docs = folder / "docs"
    docs.mkdir(parents=True)
    (docs / "river.md").write_text("# River\n\nThe river floods in spring.\n", encoding="utf-8")
    (folder / "questions.txt").write_text("when does the river flood\nwhat needs time\n", encoding="utf-8")
    (docs / "bread.md").write_text("# Bread\n\nBread needs time.\n", encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        enter(folder, tiny_models, patch)
        with Collection(folder / "col", config=Config.load()) as collection:
            collection.index(docs)
            with collection.database.write() as db:
                note(db, "damaged")
        with Memory(folder / "mem", user_id="default", config=Config.load()) as memory:
            (added,) = memory.add("The river floods in spring.")["results"]
            memory.export_jsonl(folder / "given.jsonl")
            with memory.store.write() as db:
                note(db, "damaged")
    return folder.rename(folder.with_name("first")), str(added["id"])


@pytest.fixture
def place(
    first_place: tuple[Path, str], tiny_models: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Path, str]]:
    """A working folder with a damaged collection and a damaged memory, and the id of a memory."""
    first, identifier = first_place
    folder = shutil.copytree(first, first.with_name("place"))  # at the path that the collection holds
    enter(folder, tiny_models, monkeypatch)
    yield folder, identifier
    monkeypatch.undo()
    shutil.rmtree(folder)


def enter(folder: Path, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a folder the home and the working folder of this process."""
    own = {"EDGE_MODELS_DIR": str(models), "EDGE_MEMORY": "10GB", "EDGE_LLM": "extractive", "HOME": str(folder)}
    for name, value in settings_of(folder, **own).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(folder)


def leaves(group: Any) -> set[str]:
    with click.Context(group) as context:
        return set(group.list_commands(context))


def arguments_of(verb: tuple[str, ...], identifier: str) -> list[str]:
    if verb[0] == "memory":
        given = ["memory", *(MEMORY_VERBS | {"status": ["status"]})[verb[1]], "--path", "mem"]
    else:
        given = [*(FILE_VERBS | {"status": ["status"]})[verb[0]], "-c", "col"]
    return [identifier if argument == "ID" else argument for argument in given]


def test_every_verb_is_in_the_list() -> None:
    assert leaves(edge) == FILE_VERBS.keys() | SAYS_IN_ITS_REPORT | OPENS_NONE
    with click.Context(edge) as context:
        memory = edge.get_command(context, "memory")
    assert leaves(memory) == MEMORY_VERBS.keys() | SAYS_IN_ITS_REPORT | (OPENS_NONE & {"backup", "restore"}) | {"hook"}


@pytest.mark.parametrize(
    "verb", [*((name,) for name in FILE_VERBS), *(("memory", name) for name in MEMORY_VERBS)], ids=" ".join
)
def test_every_verb_says_it(place: tuple[Path, str], verb: tuple[str, ...]) -> None:
    done = CliRunner().invoke(edge, arguments_of(verb, place[1]), input="when does the river flood\n")
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert SAID in done.stderr
    assert done.stderr.count(SAID) == 1


@pytest.mark.parametrize("verb", sorted(IN_JSON), ids=" ".join)
def test_its_json_form_says_it(place: tuple[Path, str], verb: tuple[str, ...]) -> None:
    given = [*arguments_of(verb, place[1]), "--json"]
    done = CliRunner().invoke(edge, given, input="when does the river flood\n")
    health = json.loads(done.stdout)["health"]
    assert health["state"] == "damaged"
    assert [trouble["text"] for trouble in health["troubles"]] == [SAID]


@pytest.mark.parametrize("kind", ["files", "memory"])
def test_every_tool_says_it(place: tuple[Path, str], kind: str) -> None:
    pytest.importorskip("mcp", reason="the extra `mcp` is not installed")
    from edge.apps.mcp.tools import files_server, memory_server

    folder, identifier = place
    tools = FILE_TOOLS if kind == "files" else MEMORY_TOOLS

    async def ask(server: Any) -> None:
        assert {tool.name for tool in await server.list_tools()} == tools.keys()
        for name, given in tools.items():
            known = {key: {"ID": identifier}.get(str(value), value) for key, value in given.items()}
            if "path" in known:
                known["path"] = str(folder / known["path"])
            answer = await server.call_tool(name, known)
            health = data_of(answer)["health"]
            assert (name, health["state"]) == (name, "damaged")
            assert SAID in health["troubles"][0]["text"]

    if kind == "files":
        with Together.opened(["col"], Config.load()) as collections:
            result_of(ask(files_server(collections)))
    else:
        with Memory(folder / "mem", user_id="default", config=Config.load()) as memory:
            result_of(ask(memory_server(memory)))


def test_several_collections_say_whose_damage_it_is(place: tuple[Path, str]) -> None:
    folder, _ = place
    with Collection(folder / "other", config=Config.load()) as other:
        other.index(folder / "docs")
    with Together.opened(["col", "other"], Config.load()) as collections:
        assert [trouble.text for trouble in collections.health()] == [f"col: {SAID}"]
