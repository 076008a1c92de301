"""The models of a server, which give room to one another."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from making.synth import synth
from naive.waiting import PATIENCE_S

from edge.apps.assistant.generator import picks_sentences
from edge.apps.serve import library
from edge.apps.serve.library import ServedModels
from edge.budget import MemoryBudget
from edge.config import Config
from edge.errors import BudgetExceeded
from edge.runtimes.generation.llama_cpp import LlamaGenerator
from edge.trace import Trace
from tests.apps.serve.every_request import Site, site


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


class FakeLlm(LlamaGenerator):
    """A generator of 100 bytes that leaves `beside` to retrieval."""

    def __init__(self, name: str, budget: MemoryBudget, beside: int) -> None:
        self.name, self.beside, self.lease = name, beside, budget.reserve(name, 100)

    def close(self) -> None:
        self.lease.release()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[FakeLlm]:
    """The generators that were opened."""
    made: list[FakeLlm] = []

    def opening(llm: str, budget: MemoryBudget, config: Config, *, beside: int, **_: Any) -> FakeLlm:
        with budget.reserve("retrieval", beside):
            made.append(FakeLlm(llm, budget, beside))
        return made[-1]

    monkeypatch.setattr(library, "open_llm", opening)
    return made


def small_pool(nbytes: int) -> ServedModels:
    return ServedModels(MemoryBudget(nbytes, baseline=0), Config(memory=10**11), Trace())


def test_requests_share_a_generator_and_other_models_get_its_room_when_nobody_uses_it(opened: list[FakeLlm]) -> None:
    pool = small_pool(150)
    with pool.generator("one", 10) as first, pool.generator("one", 10) as second:
        assert first is second
        with pytest.raises(BudgetExceeded), pool.generator("other", 10):
            pass
    assert [held.nbytes for held in pool.models() if held.is_open] == [100]
    with pytest.raises(BudgetExceeded):
        pool.budget.reserve("cache", 100)  # only models are worth its closing
    with pool.generator("other", 10):
        assert [generator.lease.nbytes for generator in opened] == [0, 100]
    pool.make_way(lambda: pool.budget.reserve("index", 100).release())
    assert pool.budget.used == 0
    with pool.generator("other", 10) as again:
        assert again is opened[-1] is not opened[-2]
    pool.close()
    assert pool.budget.used == 0


def test_a_generator_that_leaves_too_little_to_a_request_is_opened_again(opened: list[FakeLlm]) -> None:
    pool = small_pool(150)
    with pool.generator("one", 10):
        pass
    with pool.generator("one", 20):
        assert [generator.beside for generator in opened] == [20], "there was room for it"
    cache = pool.budget.reserve("cache", 20)
    pool.budget.add_shrinker("cache", lambda nbytes: cache.resize(0) if opened[0].lease.nbytes == 0 else None, loss=0.0)
    with pool.generator("one", 40):
        assert [generator.beside for generator in opened] == [20, 40]


def test_a_generator_whose_thread_needs_the_ledger_can_give_way(opened: list[FakeLlm]) -> None:
    pool = small_pool(150)

    class Threaded(FakeLlm):
        def close(self) -> None:
            thread = threading.Thread(target=super().close)  # which takes the ledger's lock
            thread.start()
            thread.join(PATIENCE_S)
            assert not thread.is_alive()

    held = pool.held("generator", "one", lambda: Threaded("one", pool.budget, 0), kept=True)
    with held.lent():
        pass
    held.give_way()
    assert pool.budget.used == 0


@pytest.fixture
def here(tiny_models: Path, tmp_path: Path) -> Iterator[Site]:
    pytest.importorskip("starlette")
    with site(tiny_models, tmp_path) as found:
        yield found


def test_assistants_of_one_server_share_their_generator(here: Site, opened: list[FakeLlm]) -> None:
    served = here.server.library
    with served.assistant(llm="llm") as assistant:
        assert picks_sentences(assistant.generator.name), "the server has no language model"
    served._llm = "model.gguf"
    with served.assistant() as plain, served.assistant(pipeline="hyde") as hyde:
        assert plain.generator is hyde.generator is opened[0]
        assert plain is not hyde
    for held in here.server.pool.models():
        held.give_way()
    with served.assistant() as plain:
        assert plain.generator is opened[1]
