"""The judged set of the benchmark `gpu`: all its questions, by the host alone and with the device, in each codec."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from bench.rag_index import opened_index, stored_vectors
from edge.budget import MemoryBudget
from edge.devices.cpu import CpuDevice
from edge.devices.faiss_codec import NAMES
from edge.ivf.base import IndexOptions
from edge.ivf.device import open_device
from edge.models.training.corpora import load
from edge.runtimes.embedder import Embedder
from edge.trace import Trace

_K, _NPROBE = 10, 8
_ROUNDS = 2  # lists come to the device in the first one, and lie there in the second one
_ADDED = 512


def judged(task: dict[str, Any]) -> dict[str, Any]:
    """Counts the questions whose rows and scores are those of the host, to the bit, and the lists on the device."""
    corpus = load(Path(task["data"]))
    texts = [f"{title}. {text}" if title else text for title, text in zip(corpus.titles, corpus.texts, strict=True)]
    budget = MemoryBudget(8 << 30)
    with tempfile.TemporaryDirectory(prefix="edge-judged-") as name:
        folder = Path(name)
        vectors = stored_vectors(folder / "vectors.npy", texts, budget)
        with Embedder(budget=budget) as embedder:
            queries = embedder.embed(list(corpus.queries.values()), query=True)
        found: dict[str, Any] = {"set": corpus.name, "rows": {}}
        for codec in NAMES:
            place = folder / codec
            options = IndexOptions(codec=codec, flat_limit=0, list_rows=64)
            with opened_index(place, vectors.shape[1], budget, options=options) as (index, database):
                for start in range(0, len(vectors), _ADDED):
                    with database.write() as db:
                        index.add(db, range(start, min(start + _ADDED, len(vectors))), vectors[start : start + _ADDED])
                index.maintain(database.write, full=True, progress=lambda stage, done, total: None)
            trace, answers = Trace(), []
            device: Any = open_device(task["device"], budget, trace=trace, **task["options"])
            for further in (None, device):
                host = CpuDevice(budget)
                with (
                    opened_index(
                        place, vectors.shape[1], budget, read_only=True, options=options, device=host, place=further,
                        trace=trace,
                    ) as (index, database),
                    database.read() as db,
                ):  # fmt: skip
                    answers += [
                        [index.search(db, queries[n : n + 1], _K, nprobe=_NPROBE) for n in range(len(queries))]
                        for _ in range(_ROUNDS)
                    ]
                host.close()
            same = [
                all(
                    other.ids.tolist() == first.ids.tolist() and other.scores.tobytes() == first.scores.tobytes()
                    for other in others
                )
                for first, *others in zip(*answers, strict=True)
            ]
            counters = trace.snapshot()
            found["rows"][codec] = {
                "questions": len(queries), "same": sum(same),
                "on_device": counters.get(f"lists on {device.name}.hits", 0.0) / (_ROUNDS * len(queries)),
            }  # fmt: skip
            device.close()
    return found
