"""`edge serve --status`, `--stop`, `--install` and `--uninstall`."""

from __future__ import annotations

import os
import plistlib
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edge.apps.serve.command import service_for
from edge.errors import CapabilityError, InputError
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


STRANGE = ["/opt/my programs/edge", "serve", "-c", '100% "notes"', "--llm", "a\\b $HOME ${X} %h 'c'; #"]


@pytest.mark.skipif(sys.platform == "win32", reason="systemd is Linux's")
def test_systemd_starts_the_command_as_it_was_given(tmp_path: Path) -> None:
    """systemd itself reads the file where it is here; else its quoting is undone as its manual describes it."""
    service = service_for(STRANGE, "linux")
    assert service.path.parts[-3:] == ("systemd", "user", "edge-rag.service")
    line = next(line for line in service.text.decode().splitlines() if line.startswith("ExecStart="))
    words = shlex.split(line.removeprefix("ExecStart="))
    assert [word.replace("%%", "%").replace("$$", "$") for word in words] == STRANGE
    assert "%" not in line.replace("%%", "")
    assert "$" not in line.replace("$$", "")
    if shutil.which("systemd-analyze"):
        unit = tmp_path / "edge-rag.service"
        true = shutil.which("true") or "/bin/true"
        unit.write_bytes(service_for([true, *STRANGE[1:]], "linux").text)
        done = subprocess.run(
            ["systemd-analyze", "verify", "--user", str(unit)], capture_output=True, text=True, check=False,
            env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
        )  # fmt: skip
        assert "edge-rag.service" not in done.stderr, done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="launchd is macOS's")
def test_launchd_starts_the_command_as_it_was_given() -> None:
    service = service_for(STRANGE, "darwin")
    content: dict[str, Any] = plistlib.loads(service.text)
    assert content["ProgramArguments"] == STRANGE
    assert content["RunAtLoad"] is True
    assert service.path.name == f"{content['Label']}.plist"
    assert service.path.parent.name == "LaunchAgents"


def test_what_cannot_be_a_service_is_refused() -> None:
    with pytest.raises(InputError, match="cannot stand"):
        service_for(["edge", "serve", "a\nExecStartPre=/bin/evil"], "linux")
    with pytest.raises(CapabilityError):
        service_for(["edge"], "win32")


@pytest.mark.skipif(sys.platform != "linux", reason="looks where systemd looks")
def test_a_service_is_written_printed_and_removed(edge_verb: Verb, tmp_path: Path) -> None:
    written = edge_verb("serve", "--install", "--memory", "300MB", "-c", "notes", "--token", "--port", "9000")
    file = tmp_path / "config" / "systemd" / "user" / "edge-rag.service"
    assert written.code == 0
    assert file.read_text() in written.out
    assert "Nothing was started" in written.err
    line = next(line for line in file.read_text().splitlines() if line.startswith("ExecStart="))
    arguments = shlex.split(line)[shlex.split(line).index("serve") + 1 :]
    assert sorted(arguments) == sorted(
        ["--memory", "300MB", "--collection", str(tmp_path / "notes"), "--token", "--port", "9000"]
    )
    assert edge_verb("serve", "--install", *arguments).code == 0, "the same again is no conflict"
    other = edge_verb("serve", "--install", "--port", "9001")
    assert other.code == 2
    assert "says something else" in other.err
    assert edge_verb("serve", "--uninstall").code == 0
    assert not file.exists()
    assert edge_verb("serve", "--uninstall").code == 1


@pytest.mark.parametrize(
    "arguments", [("--install", "--new-token"), ("--stop", "--port", "1"), ("--status", "--token")]
)
def test_options_that_mean_nothing_there_are_refused(edge_verb: Verb, arguments: tuple[str, ...]) -> None:
    assert edge_verb("serve", *arguments).code == 2
