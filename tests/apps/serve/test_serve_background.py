"""`edge serve --background`, servers that end themselves, and commands that start one (`server = "auto"`)."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from naive.waiting import until

from edge.apps.serve import connection
from edge.apps.serve.command import running_pid
from edge.apps.serve.connection import OwnServer
from tests.apps.conftest import Ended
from tests.apps.serve.conftest import TEXTS

pytestmark = pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="the owner's socket, as Linux checks it")

QUERY = "when does the river flood"
Verb = Callable[..., Ended]


@pytest.fixture
def verb(edge_verb: Verb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Verb]:
    """Runs `edge` where a home and a folder for sockets are its own; no server is left at the end."""
    pytest.importorskip("starlette")
    pytest.importorskip("uvicorn")
    (tmp_path / "run").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "documents").mkdir()
    for name, text in TEXTS.items():
        (tmp_path / "documents" / name).write_text(text)
    yield edge_verb
    edge_verb("serve", "--stop")


def server_line(ended: Ended) -> str:
    """What `--stats` says of the server."""
    return next(line for line in ended.err.splitlines() if line.startswith("server "))


def test_a_server_in_the_background_serves_until_it_is_stopped(verb: Verb) -> None:
    started = verb("serve", "--background", "--port", "0", "--new-token", "--memory", "10GB")
    assert started.code == 0, started.err
    pid = running_pid()
    assert re.search(r"^edge: serving on http://127.0.0.1:\d+ within 10.0 GB$", started.out, re.MULTILINE)
    assert f"process {pid}" in started.out
    token = re.search(r"the token, which is shown once only: (\S+)", started.out)
    assert token is not None
    log = Path(os.environ["XDG_STATE_HOME"]) / "edge-rag" / "log" / "serve.log"
    assert log.read_text() == "", "a token stays in no file"
    assert psutil.Process(pid).ppid() != os.getpid(), "it would count as memory of the command, and end as its child"
    again = verb("serve", "--background", "--port", "0")
    assert again.code == 2
    url = started.out.partition(" on ")[2].split()[0]
    assert again.err.startswith(f"edge: a server of yours runs already on {url} with /"), again.err
    beside = verb("serve", "--port", url.rpartition(":")[2], "--memory", "10GB")
    said = rf"edge: a server of yours runs already on {url} with /.* \(process {pid}\); `edge serve --stop` ends it"
    assert (beside.code, bool(re.match(said, beside.err))) == (2, True), beside.err
    assert running_pid() == pid
    assert verb("serve", "--stop") == Ended(0, f"the server has ended (process {pid})\n", "")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--memory", "1MB"), "edge: the server cannot work within 1.00 MB"),
        (("--no-port", "--port", "1"), "edge: --no-port opens no address, so --port means nothing\n"),
        (("--no-port", "--new-token"), "edge: --no-port opens no address, so --new-token means nothing\n"),
    ],
)
def test_a_start_that_fails_says_why(verb: Verb, arguments: tuple[str, ...], sentence: str) -> None:
    started = verb("serve", "--background", *arguments)
    assert started.code == 2
    assert started.out == ""
    assert started.err.startswith(sentence), started.err
    assert started.err.count("\n") == 1
    assert running_pid() is None


def test_a_server_that_nobody_uses_ends(verb: Verb, tmp_path: Path) -> None:
    """Programs that only look whether it runs do not use it."""
    assert verb("serve", "--background", "--no-port", "--idle", "0.5").code == 0
    until(lambda: running_pid() is None, 0.02)
    until(lambda: not list((tmp_path / "run" / "edge-rag").iterdir()))


def test_a_folder_cannot_stand_in_for_the_program(verb: Verb, tmp_path: Path) -> None:
    (tmp_path / "edge").mkdir()
    (tmp_path / "edge" / "__init__.py").write_text("raise SystemExit('a stranger ran')")
    assert verb("serve", "--background", "--no-port").code == 0
    assert running_pid() is not None


def test_a_command_starts_a_server_of_its_own(verb: Verb, tmp_path: Path) -> None:
    """Output and exit code are those of working alone, in any collection; no address is opened."""
    for folder in ("one", "two"):
        assert verb("index", str(tmp_path / "documents"), "-c", str(tmp_path / folder)).code == 0
    alone = verb("search", QUERY, "-c", "one", "--stats")
    assert alone.code == 0
    assert server_line(alone) == "server   not used: no server runs"
    first = verb("search", QUERY, "-c", "one", "--stats", EDGE_SERVER="auto")
    assert first.out == alone.out
    pid = running_pid()
    assert server_line(first) == f"server   used: process {pid}"
    second = verb("search", QUERY, "-c", "two", "--stats", EDGE_SERVER="auto")
    assert second.out == alone.out.replace(" one  ", " two  ")
    assert server_line(second) == f"server   used: process {pid}"
    process = psutil.Process(pid)
    assert process.ppid() != os.getpid()
    assert process.net_connections("inet") == []
    described = verb("serve", "--status")
    assert "address     none: it answers your own commands" in described.out
    until(lambda: OwnServer().hello["pid"] == pid)


def test_a_server_that_would_not_be_used_is_not_started(verb: Verb, tmp_path: Path) -> None:
    """The settings of a project hold in its folder alone, and a server reads those of its user."""
    assert verb("index", str(tmp_path / "documents")).code == 0
    (tmp_path / ".edge").mkdir(exist_ok=True)
    (tmp_path / ".edge" / "config.toml").write_text('mode = "top-k"\n')
    found = verb("search", QUERY, "-c", str(tmp_path / "data" / "edge-rag" / "collection"), "--stats",
                 EDGE_SERVER="auto")  # fmt: skip
    assert found.code == 0
    assert server_line(found) == "server   not used: its mode is ranked, not top-k"
    assert running_pid() is None


def test_a_command_says_why_it_started_none(verb: Verb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert verb("index", str(tmp_path / "documents")).code == 0
    monkeypatch.setattr(connection, "_AUTO", ("--no-port", "--memory", "1MB"))
    found = verb("search", QUERY, EDGE_SERVER="auto")
    assert found.code == 0
    assert found.err.startswith("edge: no server was started: ")
    assert found.err.count("\n") == 1
