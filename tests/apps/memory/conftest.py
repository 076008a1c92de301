"""Memories with models that only know words, and a clock that stands still until it is moved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from naive.words import WordEmbedder, WordReranker

from edge.apps.memory.memory import Memory

Make = Callable[..., Memory]


class StillClock:
    """Says noon of 1 June 2026 until told otherwise."""

    def __init__(self) -> None:
        self.now = datetime(2026, 6, 1, 12, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def forward(self, **delta: float) -> None:
        self.now += timedelta(**delta)


def texts(result: dict[str, Any]) -> list[str]:
    return [found["memory"] for found in result["results"]]


def add(memory: Memory, text: str, **options: Any) -> str:
    """Adds one text, of ann if nothing else is said; its id."""
    return str(memory.add(text, **{"user_id": "ann"} | options)["results"][0]["id"])


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


@pytest.fixture
def make(tmp_path: Path, clock: StillClock) -> Iterator[Make]:
    """Opens memories, by default always the same one, and closes them."""
    opened: list[Memory] = []

    def open_one(name: str = "memory", **options: Any) -> Memory:
        options = {"embedder": WordEmbedder(), "reranker": WordReranker(), "clock": clock, "memory": "10GB"} | options
        opened.append(Memory(tmp_path / name, **options))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


@pytest.fixture
def memory(make: Make) -> Memory:
    return make()
