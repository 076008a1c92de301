"""`open_generator`: one word says which."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from edge.budget import MemoryBudget
from edge.config import Config
from edge.errors import ConfigError, ModelError
from edge.runtimes.generation.extractive import ExtractiveGenerator
from edge.runtimes.generation.opening import open_generator


@pytest.fixture
def budget() -> MemoryBudget:
    return MemoryBudget(1 << 33)


@pytest.mark.parametrize("spec", ["", "extractive"])
def test_sentences_without_a_model(budget: MemoryBudget, spec: str) -> None:
    generator = open_generator(spec, budget, Config(), score=lambda _, texts: [0.0] * len(texts))
    assert isinstance(generator, ExtractiveGenerator)
    assert not generator.follows_instructions
    with pytest.raises(ConfigError, match="scores sentences"):
        open_generator(spec, budget, Config())


def test_server(budget: MemoryBudget) -> None:
    pytest.importorskip("httpx")
    generator = open_generator("http://127.0.0.1:8080/v1#small", budget, Config(context=999, llm_key="secret"))
    assert (generator.name, generator.context) == ("small", 999)
    generator.close()
    with pytest.raises(ConfigError, match="not this machine"):
        open_generator("https://example.com/v1", budget, Config())
    open_generator("https://example.com/v1", budget, Config(llm_remote=True)).close()


def test_model_file(budget: MemoryBudget, gguf: Callable[..., Path], tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    generator = open_generator(gguf(), budget, Config(threads=1, scratch_dir=str(tmp_path), context=512))
    assert (generator.name, generator.context) == (gguf().name, 512)
    generator.close()
    with pytest.raises(ModelError, match="there is no file"):
        open_generator("llama3", budget, Config())
