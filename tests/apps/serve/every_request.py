"""A request of each kind to a server inside this process, and all fields that the server reads of it."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
from naive.program import config_of

from edge.apps.cluster.catalogue import Replica
from edge.apps.cluster.cluster import Cluster
from edge.apps.cluster.command import index
from edge.apps.cluster.places import LocalPlaces
from edge.apps.collection.collection import Collection
from edge.apps.serve import own
from edge.apps.serve.application import application, paths
from edge.apps.serve.server import Editor, HttpServer, ServerOptions
from edge.resident import anonymous_resident

RIVER = "# The river\n\nThe river floods every spring when the snow melts in the hills.\n"
ADDED = "a-memory-that-was-added"


@dataclass(frozen=True)
class Request:
    """One request that a server answers. `kind`: the path as the application names it, such as `/memories/{memory_id}`;
    `values`: of the parts of the path."""

    method: str
    kind: str
    body: dict[str, Any] | None = None
    values: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)

    @property
    def by_socket(self) -> bool:
        return self.kind.startswith("/own")

    @property
    def path(self) -> str:
        found = self.kind
        for name, value in self.values.items():
            found = found.replace(f"{{{name}:path}}", quote(value, safe="/")).replace(f"{{{name}}}", quote(value, "/"))
        return found

    def with_text(self, old: str, new: str) -> Request:
        """The request with another text in the parts of its path and behind it."""
        values, query = (
            {name: new if value == old else value for name, value in texts.items()}
            for texts in (self.values, self.query)
        )
        return replace(self, values=values, query=query)

    def with_value(self, place: tuple[Any, ...], value: Any) -> Request:
        """The request with another value at a place in its body."""
        return replace(self, body=_changed(self.body, place, value))

    def variants(self, names: frozenset[str], value: Any) -> Iterator[tuple[str, Request]]:
        """The request with another value at each place where it has or may have one, and what place that is. `names`:
        of fields that the server reads, whether the request has them or not."""
        for name in self.values:
            if isinstance(value, str):
                yield f"path {name}", replace(self, values={**self.values, name: value})
        if isinstance(value, str) and (self.query or self.body is None):  # what has a body alone reads no query
            for name in sorted({*self.query, *names}):
                yield f"query {name}", replace(self, query={**self.query, name: value})
        if self.body is not None:
            for place in _places(self.body, names):
                yield f"body {'.'.join(map(str, place))}", self.with_value(place, value)


def _places(value: Any, names: frozenset[str] = frozenset()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict):
        for name in sorted({*value, *names}):
            yield (name,)
            if name in value:
                yield from ((name, *rest) for rest in _places(value[name]))
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield (number,)
            yield from ((number, *rest) for rest in _places(each))


def _changed(body: Any, place: tuple[Any, ...], value: Any) -> Any:
    made = copy.deepcopy(body)
    inner = made
    for part in place[:-1]:
        inner = inner[part]
    inner[place[-1]] = value
    return made


def names_in(kind: type[Any] | None) -> frozenset[str]:
    """The names of the fields that are obeyed in bodies of a class, and in the objects in them."""
    if kind is None:
        return frozenset()
    _, schemas = msgspec.json.schema_components([kind])
    idle = {*getattr(kind, "REFUSED", ()), *getattr(kind, "HARMLESS", ())}
    return frozenset(name for schema in schemas.values() for name in schema["properties"] if name not in idle)


class Site:
    """A server with a collection of one document, a memory, and an editor that does nothing."""

    def __init__(self, server: HttpServer, base: Path) -> None:
        self.server = server
        self.application = application(server)
        self.paths = [*paths(server), *own.OWN_PATHS]
        self.document = str(base / "documents" / "river.md")
        self.collection = str(base / "collection")
        self.memory = str((base / "memory").absolute())
        self.passage = 1
        self.memory_id = ADDED

    @asynccontextmanager
    async def client(self) -> Any:
        """Sends requests, in one event loop. Errors that the application does not answer are raised here."""
        import httpx

        made = httpx.AsyncClient(transport=httpx.ASGITransport(app=self.application), timeout=300)
        async with made:
            yield made
            for tools in asyncio.all_tasks() - {asyncio.current_task()}:
                tools.cancel()

    async def send(self, client: Any, request: Request, *, content: bytes | None = None) -> Any:
        """The answer to a request, whose body may be given as it is sent."""
        base = "http://localhost" if request.by_socket else "http://localhost:8777"  # httpx names no port 80
        headers = {"Accept": "application/json, text/event-stream"}
        if request.body is not None:
            content = json.dumps(request.body).encode() if content is None else content
            headers["Content-Type"] = "application/json"
        return await client.request(
            request.method, f"{base}{request.path}", params=request.query or None, content=content, headers=headers
        )

    def requests(self) -> list[Request]:
        """One of each kind, and several where a kind has several shapes. Those that delete much are at the end."""
        ada = {"user_id": "ada"}
        turn = {"question": "When does the river flood?", "answer": "In spring."}
        messages = [{"role": "user", "content": [{"type": "text", "text": "When does the river flood?"}]}]
        chat = {"model": "default", "messages": messages, "max_completion_tokens": 5, "stop": ["x"]}
        asked = messages[0]["content"]
        called = [{"type": "tool_use", "id": "t", "name": "n", "input": {}}]
        returned = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "It rains."}]}
        talk = [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": called},
                {"role": "user", "content": [returned, *asked]}]  # fmt: skip
        said = {
            "model": "default",
            "messages": talk,
            "max_tokens": 5,
            "system": [{"type": "text", "text": "Be brief."}],
        }
        output = {"type": "function_call_output", "call_id": "c", "output": "It rains."}
        items = [{"type": "function_call", "call_id": "c", "name": "n", "arguments": "{}"}, output, *messages]
        document = {"text": "The river floods.", "n": 1}
        ranked = {"query": "river", "documents": [document, "b"], "return_documents": True, "model": "x"}
        options = {"passages": 3, "rerank": True, "check": True, "temperature": 0.0, "max_tokens": 5, "seed": 1}
        ask = {"question": "When does the river flood?", "turns": [turn], "llm": "extractive", "filters": ["path:*"]}
        own_memory = {"path": self.memory, **ada}
        own = {"query": "river", "collections": {"": self.collection}}
        memory = {"memory_id": self.memory_id}
        name = {"name": "default"}
        found = [
            Request("POST", "/rerank", ranked),
            Request("POST", "/rerank", {"query": "river", "texts": ["a", "b"], "return_text": True}),
            Request("POST", "/v1/rerank", ranked),
            Request("POST", "/v1/rerank", {**ranked, "rank_fields": ["text", "n"], "top_n": 1}),
            Request("POST", "/v2/rerank", {**ranked, "query": {"text": "river"}}),
            *(Request("POST", path, {"query": "a", "documents": ["b"]}) for path in ("/v1/reranking", "/reranking")),
            Request("POST", "/infinity/rerank", ranked),
            *(Request("POST", path, {"text_1": "a", "text_2": ["b", "c"]}) for path in ("/score", "/v1/score")),
            Request("POST", "/v1/embeddings", {"input": ["a"], "model": "x", "dimensions": 4}),
            Request("POST", "/api/embed", {"input": ["a"], "model": "x", "dimensions": 4}),
            Request("POST", "/api/rerank", ranked),
            Request("POST", "/embed", {"inputs": "a"}),
            Request("GET", "/info"),
            Request("GET", "/v1/models"),
            Request("GET", "/v1/models/{name:path}", values=name),
            Request("GET", "/api/tags"),
            Request("POST", "/api/show", {"model": "tiny"}),
            Request("POST", "/v1/messages", {**said, "model": "llm", "top_p": 0.5, "stop_sequences": ["x"]}),
            Request("POST", "/v1/messages", {**said, "stream": True}),
            Request("POST", "/v1/messages", said),
            Request("POST", "/v1/messages/count_tokens", said),
            Request("POST", "/v1/responses", {"input": "When does the river flood?", "model": "default"}),
            Request("POST", "/v1/responses", {"input": items, "instructions": "Be brief.", "stream": True}),
            Request("POST", "/v1/completions", {"model": "default", "prompt": "When does the river flood?"}),
            Request("POST", "/v1/chat/completions", chat),
            Request("POST", "/v1/chat/completions", {**chat, "stream": True, "stream_options": {"include_usage": 1}}),
            Request("POST", "/v1/chat/completions", {**chat, "model": "llm", "top_p": 0.5, "max_tokens": 4}),
            Request("POST", "/v1/search", {"query": "river", "collections": ["default"], "filters": ["path:*"]}),
            Request("POST", "/v1/search", {"query": "river", "stream": True, "min_score": 0.0}),
            Request("POST", "/v1/ask", {**ask, **options}),
            Request("POST", "/v1/ask", {**ask, "stream": True}),
            Request("GET", "/v1/collections"),
            Request("GET", "/v1/collections/{name:path}/files", values=name),
            Request("GET", "/v1/collections/{name:path}", values=name),
            Request("POST", "/v1/documents", {"targets": [self.document], "lines": 3, "max_bytes": 100}),
            Request("POST", "/v1/preview", {"path": self.document, "line": 1}),
            Request("POST", "/v1/preview", {"id": self.passage}),
            Request("POST", "/v1/open", {"path": self.document, "page": 1}),
            Request("POST", "/v1/open", {"path": self.document, "own": True}),
            Request("POST", "/v1/page", {"path": self.document, "first": 1, "last": 2}),
            Request("GET", "/v1/offers"),
            Request("GET", "/v1/scopes"),
            Request("GET", "/v1/engine"),
            Request("GET", "/v1/trace"),
            Request("POST", "/v1/trace", {"record": False}),
            Request("GET", "/health"),
            Request("GET", "/metrics"),
            Request("GET", "/openapi.json"),
            Request("GET", "/v1/ping"),
            Request("POST", "/v3/memories/add", {"messages": [{"role": "user", "content": "Ada likes tea."}], **ada}),
            *(
                Request("POST", path, {"query": "tea", "filters": {"AND": [ada, {"k": {"ne": 1}}]}, "top_k": 3})
                for path in ("/search", "/v1/memories/search", "/v3/memories/search")
            ),
            Request("POST", "/v3/memories", {"filters": {"user_id": {"in": ["ada"]}}}, query={"page": "1"}),
            Request("GET", "/v1/entities"),
            Request("GET", "/v1/export", query={"user_id": "ada", "after": "1"}),
            Request("POST", "/v1/import", {"memories": [{"memory": "Ada likes tea.", "id": "i"}], **ada}),
            Request("PUT", "/v1/batch", {"memories": [{**memory, "text": "Ada likes coffee.", "metadata": {"k": 2}}]}),
            Request("GET", "/own"),
            Request("POST", "/own/status", {}),
            Request("POST", "/own/search", {"request": {**own, "top_k": 3}}),
            Request("POST", "/own/rerank", {"request": {"query": "a", "texts": ["b"], "mode": "ranked"}}),
            Request("POST", "/own/embed", {"request": {"texts": ["a"], "query": True, "model": "tiny-embedder"}}),
            Request("POST", "/own/ask", {"request": {**own, **options, "question": "a?"}, "name": "n", "stream": True}),
            Request("POST", "/own/end", {"name": "n"}),
            *(
                Request("POST", f"/own/memory/{verb}", {"request": {**own_memory, **asked}})
                for verb, asked in (
                    ("search", {"query": "tea", "top_k": 3, "filters": {"k": 2}}), ("list", {"top_k": 3}),
                    ("get", memory), ("history", memory), ("add", {"texts": ["Ada likes cake."], "metadata": {"k": 1}}),
                    ("update", {**memory, "text": "Ada likes water.", "pinned": True, "forgotten": False}),
                    ("supersede", memory), ("delete", {"memory_ids": []}),
                )
            ),
            *self._tools(),
            Request("POST", "/v1/folders", {"path": str(Path(self.document).parent)}),
        ]  # fmt: skip
        for base in ("/memories", "/v1/memories"):
            found += [
                Request("POST", base, {"messages": "Ada likes tea.", "metadata": {"k": 1}, **ada}),
                Request("GET", base, query={"user_id": "ada", "top_k": "5"}),
                Request("GET", base + "/{memory_id}", values=memory),
                Request("GET", base + "/{memory_id}/history", values=memory),
                Request("PUT", base + "/{memory_id}", {"text": "Ada likes milk.", "metadata": {"a": 1}}, memory),
                Request("POST", base + "/{memory_id}/supersede", {"by": None}, memory),
            ]
        for base in ("/memories", "/v1/memories"):
            found += [
                Request("DELETE", base + "/{memory_id}", values={"memory_id": "none"}),
                Request("DELETE", base + "/{memory_id}", values={"memory_id": "none"}, query={"purge": "true"}),
                Request("DELETE", base, query={"user_id": "bob", "purge": "true"}),
            ]
        return [
            *found,
            Request(
                "DELETE",
                "/v2/entities/{kind}/{name:path}",
                values={"kind": "user", "name": "bob"},
                query={"purge": "true"},
            ),
            Request("DELETE", "/v1/batch", {"memories": [{"memory_id": "none"}]}),
            Request("POST", "/reset", {}),
        ]

    def _tools(self) -> list[Request]:
        if not _has_mcp():
            return []
        calls = {
            "/mcp": {
                "search": {"query": "river", "filters": ["path:*"]}, "get": {"path": self.document},
                "get_documents": {"targets": [self.document]}, "status": {},
            },
            "/mcp/memory": {
                "add_memory": {"text": "I like tea.", "metadata": {"k": 1}, "timestamp": "2026-05-08"},
                "search_memory": {"query": "tea", "filters": {"k": 1}}, "list_memories": {"top_k": 3},
                "update_memory": {"memory_id": "none", "text": "x"}, "delete_memory": {"memory_id": "none"},
                "supersede_memory": {"memory_id": "none", "by": "x"}, "memory_history": {"memory_id": "none"},
            },
        }  # fmt: skip
        made: list[Request] = []
        for path, tools in calls.items():
            for name, given in tools.items():
                params = {"name": name, "arguments": given}
                made.append(
                    Request("POST", path, {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
                )
            made += [Request("GET", path), Request("DELETE", path)]
        return made

    def kinds(self) -> set[tuple[str, str]]:
        """Method and path of everything that the server answers."""
        return {(path.method, path.path) for path in self.paths} | {("GET", "/openapi.json")}

    def names(self, request: Request) -> frozenset[str]:
        """The names of the fields that are obeyed in a request's body and query."""
        (kinds,) = {
            (path.body, path.query) for path in self.paths if (path.method, path.path) == (request.method, request.kind)
        } or {(None, None)}
        return names_in(kinds[0]) | names_in(kinds[1])


def _has_mcp() -> bool:
    import importlib.util

    return importlib.util.find_spec("mcp") is not None


@contextmanager
def site(models: Path, base: Path, *, shards: int = 0) -> Iterator[Site]:
    """A server inside this process, whose files are in `base`; its collection may be in shards."""
    config = config_of(models, base / "scratch", memory=anonymous_resident() + 10**9)
    (base / "documents").mkdir()
    (base / "documents" / "river.md").write_text(RIVER)
    with ExitStack() as stack:
        places = None
        if shards:
            places = stack.enter_context(LocalPlaces(config=config))
            with Cluster(base / "collection", places, config=config) as cluster:
                cluster.create([Replica(f"s{n}", 0, "", str(base / f"s{n}"), 10**11) for n in range(shards)])
                index(cluster, places.readers(1), [str(base / "documents")], progress=lambda _: None)
        else:
            with Collection(base / "collection", config=config) as collection:
                collection.index([base / "documents"])
        options = ServerOptions(
            collections=(str(base / "collection"),), memory=base / "memory", editor=Editor("true {path}"),
            opener=Editor("true {path}"), adds_folders=places is None, places=places,
        )  # fmt: skip
        server = stack.enter_context(HttpServer(config, options))
        found = Site(server, base)
        added = server.library.memory().add("Ada likes the sea.", user_id="ada")
        found.memory_id = added["results"][0]["id"]
        found.passage = server.library.together([]).search("river", rerank=False)[0].id
        yield found
