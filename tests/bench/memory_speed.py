"""Times one memory library: adding sentences one by one, and searching. Embedding is timed separately."""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.texts import memories, questions
from edge.apps.memory.memory import Memory
from edge.budget import MemoryBudget
from edge.config import Config
from edge.runtimes.embedder import Embedder

Floats = npt.NDArray[np.float32]
_USER = "bench"
_BATCH = 1_000


def work(task: dict[str, Any]) -> dict[str, Any]:
    """Measures the task's `system`, `edge` or `mem0`; for `fill`, prepares their memories."""
    systems: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {"fill": _fill, "edge": _edge, "mem0": _mem0}
    return systems[task["system"]](task)


class Timed:
    """An embedder with known vectors, which measures the time that embedding takes."""

    def __init__(self, embedder: Embedder, known: dict[str, Floats] | None = None) -> None:
        self.embedder = embedder
        self.model = embedder.model  # so that a memory sees the fingerprint of the embedder itself
        self.dim = embedder.dim
        self.seconds = 0.0
        self._known = known or {}

    def embed(self, texts: Sequence[str], memory_action: str | None = None, *, query: bool = False) -> Any:
        """The vectors of a list of texts. For a single text, in which form mem0 calls it, one vector as a list."""
        if isinstance(texts, str):
            return self.embed([texts], query=memory_action == "search")[0].tolist()
        if all(text in self._known for text in texts):
            return np.stack([self._known[text] for text in texts])
        started = time.perf_counter()
        vectors = self.embedder.embed(texts, query=query)
        self.seconds += time.perf_counter() - started
        return vectors

    def embed_batch(self, texts: Sequence[str], memory_action: str | None = None) -> Any:
        """The vectors of texts as lists, in the form in which mem0 calls an embedder."""
        return self.embed(list(texts)).tolist()

    def close(self) -> None:
        """Does nothing: the embedder's owner closes it."""


def _fill(task: dict[str, Any]) -> dict[str, Any]:
    """Makes a memory of `count` sentences in `folder`, unless it exists. The vectors are stored beside it."""
    folder, count = Path(task["folder"]), task["count"]
    vectors = _vectors(folder, count)
    place = folder / f"memory-{count}"
    if place.exists():
        return {"seconds": 0.0}
    started = time.perf_counter()
    partial = folder / f"memory-{count}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    texts = memories(count)
    with Embedder(memory="1GB") as embedder:
        prepared = Timed(embedder, dict(zip(texts, vectors, strict=True)))
        with Memory(partial, user_id=_USER, embedder=prepared, memory="4GB") as memory:
            for start in range(0, count, _BATCH):
                memory.add(texts[start : start + _BATCH])
            memory.maintain(full=True)
    partial.rename(place)
    return {"seconds": time.perf_counter() - started}


def _vectors(folder: Path, count: int) -> Floats:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"vectors-{count}.npy"
    if not file.exists():
        with Embedder(memory="1GB") as embedder:
            np.save(file.with_suffix(".tmp.npy"), embedder.embed(memories(count)))
        os.replace(file.with_suffix(".tmp.npy"), file)
    return np.asarray(np.load(file), np.float32)


def _edge(task: dict[str, Any]) -> dict[str, Any]:
    """Searches, then adds, in a copy of the prepared memory, all within the limit `memory`."""
    place = _copy(Path(task["folder"]) / f"memory-{task['count']}", Path(task["scratch"]))
    config = Config.load(flags={"memory": task["memory"], "threads": task["threads"]})
    budget = MemoryBudget(config.memory)
    with Embedder(config=config, budget=budget) as embedder:
        timed = Timed(embedder)
        with Memory(place, user_id=_USER, embedder=timed, config=config, budget=budget) as memory:
            return _measure(
                task,
                timed,
                lambda text: memory.add(text),
                lambda text: memory.search(text, 10, rerank=False)["results"],
            ) | {"rows": task["count"]}


def _mem0(task: dict[str, Any]) -> dict[str, Any]:
    """Measures mem0 with a local qdrant, `infer=False` and no telemetry. It is filled here with the same vectors."""
    scratch = Path(task["scratch"]) / "mem0"
    os.environ |= {"MEM0_TELEMETRY": "False", "MEM0_DIR": str(scratch)}
    import mem0

    texts = memories(task["count"])
    with Embedder(config=Config.load(flags={"memory": "1GB", "threads": task["threads"]})) as embedder:
        prepared = Timed(embedder, dict(zip(texts, _vectors(Path(task["folder"]), task["count"]), strict=True)))
        store = {"path": str(scratch / "qdrant"), "embedding_model_dims": embedder.dim, "on_disk": True}
        memory = mem0.Memory.from_config({
            "vector_store": {"provider": "qdrant", "config": store},
            "llm": {"provider": "openai", "config": {"api_key": "none"}},
            "embedder": {"provider": "openai", "config": {"api_key": "none"}},
            "history_db_path": str(scratch / "history.db"),
        })  # fmt: skip
        memory.embedding_model = prepared
        for text in texts:
            memory.add(text, user_id=_USER, infer=False)
        timed = Timed(embedder)
        memory.embedding_model = timed
        filters = {"user_id": _USER}
        return _measure(
            task,
            timed,
            lambda text: memory.add(text, user_id=_USER, infer=False),
            lambda text: memory.search(text, top_k=10, filters=filters, threshold=0.0)["results"],
        ) | {"rows": task["count"]}


def _measure(
    task: dict[str, Any], timed: Timed, add: Callable[[str], Any], search: Callable[[str], Any]
) -> dict[str, Any]:
    """The latencies of searches and of adds, in milliseconds. The first five of each warm up and do not count."""
    new = [f"{text}, and that was number {n}" for n, text in enumerate(memories(task["adds"] + 5))]
    whole, beside = _latencies(timed, search, questions(task["searches"] + 5))
    added, added_beside = _latencies(timed, add, new)
    return {
        "search": _summary(whole), "search_beside_embedding": _summary(beside),
        "add": _summary(added), "add_beside_embedding": _summary(added_beside),
    }  # fmt: skip


def _latencies(timed: Timed, call: Callable[[str], Any], texts: Sequence[str]) -> tuple[list[float], list[float]]:
    whole, beside = [], []
    for text in texts:
        timed.seconds = 0.0
        started = time.perf_counter()
        call(text)
        seconds = time.perf_counter() - started
        whole.append(seconds * 1e3)
        beside.append((seconds - timed.seconds) * 1e3)
    return whole[5:], beside[5:]


def _summary(milliseconds: list[float]) -> dict[str, float]:
    return {"p50": statistics.median(milliseconds), "p95": float(np.percentile(milliseconds, 95))}


def _copy(source: Path, scratch: Path) -> Path:
    target = scratch / "memory"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    return target
