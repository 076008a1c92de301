"""Clients that people use, unchanged but for the address, against a server that runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from naive.mcp_answers import data_of
from naive.waiting import result_of

from edge.config import Config
from edge.models.registry import resolve
from edge.runtimes.embedder import Embedder
from tests.apps.serve.conftest import Running, Writer
from tests.apps.serve.test_serve_rerank import DOCS, QUERY, expected

__all__ = ["expected"]


@pytest.fixture(scope="module")
def order(expected: dict[str, list[tuple[int, float]]]) -> list[tuple[int, float]]:
    """What the library says: indexes and scores, best first."""
    return expected[QUERY]


@pytest.fixture(scope="module")
def vectors(served_settings: dict[str, str]) -> np.ndarray:
    config = Config(memory=10**11, scratch_dir=served_settings["EDGE_SCRATCH_DIR"])
    with Embedder(f"{served_settings['EDGE_MODELS_DIR']}/tiny-embedder", config=config) as embedder:
        return embedder.embed(DOCS)


@pytest.mark.parametrize("version", ["Client", "ClientV2"])
def test_coheres_clients(server: Running, order: list[tuple[int, float]], version: str) -> None:
    cohere = pytest.importorskip("cohere")
    client = getattr(cohere, version)(api_key="none", base_url=server.url)
    found = client.rerank(model="rerank-v3.5", query=QUERY, documents=DOCS, top_n=3)
    assert [(r.index, r.relevance_score) for r in found.results] == order[:3]
    with pytest.raises(cohere.core.ApiError, match="no documents"):
        client.rerank(model="rerank-v3.5", query=QUERY, documents=[])


def test_langchains_cohere_reranker(server: Running, order: list[tuple[int, float]]) -> None:
    langchain = pytest.importorskip("langchain_cohere")
    documents = pytest.importorskip("langchain_core.documents")
    reranker = langchain.CohereRerank(
        cohere_api_key="none", base_url=server.url, model="rerank-v3.5", top_n=3, user_agent="test"
    )
    found = reranker.compress_documents([documents.Document(page_content=doc) for doc in DOCS], QUERY)
    assert [doc.page_content for doc in found] == [DOCS[index] for index, _ in order[:3]]


def test_llamaindexs_index_and_reranker(server: Running, order: list[tuple[int, float]], vectors: np.ndarray) -> None:
    """Its integrations of text-embeddings-inference fill an index, search it and rerank what is found."""
    core = pytest.importorskip("llama_index.core")
    embeddings = pytest.importorskip("llama_index.embeddings.text_embeddings_inference")
    reranking = pytest.importorskip("llama_index.postprocessor.tei_rerank")
    embedder = embeddings.TextEmbeddingsInference(model_name="any", base_url=server.url)
    nodes = [core.schema.TextNode(id_=str(number), text=doc) for number, doc in enumerate(DOCS)]
    index = core.VectorStoreIndex(nodes, embed_model=embedder)
    found = index.as_retriever(similarity_top_k=len(DOCS)).retrieve(QUERY)
    stored = index.vector_store.data.embedding_dict
    np.testing.assert_allclose([stored[str(number)] for number in range(len(DOCS))], vectors, atol=1e-6)
    asked = np.array(embedder.get_query_embedding(QUERY))
    assert [node.score for node in found] == pytest.approx(sorted(vectors @ asked, reverse=True), abs=1e-5)
    reranker = reranking.TextEmbeddingInference(base_url=server.url, top_n=3)
    best = reranker.postprocess_nodes(found, query_str=QUERY)
    assert [node.text for node in best] == [DOCS[index] for index, _ in order[:3]]
    assert [node.score for node in best] == pytest.approx([score for _, score in order[:3]])


@pytest.mark.parametrize("how", ["--no-stream", "--key=none"])
def test_the_program_llm_answers_from_a_collection(server: Running, tmp_path: Path, how: str) -> None:
    """A whole program, as a person starts it; its file of models names the server."""
    pytest.importorskip("llm")
    models = f"- model_id: notes\n  model_name: default\n  api_base: {server.url}/v1\n"
    (tmp_path / "extra-openai-models.yaml").write_text(models)
    done = subprocess.run(
        [sys.executable, "-m", "llm", "prompt", "-m", "notes", "--no-log", how, f"{QUERY}?"],
        env={**os.environ, "LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "none"}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with server.client() as client:
        own = client.post("/v1/ask", json={"question": f"{QUERY}?"}).json()
    assert done.stdout.strip() == own["text"]


def test_openais_embeddings(server: Running, vectors: np.ndarray) -> None:
    """The client asks for base64 by itself; `float` and `dimensions` are the others' ways."""
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(api_key="none", base_url=f"{server.url}/v1")
    found = client.embeddings.create(model="text-embedding-3-small", input=DOCS)
    np.testing.assert_array_equal(np.array([item.embedding for item in found.data], np.float32), vectors)
    assert found.usage.prompt_tokens > len(DOCS)
    floats = client.embeddings.create(model="tiny-embedder", input=DOCS[0], encoding_format="float")
    np.testing.assert_array_equal(np.array(floats.data[0].embedding, np.float32), vectors[0])
    short = client.embeddings.create(model="tiny-embedder", input=DOCS, dimensions=8)
    assert np.linalg.norm([item.embedding for item in short.data], axis=1) == pytest.approx(1, abs=1e-6)
    assert len(short.data[0].embedding) == 8
    for wrong in ({"input": []}, {"input": [[1, 2]]}, {"dimensions": 10_000}, {"encoding_format": "hex"}):
        with pytest.raises(openai.UnprocessableEntityError):
            client.embeddings.create(**{"model": "x", "input": DOCS, **wrong})


def test_openais_chat_answers_from_a_collection(server: Running) -> None:
    """Citations come with the last piece, and the counts of tokens after it where they are asked for."""
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(api_key="none", base_url=f"{server.url}/v1")
    assert {"default", "llm", "tiny", "tiny-embedder"} <= {model.id for model in client.models.list()}
    messages: Any = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": f"{QUERY}?"}]},
    ]
    whole = client.chat.completions.create(model="gpt-4o", messages=messages)
    with server.client() as raw:
        own = raw.post("/v1/ask", json={"question": f"{QUERY}?"}).json()
    assert whole.choices[0].message.content == own["text"]
    assert whole.model_dump()["citations"] == own["citations"]
    asked: Any = {"model": "default", "messages": messages, "stream": True}
    *pieces, last, counts = client.chat.completions.create(**asked, stream_options={"include_usage": True})
    assert "".join(piece.choices[0].delta.content for piece in pieces).strip() == own["text"]
    assert {piece.choices[0].finish_reason for piece in pieces} == {None}
    assert last.choices[0].finish_reason == "stop"
    assert last.model_dump()["citations"] == own["citations"] != []
    assert (counts.choices, counts.usage) == ([], whole.usage)
    assert len({piece.id for piece in (*pieces, last, counts)}) == 1
    assert all(piece.choices for piece in client.chat.completions.create(**asked)), "no counts unless asked for"
    with pytest.raises(openai.APIStatusError, match="only picks sentences"):
        client.chat.completions.create(model="llm", messages=messages)
    for wrong in ([], [{"role": "user", "content": [{"type": "text", "text": 5}]}], [{"role": "user"}]):
        with pytest.raises(openai.UnprocessableEntityError):
            client.chat.completions.create(model="default", messages=wrong)


def test_litellms_routes(server: Running, order: list[tuple[int, float]], vectors: np.ndarray) -> None:
    """One client that speaks each dialect as its own service does, down to the names of the paths."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else it asks GitHub for prices
        litellm = pytest.importorskip("litellm")
    asked: dict[str, Any] = {"query": QUERY, "documents": DOCS, "api_key": "none"}
    for service, path in (
        ("cohere", ""), ("cohere", "/v2/rerank"), ("jina_ai", ""), ("jina_ai", "/v1/rerank"),
        ("infinity", "/infinity"), ("hosted_vllm", ""), ("huggingface", ""),
    ):  # fmt: skip
        found = litellm.rerank(model=f"{service}/any", api_base=server.url + path, top_n=3, **asked).results
        assert [(each["index"], each["document"]["text"]) for each in found[:3]] == [
            (index, DOCS[index]) for index, _ in order[:3]
        ], service
    for service, path in (
        ("openai", "/v1"), ("jina_ai", "/v1"), ("infinity", "/v1"), ("hosted_vllm", "/v1"), ("ollama", ""),
    ):  # fmt: skip
        made = litellm.embedding(model=f"{service}/any", api_base=server.url + path, api_key="none", input=DOCS).data
        np.testing.assert_allclose([each["embedding"] for each in made], vectors, atol=1e-6, err_msg=service)
    said = {"api_base": f"{server.url}/v1", "api_key": "none"}
    messages = [{"role": "user", "content": f"{QUERY}?"}]
    whole = litellm.completion(model="openai/default", messages=messages, **said).choices[0]
    pieces = litellm.completion(model="openai/default", messages=messages, stream=True, **said)
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == whole.message.content
    text = litellm.text_completion(model="text-completion-openai/default", prompt=f"{QUERY}?", **said)
    assert text.choices[0].text == whole.message.content
    with pytest.raises(litellm.BadRequestError, match="`n` asks for something"):
        litellm.completion(model="openai/default", messages=messages, n=2, **said)


CALLED = {"name": "weather", "args": {"city": "Porto"}, "id": "a"}


def test_langchains_history_with_called_tools(server: Running, writing: Running, writer: Writer) -> None:
    """A message that called tools has no content, and what they returned follows it. A question to a collection is the
    last message; a language model is also told of the tools."""
    langchain = pytest.importorskip("langchain_openai")
    said = pytest.importorskip("langchain_core.messages")
    returned = said.ToolMessage("yes", tool_call_id="a")
    weather = [said.HumanMessage("Sun?"), said.AIMessage("", tool_calls=[CALLED]), returned]
    history = [said.SystemMessage("Be brief."), *weather, said.AIMessage("It shines."), said.HumanMessage(f"{QUERY}?")]

    def model(running: Running, name: str) -> Any:
        return langchain.ChatOpenAI(model=name, api_key="none", base_url=f"{running.url}/v1", max_tokens=5)

    of_documents = model(server, "default")
    told = of_documents.invoke([history[0], history[1], *history[-2:]]).content
    called = of_documents.bind_tools([{"type": "function", "function": {"name": "weather"}}]).invoke(history)
    assert called.content == told
    assert told
    with pytest.raises(Exception, match="the last message is the question"):
        of_documents.invoke(history[:4])
    assert model(writing, "llm").invoke(history).response_metadata["finish_reason"] == "length"
    assert [(message["role"], message["content"]) for message in writer.last["messages"]] == [
        ("system", "Be brief."), ("user", "Sun?\n\nResult of a tool: yes"), ("assistant", "It shines."),
        ("user", f"{QUERY}?"),
    ]  # fmt: skip
    model(writing, "llm").invoke(weather)
    assert [message["role"] for message in writer.last["messages"]] == ["user"]


def test_text_embeddings_inference(server: Running, vectors: np.ndarray) -> None:
    """The hub's client speaks to text-embeddings-inference as `/embed`; `huggingface_hub` is a dependency already."""
    hub = pytest.importorskip("huggingface_hub")
    with server.client() as client:
        found = client.post("/embed", json={"inputs": DOCS}).json()
        info = client.get("/info").json()
    np.testing.assert_array_equal(np.array(found, np.float32), vectors)
    with resolve("tiny-embedder", kind="embedder", directory=Path(server.environment["EDGE_MODELS_DIR"])) as model:
        spec = model.spec
    assert info["model_id"] == "tiny-embedder"
    assert info["model_dtype"].startswith(spec.layer.precision[:2].replace("fp", "fl"))
    assert info["model_type"]["embedding"]["pooling"] == {"mean": "mean", "first-token": "cls"}[spec.head.kind]
    assert 0 < info["max_input_length"] <= spec.positions
    one = hub.InferenceClient(base_url=f"{server.url}/embed").feature_extraction(DOCS[0])
    np.testing.assert_array_equal(np.asarray(one, np.float32).reshape(-1), vectors[0])


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_mcp_over_http(server: Running, mode: str) -> None:
    """`auto` is the newest revision that the client knows, which has no sessions; `legacy` is the newest with them."""
    mcp = pytest.importorskip("mcp")

    async def talk() -> tuple[set[str], Any, set[str], Any]:
        async with mcp.Client(f"{server.url}/mcp", mode=mode) as client:
            assert client.protocol_version == {"auto": mcp.types.LATEST_PROTOCOL_VERSION, "legacy": "2025-11-25"}[mode]
            assert (await client.call_tool("search", {"query": ""})).is_error
            tools = {tool.name for tool in (await client.list_tools()).tools}
            found = data_of(await client.call_tool("search", {"query": QUERY, "top_k": 2, "brief": False}))
        async with mcp.Client(f"{server.url}/mcp/memory", mode=mode) as client:
            others = {tool.name for tool in (await client.list_tools()).tools}
            await client.call_tool("add_memory", {"text": "Alice keeps bees."})
            known = data_of(await client.call_tool("search_memory", {"query": "bees"}))
        return tools, found, others, known

    tools, found, others, known = result_of(talk())
    assert tools == {"search", "get", "get_documents", "status"}
    assert others == {
        "add_memory", "search_memory", "list_memories", "memory_history", "update_memory", "supersede_memory",
        "delete_memory",
    }  # fmt: skip
    with server.client() as client:
        same = client.post("/v1/search", json={"query": QUERY, "top_k": 2}).json()["results"]
    assert [result["id"] for result in found["results"]] == [result["id"] for result in same]
    assert [memory["memory"] for memory in known["results"]] == ["Alice keeps bees."]


@pytest.mark.parametrize("version", ["2025-11-25", "2025-06-18", "2025-03-26"])
def test_mcp_in_older_revisions_by_hand(server: Running, version: str) -> None:
    pytest.importorskip("mcp")
    headers = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": version}
    begin = {
        "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
    }  # fmt: skip
    call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "status", "arguments": {}}}
    with server.client(headers=headers) as client:
        assert client.post("/mcp", json=begin).json()["result"]["protocolVersion"] == version
        assert data_of(client.post("/mcp", json=call).json()["result"])["files"] == 3
        assert client.get("/mcp").status_code == 405
        assert client.post("/mcp", content=b"x" * (9 << 20)).status_code == 413


@pytest.fixture
def mem0(start_server: Callable[..., Running], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """mem0's client of a server with an empty memory."""
    monkeypatch.setenv("MEM0_TELEMETRY", "False")
    monkeypatch.setenv("MEM0_DIR", str(tmp_path / "mem0"))
    module = pytest.importorskip("mem0")
    server = start_server("--memory-path", str(tmp_path / "memory"), runtime=tmp_path / "run")
    return module.MemoryClient(api_key="none", host=server.url)


def test_mem0s_client(mem0: Any) -> None:
    added = mem0.add([{"role": "user", "content": "I am allergic to peanuts."}], user_id="alice")["results"]
    mem0.add("My sister lives in Porto.", user_id="alice", metadata={"category": "family"})
    mem0.add("I like peanuts.", user_id="bob")
    found = mem0.search("where does the sister live", filters={"user_id": "alice"})["results"]
    assert {memory["memory"] for memory in found} == {"I am allergic to peanuts.", "My sister lives in Porto."}
    listed = mem0.get_all(filters={"user_id": "alice"})
    assert listed["count"] == 2
    name = added[0]["id"]
    mem0.update(name, text="I am allergic to nuts.")
    assert mem0.get(name)["memory"] == "I am allergic to nuts."
    assert [entry["event"] for entry in mem0.history(name)] == ["ADD", "UPDATE"]
    mem0.delete(name)
    mem0.delete_all(user_id="alice")
    assert mem0.get_all(filters={"user_id": "alice"})["results"] == []
    assert len(mem0.get_all(filters={"user_id": "bob"})["results"]) == 1


def test_mem0s_client_with_entities_batches_and_pages(mem0: Any) -> None:
    """The verbs about memories that the first test does not use. The others are about its service's accounts."""
    names = [
        mem0.add(f"Ann keeps {animal}.", user_id="ann/a", run_id="r")["results"][0]["id"]
        for animal in ("bees", "hens", "cats", "dogs", "fish")
    ]
    mem0.add("Bob rows.", user_id="bob", agent_id="coder")
    told = {(entity["type"], entity["name"]): entity["total_memories"] for entity in mem0.users()["results"]}
    assert told == {("user", "ann/a"): 5, ("user", "bob"): 1, ("agent", "coder"): 1, ("run", "r"): 5}

    pages = [mem0.get_all(filters={"user_id": "ann/a"}, page=page, page_size=2) for page in (1, 2, 3)]
    assert [memory["id"] for page in pages for memory in page["results"]] == names[::-1]
    assert [page["next"] is None for page in pages] == [False, False, True]
    assert [page["previous"] is None for page in pages] == [True, False, False]

    mem0.batch_update([
        {"memory_id": names[0], "text": "Ann kept bees."}, {"memory_id": names[1], "metadata": {"seen": True}},
    ])  # fmt: skip
    assert mem0.get(names[0])["memory"] == "Ann kept bees."
    assert mem0.get(names[1])["metadata"] == {"seen": True}
    bad: list[dict[str, Any]] = [
        {"memory_id": "nothing", "text": "x"}, {"memory_id": names[3]}, {"memory_id": names[3], "text": 3},
        {"memory_id": names[3], "metadata": "x"},
    ]  # fmt: skip
    for change in bad:
        with pytest.raises(Exception, match=r"nothing was changed|text|metadata"):
            mem0.batch_update([{"memory_id": names[2], "text": "Never."}, change])
    with pytest.raises(Exception, match="nothing was changed"):
        mem0.batch_delete([{"memory_id": names[2]}, {"memory_id": "nothing"}])
    assert mem0.get(names[2])["memory"] == "Ann keeps cats."
    mem0.batch_delete([{"memory_id": name} for name in names[2:]])
    assert mem0.get_all(filters={"user_id": "ann/a"})["count"] == 2
    mem0.delete_users(user_id="ann/a")
    assert [entity["name"] for entity in mem0.users()["results"]] == ["bob", "coder"]
    mem0.reset()
    assert mem0.users()["results"] == []


def test_mem0s_rest_server(start_server: Callable[..., Running], tmp_path: Any) -> None:
    """The requests of its self-hosted server, which tools send by themselves."""
    server = start_server("--memory-path", str(tmp_path / "memory"), runtime=tmp_path / "run")
    alice = {"user_id": "alice"}
    with server.client() as client:
        made = client.post("/memories", json={"messages": [{"role": "user", "content": "I keep bees."}], **alice})
        name = made.json()["results"][0]["id"]
        assert client.get("/memories", params=alice).json()["results"][0]["memory"] == "I keep bees."
        assert client.get("/memories/", params={"user_id": "bob"}).json()["results"] == []
        assert client.post("/search", json={"query": "bees", **alice}).json()["results"][0]["id"] == name
        assert client.put(f"/memories/{name}", json={"text": "I kept bees."}).status_code == 200
        assert client.put(f"/memories/{name}", json={"pinned": True}).status_code == 200
        assert client.get(f"/memories/{name}").json()["pinned"]
        events = [entry["event"] for entry in client.get(f"/memories/{name}/history").json()]
        assert events == ["ADD", "UPDATE", "PIN"]
        for method, body in (("GET", None), ("PUT", {"text": "x"}), ("DELETE", None)):
            assert client.request(method, "/memories/nothing", json=body).status_code == 404
        assert client.put(f"/memories/{name}", json={}).status_code == 422
        assert client.delete("/memories").status_code == 422, "a scope must be named"
        assert client.delete("/memories", params=alice).status_code == 200
        client.post("/memories", json={"messages": "Without a name it is the default user's."})
        assert len(client.get("/memories").json()["results"]) == 1
        assert client.post("/reset").status_code == 200
        assert client.get("/memories").json()["results"] == []
    document = json.dumps(made.json())
    assert "I keep bees." in document
