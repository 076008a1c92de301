"""Ctrl-C in `edge ask` while the user's server writes the answer."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from edge.apps.serve.connection import Lost, Refused
from edge.apps.verbs.requests import Ask
from edge.apps.verbs.verb import ASK, served
from tests.apps.serve.conftest import BEGINNING, ENDLESS, Running, Writer

pytest.importorskip("httpx")


def interrupted(running: Running, *arguments: str) -> tuple[int, str, str]:
    """Runs `edge ask` and interrupts it when it has printed the beginning. Returns code, stdout and stderr, without
    the endless part of the text, whose length depends on the time."""
    run = subprocess.Popen(
        [sys.executable, "-u", "-c", "from edge.apps.cli import main; main()", "ask", "when does the river flood",
         "-c", str(running.folder / "collection"), "--no-check", "--min-score", "0", "--max-tokens", "100000",
         *arguments],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=running.environment,
        cwd=running.folder,
    )  # fmt: skip
    assert run.stdout is not None
    begun = run.stdout.read(len(BEGINNING))
    run.send_signal(signal.SIGINT)
    out, err = run.communicate(timeout=120)
    return run.returncode, (begun + out).decode().replace(ENDLESS, ""), err.decode()


@pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="the owner's socket, as Linux checks it")
def test_ctrl_c_prints_what_it_prints_without_a_server_and_ends_the_writing(writing: Running, writer: Writer) -> None:
    alone = interrupted(writing, "--no-server")
    assert writer.left.wait(60)
    writer.left.clear()
    served = interrupted(writing)
    assert writer.left.wait(60), "the server goes on reading what nobody wants"
    assert served == alone
    code, out, err = served
    assert code == 130
    assert err.count("\n") <= 1, "at most the warning of an uncertain answer"
    assert out.startswith(BEGINNING)
    assert re.search(r"\n\n\[1\] \S+\.md:\d+", out), "the sources of what was written"
    writer.left.clear()
    code, _, err = interrupted(writing, "--stats")
    assert (code, f"server   used: process {writing.pid}\n" in err) == (130, True)
    assert writer.left.wait(60)
    with writing.client() as client:
        client.get("/health").raise_for_status()


class FakeConnection:
    """Answers with given events, and says of the end of an answer what it is told to say."""

    def __init__(self, ends: Any, *events: tuple[str, Any]) -> None:
        self.ends = ends
        self.names: list[Any] = []
        self._events = events

    def events(self, path: str, content: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        self.names.append(content["name"])
        yield from self._events

    def ask(self, path: str, content: dict[str, Any], seconds: float | None = None) -> dict[str, Any]:
        assert seconds is not None, "a person waits"
        self.names.append(content["name"])
        if isinstance(self.ends, Exception):
            raise self.ends
        return {"ended": self.ends}


TEXT = ("text", {"text": "It"})


class Interrupting:
    """A listener that presses Ctrl-C at the first piece, or before it."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def troubles(self, sentences: list[str]) -> None: ...

    def text(self, piece: str) -> None:
        self.heard.append(piece)
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(
    ("ends", "begun", "goes_on"),
    [
        (True, False, True),
        (True, True, True),
        (False, True, True),  # the answer has just ended, and its last part is on its way
        (False, False, False),
        (Lost("the server ended"), True, False),
        (Refused(429, "others hold the memory"), True, False),
    ],
    ids=str,
)
def test_a_command_waits_for_the_rest_only_if_it_comes(ends: Any, begun: bool, goes_on: bool) -> None:
    class Early(FakeConnection):
        def events(self, path: str, content: dict[str, Any]) -> Iterator[tuple[str, Any]]:
            if not begun:
                signal.raise_signal(signal.SIGINT)
            return super().events(path, content)

    events = [TEXT] if begun else []
    connection, listener = Early(ends, *events, ("answer", {"found": True})), Interrupting()
    asked: Any = connection
    if goes_on:
        assert served(asked, ASK, Ask(question="q"), listener)["found"]
        assert listener.heard == (["It"] if begun else [])
    else:
        with pytest.raises(KeyboardInterrupt):
            served(asked, ASK, Ask(question="q"), listener)
    assert len(set(connection.names)) == 1
