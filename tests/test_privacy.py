"""Nothing is sent anywhere: in a new home folder no verb opens a socket, and no file appears outside the folders that
docs/security.md names.

The kernel judges, so native libraries are seen as well: a seccomp filter ends a process at its first call of
`socket`, which precedes every connection and every look-up of a name. Children inherit the filter.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from making.synth import synth

if sys.platform != "linux":
    pytest.skip("the filter is the Linux kernel's", allow_module_level=True)

_WATCHED = """
import os, sys
from edge.apps.documents.sandbox import ALLOW, KILL_PROCESS, restrict
restrict({sys.argv[1]: None}, KILL_PROCESS, ALLOW)
os.execv(sys.executable, [sys.executable, "-c", *sys.argv[2:]])
"""
_EDGE = "from edge.apps.cli import main; main()"
_FOLDERS = (".cache/edge-rag", ".config/edge-rag", ".local/share/edge-rag", ".local/state/edge-rag")
_REQUESTS = [
    {"method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}},
    {"method": "tools/call", "params": {"name": "search", "arguments": {"query": "river"}}},
]  # fmt: skip


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home folder with an embedder, as `edge models pull` leaves one, and one document."""
    home = tmp_path / "home"
    models = home / ".local" / "share" / "edge-rag" / "models"
    synth("tiny-bert-embedder", models / "tiny-bert-embedder").close()
    (home / "docs").mkdir()
    (home / "docs" / "river.md").write_text("# River\n\nThe river floods in spring.\n", encoding="utf-8")
    (home / "docs" / "page.html").write_text("<p>Bread needs <b>time</b>.</p>", encoding="utf-8")
    (home / "temporary").mkdir()
    return home


def watched(
    home: Path, *arguments: str, code: str = _EDGE, text: str = "", call: str = "socket"
) -> subprocess.CompletedProcess[str]:
    # Nothing of this environment goes in: CI servers are known to libraries, which then report nothing.
    environment = {"HOME": str(home), "PATH": os.defpath, "TMPDIR": str(home / "temporary")}
    environment["EDGE_EMBEDDER"] = "tiny-bert-embedder"
    command = [sys.executable, "-c", _WATCHED, call, code, *arguments]
    return subprocess.run(
        command, cwd=home, env=environment, input=text, capture_output=True, text=True, check=False, timeout=300
    )


def ran(home: Path, *arguments: str, text: str = "") -> str:
    done = watched(home, *arguments, text=text)
    assert done.returncode == 0, (arguments, done.returncode, done.stderr)
    return done.stdout


def strays(home: Path) -> list[str]:
    """Files that lie neither in the documented folders nor among the documents."""
    files = [path.relative_to(home).as_posix() for path in home.rglob("*") if not path.is_dir()]
    return [name for name in files if not name.startswith((*_FOLDERS, "docs/"))]


def test_the_watch_sees_a_socket(home: Path) -> None:
    """Of Python as of a library in C, in the process as in a child of it."""
    for code in (
        "import socket; socket.socket()",
        "import socket; socket.getaddrinfo('localhost', 80)",
        "import ctypes; ctypes.CDLL(None).socket(2, 1, 0)",
    ):
        assert watched(home, code=code).returncode == -signal.SIGSYS
    child = f"import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', {code!r}]).returncode == -31)"
    assert watched(home, code=child).returncode == 1


def test_no_verb_opens_a_socket_or_writes_elsewhere(home: Path) -> None:
    ran(home, "demo", "which animal sleeps in winter")
    report = json.loads(ran(home, "index", "docs", "--json"))
    assert report["indexed"] == 2, report
    assert json.loads(ran(home, "search", "when does the river flood", "--json"))["results"]
    ran(home, "ask", "when does the river flood", "--json")
    ran(home, "memory", "add", "I am allergic to nuts")
    assert "nuts" in ran(home, "memory", "search", "allergies")
    for line in ("doctor", "status", "list", "memory list", "models list", "config show"):
        ran(home, *line.split())
    ran(home, "rerank", "who called", text="Ann called.\nIt rains.\n")
    assert strays(home) == []


@pytest.mark.parametrize("server", ["files", "memory"])
def test_no_server_opens_a_socket_or_writes_elsewhere(home: Path, server: str) -> None:
    pytest.importorskip("mcp", reason="the extra `mcp` is not installed")
    if server == "files":
        ran(home, "index", "docs")
    text = "".join(json.dumps({"jsonrpc": "2.0", "id": number, **each}) + "\n" for number, each in enumerate(_REQUESTS))
    answers = [json.loads(line) for line in ran(home, "mcp", server, text=text).splitlines()]
    assert answers[0]["result"]["serverInfo"]["name"] == f"edge-{server}"
    assert strays(home) == []


@pytest.mark.parametrize("module", ["langchain", "llama_index"])
def test_no_adapter_connects(home: Path, module: str) -> None:
    """Their frameworks bind a socket to this machine when they are imported, to learn whether it knows IPv6."""
    pytest.importorskip({"langchain": "langchain_core", "llama_index": "llama_index.core"}[module])
    done = watched(home, code=f"import edge.apps.adapters.{module}", call="connect")
    assert done.returncode == 0, done.stderr
    assert strays(home) == []


def test_the_use_as_a_library_is_silent_too(home: Path) -> None:
    code = "from edge import Reranker\nwith Reranker(memory='1GB') as r: print(r.rank('a', ['b', 'c'], top_k=1))"
    done = watched(home, code=code)
    assert done.returncode == 0, done.stderr
    assert strays(home) == []
