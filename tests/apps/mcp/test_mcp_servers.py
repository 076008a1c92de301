"""The MCP servers, asked over stdio by the official client."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from naive.mcp_answers import data_of
from naive.program import EDGE, environment_of, write_tiny_models
from naive.waiting import result_of, until

from edge.apps.store.connections import WriterLock
from edge.text.tokens import expected_tokens, most_tokens

mcp = pytest.importorskip("mcp", reason="the extra `mcp` is not installed")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    write_tiny_models(folder / "models")
    return folder


def ask(home: Path, *arguments: str, talk: Callable[[Any], Awaitable[None]]) -> None:
    """Starts `edge mcp ...`, lets `talk` use a client of it, and ends it."""
    environment = environment_of(home, EDGE_THREADS="1")

    async def session() -> None:
        server = mcp.StdioServerParameters(
            command=EDGE[0], args=[*EDGE[1:], "mcp", *arguments], env=environment, cwd=home
        )
        async with mcp.Client(server) as client:
            await talk(client)

    result_of(session())


async def call(client: Any, tool: str, **arguments: Any) -> Any:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    return data_of(result)


async def refused(client: Any, tool: str, **arguments: Any) -> str:
    result = await client.call_tool(tool, arguments)
    assert result.is_error
    return str(result.content[0].text)


def test_the_memory_server(home: Path, tmp_path: Path) -> None:
    async def talk(client: Any) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert all(tool.description for tool in tools.values())
        assert tools["add_memory"].input_schema["required"] == ["text"]
        added = await call(
            client, "add_memory", text="I am allergic to nuts", metadata={"kind": "health"}, timestamp="2026-05-08"
        )
        identifier = added["results"][0]["id"]
        await call(client, "add_memory", text="kept apart", run_id="r")
        found = await call(client, "search_memory", query="allergies", filters={"kind": "health"}, neighbours=1)
        assert [hit["id"] for hit in found["results"]] == [identifier]
        assert found["results"][0]["neighbours"] == []
        assert len((await call(client, "list_memories"))["results"]) == 2
        assert [m["memory"] for m in (await call(client, "list_memories", run_id="r"))["results"]] == ["kept apart"]
        await call(client, "update_memory", memory_id=identifier, text="I am allergic to peanuts")
        await call(client, "update_memory", memory_id=identifier, expiration_date="2099-01-01")
        listed = (await call(client, "list_memories", filters={"kind": "*"}))["results"]
        assert [(m["memory"], m["expiration_date"]) for m in listed] == [("I am allergic to peanuts", "2099-01-01")]
        assert "there is no memory 'x' here" in await refused(client, "delete_memory", memory_id="x")
        assert "'near' is no operator" in await refused(client, "search_memory", query="q", filters={"a": {"near": 1}})
        assert "nothing to update" in await refused(client, "update_memory", memory_id=identifier)
        await call(client, "delete_memory", memory_id=identifier)
        assert len((await call(client, "list_memories"))["results"]) == 1
        assert len((await call(client, "memory_history", memory_id=identifier))["history"]) == 4
        erased = (await call(client, "delete_memory", memory_id=identifier, purge=True))["erased"]
        assert erased == {"memories": 0, "lines of history": 4}
        assert (await call(client, "memory_history", memory_id=identifier))["history"] == []

    async def stranger(client: Any) -> None:
        unknown = "nothing was ever added for user_id 'default', only for others"
        assert unknown in await refused(client, "list_memories")
        assert unknown in await refused(client, "search_memory", query="kept")
        await call(client, "add_memory", text="mine")
        assert [m["memory"] for m in (await call(client, "list_memories"))["results"]] == ["mine"]
        for tool, asked in (("list_memories", {}), ("search_memory", {"query": "kept"})):
            assert "'ann' is another scope" in await refused(client, tool, filters={"user_id": "ann"}, **asked)

    place = str(tmp_path / "memory")
    ask(home, "memory", "--path", place, "--user-id", "ann", talk=talk)
    ask(home, "memory", "--path", place, talk=stranger)


def test_a_project_is_served_as_it_is(tmp_path: Path) -> None:
    home = tmp_path.resolve()
    write_tiny_models(home / "models")
    (home / ".git").mkdir()
    (home / "models" / ".gitignore").write_text("*")
    (home / "rivers.md").write_text("The river floods in spring.")

    async def talk(client: Any) -> None:
        async def places() -> list[str]:
            found = await call(client, "search", query='"river"', rerank=False)
            return [result["path"] for result in found["results"]]

        assert await places() == [str(home / "rivers.md")]
        (home / "rivers.md").rename(home / "moved.md")
        assert await places() == [str(home / "moved.md")]

    ask(home, "files", "--here", talk=talk)
    until(lambda: not any(WriterLock(path).is_held() for path in home.rglob("background.lock")))


def test_tools_say_what_they_do_and_optional_arguments_have_plain_types_and_nothing_else_is_claimed() -> None:
    from types import SimpleNamespace

    from edge.apps.mcp.tools import files_server, memory_server
    from edge.apps.store.failures import Health
    from edge.apps.verbs.requests import SearchOptions
    from edge.budget import MemoryBudget

    store: Any = SimpleNamespace(budget=MemoryBudget(10**11, baseline=0), health=Health)

    async def every() -> list[Any]:
        found = []
        for mode in ("auto", "legacy"):
            for server in (files_server(store), memory_server(store)):
                async with mcp.Client(server, mode=mode) as client:
                    found += (await client.list_tools()).tools
                    assert "true" not in client.server_capabilities.model_dump_json()
        return found

    tools = result_of(every())
    hints = {tool.name: (tool.annotations.read_only_hint, tool.annotations.destructive_hint) for tool in tools}
    names = ("search", "get", "get_documents", "status", "search_memory", "list_memories", "memory_history")
    reads = dict.fromkeys(names, (True, False))
    assert hints == reads | {
        "add_memory": (False, False), "update_memory": (False, True), "delete_memory": (False, True),
        "supersede_memory": (False, True),
    }  # fmt: skip
    for tool in tools:
        properties = tool.input_schema.get("properties", {})
        assert all("type" in schema for schema in properties.values()), (tool.name, properties)
        assert "null" not in json.dumps(tool.input_schema)
    get, search = (next(tool for tool in tools if tool.name == name) for name in ("get", "search"))
    described = search.input_schema["properties"]
    assert described.keys() - {"query"} == SearchOptions.schema().keys()
    for name, member in SearchOptions.schema().items():
        expected = {**member, "default": {"top_k": 8, "brief": True}.get(name, member.get("default"))}
        assert {key: described[name].get(key) for key in expected} == expected
    assert get.input_schema["properties"]["line_end"]["type"] == "integer"


def test_the_file_server(home: Path, tmp_path: Path) -> None:
    from edge.apps.collection.collection import Collection
    from edge.config import Config

    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "river.md").write_text("# River\n\nThe river floods in spring.\n\nIt is old.\n", encoding="utf-8")
    (docs / "bread.txt").write_text("Bread needs time.\n", encoding="utf-8")
    line = " ".join(f"word{number}" for number in range(7_000))  # longer than the text that `get` returns at once
    (docs / "line.txt").write_text(line, encoding="utf-8")
    (docs / "empty.txt").touch()
    (tmp_path / "secret.txt").write_text("not indexed\n", encoding="utf-8")
    config = Config(memory=10**11, embedder="tiny-embedder", reranker="tiny", models_dir=str(home / "models"))
    with Collection(tmp_path / "collection", config=config) as collection:
        collection.index([docs])

    async def talk(client: Any) -> None:
        found = (await call(client, "search", query="when does the river flood", filters=["type:md"]))["results"]
        assert {Path(hit["path"]).name for hit in found} == {"river.md"}
        for limit in (None, 200, 1000):
            answer = await client.call_tool("search", {"query": "river bread word1", "max_tokens": limit})
            text = answer.content[0].text
            assert len(text) <= 2_500 if limit is None else most_tokens(expected_tokens(text)) <= limit
        got = await call(client, "get", path=found[0]["path"])
        assert "The river floods in spring." in "".join(passage["text"] for passage in got["passages"])
        assert got["continues_at_passage"] is None
        assert found[0].keys() == {"path", "lines", "relevance", "text"}, (
            "a model is given places, and reads more of them"
        )
        assert "3: The river floods in spring." in found[0]["text"]
        whole = await call(client, "search", query="when does the river flood", brief=False, top_k=1)
        assert "The river floods in spring." in whole["results"][0]["text"]
        (long,) = (await call(client, "search", query="words", filters=["path:line.txt"], top_k=1))["results"]
        texts: list[str] = []
        answers, passage = 0, 0
        while passage is not None:
            got = await call(client, "get", path=long["path"], passage=passage)
            assert 0 < sum(len(part["text"]) for part in got["passages"]) <= 20_000
            texts += [part["text"] for part in got["passages"]]
            answers, passage = answers + 1, got["continues_at_passage"]
        assert answers == 4
        assert " ".join(texts).split() == line.split()
        assert (await call(client, "get", path=found[0]["path"], line_start=100))["passages"] == []
        assert (await call(client, "status"))["files"] == 3
        asked = [f"{docs / 'river.md'}:3", f"#{whole['results'][0]['id']}", "docs/*.txt"]
        read = (await call(client, "get_documents", targets=asked, max_bytes=60))["documents"]
        assert [document["text"] for document in read[:1]] == ["The river floods in spring.\n\nIt is old."]
        assert sum(len(document["text"]) for document in read) <= 61
        typed = await call(client, "search", query="lex: bread vec: what needs time")
        assert "bread.txt" in {Path(hit["path"]).name for hit in typed["results"]}
        secret = str(tmp_path / "secret.txt")
        assert "is not in the collection" in await refused(client, "get", path=secret)
        assert "is not indexed: the file is empty" in await refused(client, "get", path=str(docs / "empty.txt"))
        assert "no filter" in await refused(client, "search", query="river", filters=["owner:me"])
        assert "empty" in await refused(client, "search", query=" ")

    ask(home, "files", "--collection", str(tmp_path / "collection"), talk=talk)


def test_without_the_sdk_the_way_to_it_is_named(home: Path, tmp_path: Path) -> None:
    """An empty folder in the SDK's place hides it."""
    (tmp_path / "mcp").mkdir()
    (tmp_path / "mcp" / "__init__.py").write_text("", encoding="utf-8")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from edge.apps.cli import main; main()"
    for server in ("memory", "files"):
        done = subprocess.run([sys.executable, "-c", code, "mcp", server], capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert "need mcp 2.3 or newer: pip install 'edge-rag[mcp]'" in done.stderr


def test_what_is_stored_is_confirmed_however_long_it_is(home: Path, tmp_path: Path) -> None:
    """Its answer repeats the beginning only: one that repeated all would have to be refused, after the fact."""
    text = "the river floods in spring " * 60_000

    async def talk(client: Any) -> None:
        (added,) = (await call(client, "add_memory", text=text, metadata={"kind": "k"}))["results"]
        assert added["event"] == "ADD"
        assert len(added["memory"]) < 600
        assert "the answer is longer than" in await refused(client, "list_memories")

    ask(home, "memory", "--path", str(tmp_path / "memory"), "--user-id", "ann", talk=talk)


@pytest.mark.parametrize("server", ["memory", "files"])
def test_a_limit_that_no_search_fits_is_refused_before_the_first_message(
    home: Path, tmp_path: Path, server: str
) -> None:
    place = ["--path", str(tmp_path / "m")] if server == "memory" else ["-c", str(tmp_path / "c")]
    if server == "files":
        (tmp_path / "a.txt").write_text("The river floods.")
        subprocess.run([*EDGE, "index", str(tmp_path / "a.txt"), *place], env=environment_of(home), check=True)

    def started(limit: str) -> subprocess.CompletedProcess[str]:
        command = [*EDGE, "mcp", server, *place, "--memory", limit]
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment_of(home), check=False
        )

    refused = started("1MB")
    assert refused.returncode == 2
    smallest = float(re.search(r"limit that works is ([\d.]+) MB", refused.stderr)[1])  # type: ignore[index]
    assert started(f"{smallest - 4}MB").returncode == 2
    assert started(f"{smallest + 4}MB").returncode == 0
