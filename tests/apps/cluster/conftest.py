"""Tiny models for clusters in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from naive.program import config_of, write_tiny_models
from naive.spread import Small

from edge.config import Config


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def tiny_config(model_folder: Path, tmp_path: Path) -> Config:
    return config_of(model_folder, tmp_path / "scratch", threads=1)


@pytest.fixture
def small(tmp_path: Path, tiny_config: Config) -> Iterator[Callable[..., Small]]:
    made: list[Small] = []

    def make(shards: int = 3, **options: Any) -> Small:
        made.append(Small(tmp_path / str(len(made)), tiny_config, shards, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()
