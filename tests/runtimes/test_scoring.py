"""The memory of an observer for its candidates is leased, and many are scored as few are."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from making.synth import SHAPES

from edge.budget import MemoryBudget
from edge.errors import BudgetExceeded
from edge.files.sealed import recall
from edge.models.architectures import family_of
from edge.models.spec import ModelSpec
from edge.runtimes import needs, scoring
from edge.runtimes.needs import choose, saturating_tokens
from edge.runtimes.scoring import CandidatePool, PruningObserver, Scorer
from edge.streaming.hidden_states import TokenChunk
from edge.streaming.pruning import ProgressivePruning


@pytest.fixture
def spec() -> ModelSpec:
    shape = SHAPES["tiny-bert"]
    return family_of(shape.config).spec_from_config(shape.config, shape.head, "fp32")


def observer(spec: ModelSpec, candidates: int, budget: MemoryBudget | None = None) -> PruningObserver:
    width = spec.layer.hidden
    random = np.random.default_rng(0)
    head = {
        "dense.weight": random.standard_normal((width, width)).astype(np.float32) / 8,
        "dense.bias": np.zeros(width, np.float32),
        "out.weight": random.standard_normal((width, 1)).astype(np.float32),
        "out.bias": np.zeros(1, np.float32),
    }
    pruning = ProgressivePruning(candidates, mode="ranked", threshold=float("inf"), candidates=candidates)
    pool = CandidatePool(candidates, retrieved=False)
    return PruningObserver(spec, Scorer(spec, head), pruning, pool, candidates, budget=budget)


def rank(made: PruningObserver, states: np.ndarray) -> list[int]:
    ids = np.arange(len(states))
    assert made.decide(0, ids).tolist() == ids.tolist()
    assert made.wants(made.spec.layers)
    made.collect(TokenChunk(ids, np.ones(len(states), np.int32)), states)
    made.decide(made.spec.layers, ids)
    return made.ranking().tolist()


def test_what_it_holds_is_leased_until_it_is_closed(spec: ModelSpec) -> None:
    budget = MemoryBudget(1 << 36, part=True)
    made = observer(spec, 5000, budget)
    assert budget.used >= 5000 * spec.layer.hidden * 4
    ranking = rank(made, np.random.default_rng(1).standard_normal((5000, spec.layer.hidden)).astype(np.float32))
    made.close()
    made.close()
    assert budget.used == 0
    assert made.ranking().tolist() == ranking


def test_more_candidates_than_fit_are_refused(spec: ModelSpec) -> None:
    budget = MemoryBudget(1 << 20, part=True)
    with pytest.raises(BudgetExceeded, match="candidates"):
        observer(spec, 100_000, budget)
    assert budget.used == 0


def test_many_are_scored_in_parts(spec: ModelSpec) -> None:
    states = np.random.default_rng(1).standard_normal((50, spec.layer.hidden)).astype(np.float32)
    together = observer(spec, 50)
    expected = rank(together, states)
    widest = 0

    def watched(self: Scorer, layer: int, vectors: np.ndarray) -> np.ndarray:
        nonlocal widest
        widest = max(widest, len(vectors))
        return score(self, layer, vectors)

    score = Scorer.__call__
    with mock.patch.object(scoring, "SCORED_TOGETHER", 7), mock.patch.object(Scorer, "__call__", watched):
        parts = observer(spec, 50)
        assert rank(parts, states) == expected
    assert widest == 7
    np.testing.assert_allclose(parts.scores, together.scores, rtol=1e-5)


def test_the_smallest_size_near_the_best_throughput_wins() -> None:
    # Whole sequences of 100 tokens: 1, 2, 5 and 10 of them.
    assert choose({128: [1.3], 256: [2.02], 512: [5.0], 1024: [10.0]})[0] == 256


def test_one_disturbed_run_does_not_decide() -> None:
    quiet = {128: [1.0, 1.0, 1.0], 256: [2.0, 2.0, 2.0]}
    assert choose({**quiet, 128: [9.0, 1.0, 1.0]}) == (128, 9.0)
    assert choose(quiet) == (128, 1.0)


Runs = Sequence[float]


class Machine:
    """A device whose measurements are given: the ratios of a size's runs to the shortest, and the share of working."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.patch = folder, patch
        self.measured = 0
        self.held: list[int] = []
        self.budget = MemoryBudget(1 << 20, part=True)
        patch.setattr(needs.platformdirs, "user_cache_dir", lambda *_, **__: str(folder))

    def process(self, runs: Runs = (1.0, 1.1), working: float = 0.9, *, best: int = 128) -> int:
        """The size that a new process uses, at two calls."""

        def measure(kernel: Any, sizes: list[int], threads: int) -> tuple[dict[int, list[float]], float]:
            self.measured += 1
            self.held.append(self.budget.used)
            slow = {size: 2.0 if size < best else 1.0 for size in sizes}
            return {size: [size // 100 * run * slow[size] for run in runs] for size in sizes}, working

        self.patch.setattr(needs, "_measure", measure)
        self.patch.setattr(needs, "_disturbed", {})
        kernel: Any = SimpleNamespace(
            spec=SimpleNamespace(nbytes=1, hidden=1), hidden_dtype="f4", workspace=lambda tokens, _: tokens
        )
        first, second = (saturating_tokens(kernel, "onnx", 2, self.budget) for _ in range(2))
        assert first == second
        assert self.budget.used == 0
        return first

    @property
    def stored(self) -> list[Any]:
        return [value for key, value in recall(self.folder / "saturation.json", "sizes").items() if key != "sha256"]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_a_steady_measurement_is_made_once(machine: Machine) -> None:
    assert [machine.process() for _ in range(3)] == [128] * 3
    assert machine.measured == 1
    assert machine.stored == [128]
    assert machine.held == [max(needs._SIZES) * 9 + 3], "the largest size that is tried is leased"


@pytest.mark.parametrize(("runs", "working"), [((1.0, 2.0), 0.9), ((1.0, 1.1), 0.5)], ids=["uneven", "a-core-lost"])
def test_a_disturbed_measurement_is_made_again(machine: Machine, runs: Runs, working: float) -> None:
    assert machine.process(runs, working) == 128
    assert machine.process(best=1024) == 1024
    assert machine.process() == 1024
    assert (machine.measured, machine.stored) == (2, [1024])


def test_a_machine_that_is_always_disturbed_keeps_the_largest_result(machine: Machine) -> None:
    found = [machine.process(working=0.5, best=best) for best in (128, 512, 256, 128, 128, 128)]
    assert found == [128, 512, 512, 512, 512, 512]
    assert (machine.measured, machine.stored) == (5, [512])


def test_the_share_of_working_threads_is_measured() -> None:
    """A kernel that sleeps works for none of its time, one that computes in one of two threads for half."""
    shares = []
    for compute in (False, True):
        kernel: Any = SimpleNamespace(
            spec=SimpleNamespace(hidden=4, tensors=tuple), hidden_dtype="float32", bind=lambda weights: weights,
            run=lambda *_, compute=compute: sum(range(300_000)) if compute else time.sleep(0.005),
        )  # fmt: skip
        seconds, working = needs._measure(kernel, [128, 256], 2)
        assert [len(runs) for runs in seconds.values()] == [5, 5]
        shares.append(working)
    assert 0 <= shares[0] < shares[1] < 0.55


def test_where_nothing_is_free_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "_measure", None)
    kernel: Any = SimpleNamespace(spec=SimpleNamespace(nbytes=1, hidden=1), hidden_dtype="f4", workspace=lambda t, _: t)
    assert saturating_tokens(kernel, "onnx", 2, MemoryBudget(500, part=True)) == 128
    assert saturating_tokens(kernel, "onnx", 2, MemoryBudget(1 << 20, part=True), spared=1 << 20) == 128
