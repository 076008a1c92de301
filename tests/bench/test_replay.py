"""`ReplayGenerator` gives the tokens of a trace when they are due."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.replay import ReplayGenerator
from edge.runtimes.generation.base import Message, Piece, Sampling

ASKED = [Message("user", "anything")]


@pytest.fixture
def replay(tmp_path: Path) -> Callable[..., ReplayGenerator]:
    def open_one(*answers: str, prefill: float = float("inf"), decode: float = float("inf")) -> ReplayGenerator:
        lines = [{"prompt_tokens": 100, "pieces": [[letter, -0.25] for letter in text]} for text in answers]
        (tmp_path / "t.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        return ReplayGenerator(tmp_path / "t.jsonl", prefill=prefill, decode=decode)

    return open_one


def test_answers_are_given_in_their_order_and_cut_at_their_most(replay: Callable[..., ReplayGenerator]) -> None:
    generator = replay("abc", "defg")
    assert list(generator.stream(ASKED, Sampling())) == [Piece(letter, None, -0.25) for letter in "abc"]
    assert generator.stats is not None
    assert (generator.stats.prompt_tokens, generator.stats.new_tokens, generator.stats.finish) == (100, 3, "stop")
    assert len(list(generator.stream(ASKED, Sampling(max_tokens=2)))) == 2
    assert generator.stats.finish == "length"


def test_time_passes_as_stated_and_work_between_two_tokens_delays_the_second(
    replay: Callable[..., ReplayGenerator],
) -> None:
    generator = replay("abcde", prefill=2000, decode=100)
    for _ in generator.stream(ASKED, Sampling()):
        time.sleep(0.02)
    assert generator.stats is not None
    assert generator.stats.ttft_s >= 100 / 2000 + 1 / 100
    assert generator.stats.seconds >= 100 / 2000 + 5 / 100 + 5 * 0.02


def test_cancelled_while_it_waits(replay: Callable[..., ReplayGenerator]) -> None:
    cancel = threading.Event()
    threading.Timer(0.05, cancel.set).start()
    generator = replay("abc", decode=1e-3)
    assert list(generator.stream(ASKED, Sampling(), cancel=cancel)) == []
    assert generator.stats is not None
    assert (generator.stats.finish, generator.stats.new_tokens) == ("cancelled", 0)
