"""The limits that `edge doctor` shows are enough, and hardly more than enough."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from edge.apps.smallest import OPERATIONS, _asked, smallest_limits
from edge.config import format_size

WORKS = {
    "demo": ["demo", "what do bees do"],
    "index": ["index", "docs", "-c", "col"],
    "search": ["search", "river", "-c", "col"],
    "ask": ["ask", "when does the river flood", "-c", "col"],
    "memory": ["memory", "search", "river", "--path", "mem"],
    "rerank": ["rerank", "river", "--docs", "docs/river.txt"],
    "embed": ["embed", "--docs", "docs/river.txt"],
    "mcp": ["mcp", "files", "-c", "col"],
}
"""A small request of every operation, in the order in which they are made."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the figures are those of anonymous memory")


@pytest.fixture
def settings(tiny_models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    given = {
        "EDGE_MODELS_DIR": str(tiny_models), "EDGE_SCRATCH_DIR": str(tmp_path / "scratch"), "EDGE_RERANKER": "tiny",
        "EDGE_EMBEDDER": "tiny-embedder", "EDGE_LLM": "extractive", "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "XDG_DATA_HOME": str(tmp_path / "data"), "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }  # fmt: skip
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "river.txt").write_text("The river floods in spring.\n", encoding="utf-8")
    return given


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-c", "from edge.apps.cli import main; main()", *arguments],
        cwd=folder, env=dict(os.environ), input=b"", capture_output=True, check=False,
    )  # fmt: skip


def test_every_operation_works_at_the_first_try(settings: dict[str, str], tmp_path: Path) -> None:
    limits = smallest_limits()
    assert limits.keys() == OPERATIONS.keys() == WORKS.keys()
    assert run(tmp_path, "memory", "add", "The river floods in spring.", "--path", "mem").returncode == 0
    for name, arguments in WORKS.items():
        limit = limits[name]
        if name == "mcp" and isinstance(limit, str):
            continue  # the extra is not installed
        assert isinstance(limit, int), (name, limit)
        if name not in ("demo", "mcp"):  # those check their answers only, which are small here
            refused = run(tmp_path, *arguments, "--memory", str(limit * 3 // 4))
            assert refused.returncode == 2, (name, "three quarters of it are enough")
            assert b"smallest memory limit" in refused.stderr or b"leaves" in refused.stderr, refused.stderr
        done = run(tmp_path, *arguments, "--memory", format_size(limit, up=True).replace(" ", ""))
        assert done.returncode in (0, 1), (name, limit, done.stderr)


def test_what_cannot_be_computed_is_said(settings: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGE_RERANKER", "not-there")
    assert "there is no model 'not-there'" in str(_asked("rerank"))
    assert isinstance(_asked("embed"), int)


def test_doctor_shows_them(settings: dict[str, str], tmp_path: Path) -> None:
    shown = run(tmp_path, "doctor").stdout.decode()
    assert all(f"smallest --memory of {name}" in shown for name in OPERATIONS)
    document = json.loads(run(tmp_path, "doctor", "--json").stdout)
    assert document["smallest_limits"].keys() == OPERATIONS.keys()
    assert "`edge doctor` shows the smallest" in " ".join(run(tmp_path, "search", "--help").stdout.decode().split())
