"""Tiny models for clusters in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from naive.program import config_of, settings_of, write_tiny_models
from naive.spread import Small

from edge.config import Config


@pytest.fixture
def tiny_config(tiny_models: Path, tmp_path: Path) -> Config:
    return config_of(tiny_models, tmp_path / "scratch", threads=1)


@pytest.fixture
def small(tmp_path: Path, tiny_config: Config) -> Iterator[Callable[..., Small]]:
    made: list[Small] = []

    def make(shards: int = 3, **options: Any) -> Small:
        made.append(Small(tmp_path / str(len(made)), tiny_config, shards, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which the command `edge` finds tiny models, and keeps everything."""
    write_tiny_models(tmp_path / "models")
    for name, value in settings_of(tmp_path, EDGE_MEMORY="20GB").items():
        monkeypatch.setenv(name, value)
    return tmp_path
