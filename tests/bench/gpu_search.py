"""The search of the benchmark `gpu`: the same lists, probes and codes on the GPU, on the host and in faiss."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.process import timed
from bench.vectors import recall
from edge.budget import MemoryBudget
from edge.devices.cpu import CpuDevice
from edge.devices.faiss_codec import FaissCodecs
from edge.ivf.base import CodecSpec, Vectors
from edge.ivf.device import Candidates, Joins, ListScan, SearchPlace, SearchRequest, open_device
from edge.ivf.scan import best, exact_scores

_DIM = 384
_K = 10
_WIDTH = 8 * _K + 8
_BATCHES = (1, 16, 256)
_ROUNDS = 5
_ITERATIONS = 5


@dataclass
class Index:
    vectors: Vectors
    queries: Vectors
    truth: npt.NDArray[np.int64]
    centroids: Vectors
    order: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    codes: npt.NDArray[np.uint8]
    spec: CodecSpec
    rounds: int = _ROUNDS

    def probes(self, queries: Vectors, nprobe: int) -> npt.NDArray[np.int64]:
        """The nearest lists of each query [q, nprobe]."""
        scores = queries @ self.centroids.T
        return np.argpartition(-scores, nprobe - 1, axis=1)[:, :nprobe]


def search(task: dict[str, Any]) -> dict[str, Any]:
    """Queries per second by the number of queries in a request, and recall, on each device."""
    import torch

    on = task["on"]
    name = "webgpu" if on == "webgpu" else "cuda"
    index = built(torch, "cpu" if name == "webgpu" else on, task["vectors"])
    forgotten(torch, on)
    found: dict[str, Any] = {"vectors": len(index.vectors), "dim": _DIM, "lists": len(index.centroids), "rows": {}}
    index.rounds = 1 if task["rehearsal"] else _ROUNDS
    codec = FaissCodecs().open(index.spec)
    nprobe = _enough(index)
    found |= {"nprobe": nprobe, "recall_of_lists": _list_recall(index, nprobe)}
    gpu = not task["rehearsal"]
    budget = MemoryBudget(64 << 30 if gpu else 4 << 30)
    cap = "256MB" if not gpu else "4GB" if name == "webgpu" else ""
    device: Any = open_device(name, budget, cap=cap, **({} if name == "webgpu" else {"on": on}))
    started = time.perf_counter()
    lists = _sent(index, device)
    found["sent"] = {"nbytes": index.codes.nbytes, "seconds": time.perf_counter() - started}
    found["rows"][name], answers = _measured(index, device, codec, lists, nprobe)
    found["rows"][name]["device_peak"] = device.card.peak() if name == "cuda" else None
    device.close()
    host = CpuDevice(budget)
    here = [index.codes[low:high] for low, high in zip(index.starts[:-1], index.starts[1:], strict=True)]
    found["rows"]["cpu, one thread"], expected = _measured(index, host, codec, here, nprobe)
    host.close()
    _faiss(index, nprobe, task["threads"], found)
    found["equal_results"] = bool((expected == answers).all())
    return found


def _measured(
    index: Index, device: SearchPlace, codec: Any, lists: list[Any], nprobe: int
) -> tuple[dict[str, Any], npt.NDArray[np.int64]]:
    """See `_answered`; of a device of this program."""

    def candidates(queries: Vectors) -> Iterable[npt.NDArray[np.int64]]:
        probing: dict[int, list[int]] = {}
        for query, own in enumerate(index.probes(queries, nprobe).tolist()):
            for number in own:
                probing.setdefault(number, []).append(query)
        scans = [
            ListScan(lists[number], int(index.starts[number]), int(index.starts[number + 1] - index.starts[number]),
                     None, own)
            for number, own in probing.items()
            if index.starts[number + 1] > index.starts[number]
        ]  # fmt: skip
        seen = Candidates.empty(len(queries), _WIDTH)
        labels = device.search(SearchRequest(codec, queries, scans, np.arange(len(index.order)), seen)).labels
        return (index.order[row[row >= 0]] for row in labels)

    return _answered(index, candidates)


def _answered(
    index: Index, candidates: Callable[[Vectors], Iterable[npt.NDArray[np.int64]]]
) -> tuple[dict[str, Any], npt.NDArray[np.int64]]:
    """The rates of requests of each size and the recall of one system, and its results of all queries [q, k]. Its
    candidates are rescored exactly."""
    results = np.empty((len(index.queries), _K), np.int64)
    row: dict[str, Any] = {"queries_per_second": {}}

    def ask(queries: Vectors) -> None:
        for query, own in enumerate(candidates(queries)):
            results[query] = best(exact_scores(index.vectors[own], queries[query]), own, _K)[1]

    for batch in _BATCHES:
        _, seconds = timed(ask, [index.queries[:batch]] * (index.rounds + 1))
        row["queries_per_second"][str(batch)] = batch / statistics.median(seconds[1:])
    return row | {"recall": recall(results.tolist(), index.truth)}, results


def _faiss(index: Index, nprobe: int, threads: int, found: dict[str, Any]) -> None:
    """The same centroids and codes of the same range in faiss, on the host with all threads, and on the GPU if it was
    built for one."""
    import faiss

    faiss.omp_set_num_threads(threads)
    quantizer = faiss.IndexFlatIP(_DIM)
    quantizer.add(index.centroids)
    kind = faiss.ScalarQuantizer.QT_8bit
    lists = faiss.IndexIVFScalarQuantizer(
        quantizer, _DIM, len(index.centroids), kind, faiss.METRIC_INNER_PRODUCT, False
    )
    lists.train(index.vectors[:: max(1, len(index.vectors) // 100_000)])
    lists.add(index.vectors)
    lists.nprobe = nprobe
    systems: dict[str, Any] = {f"faiss, {threads} threads": lists}
    if hasattr(faiss, "StandardGpuResources"):
        systems["faiss-gpu"] = faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), 0, lists)
    else:
        found.setdefault("absent", {})["faiss-gpu"] = "this faiss was not built for GPUs"
    for name, system in systems.items():
        found["rows"][name], _ = _answered(
            index,
            lambda queries, own=system: (row[row >= 0] for row in own.search(queries, 8 * _K)[1]),  # type: ignore[misc]
        )


def built(torch: Any, on: str, count: int) -> Index:
    """Clustered unit vectors, their lists by spherical k-means, and SQ8 codes. Made on the device, which is quick."""
    generator = torch.Generator(device=on).manual_seed(0)

    def unit(x: Any) -> Any:
        return torch.nn.functional.normalize(x, dim=1)

    def noise(rows: int) -> Any:
        return torch.randn(rows, _DIM, generator=generator, device=on)

    topics = unit(noise(max(16, count // 250)))
    chosen = torch.randint(len(topics), (count,), generator=generator, device=on)
    vectors = torch.cat([unit(topics[part] + noise(len(part)) * 0.05) for part in torch.split(chosen, 100_000)])
    about = torch.randint(count, (max(_BATCHES),), generator=generator, device=on)
    queries = unit(vectors[about] + noise(len(about)) * 0.03)
    truth = torch.topk(queries @ vectors.t(), _K, dim=1).indices
    sample = vectors[torch.randperm(count, generator=generator, device=on)[: min(count, 200_000)]]
    centroids = sample[: max(16, int(count**0.5))].clone()
    for _ in range(_ITERATIONS):
        nearest = torch.cat([(part @ centroids.t()).argmax(1) for part in torch.split(sample, 20_000)])
        sums = torch.zeros_like(centroids).index_add_(0, nearest, sample)
        centroids = unit(torch.where(sums.norm(dim=1, keepdim=True) > 0, sums, centroids))
    lists = torch.cat([(part @ centroids.t()).argmax(1) for part in torch.split(vectors, 20_000)])
    order = torch.argsort(lists, stable=True)
    low, high = vectors.amin(0), vectors.amax(0)
    span = high - low
    codes = torch.cat(
        [((part - low) / span * 255).clamp_(0, 255).to(torch.uint8) for part in vectors[order].split(100_000)]
    )
    counts = np.bincount(lists.cpu().numpy(), minlength=len(centroids))
    state = torch.cat((low, span)).cpu().numpy().astype("<f4").tobytes()
    return Index(
        vectors.cpu().numpy(), queries.cpu().numpy(), truth.cpu().numpy(), centroids.cpu().numpy(), order.cpu().numpy(),
        np.concatenate(([0], np.cumsum(counts))), codes.cpu().numpy(), CodecSpec("sq8", _DIM, _DIM, state),
    )  # fmt: skip


def forgotten(torch: Any, on: str) -> None:
    """Gives the memory back that a device was used with before it is measured."""
    if on.startswith("cuda"):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(on)


def _sent(index: Index, device: Any) -> list[Any]:
    """All lists on the device, over its link."""
    bounds = list(zip(index.starts[:-1].tolist(), index.starts[1:].tolist(), strict=True))
    buffers = []
    for low, high in bounds:
        device.memory.reserve("lists", max(1, (high - low) * _DIM))
        buffers.append(device.allocate(max(1, (high - low) * _DIM)))
    if not isinstance(device, Joins):
        for buffer, (low, high) in zip(buffers, bounds, strict=True):
            if high > low:
                device.write(buffer, index.codes[low:high])
        return buffers
    most, first = device.most // _DIM, 0
    while first < len(bounds):
        end = first + 1
        while end < len(bounds) and bounds[end][1] - bounds[first][0] <= most:
            end += 1
        start, stop = bounds[first][0], bounds[end - 1][1]
        own = list(zip(buffers[first:end], bounds[first:end], strict=True))

        def fill(block: Any, own: Any = own, start: int = start, stop: int = stop) -> list[Any]:
            codes = block.reshape(-1, _DIM)
            codes[:] = index.codes[start:stop]
            return [(buffer, codes[low - start : high - start]) for buffer, (low, high) in own if high > low]

        if stop - start > most:
            device.write(buffers[first], index.codes[start:stop])
        elif stop > start:
            device.write_joined((stop - start) * _DIM, fill)
        first = end
    return buffers


def _list_recall(index: Index, nprobe: int) -> float:
    """The share of true results that lie in the probed lists."""
    place = np.empty(len(index.order), np.int64)
    place[index.order] = np.repeat(np.arange(len(index.centroids)), np.diff(index.starts))
    probes = index.probes(index.queries, nprobe)
    return float(np.mean([np.isin(place[own], near).mean() for own, near in zip(index.truth, probes, strict=True)]))


def _enough(index: Index) -> int:
    """The fewest lists, in powers of two, that hold 97 % of the true results."""
    nprobe = 1
    while nprobe < len(index.centroids) // 2 and _list_recall(index, nprobe) < 0.97:
        nprobe *= 2
    return nprobe
