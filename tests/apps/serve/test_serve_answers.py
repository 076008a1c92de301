"""Many clients ask a server with a language model at once, and get the answers that they get alone."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from making.random_gguf import RandomModel, words

from edge.apps.plan.here import ServerPlan
from edge.planner.measured import Manner
from tests.apps.serve.conftest import Running

httpx = pytest.importorskip("httpx")
pytest.importorskip("llama_cpp")

CLIENTS = 8


def asked(running: Running, client: int) -> dict[str, Any]:
    """The answer to one of the clients' questions: from the documents, or from the language model alone."""
    with httpx.Client(base_url=running.url, timeout=300) as connection:
        if client % 2:
            messages = [{"role": "user", "content": words(5 + 40 * client, client)}]
            body = {"model": "llm", "messages": messages, "max_tokens": 30, "temperature": client % 4 // 2, "seed": 7}
            found = connection.post("/v1/chat/completions", json=body)
        else:
            body = {"question": f"{words(4, client)} river", "min_relevance": 0, "max_tokens": 30}
            found = connection.post("/v1/ask", json=body)
    assert found.status_code == 200, found.text
    answer: dict[str, Any] = found.json()
    if client % 2:
        return {"choices": answer["choices"], "usage": answer["usage"]}
    stats = answer["stats"]
    counted = {name: stats[name] for name in ("prompt_tokens", "new_tokens", "generations", "rounds", "interrupted")}
    return {"text": answer["text"], "citations": answer["citations"], **counted}


def test_clients_at_once_get_the_answers_that_they_get_alone(
    start_server: Callable[..., Running], tmp_path: Path
) -> None:
    model = RandomModel(hidden=128, context=4096).write(tmp_path / "tiny.gguf")
    running = start_server(
        "--llm", str(model), "--answers", "3", "--threads", "1", "--memory", "2GB", "--search-within", "0.5",
        "--generation", "exact", runtime=tmp_path / "run",
    )  # fmt: skip
    expected = [asked(running, client) for client in range(CLIENTS)]
    assert len({str(answer.get("text") or answer.get("choices")) for answer in expected}) > CLIENTS // 2
    found: dict[int, dict[str, Any]] = {}
    threads = [
        threading.Thread(target=lambda client=client: found.__setitem__(client, asked(running, client)))
        for client in range(CLIENTS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found.get(client) for client in range(CLIENTS)] == expected
    with running.client() as connection:
        engine = connection.get("/v1/engine").json()
    (answers,), (lists,) = engine["answers"], engine["lists"]
    assert (answers["model"], answers["most"], answers["cells"], answers["waiting"]) == (model.name, 3, None, 0)
    assert 1 <= len(answers["sequences"]) <= 3
    assert all(own["tokens"] <= answers["context"] for own in answers["sequences"])
    assert (lists["within"], lists["held"], lists["waiting"]) == (0.5, 0, 0), "a small collection has no lists to hold"
    assert running.stop()[0] == 0


def test_a_server_runs_a_plan(start_server: Callable[..., Running], tmp_path: Path) -> None:
    plan = ServerPlan(700_000_000, 1, False, "extractive", Manner(2, "shared", "exact", 1, 1))
    (tmp_path / "plan.json").write_text(json.dumps({"serve": asdict(plan)}))
    running = start_server("--plan", str(tmp_path / "plan.json"), runtime=tmp_path / "run")
    with running.client() as client:
        engine = client.get("/v1/engine").json()
        asked = [
            client.post("/v1/ask", json={"question": "When does the river flood?"} | more).json()
            for more in ({}, {"rerank": True, "passages": 3})
        ]
    assert engine["memory"]["limit"] == plan.memory
    assert len({citation["path"] for citation in asked[0]["citations"]}) == 1
    assert asked[0]["stats"]["best_relevance"] is None, "nothing was reranked"
    assert asked[1]["stats"]["best_relevance"] is not None
    assert running.stop()[0] == 0
