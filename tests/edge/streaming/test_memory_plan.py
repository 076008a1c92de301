"""The chosen plan fits and is the fastest that fits; the number named as the least is exactly the least."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from edge.streaming.forwarding import PassSizes, least, plan_memory
from edge.streaming.hidden_states import OffloadedStates

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
    assert chosen is not None
    assert chosen.nbytes == least(wanted)


@given(tokens=SIZES, longest=SIZES, saturating=SIZES, more=st.integers(0, 500_000))
def test_what_is_chosen_fits_and_is_as_large_as_promised(tokens: int, longest: int, saturating: int, more: int) -> None:
    wanted = request(tokens, longest, saturating=saturating)
    chosen = plan_memory(wanted, least(wanted) + more)
    assert chosen is not None
    assert chosen.nbytes <= least(wanted) + more
    assert longest <= chosen.chunk_tokens <= max(longest, saturating)
    if not chosen.saturated:
        assert chosen.chunk_tokens < saturating
    states = wanted.tokens * 16 * 4
    if not chosen.resident:
        states = OffloadedStates.memory_needed(min(chosen.chunk_tokens, wanted.tokens), 16, "float32")
    assert chosen.nbytes >= states + chosen.workspace + 2 * wanted.layer_nbytes


@given(tokens=SIZES, longest=SIZES, saturating=SIZES, first=st.integers(0, 500_000), more=st.integers(0, 500_000))
def test_more_memory_never_means_a_smaller_chunk(
    tokens: int, longest: int, saturating: int, first: int, more: int
) -> None:
    wanted = request(tokens, longest, saturating=saturating)
    poor, rich = (plan_memory(wanted, least(wanted) + extra) for extra in (first, first + more))
    assert poor is not None
    assert rich is not None
    assert rich.chunk_tokens >= poor.chunk_tokens


def test_with_plenty_everything_stays_in_memory() -> None:
    chosen = plan_memory(request(400, 100), 10**9)
    assert chosen is not None
    assert (chosen.resident, chosen.saturated, chosen.chunk_tokens) == (True, True, 128)


def test_hidden_states_go_where_the_caller_says() -> None:
    for resident in (True, False):
        chosen = plan_memory(request(400, 100), 10**9, resident=resident)
        assert chosen is not None
        assert chosen.resident == resident
