"""Which block leaves first, and the buffers that blocks lie in."""

from __future__ import annotations

from collections.abc import Iterator

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from naive.residency import Hotness, hotness
from naive.source import MemorySource

from edge.blocks import BlockId
from edge.budget import MemoryBudget
from edge.cache.cached_block import (
    DECAY,
    GAIN,
    INITIAL,
    Bytes,
    DecayedHotness,
    Spares,
    charge_of,
    page_buffer,
    pages_of,
)
from edge.cache.residency import Residency
from edge.link import Lane, Ticket


@settings(max_examples=150)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["insert", "touch", "remove", "round", "victim", "copy"]), st.integers(0, 5)),
        max_size=80,
    ),
)  # fmt: skip
def test_hotness_is_what_the_formula_says(steps: list[tuple[str, int]]) -> None:
    policy, twin = DecayedHotness(), Hotness(DECAY, GAIN, INITIAL)
    for name, key in steps:
        if name == "round":
            policy.begin_round()
            twin.begin_round()
        elif name == "copy":
            before, policy = policy, policy.copy()
            for other in range(6):  # the fate of the one does not concern the other
                if other in twin.value:
                    before.remove(other)
        elif name == "insert" and key not in twin.value:
            policy.insert(key)
            twin.insert(key)
        elif name in ("touch", "remove") and key in twin.value:
            getattr(policy, name)(key)
            getattr(twin, name)(key)
        elif name == "victim":
            allowed = [k for k in twin.value if k >= key]
            victim = policy.victim(lambda k, least=key: k >= least)
            assert (victim is None) == (not allowed)
            if victim is not None:
                assert twin.value[victim] <= min(twin.value[k] for k in allowed) * (1 + 1e-9)
    for key, value in twin.value.items():
        assert hotness(policy, key) == pytest.approx(value, rel=1e-9)


@pytest.mark.parametrize("nbytes", [1, 4095, 64 << 10, (64 << 10) + 1, 1 << 20])
def test_a_buffer_is_writable_and_charged_with_all_its_pages(nbytes: int) -> None:
    buffer = page_buffer(nbytes)
    assert (buffer.shape, buffer.dtype) == ((nbytes,), np.uint8)
    buffer[:] = 7
    assert buffer[: nbytes // 8 * 8].view(np.int64).size == nbytes // 8
    assert charge_of(nbytes) > nbytes
    if nbytes >= 64 << 10:
        assert charge_of(nbytes) >= -(-nbytes // 4096) * 4096


LARGE = 100_000
SIZES = [LARGE, LARGE - 500, LARGE + 30_000, 90_000, 10_000]


@pytest.fixture
def lane(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lane]:
    monkeypatch.setattr("edge.budget.anonymous_resident", lambda: 0)
    with Lane() as made:
        yield made


def test_the_smallest_that_is_large_enough_and_not_much_larger_serves() -> None:
    spares = Spares()
    buffers = [page_buffer(nbytes) for nbytes in (120_000, 100_000, 200_000)]
    assert all(spares.put(buffer) for buffer in buffers)
    assert spares.nbytes == sum(pages_of(buffer.nbytes) for buffer in buffers)
    assert spares.fitting(99_000) is buffers[1]
    assert spares.fitting(100_001) is buffers[0]
    assert spares.fitting(140_000) is None  # 200,000 is more than a quarter too much
    spares.take(buffers[1])
    assert spares.fitting(99_000) is buffers[0]
    assert spares.nbytes == sum(pages_of(buffers[i].nbytes) for i in (0, 2))
    spares = Spares()
    for nbytes in (70_000, 80_000, 90_000):
        spares.put(page_buffer(nbytes))
    assert spares.release(70_001) == pages_of(70_000), "the oldest are given back until it is enough"
    assert spares.release(pages_of(80_000) + 1) == pages_of(80_000) + pages_of(90_000)
    assert not spares.put(page_buffer(10_000)), "one of the heap"
    assert (spares.nbytes, spares.release(1)) == (0, 0)


def rig(blocks: int) -> tuple[MemoryBudget, Residency, MemorySource]:
    content = {
        BlockId("list", key): np.full(SIZES[key % len(SIZES)], key % 251, np.uint8).tobytes() for key in range(blocks)
    }
    budget = MemoryBudget(250 * charge_of(LARGE), baseline=0)
    return budget, Residency(budget), MemorySource(content)


def use(residency: Residency, lane: Lane, source: MemorySource, key: int, now: int) -> None:
    block = BlockId("list", key)

    def fetch(buffer: Bytes) -> Ticket:
        return lane.fetch(source, block, buffer.data)

    handle = residency.admit(key, source.nbytes(block), fetch, now)
    assert bytes(handle.wait()) == bytes(source.blocks[block])
    handle.release()


def test_a_cache_that_is_full_uses_its_pages_again_and_counts_them_all(
    lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget, residency, source = rig(600)
    made: list[int] = []
    monkeypatch.setattr(residency, "_allocate", lambda nbytes: (made.append(nbytes), page_buffer(nbytes))[1])
    random = np.random.default_rng(0)
    for now, key in enumerate(random.integers(0, 600, 2500).tolist(), 1):
        use(residency, lane, source, key, now)
        assert budget.used <= budget.limit
        entries = residency._entries.values()
        assert residency.nbytes == sum(entry.charged for entry in entries) + residency._spares.nbytes
        assert all(entry.charged == charge_of(entry.whole.nbytes) for entry in entries)
    misses = residency.trace.snapshot()["lists.misses"]
    assert sum(nbytes > 64 << 10 for nbytes in made) < 0.7 * misses
    held, spare = len(residency), residency._spares.nbytes
    assert spare > 0
    with budget.reserve("another", budget.free + spare):
        assert (len(residency), residency._spares.nbytes) == (held, 0), "spares go first"
    residency.close()
    assert budget.used == 0
