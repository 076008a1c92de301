"""Contexts and states of llama.cpp."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from making.random_gguf import RandomModel, words
from naive.program import printed

from edge.budget import MemoryBudget
from edge.errors import BudgetExceeded, ConfigError, CorruptBlock, InputError, ModelError
from edge.kv_cache.store import KnowledgeStore
from edge.kv_cache.tree import KnowledgeTree
from edge.models.gguf_file import GGUFFile
from edge.runtimes.generation.base import Document, Message, Sampling
from edge.runtimes.generation.llama_context import TILE, LlamaContext
from edge.runtimes.generation.llama_cpp import LlamaGenerator
from edge.runtimes.generation.llama_model import llama_library
from edge.runtimes.generation.llama_states import LlamaStates
from edge.trace import Trace

Open = Callable[..., LlamaGenerator]

QUESTION = [Message("system", words(20, 1)), Message("user", words(10, 2))]
LIBRARY = [Document(f"d{number}", words(30 + 7 * number, 10 + number)) for number in range(4)]
GREEDY = Sampling(max_tokens=16)


def states_of(generator: LlamaGenerator) -> LlamaStates:
    assert generator.states is not None
    return generator.states


def segments(states: LlamaStates) -> list[list[int]]:
    return [states.context.model.tokenize(document.text) for document in LIBRARY]


def logits_after(states: LlamaStates) -> npt.NDArray[np.float32]:
    """Those of a fixed continuation; the context is as before."""
    length = states.length
    states.context.append([300, 301, 302], logits=True)
    logits = states.context.logits().copy()
    states.truncate(length)
    return logits


def compute(states: LlamaStates, order: list[int]) -> npt.NDArray[np.float32]:
    """The oracle: an empty context, every segment computed."""
    parts = segments(states)
    states.truncate(0)
    for index in order:
        states.prefill(parts[index])
    return logits_after(states)


def test_a_state_is_as_large_as_its_own_tokens(open_llama: Open) -> None:
    states = states_of(open_llama())
    states.prefill([token for part in segments(states) for token in part])
    assert states.bytes_per_token == 2 * 2 * 32 * 2 + 12  # layers, keys and values, width, fp16; position and sequence
    for start, end in ((0, 1), (5, 50), (100, 101), (0, states.length)):
        size = len(states.extract(start, end))
        assert 0 < size - (end - start) * states.bytes_per_token < 300
    states.truncate(0)
    batch, answers = states.context.batch, iter([False, True])
    assert states.prefill([300] * (batch + 5), lambda: next(answers)) == batch == states.length, "it was cancelled"


@pytest.mark.parametrize("precision", ["F32", "Q8_0"])
def test_restored_equals_computed(open_llama: Open, gguf: Callable[..., Path], precision: str) -> None:
    states = states_of(open_llama(gguf(precision=precision, hidden=128, ffn=128)))
    expected = compute(states, [0, 1, 2])
    places = [0, *np.cumsum([len(part) for part in segments(states)[:3]]).tolist()]
    cut = [states.extract(start, end) for start, end in itertools.pairwise(places)]
    assert np.array_equal(logits_after(states), expected)  # cutting out changed nothing
    compute(states, [3, 2, 1, 0])  # other tokens in every cell
    states.truncate(0)
    for state, start, end in zip(cut, places, places[1:], strict=False):
        states.restore(bytes(state), start, end)
    assert np.array_equal(logits_after(states), expected)
    # A mixture: the first two restored, the third computed.
    states.truncate(places[1])
    states.restore(memoryview(cut[1]), places[1], places[2])
    states.prefill(segments(states)[2])
    assert np.array_equal(logits_after(states), expected)


@pytest.fixture
def tiny_states(open_llama: Open) -> LlamaStates:
    return states_of(open_llama())


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_sequence_of_steps_equals_computing_everything(tiny_states: LlamaStates, data: st.DataObject) -> None:
    """Random requests over a naive cache of states by path, some of which are forgotten."""
    states = tiny_states
    parts = segments(states)
    cache: dict[tuple[int, ...], Any] = {}
    states.truncate(0)
    live: list[int] = []
    for _ in range(data.draw(st.integers(1, 4))):
        order = data.draw(st.permutations(range(4)))[: data.draw(st.integers(1, 4))]
        same = 0
        while same < min(len(order), len(live)) and order[same] == live[same]:
            same += 1
        states.truncate(sum(len(parts[index]) for index in order[:same]))
        for depth in range(same, len(order)):
            path, part = tuple(order[: depth + 1]), parts[order[depth]]
            start = states.length
            if path in cache and data.draw(st.booleans()):
                states.restore(cache[path], start, start + len(part))
            else:
                states.prefill(part)
                cache[path] = states.extract(start, start + len(part))
        live = list(order)
        found = logits_after(states)
        assert np.array_equal(found, compute(states, live))


def test_what_is_no_state_is_refused_and_changes_nothing(open_llama: Open) -> None:
    states = states_of(open_llama())
    first, second = segments(states)[:2]
    expected = compute(states, [0, 1])
    good = states.extract(len(first), len(first) + len(second))
    states.truncate(len(first))
    end = len(first) + len(second)
    damaged = bytearray(good)
    damaged[0:4] = (10**6).to_bytes(4, "little")
    moved = states.extract(0, len(first))
    cases = {
        "short": good[:-1], "long": bytes(good) + b"\0", "empty": b"", "zeros": bytes(len(good)),
        "ones": b"\xff" * len(good), "count": bytes(damaged),
    }  # fmt: skip
    for name, state in cases.items():
        with pytest.raises(CorruptBlock):
            states.restore(state, len(first), end)
        assert states.length == len(first), name
    states.truncate(0)
    states.restore(moved, 0, len(first))
    with pytest.raises(CorruptBlock, match="no states of positions"):
        states.restore(moved, len(first), 2 * len(first))  # these are of other positions
    states.restore(good, len(first), end)
    assert np.array_equal(logits_after(states), expected)
    with pytest.raises(ValueError, match="do not follow"):
        states.restore(good, 0, len(second))
    with pytest.raises(ValueError, match="not within"):
        states.extract(0, end + 1)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damaged_states_never_end_the_process(tiny_states: LlamaStates, data: st.DataObject) -> None:
    states = tiny_states
    part = segments(states)[0]
    states.truncate(0)
    states.prefill(part)
    state = bytearray(states.extract(0, len(part)))
    # The head, where lengths and positions stand, more often than the values.
    for _ in range(data.draw(st.integers(1, 3))):
        state[data.draw(st.integers(0, 16) | st.integers(0, len(state) - 1))] = data.draw(st.integers(0, 255))
    states.truncate(0)
    try:
        states.restore(state, 0, len(part))
    except CorruptBlock:
        assert states.length == 0
    else:
        assert states.length == len(part)
    logits_after(states)


def test_fingerprint(open_llama: Open, gguf: Callable[..., Path]) -> None:
    """Equal for settings that compute the same states, different for all others."""
    path = gguf(hidden=128)
    base = states_of(open_llama(path, context=1024)).fingerprint
    others: list[dict[str, Any]] = [{"context": 512}, {"threads": 2}, {"answers": 2, "shared": True}]
    assert states_of(open_llama(path, context=1024, answers=2)).fingerprint == base
    found = {states_of(open_llama(path, **{"context": 1024, **options})).fingerprint for options in others}
    found.add(states_of(open_llama(gguf(hidden=128, seed=1), context=1024)).fingerprint)
    assert len(found | {base}) == 5


class Recurrent(RandomModel):
    """A tiny Mamba: its state is one for all that came before."""

    __slots__ = ()

    def metadata(self) -> Iterator[tuple[str, int, Any]]:
        for key, kind, value in RandomModel.metadata(self):
            name = key.replace("llama.", "mamba.")
            yield name, kind, "mamba" if key == "general.architecture" else value
        for key, number in (("conv_kernel", 4), ("inner_size", 128), ("state_size", 16), ("time_step_rank", 4)):
            yield f"mamba.ssm.{key}", 4, number

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...], str, bool]]:
        yield "token_embd.weight", (64, self.vocabulary), "F32", False
        for layer in range(self.layers):
            shapes: dict[str, tuple[int, ...]] = {
                "attn_norm.weight": (64,), "ssm_in.weight": (64, 256), "ssm_conv1d.weight": (4, 128),
                "ssm_conv1d.bias": (128,), "ssm_x.weight": (128, 36), "ssm_dt.weight": (4, 128), "ssm_dt.bias": (128,),
                "ssm_a": (16, 128), "ssm_d": (128,), "ssm_out.weight": (128, 64),
            }  # fmt: skip
            yield from ((f"blk.{layer}.{name}", shape, "F32", len(shape) == 1) for name, shape in shapes.items())
        yield "output_norm.weight", (64,), "F32", True


class Windowed(RandomModel):
    """A tiny Gemma 3: most of its layers attend to the nearest 32 tokens only."""

    __slots__ = ()

    def metadata(self) -> Iterator[tuple[str, int, Any]]:
        for key, kind, value in RandomModel.metadata(self):
            name = key.replace("llama.", "gemma3.")
            yield name, kind, "gemma3" if key == "general.architecture" else value
        for key, number in (("sliding_window", 32), ("key_length", 16), ("value_length", 16)):
            yield f"gemma3.attention.{key}", 4, number

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...], str, bool]]:
        yield from RandomModel.tensors(self)
        for layer in range(self.layers):
            norms = {"attn_q_norm": 16, "attn_k_norm": 16, "post_attention_norm": 64, "post_ffw_norm": 64}
            yield from ((f"blk.{layer}.{name}.weight", (width,), "F32", True) for name, width in norms.items())


def decaying(path: Path) -> Path:
    """The model with recurrent states that decay: random ones grow beyond all numbers."""
    content = np.fromfile(path, np.uint8)
    for tensor in GGUFFile.open(path).tensors:
        if tensor.name.endswith("ssm_a"):
            values = content[tensor.offset : tensor.offset + tensor.nbytes].view(np.float32)
            values[:] = -np.abs(values)
    content.tofile(path)
    return path


@pytest.mark.parametrize("model", [Recurrent(), Windowed(layers=7, tied=True)], ids=["recurrent", "windowed"])
def test_models_whose_states_cannot_be_parted_generate_and_reuse_nothing(
    open_llama: Open, tmp_path: Path, model: RandomModel
) -> None:
    generator = open_llama(decaying(model.write(tmp_path / "m.gguf")), answers=2, shared=True)
    assert generator.states is None
    assert generator.memory.shape.sequences == 1, "answers have whole contexts of their own"
    with pytest.raises(ModelError, match="cannot be cut out"):
        LlamaStates(cast(LlamaContext, generator._engine._first), hashes=tmp_path)
    first, other, again = (
        [piece.token for piece in generator.stream(QUESTION, GREEDY, documents=documents)]
        for documents in (LIBRARY[:2], LIBRARY[2:], LIBRARY[:2])
    )
    assert first == again != other


@pytest.mark.parametrize("options", [{}, {"precision": "Q8_0"}])
def test_greedy_answers_are_the_same_with_the_tree_off_cold_warm_and_after_a_restart(
    open_llama: Open, gguf: Callable[..., Path], tmp_path: Path, options: dict[str, Any]
) -> None:
    requests = [[0, 1], [0, 1, 2], [1, 0], [0, 1], [3], [], [0, 1, 2]]

    def run(generator: LlamaGenerator) -> tuple[list[list[int | None]], list[int]]:
        answers, cached = [], []
        for request in requests:
            documents = [LIBRARY[index] for index in request]
            work = generator.prompt_work(QUESTION, documents, GREEDY)
            stream = generator.stream(QUESTION, GREEDY, documents=documents)
            answers.append([piece.token for piece in stream])
            assert generator.stats.work == work, "what would be computed and restored was known beforehand"
            assert (generator.stats.restore_s > 0) == (work.restored > 0)
            cached.append(generator.stats.cached_tokens)
        return answers, cached

    def with_tree(host_limit: int) -> tuple[list[list[int | None]], list[int]]:
        budget = MemoryBudget(1 << 33)
        generator = open_llama(path, budget=budget)
        states = states_of(generator)
        store = KnowledgeStore(tmp_path / "states", states.fingerprint, limit=1 << 30)
        tree = KnowledgeTree(states, budget, host_limit=host_limit, store=store)
        generator.tree = tree
        result = run(generator)
        tree.close()
        generator.close()
        return result

    path = gguf(**options)
    expected, cached = run(open_llama(path))
    assert cached == [0] * len(requests)
    cold, cached = with_tree(1 << 30)
    assert cold == expected
    assert cached[0] == 0
    assert min(cached[3], cached[6]) > 0
    restarted, cached = with_tree(1 << 30)
    assert restarted == expected
    assert min(cached) > 0  # every system prompt was there
    assert with_tree(30_000)[0] == expected  # most states on disk only


def test_documents_change_places_for_a_cached_beginning_as_far_as_is_allowed(
    open_llama: Open, gguf: Callable[..., Path]
) -> None:
    budget = MemoryBudget(1 << 33)
    generator = open_llama(gguf(), budget=budget)

    def order(documents: list[Document], tolerance: float) -> list[int]:
        return generator.cached_order(QUESTION, documents, GREEDY, scores=[0.9, 0.8, 0.7], tolerance=tolerance)

    asked = [LIBRARY[0], LIBRARY[1], LIBRARY[2]]
    other = [LIBRARY[3], LIBRARY[2], LIBRARY[1]]  # the last one stands first in the prompt
    assert order(other, 1.0) == [0, 1, 2], "without a tree nothing is cached"
    generator.tree = KnowledgeTree(states_of(generator), budget, host_limit=1 << 30)
    list(generator.stream(QUESTION, GREEDY, documents=asked))
    assert order(other, 0.05) == [0, 1, 2]
    assert order(other, 0.15) == [0, 2, 1]
    list(generator.stream(QUESTION, GREEDY, documents=[other[i] for i in order(other, 0.15)]))
    assert generator.stats.work.computed < generator.prompt_work(QUESTION, [LIBRARY[3]], GREEDY).computed * 2
    generator.tree.close()


@pytest.mark.parametrize("shared", [False, True])
def test_moved_states_are_those_that_would_be_computed(
    open_llama: Open, gguf: Callable[..., Path], shared: bool
) -> None:
    """In a model of one layer the states of a token depend on no other token, so only rounding may differ."""
    generator, plain = (open_llama(gguf(layers=1), answers=2, shared=shared) for _ in range(2))
    states, oracle = states_of(generator), states_of(plain)
    assert states.movable
    trace = Trace()
    tree = KnowledgeTree(states, MemoryBudget(1 << 33), host_limit=1 << 30, anywhere=True, trace=trace)
    generator.tree = tree
    for order in ([0, 1, 2, 3], [3, 1], [2, 3, 0, 1], [1, 0, 3], [0, 1, 2, 3]):
        path = generator.path(QUESTION, [LIBRARY[index] for index in order], GREEDY)
        assert [segment.id for segment in path[:0:-1]] == [LIBRARY[index].id for index in order], "the best is last"
        assert [bool(segment.home) for segment in path] == [False, *[True] * len(order)]
        assert [segment.whole for segment in path] == [False] * len(order) + [True]
        oracle.truncate(0)
        for segment in path:
            oracle.prefill(segment.tokens)
        with tree.prepare(path) as prepared:
            assert states.length == oracle.length
            found, expected = logits_after(states), logits_after(oracle)
        assert np.abs(found - expected).max() < 0.01 * np.abs(expected).max()
    assert trace.counters["knowledge.moved_hits"] == 8
    assert prepared.places == ["context", "host", "host", "host", "host"], "the first prompt again"


TOKENS = [300 + (7 * i) % 500 for i in range(2048)]


def context_of(generator: LlamaGenerator) -> LlamaContext:
    return generator.states.context


def test_rows_that_fill_a_tile_are_not_seen(open_llama: Open, gguf: Callable[..., Path]) -> None:
    """Against a twin that computes the tokens alone: the same logits, there and after further tokens."""
    found = []
    for fills in (True, False):
        context = context_of(open_llama(gguf(hidden=128)))
        context._fills &= fills
        context.append(TOKENS[:600])
        assert (context._rows(40) == TILE) == fills
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
    assert context._rows(1) == 1, "single tokens are computed alone"
    context = context_of(open_llama(context=1024))
    context.append(TOKENS[:1000])
    assert context._rows(24) == 24, "nothing is filled where the context ends"
    context.append(TOKENS[1000:1024], logits=True)
    assert context.length == context.capacity == 1024
    assert np.isfinite(context.logits()).all()
    with pytest.raises(InputError, match="do not fit"):
        context.append([300])


DOCUMENTS = [Document(f"d{number}", words(40, 10 + number)) for number in range(3)]


def answer(generator: LlamaGenerator) -> list[int | None]:
    question = [Message("system", words(12, 1)), Message("user", words(8, 2))]
    return [piece.token for piece in generator.stream(question, Sampling(max_tokens=12), documents=DOCUMENTS)]


def test_memory_is_leased_and_given_back(open_llama: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where opening fails in its last step."""

    def fail(*arguments: object, **options: object) -> None:
        raise ModelError("the last step of opening fails")

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
    monkeypatch.setattr("edge.runtimes.generation.llama_cpp.PromptBuilder", fail)
    with pytest.raises(ModelError, match="last step"):
        open_llama(budget=budget)
    assert budget.used == before


def test_less_memory_means_mapped_weights_then_a_smaller_context(
    open_llama: Open, gguf: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = gguf(hidden=256, ffn=1024, layers=3, precision="F16", kv_heads=4)
    open_llama(path).close()  # the library itself is loaded now, in any order of the tests

    def within(room: int) -> LlamaGenerator:
        budget = MemoryBudget(10**8 + room, baseline=10**8)
        made = open_llama(path, budget=budget)
        budget.limit = 10**10  # for its answers
        return made

    roomy = within(10**9)
    assert not roomy.memory.mapped
    needed = roomy.memory.leased
    tight = within(needed - 1_000_000)
    assert tight.memory.mapped
    assert tight.memory.shape == roomy.memory.shape
    assert "in memory" in roomy.memory.placement
    assert "the kernel's" in tight.memory.placement
    assert answer(roomy) == answer(tight)
    tighter = within(tight.memory.leased - 1_000_000)
    assert tighter.memory.mapped
    assert tighter.memory.shape.tokens == 2048
    assert tighter.memory.shape.batch < 512
    with pytest.raises(BudgetExceeded, match="smallest that works") as refused:
        within(5_000_000)
    assert within(refused.value.needed - 10**8 + 200_000).memory.shape.tokens == 512
    monkeypatch.setattr(llama_library().api, "llama_supports_mmap", lambda: False)
    with pytest.raises(BudgetExceeded, match="weights") as refused:
        within(12_000_000)
    assert refused.value.asked > refused.value.free


GROWTH = """
import json, sys
from pathlib import Path
from edge.budget import MemoryBudget
from edge.resident import ResidentWatch, anonymous_resident
from edge.runtimes.generation.base import Document, Message, Sampling
from edge.runtimes.generation.llama_cpp import LlamaGenerator
class Tight(MemoryBudget):
    def reserve(self, owner, nbytes, *, wait=True):
        return super().reserve(owner, nbytes + 10**10 * (owner == "generator: weights"), wait=wait)

budget = (Tight if sys.argv[2] == "map" else MemoryBudget)(10**10)
with ResidentWatch(0.001) as watch:
    answers = int(sys.argv[3])
    generator = LlamaGenerator(sys.argv[1], budget, cache=Path("unused"), threads=1, answers=answers, shared=True)
    documents = [Document(str(i), text) for i, text in enumerate(sys.argv[4:])]
    sampling = Sampling(temperature=1.0, top_p=0.9, max_tokens=8)
    pieces = list(generator.stream([Message("user", "ka ki")], sampling, documents=documents))
    watch.sample()
print(json.dumps([len(pieces), watch.high_water, budget.used, generator.memory.weights]))
"""


@pytest.mark.parametrize(("weights", "answers"), [("read", 1), ("map", 1), ("read", 3)])
def test_resident_memory_stays_within_the_leases(
    open_llama: Open, gguf: Callable[..., Path], tmp_path: Path, weights: str, answers: int
) -> None:
    pytest.importorskip("llama_cpp")
    path = gguf(hidden=384, ffn=1024, layers=4, heads=6, kv_heads=2, vocabulary=4096, precision="F16")
    pieces, resident, leased, size = json.loads(
        printed(GROWTH, str(path), weights, str(answers), words(300, 0), words(300, 1), folder=tmp_path)
    )
    assert pieces
    assert resident <= leased
    if weights == "read" and answers == 1 and sys.platform == "linux":
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
