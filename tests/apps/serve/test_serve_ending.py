"""How a server ends while requests work, and what becomes of work that nobody waits for any more."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec import Struct
from naive.waiting import PATIENCE_S, until

from edge.apps.serve import models
from edge.apps.serve.endpoint import Endpoint, Events, ServedPath
from edge.apps.serve.limits import GRACE_S, LEAVE_S
from edge.apps.serve.server import HttpServer
from edge.scheduling.waiting_line import Urgency, current_urgency
from tests.apps.serve.asgi import Asked, in_a_loop
from tests.apps.serve.conftest import Running, Writer
from tests.apps.serve.test_serve_security import connected

LONGEST_S = GRACE_S + LEAVE_S + 10
"""Far less than the 300 seconds that a request may take, and more than an ending takes on a busy machine."""


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", ["/v1/ask", "/v1/chat/completions"])
def test_a_slow_language_model_does_not_hold_up_the_end(
    writing: Running, writer: Writer, path: str, stream: bool
) -> None:
    messages = [{"role": "user", "content": "When does the river flood?"}]
    body = {
        "question": "When does the river flood?", "check": False, "min_score": 0, "max_tokens": 100_000,
        "model": "llm", "messages": messages, "stream": stream,
    }  # fmt: skip
    found: list[httpx.Response] = []
    with writing.client() as client:
        asking = threading.Thread(target=lambda: found.append(client.post(path, json=body)))
        asking.start()
        until(lambda: writer.asked.is_set())
        started = time.monotonic()
        code, errors = writing.stop()
        assert time.monotonic() - started < LONGEST_S
        asking.join(PATIENCE_S)
    assert (code, errors) == (0, "")
    assert writer.left.wait(PATIENCE_S), "the language model is read from no more"
    (answer,) = found
    if stream:
        assert '"status": 503' in answer.text or '"type": "server_error"' in answer.text
    else:
        assert answer.status_code == 503
        said = answer.json()
        assert "the server is ending" in (said["detail"] if path == "/v1/ask" else said["error"]["message"])


@pytest.mark.parametrize("how", ["request", "tool"])
def test_work_that_does_not_listen_is_cut_off(start_server: Callable[..., Running], tmp_path: Path, how: str) -> None:
    """A thread in a library that looks at nothing for minutes; also that of a tool, which nobody counts."""
    if how == "tool":
        pytest.importorskip("mcp")
    running = start_server(
        runtime=tmp_path / "run",
        first="import time\nfrom edge.runtimes.reranker import Reranker\n"
        "def explain(*given, **named): print('begun', flush=True); time.sleep(600)\n"
        "Reranker.explain = explain\n",
    )
    process = running.process
    assert process.stdout is not None
    with running.client() as client:
        path, asked = "/v1/rerank", {"query": "x", "documents": ["a", "b"]}
        if how == "tool":
            call = {"name": "search", "arguments": {"query": "When does the river flood?"}}
            path, asked = "/mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
        accepted = {"Accept": "application/json, text/event-stream"}
        asking = threading.Thread(target=lambda: _quietly(lambda: client.post(path, json=asked, headers=accepted)))
        asking.start()
        assert process.stdout.readline() == "begun\n"
        started = time.monotonic()
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert time.monotonic() - started < LONGEST_S + 2 * LEAVE_S
        asking.join(PATIENCE_S)
    assert process.returncode == 0
    assert errors == "edge: some work did not end in time and was cut off\n"
    assert not list((tmp_path / "run" / "edge-rag").iterdir())


def test_a_client_that_takes_nothing_does_not_hold_up_the_end(
    start_server: Callable[..., Running], tmp_path: Path
) -> None:
    running = start_server(
        runtime=tmp_path / "run",
        first="from functools import partial\nfrom edge.apps.serve import command, listening\n"
        "listening.LEAVE_S = 3600\ncommand.Limits = partial(command.Limits, pause_s=3600)\n",
    )
    process = running.process
    body = json.dumps({"input": ["river"] * 8_000, "encoding_format": "float"}).encode()
    with connected(running) as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        head = f"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        raw.sendall(4 * (head.encode() + body))  # answers that are larger together than what the system holds
        assert raw.recv(12) == b"HTTP/1.1 200"
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, errors) == (0, "")


def _quietly(work: Callable[[], Any]) -> None:
    with contextlib.suppress(httpx.TransportError):
        work()


@pytest.mark.parametrize("turns", range(8))
def test_an_event_that_comes_with_the_end_does_not_hide_it(turns: int) -> None:
    """The task is cancelled so many turns of the loop after an event."""

    async def read() -> bool:
        events = Events(Urgency())

        async def follow() -> None:
            async for _ in events.texts():
                pass

        following = asyncio.create_task(follow())
        await asyncio.sleep(0.01)
        events.tell("text", {})
        for _ in range(turns):
            await asyncio.sleep(0)
        following.cancel()
        for _ in range(20):
            await asyncio.sleep(0)
        events.end()
        with contextlib.suppress(asyncio.CancelledError):
            await following
        return following.cancelled()

    assert in_a_loop(read())


class Work:
    """Work in a thread that goes on until it is withdrawn, and then until the test lets it end."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.withdrawn = threading.Event()
        self.ends = threading.Event()

    def __call__(self, *given: Any) -> None:
        urgency = current_urgency()
        self.begun.set()
        with urgency.heard(self.withdrawn.set):
            assert self.withdrawn.wait(PATIENCE_S)
            assert self.ends.wait(PATIENCE_S)
            urgency.check()


@pytest.mark.parametrize("how", ["cancelled", "gone"])
@pytest.mark.parametrize("streams", [True, False])
def test_a_request_holds_its_memory_and_its_thread_until_its_work_has_ended(
    inside: HttpServer, how: str, streams: bool
) -> None:
    work = Work()

    class Streamed(Struct):
        stream: bool = streams

    def held() -> tuple[int, int, int]:
        assert inside.workers._limiters is not None
        return inside.requests.open, inside.workers.busy, int(inside.workers._limiters[0].borrowed_tokens)

    async def serve() -> tuple[int, str]:
        asked = Asked(Endpoint(inside, ServedPath("POST", "/", work, Streamed)), "/")
        asked.send(b"{}", last=True)
        await asyncio.to_thread(work.begun.wait, PATIENCE_S)
        asked.task.cancel() if how == "cancelled" else asked.leave()
        assert await asyncio.to_thread(work.withdrawn.wait, PATIENCE_S)
        asked.task.cancel()  # as uvicorn and asyncio do once more
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert held() == (1, 1, 1), "what the work uses was given back before its end"
        assert not asked.task.done()
        assert not inside.workers.ended(0.001)
        work.ends.set()
        await asked.task
        assert held() == (0, 0, 0)
        assert inside.workers.ended(PATIENCE_S)
        return asked.status, asked.text

    status, text = in_a_loop(serve())
    if streams:
        assert status == 200
        if how == "cancelled":
            assert text.startswith("event: error\n")
            assert '"status": 503' in text
    else:
        assert (status, "the server is ending" in text) == (503, True)


def test_an_answer_that_nobody_waits_for_is_not_written(inside: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing the vectors of 18 requests for 3,000 texts each takes longer than a server waits when it ends."""
    written: list[Any] = []

    async def serve() -> None:
        loop, gone = asyncio.get_running_loop(), threading.Event()

        def write(vector: Any) -> str:
            written.append(vector)
            with current_urgency().heard(gone.set):
                loop.call_soon_threadsafe(asked.leave)
                assert gone.wait(PATIENCE_S)
            return "0"

        monkeypatch.setattr(models, "_as_json", write)
        (path,) = (each for each in models.PATHS if each.path == "/v1/embeddings")
        asked = Asked(Endpoint(inside, path), "/v1/embeddings")
        asked.send(b'{"input": ["a", "b", "c"]}', last=True)
        await asked.task

    in_a_loop(serve())
    assert len(written) == 1


def test_a_model_is_closed_when_its_requests_have_ended(inside: HttpServer) -> None:
    lent = inside.library.reranker()
    used, ends, closed = threading.Event(), threading.Event(), threading.Event()

    def use(model: Any) -> None:
        used.set()
        assert ends.wait(PATIENCE_S)
        assert not closed.is_set()
        assert model.rank("river", ["The river floods."])

    using = threading.Thread(target=lambda: lent.run(use))
    using.start()
    assert used.wait(PATIENCE_S)
    closing = threading.Thread(target=lambda: (inside.pool.close(), closed.set()))
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    ends.set()
    for thread in (using, closing):
        thread.join(PATIENCE_S)
    assert closed.is_set()
    assert not lent.is_open
