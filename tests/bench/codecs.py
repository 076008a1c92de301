"""`codecs`: compares the index's codecs with RaBitQ on the same lists: recall after exact rescoring, bytes, times."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from bench.figures import Figure, higher, lower, tabulate
from bench.options import Base, Names, Output, Threads, VectorsDir, benchmark, numbers, stated
from bench.process import measure, processor, say
from bench.vectors import BLOCK, NEIGHBOURS, Floats, VectorSet, recall
from edge.devices.faiss_codec import FaissCodecs, rotation

_CODECS = ("sq8", "pq", "opq", "opq48", "rabitq", "rabitq-residual", "rabitq2", "rabitq2-residual")
_SAMPLE = 50_000


@benchmark
def codecs(
    *,
    rows: int = 1_000_000,
    base: Base = None,
    systems: Annotated[Sequence[str], Names(_CODECS)] = _CODECS,
    lists: int = 1_000,
    nprobe: Annotated[int, "Lists that a query reads."] = 64,
    pools: Annotated[Sequence[int], numbers(), "Candidates that are scored exactly."] = (80, 200),
    queries: int = 200,
    threads: Annotated[Threads, "Threads of building. A query takes one."] = 2,
    work_dir: VectorsDir,
    output: Output,
) -> None:
    """Compare codecs of lists on the same centroids: recall, bytes, time."""
    say("vectors and exact answers")
    vectors = VectorSet.made(work_dir / f"vectors-{rows}", rows=rows, queries=queries, base=base)
    task = {
        "name": "codecs", "set": str(vectors.folder), "systems": list(systems), "lists": lists, "nprobe": nprobe,
        "pools": list(pools), "threads": threads,
    }  # fmt: skip
    found = measure(work, task, threads=threads)
    result = {
        "rows": rows, "dim": vectors.dim, "vectors": vectors.kind, "queries": queries, "lists": lists,
        "nprobe": nprobe, "in_lists": found["in_lists"], "processor": processor(), "codecs": found["codecs"],
    }  # fmt: skip
    output.put(result, figures(found["codecs"], pools), stated(result))


def figures(rows: dict[str, Any], pools: Sequence[int]) -> Iterator[Figure]:
    """The figures of a stored run."""
    columns = {"code": lower("bytes a vector", "B"), "encode": lower("encoding a vector", "s")}
    columns["scan"] = lower("scan of a query", "s")
    columns |= {f"recall-{pool}": higher(f"recall@{NEIGHBOURS} of {pool}", "%") for pool in pools}
    yield from tabulate(rows, columns)


def work(task: dict[str, Any]) -> dict[str, Any]:
    """Bytes, seconds and recalls of each codec, and the share of the true neighbours that lie in the lists read."""
    import faiss

    vectors = VectorSet.stored(Path(task["set"]))
    queries, truth, exact = vectors.queries, vectors.truth, vectors.mapped()
    sample = np.concatenate([block for _, block in vectors.blocks(end=min(vectors.rows, 5 * BLOCK))])
    sample = sample[np.random.default_rng(0).permutation(len(sample))[:_SAMPLE]]
    faiss.omp_set_num_threads(task["threads"])
    centroids = FaissCodecs(threads=task["threads"]).cluster(
        sample.astype(np.float16), task["lists"], iterations=10, seed=0
    )
    coarse = faiss.IndexFlatIP(vectors.dim)
    coarse.add(centroids)
    of_row = np.concatenate([coarse.search(block, 1)[1][:, 0] for _, block in vectors.blocks()])
    read = coarse.search(queries, task["nprobe"])[1]
    in_lists = float(np.mean([np.isin(of_row[near], own).mean() for near, own in zip(truth, read, strict=True)]))
    found: dict[str, Any] = {}
    for name in task["systems"]:
        faiss.omp_set_num_threads(task["threads"])
        turn = _turn(name, sample)
        # Rotated, all products stay the same, so the lists stay the same as well.
        index = _index(faiss, name, np.ascontiguousarray(centroids @ turn.T), task["nprobe"])
        index.train(np.ascontiguousarray(sample @ turn.T))
        started = time.perf_counter()
        for start, block in vectors.blocks():
            stop = start + len(block)
            arrays = [np.ascontiguousarray(block @ turn.T), np.arange(start, stop), of_row[start:stop]]
            index.add_core(len(block), *map(faiss.swig_ptr, arrays))
        row = {"code": float(index.code_size), "encode": (time.perf_counter() - started) / vectors.rows}
        faiss.omp_set_num_threads(1)
        turned = np.ascontiguousarray(queries @ turn.T)
        pool, times = max(task["pools"]), []
        candidates = []
        for query in turned:
            started = time.perf_counter()
            candidates.append(index.search(query[None], pool)[1][0])
            times.append(time.perf_counter() - started)
        row["scan"] = float(np.median(times))
        for size in task["pools"]:
            best = [_rescored(exact, query, ids[:size]) for query, ids in zip(queries, candidates, strict=True)]
            row[f"recall-{size}"] = recall(best, truth)
        found[name] = row
        say(f"{name}: {row}")
    return {"codecs": found, "in_lists": in_lists}


def _turn(name: str, sample: Floats) -> Floats:
    """The rotation before a codec: that of the product for opq, a random one for RaBitQ."""
    dim = sample.shape[1]
    if name.startswith("opq"):
        return rotation(sample, 48 if name == "opq48" else dim // 4)
    if name.startswith("rabitq"):
        return np.linalg.qr(np.random.default_rng(1).standard_normal((dim, dim)))[0].astype(np.float32)
    return np.eye(dim, dtype=np.float32)


def _index(faiss: Any, name: str, centroids: Floats, nprobe: int) -> Any:
    count, dim = centroids.shape
    coarse = faiss.IndexFlatIP(dim)
    coarse.add(centroids)
    inner = faiss.METRIC_INNER_PRODUCT
    if name == "sq8":
        index = faiss.IndexIVFScalarQuantizer(coarse, dim, count, faiss.ScalarQuantizer.QT_8bit, inner, False)
    elif name.startswith("rabitq"):
        index = faiss.IndexIVFRaBitQ(coarse, dim, count, inner, True, 2 if name.startswith("rabitq2") else 1)
        index.by_residual = name.endswith("residual")
    else:
        index = faiss.IndexIVFPQ(coarse, dim, count, 48 if name == "opq48" else dim // 4, 8, inner)
        index.by_residual = False
    index.nprobe = nprobe
    coarse.this.disown()
    index.own_fields = True
    return index


def _rescored(exact: Floats, query: Floats, ids: npt.NDArray[np.int64]) -> list[int]:
    ids = ids[ids >= 0]
    return [int(n) for n in ids[np.argsort(-(exact[ids] @ query))[:NEIGHBOURS]]]
