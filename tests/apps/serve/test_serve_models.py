"""The models of the server, and its health."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from making.synth import synth
from naive.waiting import PATIENCE_S

from edge.apps.assistant.generator import picks_sentences, retrieval_nbytes
from edge.apps.collection.collection import DATABASE, Collection
from edge.apps.memory.store import DATABASE as MEMORIES
from edge.apps.serve import library
from edge.apps.serve.library import ServedModels
from edge.apps.serve.server import MOST_EVENTS, TraceRecording
from edge.apps.store.connections import connect
from edge.apps.store.failures import forget, note
from edge.budget import MemoryBudget
from edge.config import Config
from edge.errors import BudgetExceeded
from edge.runtimes.generation.llama_cpp import LlamaGenerator
from edge.runtimes.reranker import Reranker
from edge.trace import Trace
from tests.apps.conftest import Ended
from tests.apps.serve.conftest import Running
from tests.apps.serve.every_request import Site


@pytest.fixture
def pool(tmp_path: Path) -> ServedModels:
    synth("tiny-bert", tmp_path / "model").close()
    return ServedModels(MemoryBudget(10**11), Config(memory=10**11, scratch_dir=str(tmp_path)), Trace())


@pytest.mark.parametrize("filled", [False, True])
def test_the_size_of_a_model_counts_what_it_took_although_caches_gave_way(
    pool: ServedModels, tmp_path: Path, filled: bool
) -> None:
    cache = pool.budget.reserve("cache", pool.budget.free if filled else 0)
    pool.budget.add_shrinker("cache", lambda nbytes: cache.resize(0), loss=0.0)
    pool.reranker(str(tmp_path / "model")).run(lambda model: model.rank("river", ["The river floods.", "Bread."]))
    (held,) = pool.models()
    assert cache.nbytes == 0
    assert held.nbytes > 1000
    assert pool.picture is not None
    assert (pool.picture.model, pool.picture.candidates) == (held.name, 2)
    pool.close()


class FakeLlm(LlamaGenerator):
    """A generator of 100 bytes that leaves `beside` to retrieval."""

    def __init__(self, name: str, budget: MemoryBudget, beside: int) -> None:
        self.name, self.beside, self.lease = name, beside, budget.reserve(name, 100)

    def close(self) -> None:
        self.lease.release()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[FakeLlm]:
    """The generators that were opened."""
    made: list[FakeLlm] = []

    def opening(llm: str, budget: MemoryBudget, config: Config, *, beside: int, **_: Any) -> FakeLlm:
        with budget.reserve("retrieval", beside):
            made.append(FakeLlm(llm, budget, beside))
        return made[-1]

    monkeypatch.setattr(library, "open_llm", opening)
    return made


def test_what_a_generator_leaves_to_retrieval_opens_its_models_again(pool: ServedModels, tmp_path: Path) -> None:
    """Models that nobody uses give way to it."""
    reranker = pool.reranker(str(tmp_path / "model"))

    def beside(model: Reranker) -> int:
        return retrieval_nbytes(cast(Collection, SimpleNamespace(identity=None, reranker=model)), serving=True)

    left = reranker.run(beside)
    reranker.close()
    pool.budget.reserve("generator", pool.budget.free - left)
    assert len(reranker.run(lambda model: model.rank("river", ["The river floods.", "Bread."]))) == 2
    pool.close()


def small_pool(nbytes: int) -> ServedModels:
    return ServedModels(MemoryBudget(nbytes, baseline=0), Config(memory=10**11), Trace())


def test_requests_share_a_generator_and_other_models_get_its_room_when_nobody_uses_it(opened: list[FakeLlm]) -> None:
    pool = small_pool(150)
    with pool.generator("one", 10) as first, pool.generator("one", 10) as second:
        assert first is second
        with pytest.raises(BudgetExceeded), pool.generator("other", 10):
            pass
    assert [held.nbytes for held in pool.models() if held.is_open] == [100]
    with pytest.raises(BudgetExceeded):
        pool.budget.reserve("cache", 100)  # only models are worth its closing
    with pool.generator("other", 10):
        assert [generator.lease.nbytes for generator in opened] == [0, 100]
    pool.make_way(lambda: pool.budget.reserve("index", 100).release())
    assert pool.budget.used == 0
    with pool.generator("other", 10) as again:
        assert again is opened[-1] is not opened[-2]
    pool.close()
    assert pool.budget.used == 0


def test_a_generator_that_leaves_too_little_to_a_request_is_opened_again(opened: list[FakeLlm]) -> None:
    pool = small_pool(150)
    with pool.generator("one", 10):
        pass
    with pool.generator("one", 20):
        assert [generator.beside for generator in opened] == [20], "there was room for it"
    cache = pool.budget.reserve("cache", 20)
    pool.budget.add_shrinker("cache", lambda nbytes: cache.resize(0) if opened[0].lease.nbytes == 0 else None, loss=0.0)
    with pool.generator("one", 40):
        assert [generator.beside for generator in opened] == [20, 40]


def test_a_generator_whose_thread_needs_the_ledger_can_give_way(opened: list[FakeLlm]) -> None:
    pool = small_pool(150)

    class Threaded(FakeLlm):
        def close(self) -> None:
            thread = threading.Thread(target=super().close)  # which takes the ledger's lock
            thread.start()
            thread.join(PATIENCE_S)
            assert not thread.is_alive()

    held = pool.held("generator", "one", lambda: Threaded("one", pool.budget, 0), kept=True)
    with held.lent():
        pass
    held.give_way()
    assert pool.budget.used == 0


def test_assistants_of_one_server_share_their_generator(here: Site, opened: list[FakeLlm]) -> None:
    served = here.server.library
    with served.assistant(llm="llm") as assistant:
        assert picks_sentences(assistant.generator.name), "the server has no language model"
    served._llm = "model.gguf"
    with served.assistant() as plain, served.assistant(pipeline="hyde") as hyde:
        assert plain.generator is hyde.generator is opened[0]
        assert plain is not hyde
    for held in here.server.pool.models():
        held.give_way()
    with served.assistant() as plain:
        assert plain.generator is opened[1]


SAID = "a check found damage"


@pytest.fixture
def damaged(server: Running) -> Iterator[Running]:
    """A server whose collection and memory are noted as damaged, as another process would note it."""
    with server.client() as client:
        assert client.post("/memories", json={"messages": "The river froze.", "user_id": "ada"}).status_code == 200
    stores = [server.folder / "collection" / DATABASE, server.folder / "memory" / MEMORIES]
    for path in stores:
        _change(path, noted=True)
    yield server
    for path in stores:
        _change(path, noted=False)


def _change(path: Path, *, noted: bool) -> None:
    db = connect(path.as_uri(), writable=True, cache=1 << 20, busy_seconds=10)
    try:
        if noted:
            note(db, "damaged")
        else:
            forget(db, "damaged")
    finally:
        db.close(True)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/search", {"query": "river"}),
        ("POST", "/v1/search", {"query": "river", "stream": True}),
        ("POST", "/v1/ask", {"question": "when does the river flood?", "llm": "extractive"}),
        ("POST", "/v1/ask", {"question": "when does the river flood?", "llm": "extractive", "stream": True}),
        ("GET", "/memories?user_id=ada", None),
        ("POST", "/search", {"query": "river", "user_id": "ada"}),
        ("POST", "/memories", {"messages": "Bread needs time.", "user_id": "ada"}),
        ("POST", "/v3/memories", {"filters": {"user_id": "ada"}}),
    ],
)
def test_answers_say_it(damaged: Running, method: str, path: str, body: dict[str, object] | None) -> None:
    with damaged.client() as client:
        answer = client.request(method, path, json=body)
    assert answer.status_code == 200, answer.text
    assert SAID in answer.text


def test_they_say_nothing_of_it_where_all_is_well(server: Running) -> None:
    with server.client() as client:
        found = client.post("/v1/search", json={"query": "river"}).json()
        memories = client.get("/memories?user_id=ada").json()
    assert found["health"] == {"state": "ok", "troubles": []}
    assert "health" not in memories


ASKED = {"query": "river", "documents": ["a", "b"]}


def test_it_begins_and_ends_on_request(start_server: Callable[..., Running], tmp_path: Path) -> None:
    with start_server(runtime=tmp_path / "run").client() as client:
        assert client.get("/v1/trace").status_code == 404
        assert client.get("/v1/engine").json()["trace"] == {"recording": False, "events": 0, "most": MOST_EVENTS}
        client.post("/v1/rerank", json=ASKED).raise_for_status()
        assert client.post("/v1/trace", json={}).json() == {"recording": True, "events": 0, "most": MOST_EVENTS}
        held = client.get("/v1/engine").json()["memory"]["holders"]["trace"]
        assert held >= MOST_EVENTS * 1000
        client.post("/v1/rerank", json=ASKED).raise_for_status()
        answer = client.get("/v1/trace")
        assert answer.headers["content-disposition"] == 'attachment; filename="edge-trace.json"'
        names = {event["name"] for event in answer.json()["traceEvents"]}
        assert {"embed", "layer 0", "memory"} <= names
        assert client.get("/v1/engine").json()["trace"]["events"] >= 3, "reading it does not end it"
        assert not client.post("/v1/trace", json={"record": False}).json()["recording"]
        client.post("/v1/rerank", json=ASKED).raise_for_status()
        engine = client.get("/v1/engine").json()
        assert engine["trace"]["events"] == 0
        assert engine["memory"]["holders"].get("trace", 0) == 0
        assert client.get("/v1/trace").status_code == 404
        assert client.post("/v1/trace", json={"record": "yes"}).status_code == 422


def test_the_memory_that_is_held_is_enough() -> None:
    """Also for more events than are kept, and for the file."""
    trace, budget = Trace(), MemoryBudget(10**12)
    recording = TraceRecording(trace, budget)
    recording.begin()
    held = budget.holders()["trace"]
    tracemalloc.start()
    try:
        now = time.perf_counter()
        for number in range(MOST_EVENTS + 100):
            trace.event(f"layer {number} of a model", f"lane {number % 8}", now, 0.1 + number, bytes=10**9 + number)
        assert len(json.loads(trace.text())["traceEvents"]) == MOST_EVENTS + 8
        tracemalloc.reset_peak()
        text = trace.text()
        assert tracemalloc.get_traced_memory()[1] < held
    finally:
        tracemalloc.stop()
    assert len(text) > MOST_EVENTS * 100


owners_socket = pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="the owner's socket, as Linux checks it")
Verb = Callable[..., Ended]


@owners_socket
def test_what_runs_is_described_and_ended(
    start_server: Callable[..., Running], edge_verb: Verb, tmp_path: Path
) -> None:
    runtime = tmp_path / "run"
    here = {"XDG_RUNTIME_DIR": str(runtime)}
    assert edge_verb("serve", "--status", **here) == Ended(1, "no server of yours runs\n", "")
    assert edge_verb("serve", "--stop", **here) == Ended(1, "no server of yours runs\n", "")
    running = start_server("--memory", "300MB", runtime=runtime)
    told = edge_verb("serve", "--status", **here)
    lines = dict(line.split(None, 1) for line in told.out.splitlines())
    assert told.code == 0
    assert lines["process"].startswith(f"{running.pid}, since ")
    assert lines["address"] == running.url
    assert lines["memory"].endswith(" of 300 MB")
    assert str(running.folder / "collection") in lines["collection"]
    assert lines["memories"] == str(running.folder / "memory")
    ended = edge_verb("serve", "--stop", **here)
    assert ended == Ended(0, f"the server has ended (process {running.pid})\n", "")
    assert running.stop() == (0, "")
    assert edge_verb("serve", "--status", **here).code == 1
    assert list((runtime / "edge-rag").iterdir()) == []


@owners_socket
def test_a_server_that_does_not_answer_is_told_from_none(
    start_server: Callable[..., Running], edge_verb: Verb, tmp_path: Path
) -> None:
    running = start_server(runtime=tmp_path / "run")
    os.kill(running.pid, signal.SIGSTOP)
    try:
        told = edge_verb("serve", "--status", XDG_RUNTIME_DIR=str(tmp_path / "run"))
    finally:
        os.kill(running.pid, signal.SIGCONT)
    assert told.code == 0
    assert told.out.startswith(f"process     {running.pid}, which does not answer")


@owners_socket
def test_a_server_that_was_killed_is_none(
    start_server: Callable[..., Running], edge_verb: Verb, tmp_path: Path
) -> None:
    running = start_server(runtime=tmp_path / "run")
    running.process.kill()
    running.process.wait()
    assert (tmp_path / "run" / "edge-rag" / "serve.sock").exists()
    assert edge_verb("serve", "--status", XDG_RUNTIME_DIR=str(tmp_path / "run")).code == 1
    again = start_server(runtime=tmp_path / "run")
    assert edge_verb("serve", "--status", XDG_RUNTIME_DIR=str(tmp_path / "run")).code == 0
    again.stop()


@pytest.mark.parametrize("arguments", [("--stop", "--port", "1"), ("--status", "--token")])
def test_options_that_mean_nothing_there_are_refused(edge_verb: Verb, arguments: tuple[str, ...]) -> None:
    assert edge_verb("serve", *arguments).code == 2
