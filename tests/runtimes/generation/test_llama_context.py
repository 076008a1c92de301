"""Tiles that are filled up: the rows behind the tokens leave no trace."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from making.random_gguf import words
from naive.program import printed

from edge.budget import MemoryBudget
from edge.errors import BudgetExceeded, ConfigError, InputError, ModelError
from edge.runtimes.generation.base import Document, Message, Sampling
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


DOCUMENTS = [Document(f"d{number}", words(40, 10 + number)) for number in range(3)]


def answer(generator: LlamaGenerator) -> list[int | None]:
    question = [Message("system", words(12, 1)), Message("user", words(8, 2))]
    return [piece.token for piece in generator.stream(question, Sampling(max_tokens=12), documents=DOCUMENTS)]


def test_mapped_and_read_weights_write_the_same(open_llama: Open, gguf: Callable[..., Path]) -> None:
    path = gguf(precision="Q8_0")
    read, mapped = open_llama(path, weights="read"), open_llama(path, weights="map")
    assert "in memory" in read.memory.placement
    assert "the kernel's" in mapped.memory.placement
    assert answer(read) == answer(mapped)


def test_memory_is_leased_and_given_back(open_llama: Open, gguf: Callable[..., Path]) -> None:
    budget = MemoryBudget(10**10)
    before = budget.used
    generator = open_llama(budget=budget)
    held = budget.holders()
    assert held["generator: weights"] == generator.memory.weights == 820_480
    assert held["generator: KV cache"] >= 2048 * 2 * 2 * 32 * 2  # tokens, layers, keys and values, width, fp16
    assert sum(size for name, size in held.items() if name.startswith("generator")) == generator.memory.leased
    generator.close()
    generator.close()
    assert budget.used == before
    with pytest.raises(InputError, match="closed"):
        answer(generator)


def test_less_memory_means_mapped_weights_then_a_smaller_context(open_llama: Open, gguf: Callable[..., Path]) -> None:
    path = gguf(hidden=256, ffn=1024, layers=3, precision="F16", kv_heads=4)
    open_llama(path).close()  # the library itself is loaded now, in any order of the tests

    def within(room: int, **options: Any) -> LlamaGenerator:
        return open_llama(path, budget=MemoryBudget(10**8 + room, baseline=10**8), **options)

    roomy = within(10**9)
    assert not roomy.memory.mapped
    needed = roomy.memory.leased
    tight = within(needed - 1_000_000)
    assert tight.memory.mapped
    assert tight.memory.shape == roomy.memory.shape
    tighter = within(tight.memory.leased - 1_000_000)
    assert tighter.memory.mapped
    assert tighter.memory.shape.tokens == 2048
    assert tighter.memory.shape.batch < 512
    with pytest.raises(BudgetExceeded, match="smallest that works") as refused:
        within(5_000_000)
    assert within(refused.value.needed - 10**8 + 200_000).memory.shape.tokens == 512
    with pytest.raises(BudgetExceeded, match="weights") as refused:
        within(12_000_000, weights="read")
    assert refused.value.asked > refused.value.free


def test_answers_do_not_depend_on_the_memory(open_llama: Open) -> None:
    """Not on the weights' place; the batch decides the order of sums, so it is held equal here."""
    generator = open_llama(budget=MemoryBudget(1 << 33), context=1024)
    other = open_llama(budget=MemoryBudget(1 << 33), context=1024, weights="map")
    assert generator.memory.shape == other.memory.shape
    assert answer(generator) == answer(other)


GROWTH = """
import json, sys
from pathlib import Path
from edge.budget import MemoryBudget
from edge.resident import ResidentWatch, anonymous_resident
from edge.runtimes.generation.base import Document, Message, Sampling
from edge.runtimes.generation.llama_cpp import LlamaGenerator
budget = MemoryBudget(10**10)
with ResidentWatch(0.001) as watch:
    generator = LlamaGenerator(sys.argv[1], budget, cache=Path("unused"), threads=1, weights=sys.argv[2])
    documents = [Document(str(i), text) for i, text in enumerate(sys.argv[3:])]
    sampling = Sampling(temperature=1.0, top_p=0.9, max_tokens=8)
    pieces = list(generator.stream([Message("user", "ka ki")], sampling, documents=documents))
    watch.sample()
print(json.dumps([len(pieces), watch.high_water, budget.used, generator.memory.weights]))
"""


@pytest.mark.parametrize("weights", ["read", "map"])
def test_resident_memory_stays_within_the_leases(
    open_llama: Open, gguf: Callable[..., Path], tmp_path: Path, weights: str
) -> None:
    pytest.importorskip("llama_cpp")
    path = gguf(hidden=384, ffn=1024, layers=4, heads=6, kv_heads=2, vocabulary=4096, precision="F16")
    pieces, resident, leased, size = json.loads(
        printed(GROWTH, str(path), weights, words(300, 0), words(300, 1), folder=tmp_path)
    )
    assert pieces
    assert resident <= leased
    if weights == "read" and sys.platform == "linux":
        assert resident > leased - size  # they are there


def test_bad_models(open_llama: Open, gguf: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there is no file"):
        open_llama(tmp_path / "none.gguf")
    data = gguf().read_bytes()
    path = tmp_path / "m.gguf"
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(ModelError, match="truncated"):
        open_llama(path)
    # Another architecture, of the same length so that nothing moves.
    path.write_bytes(data.replace(b"llama", b"lhama"))
    with pytest.raises(ModelError, match=r"\(lhama\).*unknown model architecture: 'lhama'"):
        open_llama(path)
    path.write_bytes(data.replace(b"blk.1.ffn_up.weight", b"blk.1.ffn_xx.weight"))
    with pytest.raises(ModelError, match=r"blk\.1\.ffn_up\.weight"):
        open_llama(path)
    with pytest.raises(ConfigError, match="more than the 2,048"):
        open_llama(context=4096)


def test_a_failed_opening_gives_its_memory_back(open_llama: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise ModelError("the last step of opening fails")

    open_llama().close()
    budget = MemoryBudget(10**10)
    before = budget.used
    monkeypatch.setattr("edge.runtimes.generation.llama_cpp.PromptBuilder", fail)
    with pytest.raises(ModelError, match="last step"):
        open_llama(budget=budget)
    assert budget.used == before
