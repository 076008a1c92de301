"""The doors for agents, asked by the clients of their services: Anthropic's messages, OpenAI's responses, Ollama."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from making.random_gguf import RandomModel
from making.synth import synth

from edge.apps.serve.models import OllamaShowBody, show, tags
from edge.config import Config
from edge.models.registry import KNOWN, generator_path
from tests.apps.serve.conftest import BEGINNING, Running, Writer
from tests.apps.serve.test_serve_rerank import QUERY

ASKED = [{"role": "user", "content": f"{QUERY}?"}]


@pytest.fixture
def own(server: Running) -> Any:
    """The answer of the server's own interface."""
    with server.client() as client:
        return client.post("/v1/ask", json={"question": f"{QUERY}?"}).json()


def test_anthropics_client(server: Running, own: Any) -> None:
    anthropic = pytest.importorskip("anthropic")
    client = anthropic.Anthropic(api_key="none", base_url=server.url, max_retries=0)
    asked: Any = {"model": "claude-opus-4-7", "max_tokens": 300, "messages": ASKED, "system": "Be brief."}
    whole = client.messages.create(**asked, thinking={"type": "enabled", "budget_tokens": 1024}, tools=[])
    assert [part.text for part in whole.content] == [own["text"]]
    assert (whole.stop_reason, whole.role) == ("end_turn", "assistant")
    assert whole.model_dump()["citations"] == own["citations"]
    with client.messages.stream(**asked) as stream:
        assert "".join(stream.text_stream).strip() == own["text"]
        last = stream.get_final_message()
    assert last.stop_reason == "end_turn"
    assert last.usage.output_tokens == whole.usage.output_tokens
    assert client.messages.count_tokens(model="default", messages=ASKED).input_tokens > 3
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
    for wrong, said in (
        ({"messages": [{"role": "user", "content": [picture]}]}, "pictures and sound cannot be read"),
        ({"messages": []}, "the last message is the question"),
        ({"stop_sequences": ["x"]}, "`stop_sequences` is obeyed by a language model alone"),
        ({"tool_choice": {"type": "any"}}, "`tool_choice` asks for something"),
        ({"extra_body": {"top_k": 5}}, "`top_k` asks for something"),
    ):
        with pytest.raises(anthropic.UnprocessableEntityError, match=said):
            client.messages.create(**{**asked, **wrong})
    with pytest.raises(anthropic.APIError, match="only picks sentences"):
        client.messages.create(**{**asked, "model": "llm"})
    with (
        pytest.raises(anthropic.APIError, match="only picks sentences"),
        client.messages.stream(**{**asked, "model": "llm"}) as stream,
    ):
        stream.get_final_message()


def test_openais_responses(server: Running, own: Any) -> None:
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(api_key="none", base_url=f"{server.url}/v1", max_retries=0)
    items: Any = [{"role": "user", "content": [{"type": "input_text", "text": f"{QUERY}?"}]}]
    whole = client.responses.create(model="gpt-5", input=f"{QUERY}?", instructions="Be brief.", store=False)
    assert (whole.output_text, whole.status) == (own["text"], "completed")
    assert whole.model_dump()["citations"] == own["citations"]
    with client.responses.stream(model="default", input=items) as stream:
        kinds = [event.type for event in stream]
        last = stream.get_final_response()
    assert last.output_text.strip() == own["text"]
    assert last.usage == whole.usage
    assert [kinds[0], kinds[-1]] == ["response.created", "response.completed"]
    numbers = [event.sequence_number for event in client.responses.create(model="default", input=items, stream=True)]
    assert numbers == list(range(len(numbers)))
    for wrong, said in (
        ({"previous_response_id": "resp_1"}, "nothing of it is stored here"),
        ({"conversation": "conv_1"}, "nothing of it is stored here"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "which this server cannot read"),
        ({"input": [{"content": "x"}]}, "role` is missing"),
        ({"input": []}, "no messages"),
        ({"text": {"format": {"type": "json_object"}}}, "`text` asks for something"),
    ):
        with pytest.raises(openai.UnprocessableEntityError, match=said):
            client.responses.create(**{"model": "default", "input": "a?", **wrong})
    with pytest.raises(openai.APIError, match="only picks sentences"):
        list(client.responses.create(model="llm", input="a?", stream=True))


def test_ollamas_client(server: Running) -> None:
    ollama = pytest.importorskip("ollama")
    client = ollama.Client(host=server.url)
    (entry,) = (model for model in client.list().models if model.model == "tiny-embedder")
    assert all((entry.size, entry.digest, entry.modified_at))
    shown = client.show("tiny-embedder:latest")
    assert shown.capabilities == ["embedding"]
    assert client.show("tiny").capabilities == []
    family = shown.modelinfo["general.architecture"]
    found = np.array(client.embed(model="tiny-embedder:latest", input=["a", "b"]).embeddings)
    assert found.shape == (2, shown.modelinfo[f"{family}.embedding_length"])
    with pytest.raises(ollama.ResponseError, match="not found"):
        client.show("nothing")


def test_generators_are_listed_and_damaged_models_are_not(tmp_path: Path) -> None:
    name = next(name for name, known in KNOWN.items() if known.kind == "generator")
    RandomModel(context=4096).write(generator_path(name, tmp_path))
    synth("tiny-bert", tmp_path / "whole").close()
    synth("tiny-bert", tmp_path / "damaged").close()
    (tmp_path / "damaged" / "edge.json").write_text("{}")
    call: Any = SimpleNamespace(library=SimpleNamespace(pool=SimpleNamespace(config=Config(models_dir=str(tmp_path)))))
    listed = {entry["name"]: entry for entry in tags(call)["models"]}
    assert {name, "whole"} <= listed.keys()
    assert "damaged" not in listed
    assert listed[name]["details"]["format"] == "gguf"
    shown = show(call, OllamaShowBody(name=name))
    assert (shown["capabilities"], shown["model_info"]["llama.context_length"]) == (["completion"], 4096)


CALL = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
TALKS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Sun?"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c", "content": "It shines."}, {"role": "user", "content": "And now?"},
    ]},
    "/v1/messages": {"system": "Be brief.", "messages": [
        {"role": "user", "content": "Sun?"},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "tool_use", "id": "c", "name": "weather", "input": {}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "c", "content": "It shines."}, {"type": "text", "text": "And now?"},
        ]},
    ]},
    "/v1/responses": {"instructions": "Be brief.", "input": [
        {"role": "user", "content": "Sun?"}, {"type": "reasoning", "summary": []},
        {"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "It shines."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "And now?"}]},
    ]},
}  # fmt: skip
"""One conversation in each dialect."""

MOST = {"/v1/chat/completions": "max_tokens", "/v1/messages": "max_tokens", "/v1/responses": "max_output_tokens"}


def test_one_conversation_is_told_alike_and_cut_alike_in_each_dialect(writing: Running, writer: Writer) -> None:
    told, ended = [], []
    with writing.client() as client:
        for path, body in TALKS.items():
            asked = {**body, "model": "llm", MOST[path]: 5, "temperature": 0.5}
            answer = client.post(path, json=asked)
            assert answer.status_code == 200, answer.text
            assert BEGINNING in answer.text
            ended.append(answer.json())
            told.append({name: writer.last[name] for name in ("messages", "max_tokens", "temperature")})
    assert told[0] == told[1] == told[2]
    assert told[0]["max_tokens"] == 5
    assert ended[0]["choices"][0]["finish_reason"] == "length"
    assert ended[1]["stop_reason"] == "max_tokens"
    assert (ended[2]["status"], ended[2]["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    with writing.client() as client:
        body = {**TALKS["/v1/messages"], "model": "llm", "stop_sequences": ["!"], "max_tokens": 100}
        stopped = client.post("/v1/messages", json=body).json()
    assert (stopped["content"][0]["text"], stopped["stop_reason"]) == (BEGINNING, "end_turn")


@pytest.mark.parametrize("path", TALKS)
def test_a_client_that_goes_away_ends_the_writing(writing: Running, writer: Writer, path: str) -> None:
    body = {**TALKS[path], "model": "llm", MOST[path]: 100_000, "stream": True}
    with writing.client() as client:
        with client.stream("POST", path, json=body) as answer:
            lines = answer.iter_lines()
            assert any("river" in line for line in lines)
        assert writer.left.wait(60), "the server goes on writing what nobody reads"
        assert client.get("/health").json()["ready"]


def test_a_server_listens_on_ipv6s_loopback(start_server: Callable[..., Running], tmp_path: Path) -> None:
    running = start_server("--host", "::1", runtime=tmp_path / "run")
    assert running.url.startswith("http://[::1]:")
    with running.client() as client:
        assert client.post("/v1/search", json={"query": QUERY}).status_code == 200
        assert client.get("/v1/models", headers={"Origin": running.url}).status_code == 200
        assert client.get("/v1/models", headers={"Origin": "http://[::2]"}).status_code == 403
