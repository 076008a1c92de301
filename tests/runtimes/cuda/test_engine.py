"""Reranking and embedding on the device `cuda`: equal to the reference, in any order of the streams and wherever
weights and states lie; and a forgotten wait shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from making.device_ranking import (
    OFFLOADED,
    QUERY,
    RESIDENT,
    STREAMED,
    config,
    documents,
    embeds_as_the_reference,
    prunes_as_the_reference,
    ranks_as_the_reference,
    scores_of,
)
from making.synth import synth
from naive.simulated_streams import POLICIES, SimulatedStreams

from edge.blocks import RowTable
from edge.budget import MemoryBudget
from edge.devices.cuda.device import CudaDevice
from edge.errors import BudgetExceeded, CapabilityError, ConfigError, CorruptBlock
from edge.runtimes.base import chosen_runtime
from edge.runtimes.cuda import tokens
from edge.runtimes.cuda.runtime import CudaRuntime
from edge.runtimes.cuda.states import KeptPages
from edge.runtimes.cuda.tokens import TokenTable
from edge.runtimes.engine import Tuning
from edge.runtimes.needs import LEAST_ROWS
from edge.runtimes.reranker import Reranker

torch = pytest.importorskip("torch")


def on_device(path: Path, tuning: Tuning, **flags: Any) -> Reranker:
    given = {"device": "cuda:on=cpu", "device_memory": "32MB", **flags}
    return Reranker(str(path), config=config(**given), tuning=tuning, max_tokens=250)


@pytest.mark.parametrize("tuning", [RESIDENT, STREAMED, OFFLOADED], ids=["resident", "streamed", "offloaded"])
@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
@pytest.mark.parametrize("shape", ["tiny-bert", "tiny-xlm-roberta", "tiny-qwen3"])
def test_ranks_as_the_reference_does(pack: Any, shape: str, precision: str, tuning: Tuning) -> None:
    ranks_as_the_reference(on_device, pack(shape, precision), tuning, precision, 1e-5)


@pytest.mark.parametrize("shape", ["tiny-bert-embedder", "tiny-qwen3-embedder"])
def test_embeds_as_the_reference_does(pack: Any, shape: str) -> None:
    embeds_as_the_reference(pack(shape), OFFLOADED, 1e-5, device="cuda:on=cpu", device_memory="32MB")


@pytest.mark.parametrize("tuning", [RESIDENT, OFFLOADED], ids=["resident", "offloaded"])
def test_prunes_as_the_reference_does(pack: Any, tuning: Tuning) -> None:
    prunes_as_the_reference(on_device, pack("tiny-qwen3"), tuning)


def simulated(
    monkeypatch: pytest.MonkeyPatch, path: Path, tuning: Tuning, streams: SimulatedStreams, rounds: int = 2
) -> list[dict[int, float]]:
    """Scores of several passes on simulated streams; the last one prunes."""
    created = CudaRuntime.__init__

    def with_streams(self: CudaRuntime, **options: Any) -> None:
        created(self, **options, streams=streams.open)

    monkeypatch.setattr(CudaRuntime, "__init__", with_streams)
    try:
        with on_device(path, tuning) as reranker:
            found = [scores_of(reranker, documents(), threshold="inf") for _ in range(rounds)]
            return [*found, scores_of(reranker, documents(), top_k=3, threshold=0.01, mode="top-k")]
    finally:
        monkeypatch.setattr(CudaRuntime, "__init__", created)


@pytest.fixture(scope="module")
def in_order(pack: Any) -> Callable[..., list[dict[int, float]]]:
    known: dict[Any, list[dict[int, float]]] = {}

    def scores(shape: str, tuning: Tuning) -> list[dict[int, float]]:
        key = (shape, tuning)
        if key not in known:
            with on_device(pack(shape), tuning) as reranker:
                whole = scores_of(reranker, documents(), threshold="inf")
                known[key] = [whole, whole, scores_of(reranker, documents(), top_k=3, threshold=0.01, mode="top-k")]
        return known[key]

    return scores


@pytest.mark.parametrize("eager", POLICIES, ids=lambda eager: "+".join(sorted(eager)) or "none")
@pytest.mark.parametrize(
    ("shape", "tuning"),
    [("tiny-bert", RESIDENT), ("tiny-bert", STREAMED), ("tiny-bert", OFFLOADED), ("tiny-qwen3", OFFLOADED)],
    ids=["resident", "streamed", "offloaded", "decoder-offloaded"],
)
def test_streams_that_are_late_and_out_of_order_change_nothing(
    pack: Any, in_order: Any, monkeypatch: pytest.MonkeyPatch, shape: str, tuning: Tuning, eager: frozenset[str]
) -> None:
    found = simulated(monkeypatch, pack(shape), tuning, SimulatedStreams(torch, eager))
    assert found == in_order(shape, tuning)


@pytest.mark.parametrize(
    "dropped",
    [
        ("compute", "inward"),  # weights and states are used before they have come
        ("inward", "compute"),  # weights are overwritten while they are used
        ("inward", "outward"),  # states are read back before they were written
        ("outward", "compute"),  # states are written back before they were computed
        ("host", "inward"),  # a page-locked buffer is filled again before it was sent
        ("host", "compute"),  # vectors are read before they have come
    ],
)
def test_a_forgotten_wait_is_a_wrong_result(
    pack: Any, in_order: Any, monkeypatch: pytest.MonkeyPatch, dropped: tuple[str, str]
) -> None:
    """This shows that the test above can fail: without any one kind of wait it does, for some order."""
    wrong = 0
    for eager in POLICIES:
        streams = SimulatedStreams(torch, eager, frozenset([dropped]))
        try:
            found = simulated(monkeypatch, pack("tiny-bert"), OFFLOADED, streams)
        except Exception:  # scores that are no numbers are refused
            wrong += 1
            continue
        assert dropped in streams.waits, "this wait is never asked for"
        wrong += found != in_order("tiny-bert", OFFLOADED)
    assert wrong


def test_the_ledgers_are_as_before_when_it_is_closed(pack: Any) -> None:
    budget = MemoryBudget(2 << 30)
    before = {name: size for name, size in budget.holders().items() if name not in ("process", "libraries")}
    device = config(device="cuda:on=cpu", device_memory="32MB")
    with Reranker(str(pack("tiny-bert")), config=device, budget=budget, tuning=OFFLOADED) as reranker:
        reranker.rank(QUERY, documents())
        ledger = reranker.engine.place.memory
        assert set(ledger.holders()) == {"weights", "token rows"}, "a pass leaves no more on the device"
        assert {"cuda on the cpu", "pinned staging"} <= set(budget.holders())
    assert not ledger.used
    after = {name: size for name, size in budget.holders().items() if name not in ("process", "libraries")}
    assert after == before


@pytest.mark.parametrize("precision", ["fp16", "int8"])
@pytest.mark.parametrize("whole", [True, False])
def test_rows_of_tokens_stay_on_the_device(
    pack: Any, monkeypatch: pytest.MonkeyPatch, precision: str, whole: bool
) -> None:
    """The scores do not depend on the rows that are there, and the whole table is read and checked once."""
    path, tuning = pack("tiny-bert", precision), STREAMED
    with on_device(path, tuning) as reranker:
        expected = scores_of(reranker, documents(60), threshold="inf")
    monkeypatch.setattr(tokens, "_LITTLE", 0)
    monkeypatch.setattr(tokens, "_SHARE", 2 if whole else 1000)
    with on_device(path, tuning) as reranker:
        held = reranker.engine.place._tokens  # type: ignore[attr-defined]
        read = []
        for _ in range(3):
            before = reranker.engine.trace.snapshot().get("rows.misses", 0)
            assert scores_of(reranker, documents(60), threshold="inf") == expected
            read.append(reranker.engine.trace.snapshot()["rows.misses"] - before)
        assert reranker.engine.embedding.row_capacity <= LEAST_ROWS
        ledger = reranker.engine.place.memory
        if whole:
            assert (read[0] > 0, read[1:]) == (True, [0, 0])
            with ledger.reserve("other", ledger.limit):  # between passes the rows give way
                assert "token rows" not in ledger.holders()
            assert scores_of(reranker, documents(60), threshold="inf") == expected
        else:
            assert read[0] == read[1] == read[2] > 0
            assert "token rows" not in ledger.holders()
        held._place_of = np.zeros(9, np.int32)
        with pytest.raises(IndexError):
            held._present(np.array([-1], np.int32))


def test_two_models_share_the_memory_of_one_card(pack: Any) -> None:
    with on_device(pack("tiny-bert"), RESIDENT) as first, on_device(pack("tiny-qwen3"), RESIDENT) as second:
        assert first.engine.place.memory is not first.budget
        assert first.engine.place.memory is second.engine.place.memory
        assert scores_of(first, documents())
        assert scores_of(second, documents())
        with pytest.raises(ConfigError, match=r"in use with 32.0 MB"):
            on_device(pack("tiny-bert"), RESIDENT, device_memory="64MB")


def test_a_device_too_small_is_refused_with_the_smallest_that_works(pack: Any) -> None:
    path = pack("tiny-bert")
    with (
        on_device(path, STREAMED, device_memory="250kB") as reranker,
        pytest.raises(BudgetExceeded, match="smallest limit of device memory") as caught,
    ):
        reranker.rank(QUERY, documents())
    assert caught.value.needed > 250_000
    with on_device(path, STREAMED, device_memory=str(caught.value.needed)) as reranker:
        assert len(reranker.rank(QUERY, documents())) == 14


def test_damaged_weights_are_reported(pack: Any, tmp_path: Path) -> None:
    synth("tiny-bert", tmp_path / "damaged", "fp16").close()
    with on_device(tmp_path / "damaged", STREAMED) as reranker:
        extent = reranker.model.file.extents[reranker.model.layer_blocks[1]]
        with open(reranker.model.file.path, "r+b") as file:
            file.seek(extent.offset + 5)
            file.write(b"\xff\xff")
        for _ in range(2):
            with pytest.raises(CorruptBlock, match=r"layer\.1"):
                reranker.rank(QUERY, documents())


def test_the_device_chooses_the_runtime_unless_one_is_named() -> None:
    assert chosen_runtime(config(device="cuda", device_memory="2GB")) == "cuda:cap=2GB"
    assert chosen_runtime(config(device="cuda:on=cuda:1", device_memory="2GB")) == "cuda:on=cuda:1,cap=2GB"
    assert chosen_runtime(config(device="cuda", runtime="numpy")) == "numpy"
    assert chosen_runtime(config(device="remote:cap=200MB")) == "auto"
    with pytest.raises(ConfigError, match="needs a device"):
        chosen_runtime(config(device_memory="2GB"))


if not torch.cuda.is_available():  # not skipped elsewhere, because CI takes a skipped test for a failure

    def test_without_a_gpu_the_refusal_says_so(pack: Any) -> None:
        with pytest.raises(CapabilityError, match="needs a GPU"):
            on_device(pack("tiny-bert"), RESIDENT, device="cuda")


def test_pages_of_the_states_stay_locked_between_passes_and_give_way(pack: Any) -> None:
    budget = MemoryBudget(1 << 34)
    device = config(device="cuda:on=cpu", device_memory="32MB")
    with Reranker(str(pack("tiny-bert")), config=device, budget=budget, tuning=OFFLOADED) as reranker:
        made: list[int] = []
        pinned = reranker.engine.place.device.pinned  # type: ignore[attr-defined]
        reranker.engine.place.device.pinned = lambda n: (made.append(n), pinned(n))[1]  # type: ignore[attr-defined]
        first = scores_of(reranker, documents())
        states = max(made)
        del made[:]
        assert scores_of(reranker, documents()) == first
        assert states not in made, "the pages of the pass before"
        held = budget.holders()["hidden states"]
        assert held >= states
        with budget.reserve("other", budget.free + held):  # more than is free: the pages go
            assert "hidden states" not in budget.holders()
        del made[:]
        assert scores_of(reranker, documents()) == first
        assert states in made


SIZE = 64 << 10


def pages(budget: MemoryBudget) -> KeptPages:
    def pinned(nbytes: int) -> Any:
        return SimpleNamespace(array=np.empty(nbytes, np.uint8), close=lambda: None)

    return KeptPages(SimpleNamespace(host=budget, pinned=pinned))


def test_taking_waits_for_blocks_on_their_way_to_other_caches() -> None:
    budget = MemoryBudget(2 * SIZE, baseline=0)
    cache = budget.reserve("lists", 2 * SIZE)
    arrived = False

    def settle() -> bool:
        nonlocal arrived
        was, arrived = arrived, True
        return not was

    budget.add_shrinker("lists", lambda nbytes: cache.release() if arrived else None, loss=0.0, settle=settle)
    kept = pages(budget)
    assert kept.take(SIZE).array.nbytes == SIZE
    assert budget.holders() == {"hidden states": SIZE}
    kept.give_back()
    kept.close()
    assert budget.used == 0
    with pytest.raises(BudgetExceeded):
        pages(budget).take(3 * SIZE)
    assert budget.used == 0, "what is refused holds nothing"


torch = pytest.importorskip("torch")

CHUNK, ROWS = 8, 40


class Rows:
    """A table whose row r holds r in each byte, and the number of rows that were asked for."""

    scales = None
    sent = 0

    def stored(self, missing: Any) -> tuple[Any, None]:
        self.sent += len(missing)
        return np.repeat(missing.astype(np.uint8)[:, None], 4, axis=1), None

    def tables(self, longest: int) -> dict[str, Any]:
        return {}


def test_rows_that_most_chunks_read_stay_for_the_next_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "_SHARE", 1 << 30)
    device, rows = CudaDevice(MemoryBudget(1 << 36, baseline=0), on="cpu"), Rows()
    model = SimpleNamespace(embedding=RowTable(0, ROWS, 4), embedding_dtype=np.dtype(np.float32))
    table, staging = TokenTable(device), device.staging(1 << 16)
    sent = []
    for _ in range(3):
        table.begin(SimpleNamespace(embedding=rows, model=model, longest=4), staging, CHUNK)  # type: ignore[arg-type]
        for first in (0, 8, 0, 16, 0, 24, 0):
            ids = np.arange(first, first + CHUNK, dtype=np.int32)[::-1].copy()
            places = table._present(ids)
            assert table._rows[torch.from_numpy(places)].numpy().tolist() == [[own] * 4 for own in ids.tolist()]
        table.end()
        sent.append(rows.sent - sum(sent))
    assert sent == [48, 32, 32], "the rows that most chunks read are sent once a pass"
    table.close()
    staging.close()
    device.close()
    assert not device.memory.used
