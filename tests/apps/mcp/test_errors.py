"""Errors of requests: short sentences without control characters, and no traceback on stderr."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from naive.waiting import result_of

pytest.importorskip("mcp", reason="the extra `mcp` is not installed")

from mcp.client import Client
from mcp.shared.exceptions import MCPError

from edge.apps.mcp.protocol import make_server
from edge.apps.store.failures import Health
from edge.budget import MemoryBudget
from edge.text.control_characters import STEERING

EVIL = "\u202e\x9b31m\x07 steering " + "x" * 100_000


def said(ask: Callable[[Client], Any]) -> str:
    """The messages that a client gets from a server with one tool."""

    def add(count: int) -> dict[str, Any]:
        """Counts."""
        return {"count": count}

    async def session() -> str:
        server = make_server("edge-test", "", MemoryBudget(10**11, baseline=0), Health, reads=[add])
        async with Client(server) as client:
            try:
                result = await ask(client)
            except MCPError as error:
                return f"{error.message} {error.data}"
            assert result.is_error
            return str(result.content[0].text)

    return result_of(session())


@pytest.mark.parametrize(
    "ask",
    [
        lambda client: client.call_tool(EVIL, {}),
        lambda client: client.call_tool("add", {"count": EVIL}),
        lambda client: client.call_tool("add", {EVIL: EVIL}),
        lambda client: client.read_resource("a:" + EVIL),
        lambda client: client.get_prompt(EVIL),
        lambda client: client.get_prompt("none", {EVIL: EVIL}),
    ],
    ids=["tool", "argument", "unknown argument", "resource", "prompt", "argument of a prompt"],
)
def test_what_a_client_has_sent_is_repeated_without_controls(
    ask: Callable[[Client], Any], capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    text = said(ask)
    assert not STEERING.search(text), ascii(text)
    assert 0 < len(text) < 3_000
    assert "nobody expected" not in text
    assert "Internal" not in text
    captured = capfd.readouterr()
    assert "Traceback" not in captured.err
    assert not STEERING.search(captured.err)


def test_an_exception_that_escapes_a_handler_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The middleware itself: every tool's own exceptions are caught before."""
    from edge.apps.mcp.protocol import plain_errors

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    class Context:
        method = "tools/call"

    async def broken(context: Any) -> Any:
        raise KeyError(EVIL)

    with pytest.raises(MCPError) as raised:
        result_of(plain_errors("edge-test")(Context(), broken))
    assert "nobody expected" in raised.value.message
    assert not STEERING.search(raised.value.message)
    assert [path.stat().st_size > 0 for path in tmp_path.rglob("*") if path.is_file()] == [True]
