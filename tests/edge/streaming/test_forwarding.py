"""Monolithic, chunked, streamed, offloaded: always the states of a pass that takes every sequence alone."""

from __future__ import annotations

from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from naive.forward import forward as forward_alone
from naive.forward import layer as layer_alone
from naive.source import MemorySource

from edge.blocks import BlockId
from edge.budget import MemoryBudget
from edge.errors import StorageError
from edge.link import Lane
from edge.streaming.forwarding import PassSizes, Tensors, forward, least, plan_memory
from edge.streaming.hidden_states import HiddenStates, OffloadedStates, ResidentStates, StatesShape, TokenChunk
from edge.streaming.window import SlidingWindow
from edge.trace import Trace

WIDTH = 4
LAYERS = 5
BLOCK = 2 * WIDTH * WIDTH * 8


class ToyKernel:
    """The toy layer over a packed chunk; counts its calls."""

    def __init__(self) -> None:
        self.runs = 0
        self.prefixes = 0
        self.fail_at: int | None = None

    def advance(self, states: np.ndarray, lengths: np.ndarray, weights: Tensors, prefix: object | None = None) -> None:
        self.runs += 1
        if self.runs == self.fail_at:
            raise FloatingPointError
        parts = np.split(states, np.cumsum(lengths)[:-1])
        before = prefix if isinstance(prefix, np.ndarray) else None
        states[...] = np.concatenate([layer_alone(part, weights["own"], weights["mixed"], before) for part in parts])

    def bind(self, weights: Tensors) -> Tensors:
        return weights

    def run_prefix(self, states: np.ndarray, weights: Tensors) -> tuple[np.ndarray, object]:
        self.prefixes += 1
        return layer_alone(states, weights["own"], weights["mixed"]), states


class Watcher:
    """Keeps everything it is shown, and lets `plan[layer]` of the sequences go on."""

    def __init__(self, plan: dict[int, set[int]], blind: frozenset[int] = frozenset()) -> None:
        self.plan = plan
        self.blind = blind
        self.seen: dict[int, dict[int, np.ndarray]] = {}
        self.decisions: list[tuple[int, list[int]]] = []

    def wants(self, layer: int) -> bool:
        return layer not in self.blind

    def collect(self, chunk: TokenChunk, states: np.ndarray) -> None:
        layer = len(self.decisions) + 1
        parts = np.split(states.copy(), np.cumsum(chunk.lengths)[:-1])
        self.seen.setdefault(layer, {}).update(zip(chunk.ids.tolist(), parts, strict=True))

    def decide(self, layer: int, active: np.ndarray) -> np.ndarray:
        self.decisions.append((layer, active.tolist()))
        keep = self.plan.get(layer)
        return active if keep is None else active[[i in keep for i in active.tolist()]]


class Rig:
    """A toy model on a stand-in disk, and everything `forward` needs."""

    def __init__(self, lengths: list[int], buffers: int, chunk_tokens: int, folder: Path | None, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self.layers = [(random.normal(size=(WIDTH, WIDTH)), random.normal(size=(WIDTH, WIDTH))) for _ in range(LAYERS)]
        self.sequences = [random.normal(size=(length, WIDTH)) for length in lengths]
        self.prefix = random.normal(size=(3, WIDTH))
        blocks = {BlockId("layer", i): np.stack(pair).tobytes() for i, pair in enumerate(self.layers)}
        self.source = MemorySource(blocks)
        self.trace = Trace()
        self.lane = Lane(trace=self.trace)
        self.budget = MemoryBudget(10**7, baseline=0)
        self.window = SlidingWindow(self.source, list(blocks), self.lane, self.budget, widest=buffers)
        self.window.start()
        self.window.widen()
        self.kernel = ToyKernel()
        self.chunk_tokens = chunk_tokens
        self.ran: list[int] = []
        shape = StatesShape(np.array(lengths, np.int32), WIDTH, "float64")
        self.states: HiddenStates
        if folder is None:
            self.states = ResidentStates(shape, self.budget)
        else:
            largest = max(chunk_tokens, *lengths)
            self.states = OffloadedStates(shape, self.budget, self.lane, folder, largest)

    def run(self, watcher: Watcher, *, prefix: bool = False) -> None:
        def tensors(index: int, block: memoryview) -> Tensors:
            assert bytes(block) == self.source.blocks[BlockId("layer", index)]
            own, mixed = np.frombuffer(block, np.float64).reshape(2, WIDTH, WIDTH)
            return {"own": own, "mixed": mixed}

        forward(
            window=self.window,
            tensors=tensors,
            kernel=self.kernel,
            states=self.states,
            embed=lambda chunk: np.concatenate([self.sequences[i] for i in chunk.ids.tolist()]),
            observer=watcher,
            chunk_tokens=self.chunk_tokens,
            prefixes=[self.prefix] if prefix else (),
            on_layer=lambda: self.ran.append(len(watcher.decisions)),
            trace=self.trace,
        )

    def close(self) -> None:
        self.states.close()
        self.window.close()
        self.lane.close()
        assert self.budget.used == 0


@settings(max_examples=80)
@given(data=st.data(), lengths=st.lists(st.integers(1, 7), min_size=1, max_size=10), prefix=st.booleans())
def test_states_equal_those_of_each_sequence_alone(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, lengths: list[int], prefix: bool
) -> None:
    everybody = set(range(len(lengths)))
    plan: dict[int, set[int]] = {}
    active = everybody
    for layer in range(1, LAYERS):
        if data.draw(st.booleans()):
            active = plan[layer] = active & data.draw(st.sets(st.sampled_from(sorted(everybody))))
            if not active:
                break
    blind = data.draw(st.frozensets(st.integers(1, LAYERS)))
    folder = tmp_path_factory.getbasetemp() if data.draw(st.booleans()) else None
    rig = Rig(lengths, data.draw(st.integers(2, LAYERS)), data.draw(st.integers(1, sum(lengths))), folder)
    try:
        watcher = Watcher(plan, blind)
        rig.run(watcher, prefix=prefix)
        alone = forward_alone(rig.sequences, rig.layers, rig.prefix if prefix else None)
        active = everybody
        ran = 0
        for layer, asked in watcher.decisions:
            assert set(asked) == active
            assert asked == [i for i in rig.states.order.tolist() if i in active], "the stored order is kept"
            assert set(watcher.seen.get(layer, {})) == (set() if layer in blind else active)
            for i, states in watcher.seen.get(layer, {}).items():
                np.testing.assert_allclose(states, alone[layer - 1][i], rtol=1e-12, atol=1e-14)
            ran += len(active)
            active = plan.get(layer, active)
        depth = len(watcher.decisions)
        assert [layer for layer, _ in watcher.decisions] == list(range(1, depth + 1))
        assert depth == LAYERS or not active
        assert rig.ran == list(range(depth)), "called after each layer, before anybody decides"
        counters = rig.trace.snapshot()
        assert (counters["forward.layers"], counters["forward.evaluations"]) == (depth, ran)
        assert rig.kernel.prefixes == (depth if prefix else 0), "once per layer, not per chunk"
    finally:
        rig.close()


@pytest.mark.parametrize("offload", [False, True])
def test_an_error_in_the_kernel_leaves_everything_usable(tmp_path: Path, offload: bool) -> None:
    rig = Rig([3, 3, 2, 2], 3, 3, tmp_path if offload else None)
    rig.kernel.fail_at = 6
    with pytest.raises(FloatingPointError):
        rig.run(Watcher({}))
    rig.kernel.fail_at = None
    watcher = Watcher({})
    rig.run(watcher)
    for i, states in enumerate(forward_alone(rig.sequences, rig.layers)[-1]):
        np.testing.assert_allclose(watcher.seen[LAYERS][i], states, rtol=1e-12)
    rig.close()


def test_what_the_last_layer_gives_is_not_stored(tmp_path: Path) -> None:
    rig = Rig([3, 2, 2], 2, 4, tmp_path)
    stored = []
    whole = rig.states.store
    rig.states.store = lambda chunk, states: stored.append(chunk) or whole(chunk, states)
    rig.run(Watcher({}))
    assert len(stored) == 2 * LAYERS, "two chunks: embedded once, and after every layer but the last"
    rig.source.broken = {BlockId("layer", 3)}
    with pytest.raises(StorageError, match=r"layer\.3"):
        rig.run(Watcher({}))
    rig.source.broken = set()
    rig.run(Watcher({}))
    rig.close()
    rig = Rig([], 2, 4, None)
    nobody = Watcher({})
    rig.run(nobody)
    assert (nobody.decisions[0], rig.kernel.runs) == ((1, []), 0)
    rig.close()


SIZES = st.integers(1, 400)


def request(tokens: int, longest: int, layers: int = 6, saturating: int = 128, layer_nbytes: int = 50_000) -> PassSizes:
    return PassSizes(
        tokens=max(tokens, longest),
        longest=longest,
        width=16,
        dtype="float32",
        workspace=lambda chunk, most: 300 * chunk + most * most,
        layers=layers,
        layer_nbytes=layer_nbytes,
        saturating_tokens=saturating,
    )


@given(tokens=SIZES, longest=SIZES, layers=st.integers(1, 4), saturating=SIZES)
def test_the_least_is_exactly_what_the_smallest_arrangement_takes(
    tokens: int, longest: int, layers: int, saturating: int
) -> None:
    """A refused caller is told the smallest limit that works: one byte less must not work, and it itself must."""
    wanted = request(tokens, longest, layers, saturating)
    assert plan_memory(wanted, least(wanted) - 1) is None
    chosen = plan_memory(wanted, least(wanted))
    assert chosen.nbytes == least(wanted)


@given(tokens=SIZES, longest=SIZES, saturating=SIZES, first=st.integers(0, 500_000), more=st.integers(0, 500_000))
def test_what_is_chosen_fits_and_more_memory_never_means_a_smaller_chunk(
    tokens: int, longest: int, saturating: int, first: int, more: int
) -> None:
    wanted = request(tokens, longest, saturating=saturating)
    chunks = []
    for extra in (first, first + more):
        chosen = plan_memory(wanted, least(wanted) + extra)
        assert chosen.nbytes <= least(wanted) + extra
        assert longest <= chosen.chunk_tokens <= max(longest, saturating)
        if not chosen.saturated:
            assert chosen.chunk_tokens < saturating
        states = wanted.tokens * 16 * 4
        if not chosen.resident:
            states = OffloadedStates.memory_needed(min(chosen.chunk_tokens, wanted.tokens), 16, "float32")
        assert chosen.nbytes >= states + chosen.workspace + 2 * wanted.layer_nbytes
        either = [plan_memory(wanted, least(wanted) + extra, resident=resident) for resident in (True, False)]
        assert chosen == max(filter(None, either), key=lambda plan: plan.chunk_tokens), "of equals the resident one"
        chunks.append(chosen.chunk_tokens)
    assert chunks == sorted(chunks)


@pytest.mark.parametrize("resident", [None, True, False])
def test_hidden_states_go_where_the_caller_says_and_stay_in_memory_with_plenty(resident: bool | None) -> None:
    chosen = plan_memory(request(400, 100), 10**9, resident=resident)
    assert (chosen.resident, chosen.saturated, chosen.chunk_tokens) == (resident is not False, True, 128)
