"""Lists and a language model on one card, for the benchmark `gpu`: lookahead while the model writes (TeleRAG)."""

from __future__ import annotations

import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import count, cycle, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from bench.gpu_search import Index, built, forgotten
from bench.load import drawn
from bench.placement import question
from edge.blocks import BlockFile, BlockId, Extent
from edge.budget import MemoryBudget
from edge.devices.cpu import CpuDevice
from edge.devices.cuda.device import CudaDevice
from edge.devices.faiss_codec import FaissCodecs
from edge.ivf.base import NO_IDS, NO_ROWS, CodecSpec, ListPart, Snapshot, Vectors
from edge.ivf.search import IndexSearcher

_K = 10
_PROBED = 16
"""A search probes this part (1/16) of the lists."""

_HELD = 6
"""The card has room for this part (1/6) of the lists where it does not hold all."""

_WRITTEN = ((96, 25), (176, 37), (75, 44), (88, 52), (143, 30), (81, 81), (48, 48), (146, 63))
"""Tokens of a passage and of an answer: those of eight questions of SQuAD, as `rag_traces` makes them."""

_ASKED, _READ = 60, 360
"""Tokens of a prompt without passages and with three, as in `rag_traces`."""

_LONGEST = 512
"""Tokens of a prompt and what is written after it, at most."""

_APART = 0.3
"""Length of the difference of what is searched from what the model begins with."""


@dataclass(frozen=True, slots=True)
class DecoderShape:
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int

    @property
    def head(self) -> int:
        return self.hidden // self.heads

    @property
    def matrices(self) -> list[tuple[int, int]]:
        """Queries, keys and values; the output of attention; gate and inner; and the way back."""
        rows = (self.heads + 2 * self.kv_heads) * self.head
        return [(self.hidden, rows), (self.hidden, self.hidden), (self.hidden, 2 * self.ffn), (self.ffn, self.hidden)]

    def numbers(self, longest: int) -> int:
        """Weights, and the cells of so many tokens."""
        cells = 2 * longest * self.kv_heads * self.head
        return self.vocab * self.hidden + self.layers * (sum(a * b for a, b in self.matrices) + cells)


LLAMA_3B = DecoderShape(28, 3072, 24, 8, 8192, 128_256)
TINY = DecoderShape(2, 64, 4, 2, 128, 500)


class RandomDecoder:
    """A language model of a published shape with random weights, without rotation, under the card's ledger. A token
    is one graph of kernels where the device has graphs (`graph`)."""

    def __init__(self, card: Any, shape: DecoderShape, longest: int) -> None:
        self._torch, self._shape, self._device = card.torch, shape, card.device
        self._dtype = card.torch.float16 if card.on_gpu else card.torch.float32
        self.nbytes = shape.numbers(longest) * self._dtype.itemsize
        self._lease = card.memory.reserve("a language model", self.nbytes)
        self._tokens = self._random(shape.vocab, shape.hidden)
        self._layers = [[self._random(*size) for size in shape.matrices] for _ in range(shape.layers)]
        self._cells = self._random(shape.layers, 2, shape.kv_heads, longest, shape.head)
        self._places = card.torch.arange(longest, device=card.device)
        self._last, self._at = (card.torch.zeros(1, dtype=card.torch.int64, device=card.device) for _ in range(2))
        self.graph = self._captured() if card.on_gpu else None

    def write(self, prompt: int, tokens: int) -> None:
        """Computes a prompt of so many tokens, and then more, each of which is read before the next one."""
        with self._torch.inference_mode():
            self._last.copy_(self._next(self._places[:prompt], self._places[:prompt]))
            for place in range(prompt, prompt + tokens):
                self._at.fill_(place)
                self._step() if self.graph is None else self.graph.replay()
                self._last.item()

    def close(self) -> None:
        self._tokens = self._layers = self._cells = self.graph = None
        self._lease.release()

    def _random(self, *size: int) -> Any:
        made = self._torch.empty(size, dtype=self._dtype, device=self._device)
        return made.normal_(std=size[-2] ** -0.5)

    def _step(self) -> None:
        self._last.copy_(self._next(self._last, self._at))

    def _captured(self) -> Any:
        torch = self._torch
        graph = torch.cuda.CUDAGraph()
        with torch.inference_mode(), torch.cuda.device(self._device):
            self._step()  # libraries take their memory
            torch.cuda.synchronize()
            try:
                with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                    self._step()
            except RuntimeError:
                return None
        return graph

    def _next(self, tokens: Any, at: Any) -> Any:
        """The likeliest token after some at their places."""
        torch, shape, head = self._torch, self._shape, self._shape.head
        functions, count = torch.nn.functional, len(tokens)
        mask = self._places[None] <= at[:, None]
        x = self._tokens[tokens % shape.vocab]
        parts = [shape.heads * head, shape.kv_heads * head, shape.kv_heads * head]
        for (qkv, out, up, down), (keys, values) in zip(self._layers, self._cells, strict=True):
            split = (functions.rms_norm(x, x.shape[-1:]) @ qkv).split(parts, 1)
            q, k, v = (part.view(count, -1, head).transpose(0, 1) for part in split)
            keys.index_copy_(1, at, k)
            values.index_copy_(1, at, v)
            found = functions.scaled_dot_product_attention(
                q[None], keys[None], values[None], attn_mask=mask, enable_gqa=True
            )
            x = x + found[0].transpose(0, 1).reshape(count, -1) @ out
            gate, inner = (functions.rms_norm(x, x.shape[-1:]) @ up).chunk(2, 1)
            x = x + (functions.silu(gate) * inner) @ down
        return (functions.rms_norm(x[-1:], x.shape[-1:]) @ self._tokens.t()).argmax(1)


@contextmanager
def stored(index: Index, folder: Path) -> Iterator[Snapshot]:
    """The lists of an index as blocks of a file, with the codec flat as in the papers."""
    extents: dict[BlockId, Extent] = {}
    sizes, at = [], 0
    with open(folder / "lists", "wb") as file:
        for number, (low, high) in enumerate(pairwise(index.starts.tolist())):
            rows = index.order[low:high]
            crc, begin = 0, at
            for part in (rows.astype("<i8"), index.vectors[rows].reshape(-1), np.zeros(len(rows), "<u4")):
                crc = zlib.crc32(part.view(np.uint8), crc)
                at += file.write(part.view(np.uint8))
            extents[BlockId("codes", number)] = Extent(begin, at - begin, crc)
            sizes.append((len(rows), at - begin))
            at += file.write(bytes(-at % 64))
    source, dim = BlockFile(folder / "lists", extents), index.vectors.shape[1]
    lists = [
        (ListPart(source, BlockId("codes", n), None, rows, nbytes, ("lists", n), NO_ROWS),) if rows else ()
        for n, (rows, nbytes) in enumerate(sizes)
    ]
    codec = FaissCodecs(threads=1).open(CodecSpec("flat", dim, 4 * dim))
    try:
        yield Snapshot(
            generation=1, dim=dim, codec=codec, centroids=index.centroids, lists=lists, pending_ids=NO_IDS,
            pending_vectors=np.empty((0, dim), np.float32), recall=(), rows=len(index.order),
        )  # fmt: skip
    finally:
        source.close()


class World:
    """The lists in host memory, a card that searches, too, and the model there."""

    def __init__(self, snapshot: Snapshot, topics: Vectors, task: dict[str, Any], stack: ExitStack) -> None:
        self.snapshot, self.topics = snapshot, topics
        self.nprobe = max(1, snapshot.nlist // _PROBED)
        self.parts = [part for own in snapshot.lists for part in own]
        self.lists = sum(part.nbytes for part in self.parts)
        shape, room = (TINY, 64 << 20) if task["rehearsal"] else (LLAMA_3B, 4 << 30)
        budget = MemoryBudget((4 if task["rehearsal"] else 96) << 30)
        host = CpuDevice(budget)
        stack.callback(host.close)
        self.device = CudaDevice(budget, cap=4 * shape.numbers(_LONGEST) + self.lists * 5 // 4 + room, on=task["on"])
        stack.callback(self.device.close)
        self.searcher = IndexSearcher(host, place=self.device)
        stack.callback(self.searcher.close)
        self.place = self.searcher.place
        self.model = RandomDecoder(self.device.card, shape, _LONGEST)
        stack.callback(self.model.close)
        self._hold_on_the_host()
        self.search(topics[:1])  # the card's search takes its memory
        started = time.perf_counter()
        self.model.write(_ASKED, 32)
        self.token_s = (time.perf_counter() - started) / 32

    def alone(self, alone: bool) -> None:
        """Whether the host searches alone."""
        self.searcher.place = None if alone else self.place

    def search(self, queries: Vectors, **options: Any) -> Any:
        return self.searcher.search(self.snapshot, queries, _K, **{"nprobe": self.nprobe} | options)

    def ahead(self, begun: Vectors, tokens: int) -> Any:
        """Fetches the lists near what the model begins with, while it writes so many tokens."""
        return self.searcher.lookahead(self.snapshot, begun, nprobe=self.nprobe, seconds=tokens * self.token_s)

    def question(self, topic: int, number: int) -> Vectors:
        return question(self.topics, topic, number)

    def begun(self, vectors: Vectors, number: int) -> Vectors:
        """What a model begins with that writes the text to be searched."""
        made = vectors + np.random.default_rng(number).standard_normal(vectors.shape[1], np.float32) * (
            _APART / vectors.shape[1] ** 0.5
        )
        return np.asarray(made / np.linalg.norm(made), np.float32)

    def _hold_on_the_host(self) -> None:
        tier = self.searcher.host
        tier.residency.hold([(part.key, part.nbytes, tier.fetch(part)) for part in self.parts], 0)
        handles = tier.residency.claim([(p.key, tier.fetch(p)) for p in self.parts], tier.residency.begin_round())
        for handle in handles:
            if handle is not None:
                handle.wait()
                handle.release()

    @contextmanager
    def little(self) -> Iterator[None]:
        """The card has room for a sixth of the lists."""
        memory = self.device.memory
        self.place.residency.hold([], 0)
        self.place.residency.trim(0.0)
        with memory.reserve("other", max(0, memory.free - self.lists // _HELD)):
            yield


ARMS = ("the host", "read as needed", "lookahead")


def lookahead(task: dict[str, Any]) -> dict[str, Any]:
    import torch

    index = built(torch, task["on"], task["vectors"])
    forgotten(torch, task["on"])
    with tempfile.TemporaryDirectory(prefix="edge-lists-") as folder, ExitStack() as stack:
        snapshot = stack.enter_context(stored(index, Path(folder)))
        world = World(snapshot, index.queries, task, stack)
        index = replace(index, vectors=np.empty((0, 0), np.float32))
        found: dict[str, Any] = {
            "vectors": snapshot.rows, "lists": snapshot.nlist, "nprobe": world.nprobe, "nbytes": world.lists,
            "model": world.model.nbytes, "graph": world.model.graph is not None, "token_s": world.token_s,
            "rows": {}, "same": True,
        }  # fmt: skip
        for pipeline in ("hyde", "iter-retgen"):
            expected: list[Any] = []
            for arm in ARMS:
                row, answers = _answered(world, pipeline, arm, task["seconds"])
                found["rows"][f"{pipeline}, {arm}"] = row
                expected = expected or answers
                found["same"] &= all(a == b for a, b in zip(expected, answers, strict=False))
        return found


def _answered(world: World, pipeline: str, arm: str, seconds: float) -> tuple[dict[str, Any], list[Any]]:
    """The times of the questions that an arm answers in so many seconds, after two, and what each search found."""
    took: list[float] = []
    searched: list[float] = []
    answers: list[Any] = []
    earlier, card = world.searcher.trace.snapshot(), world.device.card
    if card.on_gpu:
        card.torch.cuda.reset_peak_memory_stats(card.device)
    searches = {"hyde": 1, "iter-retgen": 3}[pipeline]
    world.alone(arm == "the host")
    with world.little():
        topics = iter(drawn(1.0, 1e4, {"search": 1}, len(world.topics), seed=1))
        until = np.inf
        for number, one, (passage, answer) in zip(count(-2), topics, cycle(_WRITTEN), strict=False):
            if number == 0:
                until = time.perf_counter() + seconds
            started = time.perf_counter()
            waited = 0.0
            for step in range(searches):
                query = world.question(one.topic, searches * one.number + step)
                prompt, tokens = (_ASKED, passage) if pipeline == "hyde" else (_READ, answer)
                ahead = None
                if pipeline == "hyde" or step:  # the question itself is searched at once
                    if arm == "lookahead":
                        ahead = world.ahead(world.begun(query, step), tokens)
                    world.model.write(prompt, tokens)
                asked = time.perf_counter()
                result = world.search(query, window=ahead)
                waited += time.perf_counter() - asked
                if ahead is not None:
                    ahead.cancel()
                answers.append(result.ids.tolist())
            world.model.write(_READ, answer)
            if number >= 0:
                took.append(time.perf_counter() - started)
                searched.append(waited)
            if time.perf_counter() > until:
                break
    world.alone(False)
    grown = world.searcher.trace.since(earlier)
    hits, misses = (grown.get(f"lists on cuda.{name}", 0.0) for name in ("hits", "misses"))
    return {
        "seconds": took, "search_s": searched, "questions": len(took), "hits": hits / max(1.0, hits + misses),
        "device_peak": card.peak(),
    }, answers  # fmt: skip
