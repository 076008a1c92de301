"""Tiles that are filled up: the rows behind the tokens leave no trace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge.errors import InputError
from edge.runtimes.generation.llama_context import TILE, LlamaContext
from edge.runtimes.generation.llama_cpp import LlamaGenerator

Open = Callable[..., LlamaGenerator]

TOKENS = [300 + (7 * i) % 500 for i in range(2048)]


def context_of(generator: LlamaGenerator) -> LlamaContext:
    assert generator.states is not None
    return generator.states.context


@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
def test_rows_that_fill_a_tile_are_not_seen(open_llama: Open, gguf: Callable[..., Path], kv_type: str) -> None:
    """Against a twin that computes the tokens alone: the same logits, there and after further tokens."""
    found = []
    for fills in (True, False):
        context = context_of(open_llama(gguf(hidden=128), kv_type=kv_type))
        context._fills &= fills
        context.append(TOKENS[:600])
        assert (context._rows(40) == TILE) == (fills and kv_type == "f16")
        context.append(TOKENS[600:640], logits=True)
        assert context.length == 640
        logits = [context.logits().copy()]
        for token in TOKENS[640:643]:
            context.append([token], logits=True)
            logits.append(context.logits().copy())
        found.append(np.stack(logits))
    filled, alone = found
    assert np.ptp(alone) > 0.5
    np.testing.assert_allclose(filled, alone, atol=2e-2)


def test_nothing_is_filled_where_the_context_ends(open_llama: Open) -> None:
    context = context_of(open_llama(context=1024))
    context.append(TOKENS[:1000])
    assert context._rows(24) == 24
    context.append(TOKENS[1000:1024], logits=True)
    assert context.length == context.capacity == 1024
    assert np.isfinite(context.logits()).all()
    with pytest.raises(InputError, match="do not fit"):
        context.append([300])


def test_single_tokens_are_computed_alone(open_llama: Open) -> None:
    context = context_of(open_llama())
    context.append(TOKENS[:1500])
    assert context._rows(1) == 1


@pytest.mark.parametrize("options", [{"hidden": 128}, {"hidden": 256, "precision": "Q8_0"}, {"hidden": 64}])
@pytest.mark.parametrize("threads", [1, 2])
def test_slices_compute_the_same_as_whole_batches(
    open_llama: Open, gguf: Callable[..., Path], options: dict[str, Any], threads: int
) -> None:
    context = context_of(open_llama(gguf(**options), threads=threads))
    found = []
    for sizes in ([context.batch], [256], [128], [64], [64, 256, 128], [128, 64]):
        asked: list[bool] = []

        def changed(sizes: list[int] = sizes, asked: list[bool] = asked) -> bool:
            """Others come and go, so the size of a slice changes."""
            asked.append(True)
            context.slice = sizes[len(asked) % len(sizes)]
            return False

        context.slice = sizes[0]
        context.truncate(0)
        at = 0
        for size in (37, 500, 411):
            context.append(TOKENS[at : at + size], cancelled=changed, logits=True)
            at += size
        logits = [context.logits().copy()]
        context.append([300], logits=True)
        found.append((len(asked), np.stack([*logits, context.logits()])))
    assert [count for count, _ in found[:4]] == sorted({count for count, _ in found[:4]}), "smaller slices are more"
    for _, sliced in found[1:]:
        assert np.array_equal(sliced, found[0][1])


@pytest.mark.parametrize(("heads", "fills"), [(4, True), (8, False)])
def test_heads_that_are_not_multiplied_in_tiles_are_not_filled_up(
    open_llama: Open, gguf: Callable[..., Path], heads: int, fills: bool
) -> None:
    context = context_of(open_llama(gguf(hidden=64, heads=heads)))
    context.append(TOKENS[:600])
    assert (context._rows(40) == TILE) == fills
