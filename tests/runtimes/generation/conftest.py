"""Tiny random language models, made on the spot, and generators over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edge.budget import MemoryBudget
from edge.runtimes.generation.llama_cpp import LlamaGenerator


@pytest.fixture
def open_llama(gguf: Callable[..., Path], tmp_path: Path) -> Iterator[Callable[..., LlamaGenerator]]:
    """Opens a generator over a file (a tiny random model if none is given), with one thread, and closes it."""
    pytest.importorskip("llama_cpp")
    opened: list[LlamaGenerator] = []

    def make(path: Path | None = None, **options: Any) -> LlamaGenerator:
        options = {"budget": MemoryBudget(1 << 33), "cache": tmp_path / "cache", "threads": 1, **options}
        opened.append(LlamaGenerator(path or gguf(), **options))
        return opened[-1]

    yield make
    for generator in opened:
        generator.close()
