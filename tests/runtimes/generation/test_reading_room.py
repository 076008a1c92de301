"""Prompts of sequences that share a context are computed in a context of their own."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge.budget import MemoryBudget
from edge.runtimes.generation.llama_context import LlamaContext
from edge.runtimes.generation.llama_cpp import LlamaGenerator
from edge.runtimes.generation.llama_memory import LlamaMemory

Open = Callable[..., LlamaGenerator]

ROOM = 1024
TABLE = 12
"""Bytes of a cell's position and sequence, which stand before the states."""


@pytest.fixture
def pool(open_llama: Open) -> list[LlamaContext]:
    """Three sequences of a context with 2,048 cells."""
    generator = open_llama(answers=3, shared=True)
    assert generator.memory.room.tokens == ROOM
    others = [generator._another() for _ in range(2)]
    return [generator.states.context, *(other for other in others if other is not None)]


@pytest.fixture
def alone(open_llama: Open) -> LlamaContext:
    states = open_llama().states
    return states.context


def tokens(count: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(300, 800, count).tolist()


def test_a_prompt_has_the_states_that_it_has_alone(pool: list[LlamaContext], alone: LlamaContext) -> None:
    """To the last bit, whatever the others hold."""
    for seed, sequence in enumerate(pool):
        for count in (300, 37, 200):
            part = tokens(count, seed + count)
            sequence.append(part, logits=True)
            alone.append(part, logits=True)
        one, other = bytes(sequence.backend.extract(0, 537)), bytes(alone.backend.extract(0, 537))
        assert len(one) == len(other) > 100 * 537
        assert one[TABLE * 541 :] == other[TABLE * 541 :]
        assert np.array_equal(sequence.logits(), alone.logits())
        alone.truncate(0)


def test_a_pool_computes_no_tile(pool: list[LlamaContext], monkeypatch: pytest.MonkeyPatch) -> None:
    """In a tile each token would pay for the cells of all sequences."""
    rows: dict[int, list[int]] = {}
    compute = LlamaContext._decode

    def counted(context: LlamaContext, count: int) -> int:
        rows.setdefault(context.shape.sequences, []).append(count)
        return compute(context, count)

    monkeypatch.setattr(LlamaContext, "_decode", counted)
    for sequence in pool:
        sequence.append(tokens(300, 1))
        sequence.append(tokens(30, 2), logits=True)
    pool[0].step([(sequence, [300]) for sequence in pool])
    assert rows[3] == [3]
    assert max(rows[1]) > 64


def test_what_finds_no_room_is_computed_beside_the_others(pool: list[LlamaContext], alone: LlamaContext) -> None:
    sequence = pool[1]
    sequence.append(long := tokens(ROOM, 1))
    assert not sequence.room.takes(sequence, 20)
    sequence.append(more := tokens(20, 2), logits=True)
    alone.append(long)
    alone.append(more, logits=True)
    np.testing.assert_allclose(sequence.logits(), alone.logits(), atol=2e-2)


def test_keys_are_rotated_in_the_room(pool: list[LlamaContext], alone: LlamaContext) -> None:
    found = []
    for sequence in (alone, *pool):
        sequence.append(tokens(40, 1))
        state = sequence.backend.extract(20, 40)
        sequence.truncate(0)
        sequence.append(tokens(30, 2))
        sequence.backend.move(state, 20, 40, 4)
        assert sequence.length == 46
        assert sequence is alone or not sequence.moved
        sequence.append(tokens(30, 3), logits=True)
        found.append((bytes(sequence.backend.extract(30, 46))[TABLE * 20 :], sequence.logits().copy()))
    for states, logits in found[1:]:
        assert states == found[0][0]
        np.testing.assert_allclose(logits, found[0][1], atol=2e-2)  # the cells lie elsewhere


def test_moved_keys_are_not_copied_before_they_are_rotated(pool: list[LlamaContext]) -> None:
    """Where the room has no place, llama.cpp rotates them in its next batch. Others may share them."""
    first, second, third = pool
    assert first.room is not None
    first.append(tokens(40, 1))
    state = first.backend.extract(20, 40)
    first.truncate(0)
    first.append(tokens(ROOM - 10, 2))
    first.backend.move(state, 20, 40, 4)
    second.backend.share(first.backend, 0, first.length)
    for one in (first, second):
        one.truncate(100)
        assert not first.room.takes(one, 20)
    assert first.room.takes(third, 20)
    assert first.sequence(3).moved is False
    first.truncate(0)
    assert first.room.takes(first, 20)


def test_a_reader_may_leave_between_two_slices(pool: list[LlamaContext], alone: LlamaContext) -> None:
    first, second, _ = pool
    part = tokens(400, 1)
    asked: list[int] = []

    def cancelled() -> bool:
        """Others write in the meantime."""
        first.step([(second, [300])])
        asked.append(first.slice)
        first.slice = 128
        return len(asked) > 2

    first.slice = 64
    second.append(tokens(20, 2), logits=True)
    held = first.append(part, cancelled=cancelled)
    assert held == first.length == 64 + 128
    assert first.append(part, done=held, logits=True) == 400
    alone.append(part, logits=True)
    np.testing.assert_allclose(first.logits(), alone.logits(), atol=2e-2)


Steps = list[tuple[str, int, int]]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.sampled_from(["append", "step", "cut", "copy"]), st.integers(0, 2), st.integers(1, 90)),
        min_size=1,
        max_size=12,
    )
)
def test_any_order_of_steps_gives_the_logits_of_the_text(
    pool: list[LlamaContext], alone: LlamaContext, steps: Steps
) -> None:
    """Against a twin that computes the text of each sequence at once."""
    texts: list[list[int]] = [[], [], []]
    for sequence in pool:
        sequence.truncate(0)
    for seed, (step, number, count) in enumerate(steps):
        sequence, text, new = pool[number], texts[number], tokens(count, seed)
        if step == "append":
            sequence.append(new)
            text += new
        elif step == "step":
            sequence.step([(sequence, new[:1])])
            text += new[:1]
        elif step == "cut":
            sequence.truncate(count)
            del text[count:]
        else:
            other = (number + 1) % 3
            sequence.truncate(0)
            texts[number] = list(texts[other])
            if texts[other]:
                assert pool[other].backend is not None
                assert sequence.backend.share(pool[other].backend, 0, len(texts[other]))
    for sequence, text in zip(pool, texts, strict=True):
        sequence.append([300, 301], logits=True)
        alone.truncate(0)
        alone.append([*text, 300, 301], logits=True)
        np.testing.assert_allclose(sequence.logits(), alone.logits(), atol=2e-2)


@pytest.mark.parametrize("shared", [True, None])
def test_less_memory_means_no_room_before_a_smaller_context(
    open_llama: Open, gguf: Callable[..., Path], shared: bool | None
) -> None:
    """By themselves, answers share only where there is a room."""
    path = gguf(hidden=256, layers=3, kv_heads=4)
    open_llama(path).close()

    def within(room: int) -> LlamaMemory:
        budget = MemoryBudget(10**8 + room, baseline=10**8)
        return open_llama(path, budget=budget, answers=4, shared=shared).memory

    seen = [within(10**9)]
    while seen[-1].shape.tokens == seen[0].shape.tokens:
        seen.append(within(seen[-1].leased - 500_000))
    rooms = [memory.room is not None for memory in seen[:-1]]
    assert rooms == sorted(rooms, reverse=True)
    assert set(rooms) == {True, False}
    assert [memory.shape.sequences for memory in seen[:-1]] == [4 if room or shared else 1 for room in rooms]
    assert all(memory.shape.batch <= 128 for memory in seen if memory.room is not None)
    assert all(one.leased > other.leased for one, other in pairwise(seen))
