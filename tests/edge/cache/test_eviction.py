"""Hotness against the formula for every block in every round; buffers are charged with the memory they take."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from naive.residency import Hotness, hotness

from edge.cache.cached_block import DECAY, GAIN, INITIAL, DecayedHotness, charge_of, page_buffer


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
