"""The measurements of the benchmark `gpu`, each in a process of its own."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]

_REPEATS = 3
_LINK_NBYTES = 256 << 20


def work(task: dict[str, Any]) -> dict[str, Any]:
    from bench.gpu_counts import launches, tokens
    from bench.gpu_lookahead import lookahead
    from bench.gpu_search import search

    parts: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
        "pack": _pack, "machine": _machine, "parity": _parity, "rerank": _rerank, "transformers": _transformers,
        "search": search, "launches": launches, "tokens": tokens, "lookahead": lookahead,
    }  # fmt: skip
    return parts[task["part"]](task)


def fastest(do: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """The seconds of the fastest of five times, after one that warms up."""
    do()
    taken = []
    for _ in range(5):
        started = clock()
        do()
        taken.append(clock() - started)
    return min(taken)


def synchronized(torch: Any, on: str) -> float:
    """The clock, when the device has done everything."""
    if on != "cpu":
        torch.cuda.synchronize(on)
    return time.perf_counter()


def lengths_of(task: dict[str, Any]) -> Ids:
    """Tokens of each candidate: half to one and a half times the average, in no order."""
    random = np.random.default_rng(0)
    half = task["tokens"] // 2
    lengths: Ids = random.integers(task["tokens"] - half, task["tokens"] + half + 1, task["candidates"]).astype(
        np.int32
    )
    return lengths


def _pack(task: dict[str, Any]) -> dict[str, Any]:
    from making.synth import synth

    with synth(task["shape"], task["path"], task["precision"]) as packed:
        return {"nbytes": packed.nbytes}


def runtime_of(on: str, cap: str = "", int8: str = "") -> str:
    """The runtime of a device, with a cap and a form of int8 layers if they are given."""
    given = {"on": "" if on == "webgpu" else on, "cap": cap, "int8": int8}
    options = [f"{name}={value}" for name, value in given.items() if value]
    return f"{'webgpu' if on == 'webgpu' else 'cuda'}:{','.join(options)}"


def _webgpu_machine() -> dict[str, Any]:
    """The name of the GPU, and the rates of transfers. WebGPU does not tell how much memory it has."""
    from edge.budget import MemoryBudget
    from edge.devices.webgpu.device import WebGpuDevice

    device = WebGpuDevice(MemoryBudget(4 << 30), cap="256MB")
    nbytes = (16 if device.card.software else 64) << 20
    there, data = device.card.buffer(nbytes), np.zeros(nbytes, np.uint8)

    def send() -> None:
        device.card.write(there, 0, data)
        device.card.synchronize()

    found = {"device": device.hardware, "to_device": nbytes / fastest(send)}
    found["from_device"] = nbytes / fastest(lambda: device.download(there, nbytes))
    device.card.destroy(there)
    device.close()
    return found


def _machine(task: dict[str, Any]) -> dict[str, Any]:
    """The name and memory of the device, and the rates that everything else follows from."""
    if task["on"] == "webgpu":
        return _webgpu_machine()
    import torch

    on = task["on"]
    gpu = on != "cpu"
    found: dict[str, Any] = {"torch": torch.__version__, "device": "torch's CPU device"}
    if gpu:
        before = torch.cuda.mem_get_info(on)
        found |= {
            "device": torch.cuda.get_device_name(on), "cuda": torch.version.cuda, "total": before[1],
            "context": before[1] - before[0],
        }  # fmt: skip
    nbytes = _LINK_NBYTES if gpu else 16 << 20
    host = torch.empty(nbytes, dtype=torch.uint8, pin_memory=gpu)
    there = torch.empty(nbytes, dtype=torch.uint8, device=on)

    def seconds(do: Callable[[], object]) -> float:
        return fastest(do, lambda: synchronized(torch, on))

    found["to_device"] = nbytes / seconds(lambda: there.copy_(host, non_blocking=True))
    found["from_device"] = nbytes / seconds(lambda: host.copy_(there, non_blocking=True))
    size = 8192 if gpu else 256
    halves = torch.randn(2, size, size, device=on).to(torch.float16 if gpu else torch.float32)
    found["half_products"] = 2 * size**3 / seconds(lambda: halves[0] @ halves[1])
    whole = torch.randint(-127, 127, (2, size, size), device=on, dtype=torch.int8)
    columns = whole[1].t().contiguous().t()
    found["int8_products"] = 2 * size**3 / seconds(lambda: torch._int_mm(whole[0], columns))
    return found


def _parity(task: dict[str, Any]) -> dict[str, Any]:
    """How far one layer on the device lies from the numpy reference, with and without a prefix."""
    from making.synth import model_spec
    from naive.numpy_runtime import NumpyLayerKernel

    from bench.layer_speed import layer_weights
    from edge.runtimes.base import load_runtime

    random = np.random.default_rng(0)
    found: dict[str, Any] = {}
    lengths = np.array([37, 5, 64, 1, 20], np.int32)
    runtime = load_runtime(runtime_of(task["on"]))
    for shape in ("tiny-bert", "tiny-qwen3"):
        for precision in ("fp32", "fp16", "int8"):
            spec = model_spec(shape, precision).layer
            if runtime.refusal(spec):
                continue
            weights = _scaled(layer_weights(spec, random), spec, random)
            states = random.standard_normal((int(lengths.sum()), spec.hidden), np.float32)
            kernel = runtime.layer_kernel(spec, threads=0, hidden_dtype="float32")
            reference = NumpyLayerKernel(spec, "float32")
            pairs = [(kernel.run(states, lengths, weights), reference.run(states, lengths, weights))]
            if spec.causal:
                prefix = random.standard_normal((11, spec.hidden), np.float32)
                (first, context), (other, expected) = (k.run_prefix(prefix, weights) for k in (kernel, reference))
                pairs += [(first, other)]
                pairs += [
                    (kernel.run(states, lengths, weights, context), reference.run(states, lengths, weights, expected))
                ]
            apart = np.concatenate([(np.abs(a - b) / np.maximum(1, np.abs(b))).ravel() for a, b in pairs])
            found[f"{shape} {precision}"] = {"mean": float(apart.mean()), "most": float(apart.max())}
    return {"layers": found}


def _scaled(weights: dict[str, Any], spec: Any, random: np.random.Generator) -> dict[str, Any]:
    """Matrices of trained magnitude where they are no bytes, and norms of heads."""
    for name, values in weights.items():
        if values.ndim == 2 and values.dtype != np.int8:
            noise = random.standard_normal(values.shape, np.float32) / np.sqrt(values.shape[0])
            weights[name] = noise.astype(values.dtype)
        elif name.startswith(("q_norm", "k_norm")):
            weights[name] = np.ones_like(values)
    return weights


def _rerank(task: dict[str, Any]) -> dict[str, Any]:
    """Passes over the candidates with all layers resident, with two, and with two and the states in host memory; and
    how many candidates hide the transfer of the layers."""
    from edge.budget import MemoryBudget
    from edge.models.packed import PackedModel
    from edge.models.tokenizer import TokenBatch
    from edge.runtimes.embedder import PoolingObserver
    from edge.runtimes.engine import Engine, Tuning
    from edge.runtimes.passes import Job
    from edge.runtimes.scoring import logits

    random = np.random.default_rng(1)
    lengths = lengths_of(task)
    gpu, torch_gpu = not task["rehearsal"], task["on"].startswith("cuda")
    found: dict[str, Any] = {"rows": {}, "crossing": []}
    first: npt.NDArray[np.float64] | None = None

    def passes(engine: Engine, count: int, repeats: int) -> tuple[list[float], npt.NDArray[np.float64]]:
        spec = engine.model.spec
        prefix = random.integers(5, spec.vocab - 5, task["prefix"] if spec.layer.causal else 0).astype(np.int32)
        own = lengths[:count]
        fixed = np.random.default_rng(2)
        batch = TokenBatch(
            prefix=np.resize(fixed.integers(5, spec.vocab - 5, max(1, len(prefix))), len(prefix)).astype(np.int32),
            tokens=natural(fixed, spec.vocab, int(own.sum())), lengths=own, types=None, query_cut=False,
        )  # fmt: skip
        seconds: list[float] = []
        vectors = np.empty((0, 0), np.float32)
        for _ in range(repeats + 1):
            observer = PoolingObserver(spec, engine.head, count)
            seconds.append(engine.run(Job(batch, lambda made=observer: made)).seconds)  # type: ignore[misc]
            vectors = observer.vectors
        return seconds[1:], logits(spec, engine.head, vectors)

    arrangements = {
        "resident": Tuning(),
        "two layers": Tuning(buffers=2),
        "two layers, states in host memory": Tuning(buffers=2, offload=True),
        "the same, chunks of 4096 tokens": Tuning(buffers=2, offload=True, chunk_tokens=4096),
    }
    resident: dict[int, float] = {}
    counts = sorted({min(task["candidates"], n) for n in (16, 32, 64, 128, 256, 512, task["candidates"])})
    for name, tuning in arrangements.items():
        budget = MemoryBudget(64 << 30)
        cap = "" if torch_gpu else "4GB" if gpu else "300MB"
        model = PackedModel.open(task["pack"])
        with Engine(
            model, budget, runtime=runtime_of(task["on"], cap, task.get("int8", "")), threads=0 if gpu else 1,
            max_tokens=512, scratch=Path(task["scratch"]), tuning=tuning,
        ) as engine:  # fmt: skip
            card = engine.place.device.card  # type: ignore[attr-defined]
            passes(engine, min(16, task["candidates"]), 1)
            if torch_gpu:
                card.torch.cuda.empty_cache()
                card.torch.cuda.reset_peak_memory_stats(card.device)
            worked = time.process_time()
            seconds, scores = passes(engine, task["candidates"], _REPEATS)
            worked = (time.process_time() - worked) / (_REPEATS + 1)
            stats = engine.stats
            assert stats is not None
            row = {
                "seconds": seconds, "host_s": worked, "device_peak": card.peak() if torch_gpu else None,
                "weights": engine.window.buffers,
                "ledger": engine.place.memory.limit, "chunk_tokens": stats.chunk_tokens, "tokens": stats.tokens,
            }  # fmt: skip
            if first is None:
                first = scores
            order, expected = (np.argsort(-each, kind="stable") for each in (scores, first))
            row |= {"apart": float(np.abs(scores - first).max()), "same_order": bool((order == expected).all())}
            found["rows"][name] = row
            for count in counts:
                best = min(passes(engine, count, 2)[0])
                if name == "resident":
                    resident[count] = best
                elif name == "two layers":
                    found["crossing"].append({"candidates": count, "resident": resident[count], "streamed": best})
    return found


def natural(random: np.random.Generator, vocab: int, count: int) -> Ids:
    """Token ids as skewed as those of text: rank r comes in proportion to 1 / r (Zipf)."""
    weights = 1 / np.arange(1, min(vocab, 30_000) - 9)
    ids = 5 + random.choice(len(weights), count, p=weights / weights.sum())
    return ids.astype(np.int32)


def _transformers(task: dict[str, Any]) -> dict[str, Any]:
    """The same shape in transformers, fp16 on the same device, in batches as the candidates come, and by length."""
    import torch
    from making.synth import SHAPES
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

    on, gpu = task["on"], task["on"] != "cpu"
    given = dict(SHAPES[task["shape"]].config)
    decoder = given["model_type"] == "qwen3"
    config = AutoConfig.for_model(given.pop("model_type"), **given)
    if not decoder:
        config.num_labels = 1
    dtype = torch.float16 if gpu else torch.float32
    if gpu:
        torch.cuda.reset_peak_memory_stats(on)
    kind = AutoModelForCausalLM if decoder else AutoModelForSequenceClassification
    build: Any = kind.from_config
    with torch.device(on):
        model = build(config, dtype=dtype, attn_implementation="sdpa").eval()
    lengths = lengths_of(task).astype(np.int64) + (task["prefix"] if decoder else 0)
    random = np.random.default_rng(2)
    rows = [natural(random, given["vocab_size"], int(n)).astype(np.int64) for n in lengths]
    found: dict[str, Any] = {"rows": {}, "tokens": int(lengths.sum())}
    orders = {"padded": np.arange(len(rows)), "sorted by length": np.argsort(-lengths, kind="stable")}
    for name, order in orders.items():
        for batch in (128, 64, 32, 16, 8):
            try:
                seconds = [_padded_pass(torch, model, rows, order, batch, on, decoder) for _ in range(_REPEATS + 1)][1:]
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()
                continue
            slower = found["rows"].get(name)
            if slower is None or statistics.median(seconds) < statistics.median(slower["seconds"]):
                peak = int(torch.cuda.max_memory_reserved(on)) if gpu else None
                found["rows"][name] = {"seconds": seconds, "batch": batch, "device_peak": peak}
            if gpu:
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats(on)
            if batch <= 32:  # the best of three sizes
                break
    return found


def _padded_pass(torch: Any, model: Any, rows: list[Any], order: Any, batch: int, on: str, decoder: bool) -> float:
    started = synchronized(torch, on)
    outputs = []
    with torch.inference_mode():
        for low in range(0, len(order), batch):
            part = [rows[i] for i in order[low : low + batch]]
            longest = max(map(len, part))
            ids = np.ones((len(part), longest), np.int64)
            mask = np.zeros((len(part), longest), np.int64)
            for row, tokens in enumerate(part):
                place = slice(longest - len(tokens), None) if decoder else slice(0, len(tokens))
                ids[row, place], mask[row, place] = tokens, 1
            options = {"logits_to_keep": 1} if decoder else {}
            given = {"input_ids": torch.from_numpy(ids).to(on), "attention_mask": torch.from_numpy(mask).to(on)}
            outputs.append(model(**given, **options).logits.reshape(len(part), -1)[:, :2])
        torch.cat(outputs).float().cpu()
    return synchronized(torch, on) - started
