"""Whatever a request names, only what the owner has configured is opened."""

from __future__ import annotations

import shutil
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from naive.waiting import PATIENCE_S, result_of

from edge.apps.assistant.assistant import Assistant
from edge.apps.serve import library as assistants
from edge.errors import Withdrawn
from edge.scheduling.waiting_line import Urgency, urgent
from tests.apps.serve.asgi import in_a_loop
from tests.apps.serve.every_request import Request, Site

pytest.importorskip("starlette")
pytest.importorskip("httpx")

STRANGE, ABSENT = "strange", "missing"
"""Parts of names, of one length, so that answers about them can be compared."""

_opened: list[str] | None = None


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook of Python: notes what is opened, listed, connected to or begun under a strange name."""
    if _opened is not None and event.startswith(("open", "os.", "socket.", "sqlite3.", "subprocess.", "mmap.")):
        said = repr(arguments)
        if STRANGE in said:
            _opened.append(f"{event} {said[:200]}")


sys.addaudithook(_note)


def test_every_endpoint_has_a_request_that_it_answers(here: Site) -> None:
    async def ask() -> dict[tuple[str, str], int]:
        async with here.client() as client:
            return {(each.method, each.kind): (await here.send(client, each)).status_code for each in here.requests()}

    found = result_of(ask())
    assert found.keys() | {(method, path) for method, path in here.kinds() if path.startswith("/mcp")} == here.kinds()
    refused = {kind for kind, status in found.items() if status != 200}
    assert refused <= {
        ("GET", "/v1/trace"), ("POST", "/v1/page"), ("DELETE", "/v1/batch"), ("GET", "/mcp"), ("DELETE", "/mcp"),
        ("GET", "/mcp/memory"), ("DELETE", "/mcp/memory"), ("DELETE", "/memories/{memory_id}"),
        ("DELETE", "/v1/memories/{memory_id}"), ("POST", "/v1/chat/completions"),
    }, {kind: found[kind] for kind in refused}  # fmt: skip


def _without(text: str, name: str) -> str:
    """An answer without the name that was sent. Some messages show its beginning only."""
    for shown in (name, name[:80], name[:40]):
        text = text.replace(shown, "*")
    return text.replace(STRANGE, ABSENT)


def test_no_field_opens_a_path_an_address_or_a_model(here: Site, tiny_models: Path, tmp_path: Path) -> None:
    """Each field of each request gets the names of files, models, collections and servers that nobody has configured.
    None of them is opened, and an answer does not say whether it is there."""
    global _opened
    listening = socket.create_server(("127.0.0.1", 0))
    address = f"http://127.0.0.1:{listening.getsockname()[1]}"
    folder = tmp_path / STRANGE
    shutil.copytree(tiny_models / "tiny", folder / "tiny")
    shutil.copytree(tmp_path / "collection", folder / "collection")
    (folder / "file.gguf").write_bytes(b"GGUF and a secret")
    present = [f"{folder}/file.gguf", f"{folder}/tiny", f"{folder}/collection"]
    names = [*((name, name.replace(STRANGE, ABSENT)) for name in present), (f"{address}/{STRANGE}#x", "")]

    async def sweep() -> list[str]:
        told = []
        async with here.client() as client:
            for request in here.requests():
                if request.kind == "/v1/folders":  # what `--add-folders` is for
                    continue
                fields = here.names(request)
                for name, other in names:
                    for (place, changed), (_, same) in zip(
                        request.variants(fields, name), request.variants(fields, other), strict=True
                    ):
                        first = await here.send(client, changed)
                        if not other or first.status_code == 200:
                            continue
                        second = await here.send(client, same)
                        if _without(first.text, name) != _without(second.text, other):
                            told.append(f"{request.kind} {place}: {first.text[:300]} {second.text[:300]}")
        return told

    _opened = []
    try:
        told = in_a_loop(sweep())
        opened = list(_opened)
    finally:
        _opened = None
    assert not opened, opened[:5]
    assert not told, told[:5]
    listening.settimeout(0.2)
    with listening, pytest.raises(TimeoutError):
        listening.accept()


@pytest.mark.parametrize("path", ["/v1/ask", "/v1/chat/completions"])
def test_the_names_of_generators_are_those_of_the_server(here: Site, path: str) -> None:
    """What `llm` may name, and what chat takes for a generator, is one list."""
    library = here.server.library
    assert library.generators() == ["extractive", "llm", *library.pulled_generators()]

    async def ask(name: str) -> Any:
        messages = [{"role": "user", "content": "When does the river flood?"}]
        body = {"question": "When does the river flood?", "llm": name, "model": name, "messages": messages}
        async with here.client() as client:
            return await here.send(client, Request("POST", path, body))

    for name in ("extractive", "llm", ""):
        assert result_of(ask(name)).status_code in (200, 501)
    refused = result_of(ask("/etc/passwd"))
    if path == "/v1/ask":
        assert refused.status_code == 422
        assert refused.json()["detail"] == "no generator is called '/etc/passwd'; the names are extractive, llm"
    else:
        assert refused.status_code == 200, "a name of chat that is none means the usual collection"


def test_few_assistants_stay_open_and_none_that_is_used_is_closed(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[FakeAssistant] = []

    class FakeAssistant:
        def __init__(self, collection: Any, *, llm: Any, pipeline: str) -> None:
            self.closed = False
            opened.append(self)

        def close(self) -> None:
            self.closed = True

    monkeypatch.setattr(assistants, "Assistant", FakeAssistant)
    held, collection = assistants.Assistants(here.server.pool), here.server.library.together([])
    with held.using(collection, "", "first") as first:
        for number in range(3 * assistants.MOST_ASSISTANTS):
            with held.using(collection, "", str(number)) as other:
                assert not other.closed
        assert not first.closed
        assert sum(not each.closed for each in opened) <= assistants.MOST_ASSISTANTS
    with held.using(collection, "", "first") as again:
        assert again is first
    held.close()
    assert all(each.closed for each in opened)


def test_others_are_served_while_an_assistant_is_opened(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, goes_on = threading.Event(), threading.Event()

    class SlowAssistant(Assistant):
        def __init__(self, *given: Any, **named: Any) -> None:
            begun.set()
            assert goes_on.wait(PATIENCE_S)
            super().__init__(*given, **named)

    monkeypatch.setattr(assistants, "Assistant", SlowAssistant)
    library = here.server.library
    opening = threading.Thread(target=lambda: library.assistant().__enter__())
    opening.start()
    assert begun.wait(PATIENCE_S)
    others = threading.Thread(target=lambda: (library.collection(), library.memory(), library.together([])))
    others.start()
    others.join(PATIENCE_S)
    waits = others.is_alive()
    withdrawn = Urgency()
    withdrawn.cancel()
    with urgent(withdrawn), pytest.raises(Withdrawn), library.assistant():
        pass
    goes_on.set()
    opening.join()
    assert not waits
