"""Tiny models, and the command line in this process, where starting one would take most of a test's time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from naive.forked import forked_edge
from naive.program import settings_of, write_tiny_models
from naive.reading import ReadingHere

from edge.apps.cli import main
from edge.budget import MemoryBudget


@dataclass(frozen=True)
class Ended:
    """How a command ended, and its output."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A models directory with the reranker `tiny` and the embedder `tiny-embedder`; not to be changed."""
    return write_tiny_models(tmp_path_factory.mktemp("tiny") / "models")


@pytest.fixture(autouse=True)
def read_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """See `naive.reading`. Tests of the process that reads documents put a fixture that does nothing in its place."""
    monkeypatch.setattr("edge.apps.documents.extraction.WorkerProcess", ReadingHere)


@pytest.fixture(scope="session")
def forked_command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, ...]]:
    """What starts `edge` in a fork of one process; see `naive.forked`."""
    with forked_edge(tmp_path_factory.mktemp("forked") / "edge") as command:
        yield command


@pytest.fixture
def budget() -> MemoryBudget:
    """A ledger with more memory than any test needs, which starts at 0."""
    return MemoryBudget(1 << 36, baseline=0)


@pytest.fixture
def edge_verb(
    tiny_models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Ended]:
    """Runs `edge` with the tiny models in an empty folder; `EDGE_*` variables are given as keyword arguments."""

    def run(*arguments: str, **environment: str) -> Ended:
        # The limit counts all memory that the test process holds.
        own = {"EDGE_MODELS_DIR": str(tiny_models), "EDGE_MEMORY": "10GB"}
        for name, value in settings_of(tmp_path, **own | environment).items():
            monkeypatch.setenv(name, value)
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main(list(arguments))
        assert isinstance(stop.value.code, int)
        return Ended(stop.value.code, *capsys.readouterr())

    monkeypatch.chdir(tmp_path)
    return run
