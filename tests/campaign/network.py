"""Verbs in a new home folder, watched for sockets by the kernel and for files in places that nobody named."""

from __future__ import annotations

import json
import random
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from campaign.base import HELD, Attack, Case, Outcome, failed
from campaign.program import Home

_WATCHED = """
import os, sys
from edge.apps.documents.sandbox import ALLOW, KILL_PROCESS, restrict
restrict({"socket": None}, KILL_PROCESS, ALLOW)
os.execv(sys.executable, [sys.executable, "-c", "from edge.apps.cli import main; main()", *sys.argv[1:]])
"""
_DOCUMENTED = (
    ".config/edge-rag",
    ".local/share/edge-rag",
    ".local/state/edge-rag",
    ".cache/edge-rag",
    "work",
    "models",
)
_CALLS = [
    {"method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "campaign", "version": "1"}}},
    {"method": "tools/list", "params": {}},
]  # fmt: skip
_MESSAGES = "".join(json.dumps({"jsonrpc": "2.0", "id": n, **call}) + "\n" for n, call in enumerate(_CALLS))
_RUNS: tuple[tuple[str, list[list[str]]], ...] = (
    ("demo", [["demo", "which animal sleeps in winter"]]),
    ("files", [["index", "docs"], ["search", "river"], ["ask", "when does the river flood"], ["status"], ["list"]]),
    ("memory", [["memory", "add", "I like rivers"], ["memory", "search", "rivers"], ["memory", "list"]]),
    ("texts", [["rerank", "river", "--docs", "docs.txt"], ["embed", "--docs", "docs.txt", "--out", "out.npy"]]),
    ("models", [["models", "list"], ["models", "show", "tiny"], ["doctor"], ["config", "show"]]),
    ("memory server", [["mcp", "memory"]]),
    ("file server", [["index", "docs"], ["mcp", "files"]]),
)


class Network(Attack):
    name = "network"
    promise = "No verb opens a socket, and no file appears outside the documented folders."
    quick = 1  # `tests/test_privacy.py` watches the verbs of files and memories, too

    def prepare(self, place: Path) -> None:
        Home(place / "made").with_tiny_models()

    def cases(self, chance: random.Random) -> Iterator[Case]:
        runs = list(_RUNS)
        while True:
            yield from (Case(label, commands) for label, commands in runs)
            chance.shuffle(runs)

    def attempt(self, case: Case, place: Path) -> Outcome:
        home = Home(place / "home")
        try:
            shutil.copytree(place / "made" / "models", home.models)
            (home.work / "docs").mkdir()
            (home.work / "docs" / "river.md").write_text("The river floods in spring.\n", encoding="utf-8")
            (home.work / "docs" / "page.html").write_text("<p>Bread needs time.</p>", encoding="utf-8")
            (home.work / "docs.txt").write_text("The river floods.\nBread needs time.\n", encoding="utf-8")
            (home.path / "temporary").mkdir()
            for arguments in case.data:
                stdin = _MESSAGES.encode() if "mcp" in arguments else None
                done = home.edge(
                    *arguments, stdin=stdin, command=(sys.executable, "-c", _WATCHED),
                    environment={"TMPDIR": str(home.path / "temporary")},
                )  # fmt: skip
                if done.code == -signal.SIGSYS:
                    return failed(f"edge {' '.join(arguments)} opened a socket")
                if done.code != 0:
                    return failed(str(done))
            files = [path.relative_to(home.path).as_posix() for path in home.path.rglob("*") if not path.is_dir()]
            strays = [name for name in files if not name.startswith(_DOCUMENTED)]
            return failed(f"files appeared: {strays}") if strays else HELD
        finally:
            shutil.rmtree(home.path, ignore_errors=True)
