"""Tiny models, and the command line in this process, where starting one would take most of a test's time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from edge.apps.cli import main
from edge.models.synth import synth


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A models directory with the reranker `tiny` and the embedder `tiny-embedder`; not to be changed."""
    folder = tmp_path_factory.mktemp("tiny") / "models"
    synth("tiny-bert", folder / "tiny").close()
    synth("tiny-bert-embedder", folder / "tiny-embedder").close()
    return folder


@pytest.fixture
def edge_verb(
    tiny_models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Ended]:
    """Runs `edge` with the tiny models in an empty folder; `EDGE_*` variables are given as keyword arguments."""

    def run(*arguments: str, **environment: str) -> Ended:
        settings = {
            "EDGE_MODELS_DIR": str(tiny_models),
            "EDGE_SCRATCH_DIR": str(tmp_path / "scratch"),
            "EDGE_RERANKER": "tiny",
            "EDGE_EMBEDDER": "tiny-embedder",
            "XDG_CONFIG_HOME": str(tmp_path / "config"),
        }
        for name, value in (settings | environment).items():
            monkeypatch.setenv(name, value)
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main(list(arguments))
        assert isinstance(stop.value.code, int)
        return Ended(stop.value.code, *capsys.readouterr())

    monkeypatch.chdir(tmp_path)
    return run
