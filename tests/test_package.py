"""The package: what it holds, and that its processes run no foreign code."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from naive.program import environment_of, write_tiny_models

import edge
from edge.apps.bench.worker import run_worker
from edge.apps.cluster import places
from edge.apps.commands.smallest import smallest_limits
from edge.apps.console import PYTHON
from edge.apps.documents.process import WorkerProcess
from edge.budget import MemoryBudget
from edge.devices.remote import RemoteDevice
from edge.errors import EdgeError
from edge.interpreter import python
from edge.models.pull import fetch_wheel
from edge.models.registry import DEFAULT_RERANKER, resolve
from edge.runtimes.generation.chat_template import ChatTemplate

ROOT = Path(__file__).parents[1]


def test_public_names_are_found_and_declared() -> None:
    stub = (ROOT / "edge" / "__init__.pyi").read_text(encoding="utf-8")
    for name in ("Config", "EdgeError", "Embedder", "MemoryBudget", "Ranked", "Reranker"):
        assert getattr(edge, name).__name__ == name
        assert name in dir(edge)
        assert f"import {name} as {name}" in stub


def test_the_default_reranker_comes_with_the_installation(tmp_path: Path) -> None:
    with resolve(DEFAULT_RERANKER, kind="reranker", directory=tmp_path) as model:
        model.verify()
    with edge.Reranker(memory="40GB") as reranker:
        best = reranker.rank("who wrote Hamlet", ["It rains in Spain.", "Hamlet was written by William Shakespeare."])
    assert best[0].index == 1
    assert best[0].score > best[1].score


def test_the_readme_or_a_guide_names_every_verb() -> None:
    from edge.apps.cli import _VERBS

    guides = [page for page in (ROOT / "docs").glob("*.md") if page.name != "commands.md"]
    text = "".join(page.read_text(encoding="utf-8") for page in [ROOT / "README.md", *guides])
    for verb in _VERBS:
        assert f"edge {verb}" in text, f"neither the README nor a guide mentions `edge {verb}`"


FOREIGN = """
import os
with open(os.environ["EDGE_TEST_MARK"], "a") as mark:
    mark.write(__name__ + " ")
raise SystemExit("foreign code ran")
"""

NAMES = (
    "abc", "argparse", "click", "contextlib", "edge", "faiss", "functools", "importlib", "jinja2", "json", "logging",
    "numpy",
    "pathlib", "pip", "psutil", "random", "ray", "re", "runpy", "sitecustomize", "socket", "ssl", "struct", "threading",
    "typing", "usercustomize",
)  # fmt: skip


def server(folder: Path) -> None:
    with suppress(subprocess.TimeoutExpired):
        subprocess.run([*PYTHON, "serve", "--background", "--idle", "1"], capture_output=True, timeout=60, check=False)
    subprocess.run([*PYTHON, "serve", "--stop"], capture_output=True, timeout=60, check=False)


def ray_node(folder: Path) -> None:
    # Ray refuses this name, so nothing stays.
    places.start_node("127.0.0.1:1", place="CPU", listen="127.0.0.1", port=0, nbytes=80 << 20)


STARTS: dict[str, Callable[[Path], object]] = {
    "bench": lambda folder: run_worker("edge.apps.bench.worker", {"name": "none"}, threads=1),
    "chat template": lambda folder: ChatTemplate("{{ messages }}", MemoryBudget(10**9)).render(["user"]),
    "documents": lambda folder: WorkerProcess(memory=200 << 20).kill(),
    "pip": lambda folder: fetch_wheel("edge-rag-not-there==0", "", None, folder),
    "plan": lambda folder: run_worker("edge.apps.plan.profile", {"name": "none"}, threads=1),
    "ray": ray_node,
    "remote": lambda folder: RemoteDevice(MemoryBudget(10**9), cap=1 << 20).close(),
    "server": server,
    "smallest limits": lambda folder: smallest_limits(),
}


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory full of foreign modules. They write their names into this file."""
    place = tmp_path / "place"
    for name in NAMES:
        (place / name).mkdir(parents=True)
        (place / name / "__init__.py").write_text(FOREIGN)
    for name in ("edge", "numpy", "json"):
        (place / f"{name}.py").write_text(FOREIGN)
    write_tiny_models(tmp_path / "home" / "models")
    for name, value in environment_of(tmp_path / "home").items():
        monkeypatch.setenv(name, value)
    for name, value in {"PIP_NO_INDEX": "1", "EDGE_TEST_MARK": str(tmp_path / "mark"), "EDGE_SERVER": "auto"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(places, "_answers", lambda head: True)
    monkeypatch.chdir(place)
    return tmp_path / "mark"


@pytest.mark.parametrize("name", STARTS)
def test_no_process_runs_code_of_the_working_directory(name: str, mark: Path, tmp_path: Path) -> None:
    home = tmp_path / "wheel"
    home.mkdir()
    with suppress(EdgeError, SystemExit):  # it need not succeed
        STARTS[name](home)
    assert not mark.exists(), mark.read_text()


def test_foreign_modules_would_run(mark: Path) -> None:
    subprocess.run([sys.executable, "-c", "import json"], check=False)
    assert mark.read_text() == "json "


def test_an_interactive_session_does_not_pass_its_folder_on(mark: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    subprocess.run(python("import json, edge.errors"), check=True)
