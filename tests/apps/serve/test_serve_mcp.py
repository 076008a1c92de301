"""The tools of MCP on a server: they never take the memory that a search needs, and answer every request of the
protocol."""

from __future__ import annotations

import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edge.apps.commands.smallest import _asked
from edge.config import format_size
from tests.apps.serve.conftest import Running

types = pytest.importorskip("mcp.types", reason="the extra `mcp` is not installed")

CALL = {"name": "search", "arguments": {"query": "river"}}
HEADERS = {"Accept": "application/json, text/event-stream"}


def ask(client: Any, method: str, params: dict[str, Any] | None = None) -> Any:
    message = {"jsonrpc": "2.0", "id": 1, "method": method, **({} if params is None else {"params": params})}
    return client.post("/mcp", json=message, headers=HEADERS)


@pytest.mark.parametrize("more", [0, 40_000_000])
def test_searches_go_on_where_the_tools_have_no_room(
    start_server: Callable[..., Running], served_settings: dict[str, str], monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path, more: int,
) -> None:  # fmt: skip
    for name, value in served_settings.items():
        monkeypatch.setenv(name, value)
    smallest = _asked("serve")
    assert isinstance(smallest, int), smallest
    limit = format_size(smallest + more, up=True).replace(" ", "")
    running = start_server("--memory", limit, runtime=tmp_path / "run")
    with running.client() as client:
        for _ in range(2):
            answer = ask(client, "tools/call", CALL)
            assert answer.status_code == (200 if more else 413), answer.text
            found = client.post("/v1/search", json={"query": "river"})
            assert found.status_code == 200, found.text
    if not more:
        assert "do not fit beside a search" in answer.json()["detail"]
        assert "is the smallest that works" in answer.json()["detail"]


OBEYED: dict[str, dict[str, Any] | None] = {
    "ping": None,
    "initialize": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}},
    "tools/list": None,
    "tools/call": CALL,
    "prompts/list": None,
    "resources/list": None,
    "resources/templates/list": None,
}
"""Requests of the protocol that are answered, with parameters that are right. There are no prompts and no resources."""

REFUSED: dict[str, dict[str, Any]] = {
    "completion/complete": {"ref": {"type": "ref/prompt", "name": "x"}, "argument": {"name": "a", "value": "b"}},
    "logging/setLevel": {"level": "info"},
    "prompts/get": {"name": "x"},
    "resources/read": {"uri": "file:///x"},
    "resources/subscribe": {"uri": "file:///x"},
    "resources/unsubscribe": {"uri": "file:///x"},
    "server/discover": {},
    "subscriptions/listen": {},
}
"""Requests that are answered with an error: the server has nothing of the kind. The last two belong to the revision of
2026, in whose form the others are not asked here."""


def methods() -> set[str]:
    """The methods of all requests that a client of the installed SDK can send."""
    return {kind.model_fields["method"].default for kind in typing.get_args(types.ClientRequest)}


def test_every_request_of_the_protocol_is_obeyed_or_refused(server: Running) -> None:
    assert methods() - {*OBEYED, *REFUSED} == set(), "a request that the table does not know"
    with server.client() as client:
        for method, params in OBEYED.items():
            answer = ask(client, method, params)
            assert "result" in answer.json(), (method, answer.text)
        for method, given in REFUSED.items():
            answer = ask(client, method, given)
            assert "error" in answer.json(), (method, answer.text)
        assert client.get("/mcp").status_code == 405
        assert client.post("/mcp", content=b"x" * (9 << 20), headers=HEADERS).status_code == 413


def test_an_argument_that_a_tool_does_not_have_is_refused(server: Running) -> None:
    with server.client() as client:
        tools = ask(client, "tools/list").json()["result"]["tools"]
        assert all(tool["inputSchema"]["additionalProperties"] is False for tool in tools)
        for name, takes in (("search", "it takes query, top_k"), ("status", "it takes none")):
            given = {
                "name": name,
                "arguments": {"query": "x", "user_id": "ann"} if name == "search" else {"user_id": 1},
            }
            said = ask(client, "tools/call", given).json()["result"]
            assert said["isError"]
            assert f"{name} has no argument 'user_id': {takes}" in said["content"][0]["text"]
