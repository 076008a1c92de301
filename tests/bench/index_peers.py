"""Measures other indexes on the same vectors: faiss with the same lists in memory, on disk, mapped; usearch.

The candidates of faiss are rescored exactly as this index rescores its own, from the same file of vectors.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.process import drop_page_cache, fill_page_cache, timed
from bench.vectors import NEIGHBOURS, Floats, VectorSet, recall
from edge.devices.faiss_codec import restored
from edge.ivf.base import RESCORE

Search = Callable[[Floats], npt.NDArray[np.int64]]
"""Maps one query, [dim], to the ids of its nearest rows, [NEIGHBOURS]."""

_HNSW_WIDTHS = (64, 128, 256, 512, 1024)


_FILES = {
    "faiss-ram": ["lists.faiss"], "faiss-ondisk": ["ondisk.faiss", "ondisk.ivfdata"], "faiss-mmap": ["lists.faiss"],
    "usearch": ["usearch.index"],
}  # fmt: skip


def work(task: dict[str, Any]) -> dict[str, Any]:
    folder, system = Path(task["peers"]), task["system"]
    folder.mkdir(parents=True, exist_ok=True)
    faiss = system.startswith("faiss")
    if task["action"] == "build":
        (_build_faiss if faiss else _build_usearch)(task)
        return {}
    opener, files = _open_faiss if faiss else _open_usearch, [folder / name for name in _FILES[system]]
    setting = task["nprobe"] if faiss else _setting(task, opener)
    everything = [*files, VectorSet.stored(Path(task["set"])).path]
    found = cold_and_warm(task, lambda: nullcontext(opener(task, setting)), everything)
    return found | {"setting": setting, "nbytes": sum(map(_size, files))}


def cold_and_warm(
    task: dict[str, Any], opened: Callable[[], AbstractContextManager[Search]], files: Sequence[Path]
) -> dict[str, Any]:
    """The seconds of some searches with nothing in memory, and of half of the queries after the others; all results.
    Pages of `files` are dropped before each cold search, and read before the warm ones."""
    queries = VectorSet.stored(Path(task["set"])).queries
    half = len(queries) // 2
    with opened() as search:
        search(queries[0])  # libraries are loaded by the first search
    cold: list[float] = []
    for query in queries[: task["cold"]]:
        with opened() as search:
            cold += timed(search, [query], before=lambda: list(map(drop_page_cache, files)))[1]
        del search
        gc.collect()
    with opened() as search:
        for path in files:
            fill_page_cache(path)
        first, _ = timed(search, queries[:half])
        second, warm = timed(search, queries[half:])
    return {"cold": cold, "warm": warm, "ids": [ids.tolist() for ids in (*first, *second)]}


def _setting(task: dict[str, Any], opener: Callable[[dict[str, Any], int], Search]) -> int:
    """The smallest setting that reaches the wanted recall on half of the queries."""
    vectors = VectorSet.stored(Path(task["set"]))
    half = len(vectors.queries) // 2
    for choice in _HNSW_WIDTHS:
        found, _ = timed(opener(task, choice), vectors.queries[:half])
        if recall((ids.tolist() for ids in found), vectors.truth[:half]) >= task["recall"]:
            return choice
    return _HNSW_WIDTHS[-1]


def _size(path: Path) -> int:
    return sum(p.stat().st_size for p in ([path] if path.is_file() else path.rglob("*")) if p.is_file())


def _build_faiss(task: dict[str, Any]) -> None:
    """Copies the codes and ids of every list unchanged into a faiss index."""
    import faiss

    from bench.index import opened  # which imports this module

    folder = Path(task["peers"])
    with opened(task) as our, our.database.read() as db:
        snapshot = our.index.snapshot(db)
        lists = _empty_faiss(faiss, snapshot)
        on_disk = faiss.OnDiskInvertedLists(
            snapshot.nlist, snapshot.codec.spec.code_size, str(folder / "ondisk.ivfdata")
        )
        for number in range(snapshot.nlist):
            for part in snapshot.lists[number]:
                block = np.empty(part.nbytes, np.uint8)
                part.source.read(part.codes, block.data)
                ids, codes, _ = part.split(block)
                for target in (lists.invlists, on_disk):
                    target.add_entries(number, len(ids), faiss.swig_ptr(ids), faiss.swig_ptr(codes))
                lists.ntotal += len(ids)
        faiss.write_index(lists, str(folder / "lists.faiss"))
        lists.replace_invlists(on_disk, False)
        faiss.write_index(lists, str(folder / "ondisk.faiss"))


def _empty_faiss(faiss: Any, snapshot: Any) -> Any:
    spec = snapshot.codec.spec
    quantizer = faiss.IndexFlatIP(spec.dim)
    quantizer.add(snapshot.centroids)
    metric = faiss.METRIC_INNER_PRODUCT
    if spec.exact:
        lists = faiss.IndexIVFFlat(quantizer, spec.dim, snapshot.nlist, metric)
    else:
        trained = restored(faiss, spec)
        if spec.name == "sq8":
            kind = trained.sq.qtype
            lists = faiss.IndexIVFScalarQuantizer(quantizer, spec.dim, snapshot.nlist, kind, metric, False)
            lists.sq = trained.sq
        else:
            lists = faiss.IndexIVFPQ(quantizer, spec.dim, snapshot.nlist, trained.pq.M, trained.pq.nbits, metric)
            lists.by_residual = False
            lists.pq = trained.pq
    lists.is_trained = True
    quantizer.this.disown()  # the index keeps it
    lists.own_fields = True
    return lists


def _open_faiss(task: dict[str, Any], nprobe: int) -> Search:
    import faiss

    folder, system = Path(task["peers"]), task["system"]
    flags = faiss.IO_FLAG_MMAP if system == "faiss-mmap" else 0
    name = "ondisk.faiss" if system == "faiss-ondisk" else "lists.faiss"
    index: Any = faiss.read_index(str(folder / name), flags)
    index.nprobe = nprobe
    faiss.omp_set_num_threads(task["threads"])
    exact = task["codec_used"] == "flat"
    rows = VectorSet.stored(Path(task["set"])).mapped()

    def search(query: Floats) -> npt.NDArray[np.int64]:
        _, found = index.search(query[None], NEIGHBOURS if exact else NEIGHBOURS * RESCORE)
        ids = np.sort(found[0][found[0] >= 0])
        scores = np.einsum("ij,j->i", rows[ids], query)
        return np.asarray(ids[np.lexsort((ids, -scores))[:NEIGHBOURS]], np.int64)

    return search


def _build_usearch(task: dict[str, Any]) -> None:
    from usearch.index import Index

    vectors = VectorSet.stored(Path(task["set"]))
    index = Index(ndim=vectors.dim, metric="ip", dtype="f16", connectivity=16, expansion_add=64)
    for start, rows in vectors.blocks():
        index.add(np.arange(start, start + len(rows)), rows, threads=task["threads"])
    index.save(str(Path(task["peers"]) / "usearch.index"))


def _open_usearch(task: dict[str, Any], width: int) -> Search:
    from usearch.index import Index

    index = Index.restore(str(Path(task["peers"]) / "usearch.index"), view=True)
    index.expansion_search = width

    def search(query: Floats) -> npt.NDArray[np.int64]:
        return np.asarray(index.search(query, NEIGHBOURS).keys, np.int64)

    return search
