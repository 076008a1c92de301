"""What the benchmark `gpu` counts on any machine: launches of layers and searches, and the host's time for tokens."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np

from bench.gpu_worker import lengths_of, natural
from bench.layer_speed import layer_weights
from edge.budget import MemoryBudget
from edge.devices.cuda.card import Card
from edge.devices.cuda.device import CudaDevice
from edge.devices.faiss_codec import FaissCodecs
from edge.ivf.base import Vectors
from edge.ivf.device import Candidates, ListScan, SearchRequest
from edge.link import Lane
from edge.models.tokenizer import TokenBatch
from edge.runtimes.cuda.runtime import CudaRuntime
from edge.runtimes.cuda.tokens import TokenTable
from edge.runtimes.input import Feed, InputEmbedding
from edge.runtimes.needs import LEAST_ROWS
from edge.streaming.hidden_states import plan_chunks

_CAP = "256MB"
_DIM, _LISTS, _ROWS, _WIDTH = 64, 4, 200, 88
_CHUNK = 16 << 10
_PASSES = 5


@contextmanager
def _kernels(wanted: bool, on: str) -> Iterator[Any]:
    """Work inside is done by our own kernels, or by torch alone. On the processor Triton's interpreter runs them."""
    from making.interpreted_triton import Launches, interpreted, load

    with ExitStack() as stack:
        if on == "cpu":
            load()
            stack.enter_context(interpreted(wanted))
        elif not wanted:
            stack.enter_context(patch.object(Card, "has_triton", False))
        yield Launches


def launches(task: dict[str, Any]) -> dict[str, Any]:
    """Launches of a chunk in each kind of layer, and of a search in each codec, by torch alone and by our kernels."""
    from making.synth import model_spec

    on, found = task["on"], {}
    random = np.random.default_rng(0)
    for shape in ("tiny-bert", "tiny-qwen3"):
        for precision in ("fp16", "int8"):
            spec = model_spec(shape, precision).layer
            weights, lengths = layer_weights(spec, random), np.array([3], np.int32)
            states = np.zeros((3, spec.hidden), np.float32 if spec.norm_first else np.float16)
            counts = []
            for wanted in (False, True):
                with _kernels(wanted, on) as counting:
                    kernel: Any = CudaRuntime(on=on, cap=_CAP, compute="float16").layer_kernel(
                        spec, threads=1, hidden_dtype=states.dtype.name
                    )
                    rows, bound = kernel._upload(states), kernel.bind(weights)
                    kernel.advance(rows, lengths, bound)
                    with counting() as mode:
                        kernel.advance(rows, lengths, bound)
                    counts.append(mode.count)
            found[f"a layer and chunk, {shape} {precision}"] = counts
    codecs, vectors = FaissCodecs(threads=1), random.standard_normal((2000, _DIM), np.float32)
    for name in ("flat", "sq8", "pq", "opq"):
        codec = codecs.open(codecs.train(name, vectors, seed=0))
        for queries in (1, 16):
            counts = []
            for wanted in (False, True):
                with _kernels(wanted, on) as counting:
                    device = CudaDevice(MemoryBudget(4 << 30), on=on, cap=_CAP)
                    request = _request(vectors, device, codec, queries)
                    device.search(request)
                    request.seen = Candidates.empty(queries, _WIDTH)
                    with counting() as mode:
                        device.search(request)
                    counts.append(mode.count)
                    device.close()
            found[f"{'a query' if queries == 1 else f'{queries} queries'} in {_LISTS} lists, {name}"] = counts
    return {"rows": {name: {"alone": alone, "kernels": own} for name, (alone, own) in found.items()}}


def _request(vectors: Vectors, device: Any, codec: Any, queries: int) -> SearchRequest:
    scans = []
    for number in range(_LISTS):
        codes = codec.encode(vectors[number * _ROWS : (number + 1) * _ROWS])
        device.memory.reserve("lists", codes.nbytes)
        buffer = device.allocate(codes.nbytes)
        device.write(buffer, codes)
        scans.append(ListScan(buffer, number * _ROWS, _ROWS, None, list(range(queries))))
    labels = np.arange(_LISTS * _ROWS)
    return SearchRequest(codec, vectors[-queries:], scans, labels, Candidates.empty(queries, _WIDTH))


class _Elsewhere:
    """A stream whose work is another processor's."""

    done = True

    def run(self, work: object) -> None:
        """Leaves it to the card."""

    def record(self) -> Any:
        return self

    def wait(self, event: object = None) -> None:
        """Nothing is waited for."""

    synchronize = wait


def tokens(task: dict[str, Any]) -> dict[str, Any]:
    """The host's processor time for the tokens of a pass, without the work that a card does; and the first pass, which
    sends the table."""
    from making.synth import synth

    lengths, rows = lengths_of(task), {}
    random = np.random.default_rng(2)
    for precision in ("fp16", "int8"):
        with tempfile.TemporaryDirectory(prefix="edge-tokens-") as folder, ExitStack() as stack:
            model = stack.enter_context(synth("ms-marco-minilm-l6", Path(folder) / "pack", precision))  # type: ignore[arg-type]
            budget = MemoryBudget(4 << 30)
            device = CudaDevice(budget, on="cpu", cap="256MB", streams=lambda name: _Elsewhere())
            stack.callback(device.close)
            lane = stack.enter_context(Lane())
            embedding = InputEmbedding(model, LEAST_ROWS, budget, lane)
            stack.callback(embedding.close)
            batch = TokenBatch(
                prefix=np.empty(0, np.int32), tokens=natural(random, model.spec.vocab, int(lengths.sum())),
                lengths=lengths, types=None, query_cut=False,
            )  # fmt: skip
            table, staging = TokenTable(device), device.staging(1 << 20)
            stack.callback(table.close)
            stack.callback(staging.close)
            seconds = []
            for _ in range(_PASSES + 1):
                started = time.process_time()
                embedding.prepare(batch, rows=False)
                run: Any = SimpleNamespace(embedding=embedding, model=model, longest=int(lengths.max()))
                table.begin(run, staging, _CHUNK)
                feed = Feed(embedding, batch, "float16")
                for chunk in plan_chunks(np.arange(len(lengths)), lengths, _CHUNK):
                    table.enter(feed.tokens(chunk), chunk, None)
                table.end()
                seconds.append(time.process_time() - started)
            rows[f"ms-marco-minilm-l6 {precision}"] = {"seconds": seconds[1:], "first": seconds[0]}
    return {"rows": rows, "candidates": len(lengths), "tokens": int(lengths.sum())}
