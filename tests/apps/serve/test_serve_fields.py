"""Every field of each dialect is obeyed, refused unless its value changes nothing, or known to change nothing."""

from __future__ import annotations

import ast
import inspect
import json
import typing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from edge.apps.memory.arguments import SCOPE_FIELDS
from edge.apps.serve import chats, collections, mem0, models, own
from edge.apps.serve.application import described
from edge.apps.serve.body import decoded
from edge.apps.serve.refusals import HttpRefusal
from edge.apps.verbs import memories, requests
from tests.apps.serve.conftest import Running
from tests.apps.serve.test_serve_security import connected

SUBJECTS = (chats, collections, mem0, models, own)
BODIES = sorted(
    {kind for subject in SUBJECTS for path in subject.PATHS for kind in (path.body, path.query) if kind is not None},
    key=lambda kind: kind.__name__,
)
FOLDER = Path(inspect.getfile(models)).parent

NEEDED = {
    "query": "a", "documents": ["a"], "inputs": "a", "input": "a", "messages": [], "question": "a", "targets": "a",
    "path": "a", "name": "a", "memories": [{"memory_id": "a"}], "texts": ["a"], "mode": "ranked", "threshold": "auto",
    "top_k": 1, "collection": "a", "pipeline": "a", "request": {}, "prompt": "a", "text_1": "a", "text_2": "a",
}  # fmt: skip


def least(kind: type[Any]) -> dict[str, Any]:
    """The required fields of a body, with values."""
    fields = msgspec.structs.fields(kind)
    return {field.name: NEEDED[field.name] for field in fields if field.required}


def read(body: dict[str, Any], kind: type[Any]) -> Any:
    return decoded(msgspec.json.encode(body), kind)


def attributes() -> set[str]:
    """All names that the server's code reads of objects, all texts in it, and the options that it reads together."""
    found = set(SCOPE_FIELDS)
    for path in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute):
                found.add(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "options_of":
                name = ast.unparse(node.args[1])
                found.update((getattr(requests, name, None) or getattr(memories, name)).options())
    return found


@pytest.mark.parametrize("kind", BODIES, ids=lambda kind: kind.__name__)
def test_every_field_is_obeyed_or_refused_or_harmless(kind: type[Any]) -> None:
    refused, harmless = getattr(kind, "REFUSED", {}), getattr(kind, "HARMLESS", ())
    names, known = {field.name for field in msgspec.structs.fields(kind)}, attributes()
    assert {*refused, *harmless} <= names
    assert not set(refused) & set(harmless)
    assert {name for name in names - {*refused, *harmless} if name not in known} == set(), "a field that nobody reads"
    for name in harmless:
        assert read({**least(kind), name: {"any": "value"}}, kind)
    for name, allowed in refused.items():
        with pytest.raises(HttpRefusal, match=f"the field `{name}` asks for something") as raised:
            read({**least(kind), name: "something else"}, kind)
        assert raised.value.status == 422
        for value in (None, *allowed):
            assert read({**least(kind), name: value}, kind)


def test_the_openapi_document_says_how_each_field_is_used() -> None:
    schemas = described([path for subject in SUBJECTS for path in subject.PATHS])["components"]["schemas"]
    assert schemas["ChatBody"]["properties"]["n"]["description"] == "Refused; it may be 1."
    assert schemas["ChatBody"]["properties"]["user"]["description"] == "Accepted, and changes nothing."
    assert schemas["EmbedBody"]["properties"]["normalize"]["description"] == "Refused; it may be true."
    assert schemas["RerankBody"]["required"] == ["query", "documents"]
    for name, schema in schemas.items():
        assert schema["description"], name
        assert "null" not in json.dumps({**schema, "description": ""}), name


TEI = {
    "EmbedBody": {"inputs", "normalize", "prompt_name", "truncate", "truncation_direction", "dimensions"},
    "TeiRerankBody": {"query", "texts", "raw_scores", "return_text", "truncate", "truncation_direction"},
}
JINA = {"model", "query", "documents", "top_n", "return_documents", "truncation", "return_embeddings"}
SCORE = {"model", "text_1", "text_2", "truncate_prompt_tokens", "priority", "user", "activation", "use_activation"}
OLLAMA = {"model", "input", "truncate", "options", "keep_alive", "dimensions"}
OWN_ACCOUNT = {"org_id", "project_id", "version", "output_format"}


def test_the_published_fields_of_the_dialects_are_known() -> None:
    chat = pytest.importorskip("openai.types.chat.completion_create_params").CompletionCreateParamsBase
    texts = pytest.importorskip("openai.types.completion_create_params").CompletionCreateParamsBase
    embeddings = pytest.importorskip("openai.types.embedding_create_params").EmbeddingCreateParams
    response = pytest.importorskip("openai.types.responses.response_create_params").ResponseCreateParamsBase
    messages = pytest.importorskip("anthropic.types.message_create_params").MessageCreateParamsBase
    beta = pytest.importorskip("anthropic.types.beta.message_create_params").MessageCreateParamsBase
    counted = pytest.importorskip("anthropic.types.message_count_tokens_params").MessageCountTokensParams
    cohere = pytest.importorskip("cohere")
    published: list[tuple[type[Any], set[str]]] = [
        (chats.ChatBody, set(typing.get_type_hints(chat))),
        (chats.CompletionBody, set(typing.get_type_hints(texts))),
        (models.EmbeddingsBody, set(typing.get_type_hints(embeddings))),
        *((models.RerankBody, set(inspect.signature(client.rerank).parameters) - {"self", "request_options"})
          for client in (cohere.Client, cohere.ClientV2)),
        (models.RerankBody, JINA),
        (models.ScoreBody, SCORE),
        (models.OllamaEmbedBody, OLLAMA),
        (models.OllamaShowBody, {"model", "name", "verbose", "system", "template", "options"}),
        (chats.ResponsesBody, set(typing.get_type_hints(response))),
        (chats.MessagesBody, set(typing.get_type_hints(messages)) | {"temperature", "top_p", "top_k", "stream"}),
        (chats.MessagesBody, set(typing.get_type_hints(beta))),
        (chats.CountBody, set(typing.get_type_hints(counted))),
        (models.EmbedBody, TEI["EmbedBody"]),
        (models.TeiRerankBody, TEI["TeiRerankBody"]),
    ]  # fmt: skip
    for kind, names in published:
        assert names - set(kind.__struct_fields__) == set(), kind.__name__


def test_the_published_fields_of_mem0_are_known() -> None:
    types = pytest.importorskip("mem0.client.types")
    for kinds, options in (
        ([mem0.AddBody], types.AddMemoryOptions),
        ([mem0.FindBody], types.SearchMemoryOptions),
        ([mem0.ListBody, mem0.PageQuery], types.GetAllMemoryOptions),
        ([mem0.ChangeBody], types.UpdateMemoryOptions),
        ([mem0.DeleteQuery], types.DeleteAllMemoryOptions),
    ):
        known = {name for kind in kinds for name in kind.__struct_fields__}
        assert set(options.model_fields) - known == set(), options.__name__
    assert {*SCOPE_FIELDS, *OWN_ACCOUNT} <= set(mem0.AddBody.__struct_fields__)


@pytest.mark.parametrize(
    ("path", "name"), [("/v1/embeddings", "input"), ("/embed", "inputs"), ("/api/embed", "input"),
                       ("/v1/completions", "prompt")],
)  # fmt: skip
@pytest.mark.parametrize("tokens", [[1, 2], [[1, 2], [3]], ["a", 5]])
def test_numbers_of_tokens_are_refused_with_the_remedy(server: Running, path: str, name: str, tokens: Any) -> None:
    with server.client() as client:
        answer = client.post(path, json={name: tokens})
    assert answer.status_code == 422
    assert f"`{name}` holds numbers of tokens, which mean other words to another model: send the texts" in answer.text


def test_the_later_paths_answer_as_the_others(server: Running) -> None:
    texts = ["The river floods.", "Bread."]
    with server.client() as client:
        asked = {"query": "river", "documents": texts}
        first = client.post("/v1/rerank", json=asked).json()["results"]
        for path in ("/v1/reranking", "/reranking", "/api/rerank"):
            assert client.post(path, json=asked).json()["results"] == first
        judged = client.post("/v1/score", json={"text_1": "river", "text_2": texts}).json()
        assert [entry["score"] for entry in judged["data"]] == [
            next(found["relevance_score"] for found in first if found["index"] == place) for place in range(2)
        ]
        pairs = client.post("/score", json={"text_1": ["bread", "river"], "text_2": texts[::-1]}).json()["data"]
        assert (pairs[1]["index"], pairs[1]["score"]) == (1, pytest.approx(judged["data"][0]["score"], abs=1e-6))
        assert client.post("/score", json={"text_1": ["a", "b"], "text_2": "c"}).status_code == 422
        embedded = client.post("/v1/embeddings", json={"input": texts}).json()["data"]
        assert client.post("/api/embed", json={"input": texts}).json()["embeddings"] == [
            e["embedding"] for e in embedded
        ]
        assert client.get("/v1/models/default").json() == client.get("/v1/models").json()["data"][0]
        said = {"model": "default", "prompt": "When does the river flood?"}
        chat = {"model": "default", "messages": [{"role": "user", "content": said["prompt"]}]}
        whole, talk = (
            client.post(f"/v1/{kind}completions", json=body).json() for kind, body in (("", said), ("chat/", chat))
        )
        assert whole["choices"][0]["text"] == talk["choices"][0]["message"]["content"]
        assert whole["citations"] == talk["citations"]
        lines = client.post("/v1/completions", json={**said, "stream": True}).text.splitlines()
        parts = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        assert "".join(part["choices"][0]["text"] for part in parts) == whole["choices"][0]["text"]
        assert client.post("/v1/completions", json={**said, "prompt": ["a", "b"]}).status_code == 422


OPENAI = {"message", "type", "param", "code"}
EVENT = {"type": str, "message": str, "param": object, "code": object, "sequence_number": int, "error": OPENAI}


@pytest.mark.parametrize(
    ("path", "status", "shape"),
    [
        ("/v1/models/nothing", 404, {"error": OPENAI}),
        ("/v1/chat/completions", 405, {"error": OPENAI}),
        ("/v1/messages", 405, {"type": str, "error": {"message", "type"}}),
        ("/v1/responses", 405, EVENT),
        ("/api/show", 405, {"error": str}),
        ("/embed", 405, {"error": str, "error_type": str}),
        ("/api/embed", 405, {"error": str}),
        ("/v2/rerank", 405, {"message": str}),
        ("/v1/rerank", 405, {"detail": str, "message": str, "status": int}),
        ("/nothing", 404, {"detail": str, "status": int}),
    ],
)
def test_every_refusal_has_the_shape_of_its_dialect(
    server: Running, path: str, status: int, shape: dict[str, Any]
) -> None:
    with server.client() as client:
        answers = [client.get(path)]
        strange = client.post(path, json={}, headers={"Origin": "http://elsewhere.example"})
        if status == 405:
            answers.append(strange)
    assert [answer.status_code for answer in answers] == [status, 403][: len(answers)]
    for answer in answers:
        said = answer.json()
        assert said.keys() == shape.keys()
        for name, kind in shape.items():
            assert said[name].keys() == kind if isinstance(kind, set) else isinstance(said[name], kind)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("model", ["llm", "default"])
def test_a_reply_that_the_most_tokens_cut_says_so(writing: Running, model: str, stream: bool) -> None:
    history = [
        {"role": "user", "content": "What is the weather?"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "type": "function", "function": {}}]},
    ]
    messages = [*history, {"role": "user", "content": "When does the river flood?"}]
    body = {"model": model, "messages": messages, "max_tokens": 5, "check": False, "min_score": 0, "stream": stream}
    with writing.client() as client:
        answer = client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        stopped = client.post("/v1/chat/completions", json={**body, "stop": ["x"], "stream": False})
    if stream:
        *_, last, done = [line for line in answer.text.splitlines() if line.startswith("data: ")]
        assert (json.loads(last[6:])["choices"][0]["finish_reason"], done) == ("length", "data: [DONE]")
    else:
        assert answer.json()["choices"][0]["finish_reason"] == "length"
    assert stopped.status_code == (200 if model == "llm" else 422)


def test_a_request_with_two_ends_is_refused_and_its_connection_closed(server: Running) -> None:
    raw = connected(server)
    head = b"POST /v1/rerank HTTP/1.1\r\nHost: localhost\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n"
    raw.sendall(head + b"0\r\n\r\nGET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    raw.settimeout(10)
    said = b"".join(iter(lambda: raw.recv(1 << 16), b""))
    assert said.startswith(b"HTTP/1.1 400 ")
    assert said.count(b"HTTP/1.1 ") == 1
