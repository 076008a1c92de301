"""How the chunk size that saturates the cores is chosen, and when it is remembered."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edge.budget import MemoryBudget
from edge.files.remembered import recall
from edge.runtimes import saturation
from edge.runtimes.saturation import choose, saturating_tokens


def test_the_smallest_size_near_the_best_throughput_wins() -> None:
    # Whole sequences of 100 tokens: 1, 2, 5 and 10 of them.
    assert choose({128: [1.3], 256: [2.02], 512: [5.0], 1024: [10.0]})[0] == 256


def test_one_disturbed_run_does_not_decide() -> None:
    quiet = {128: [1.0, 1.0, 1.0], 256: [2.0, 2.0, 2.0]}
    assert choose({**quiet, 128: [9.0, 1.0, 1.0]}) == (128, 9.0)
    assert choose(quiet) == (128, 1.0)


@pytest.mark.parametrize(("runs", "remembered"), [((1.0, 1.1), True), ((1.0, 2.0), False)])
def test_only_a_steady_measurement_is_remembered(
    runs: Sequence[float], remembered: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = []
    held: list[int] = []
    budget = MemoryBudget(1 << 20, part=True)

    def measure(kernel: Any, sizes: list[int]) -> dict[int, list[float]]:
        measured.append(sizes)
        held.append(budget.used)
        return {size: [size // 100 * run for run in runs] for size in sizes}

    monkeypatch.setattr(saturation, "_measure", measure)
    monkeypatch.setattr(saturation.platformdirs, "user_cache_dir", lambda *_, **__: str(tmp_path))
    kernel: Any = SimpleNamespace(
        spec=SimpleNamespace(nbytes=1, hidden=1), hidden_dtype="f4", workspace=lambda tokens, _: tokens
    )
    for _ in range(2):
        monkeypatch.setattr(saturation, "_unsteady", {})  # a new process
        for _ in range(2):
            assert saturating_tokens(kernel, "onnx", 2, budget) == 128
        assert budget.used == 0
    assert max(held) == max(measured[0]) * 9 + 3, "the largest size that is tried is leased"
    assert len(measured) == (1 if remembered else 2)
    if remembered:
        assert list(recall(tmp_path / "saturation.json", "sizes").values()) == [128]


def test_where_nothing_is_free_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saturation, "_measure", None)
    kernel: Any = SimpleNamespace(spec=SimpleNamespace(nbytes=1, hidden=1), hidden_dtype="f4", workspace=lambda t, _: t)
    assert saturating_tokens(kernel, "onnx", 2, MemoryBudget(500, part=True)) == 128
    assert saturating_tokens(kernel, "onnx", 2, MemoryBudget(1 << 20, part=True), spared=1 << 20) == 128
