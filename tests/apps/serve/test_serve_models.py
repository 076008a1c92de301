"""The models of a server, which give room to one another."""

from __future__ import annotations

from pathlib import Path

import pytest
from making.synth import synth

from edge.apps.serve.library import ServedModels
from edge.budget import MemoryBudget
from edge.config import Config
from edge.trace import Trace


@pytest.fixture
def pool(tmp_path: Path) -> ServedModels:
    synth("tiny-bert", tmp_path / "model").close()
    return ServedModels(MemoryBudget(10**11), Config(memory=10**11, scratch_dir=str(tmp_path)), Trace())


@pytest.mark.parametrize("filled", [False, True])
def test_the_size_of_a_model_counts_what_it_took_although_caches_gave_way(
    pool: ServedModels, tmp_path: Path, filled: bool
) -> None:
    cache = pool.budget.reserve("cache", pool.budget.free if filled else 0)
    pool.budget.add_shrinker("cache", lambda nbytes: cache.resize(0), loss=0.0)
    pool.reranker(str(tmp_path / "model")).run(lambda model: model.rank("river", ["The river floods.", "Bread."]))
    (held,) = pool.models()
    assert cache.nbytes == 0
    assert held.nbytes > 1000
    assert pool.picture is not None
    assert (pool.picture.model, pool.picture.candidates) == (held.name, 2)
    pool.close()
