"""`edge serve --status` and `--stop`."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.apps.conftest import Ended
from tests.apps.serve.conftest import Running

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
