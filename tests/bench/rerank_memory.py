"""`rerank-memory`: measures time and peak memory of one rerank, streamed and resident, beside plain
onnxruntime and transformers, with the same random weights, tokens and candidates."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from making.synth import synth, synth_checkpoint

from bench.figures import Column, tabulate
from bench.onnx_export import pad_token
from bench.options import Names, Output, Precision, Rounds, Threads, WorkDir, benchmark, stated
from bench.peers_script import work
from bench.process import in_turn, measure, processor, say
from bench.rerank_peers import best
from bench.texts import documents
from edge.config import parse_size
from edge.models.packed import PackedModel
from edge.models.tokenizer import PairTokenizer

_QUERY = "how does a device answer a query within its memory budget"
_SYSTEMS = ("streamed", "resident", "onnxruntime", "transformers")
_RESIDENT = 4 * 10**9
"""Limit of the fully resident run."""


@benchmark
def rerank_memory(
    *,
    shape: Annotated[str, "Published shape, with random weights."] = "bge-reranker-v2-m3",
    candidates: int = 60,
    tokens: Annotated[int, "Tokens of each pair of query and document."] = 500,
    top_k: Annotated[int, "-k", "--top-k"] = 10,
    memory: Annotated[str, "Limit of the streamed run."] = "300MB",
    precision: Precision = "int8",
    threads: Threads = 2,
    rounds: Rounds = 2,
    systems: Annotated[Sequence[str], Names(_SYSTEMS)] = _SYSTEMS,
    work_dir: WorkDir,
    output: Output,
) -> None:
    """Rerank the same candidates under a limit, fully resident, and with the peers, always without pruning.

    Of a process's two runs the last counts. The page cache is dropped before each one that is streamed.
    """
    pack, checkpoint = made(shape, precision, work_dir), work_dir / f"{shape}-checkpoint"
    with PackedModel.open(pack) as model:
        tokenizer = PairTokenizer(model.tokenizer_path, model.spec)
        docs = documents(tokenizer, _QUERY, candidates, tokens)
    limit = parse_size(memory)
    tasks: dict[str, dict[str, Any]] = {
        "streamed": {"system": "edge", "model": str(pack), "memory": limit, "cold": True},
        "resident": {"system": "edge", "model": str(pack), "memory": _RESIDENT},
        "onnxruntime": {"system": "onnxruntime", "model": str(pack)},
    }
    if "transformers" in systems:
        if not checkpoint.exists():
            say(f"making the same model as a transformers checkpoint, fp32, in {checkpoint}")
            synth_checkpoint(shape, checkpoint)
        own = {"model": str(checkpoint), "batch": 4, "pad_token": pad_token(checkpoint)}
        tasks["transformers"] = {"system": "transformers", **own}
    common = {
        "action": "rerank", "queries": [(_QUERY, docs)], "max_tokens": tokens, "threads": threads,
        "longest": float("inf"),
    }  # fmt: skip
    reports, _ = in_turn(
        rounds, systems, lambda name: measure(work, common | tasks[name] | {"name": name}, threads=threads)
    )
    rows = {
        name: {
            "seconds": [report["seconds"][-1] for report in found], "best": best(found[-1]["answers"][-1], top_k),
            "peak_resident": max(report["peak_resident"] for report in found),
        }
        for name, found in reports.items()
    }  # fmt: skip
    first = rows.get("streamed") or next(iter(rows.values()))
    for row in rows.values():
        row["agreed"] = len(set(row["best"]) & set(first["best"])) / max(1, len(first["best"]))
        row["slower"] = statistics.median(row["seconds"]) / statistics.median(first["seconds"])
    conditions = {
        "shape": shape, "precision": precision, "candidates": candidates, "tokens": tokens, "top_k": top_k,
        "threads": threads, "rounds": rounds, "limit": limit, "processor": processor(),
        "page_cache": "cold for streamed, warm for the others",
    }  # fmt: skip
    columns = {
        "seconds": Column("time", "s"), "peak_resident": Column("peak", "B"), "agreed": Column("same top K", "%"),
        "slower": Column("times the first"),
    }  # fmt: skip
    held = rows["streamed"]["peak_resident"] if "streamed" in rows else 0
    result = {"conditions": conditions, "systems": rows}
    output.put(result, tabulate(rows, columns), stated(conditions), held=held, limit=limit)


def made(shape: str, precision: str, folder: Path) -> Path:
    """The packed model of a published shape with random weights in a folder, which is made unless it is there."""
    place = folder / f"{shape}-{precision}"
    if not place.exists():
        say(f"making {shape} with random weights, {precision}")
        synth(shape, place, precision).close()  # type: ignore[arg-type]
    return place
