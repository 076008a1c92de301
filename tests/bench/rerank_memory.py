"""`rerank-memory`: measures time and peak memory of one rerank, streamed and resident, beside plain
onnxruntime and transformers, with the same random weights, tokens and candidates."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from making.synth import synth, synth_checkpoint

from bench.figures import lower, neither, tabulate
from bench.onnx_export import pad_token
from bench.options import Names, Output, Precision, Rounds, Threads, WorkDir, benchmark, stated
from bench.process import drop_page_cache, in_turn, measure, processor, say, timed
from bench.rerank_peers import SCRIPT
from bench.texts import documents
from edge.config import parse_size
from edge.models.packed import PackedModel
from edge.models.tokenizer import PairTokenizer

_QUERY = "how does a device answer a query within its memory budget"
_SYSTEMS = ("streamed", "resident", "onnxruntime", "transformers")
_RESIDENT = 4 * 10**9
"""Limit of the fully resident run."""

_RUNS = 2
"""Runs of a process, of which the last counts."""


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
    """Rerank the same candidates under a limit, fully resident, and with the peers, always without pruning."""
    pack, checkpoint = made(shape, precision, work_dir), work_dir / f"{shape}-checkpoint"
    if "transformers" in systems and not checkpoint.exists():
        say(f"making the same model as a transformers checkpoint, fp32, in {checkpoint}")
        synth_checkpoint(shape, checkpoint)
    with PackedModel.open(pack) as model:
        tokenizer = PairTokenizer(model.tokenizer_path, model.spec)
        docs = documents(tokenizer, _QUERY, candidates, tokens)
    common: dict[str, Any] = {
        "pack": str(pack), "checkpoint": str(checkpoint), "query": _QUERY, "docs": docs, "top_k": top_k,
        "max_tokens": tokens, "threads": threads,
    }  # fmt: skip
    tasks: dict[str, dict[str, Any]] = {
        "streamed": {"system": "edge", "memory": parse_size(memory), "cold": True},
        "resident": {"system": "edge", "memory": _RESIDENT, "cold": False},
        "onnxruntime": {"system": "onnxruntime"},
    }

    def run(name: str) -> dict[str, Any]:
        if name != "transformers":
            return measure(work, common | tasks[name] | {"name": name}, threads=threads)
        task = {
            "action": "rerank", "system": name, "name": name, "model": str(checkpoint), "queries": [(_QUERY, docs)],
            "max_tokens": tokens, "threads": threads, "batch": 4, "longest": 0.0, "pad_token": pad_token(checkpoint),
        }  # fmt: skip
        report = measure(SCRIPT, task, threads=threads)
        return report | _found(report["seconds"], report["answers"][-1], top_k)

    reports, _ = in_turn(rounds, systems, run)
    rows = {name: _row(found) for name, found in reports.items()}
    conditions = {
        "shape": shape, "precision": precision, "candidates": candidates, "tokens": tokens, "top_k": top_k,
        "threads": threads, "rounds": rounds, "limit": parse_size(memory), "processor": processor(),
        "page_cache": "cold for streamed, warm for the others",
    }  # fmt: skip
    first = rows.get("streamed") or next(iter(rows.values()))
    for row in rows.values():
        row["agreed"] = len(set(row["scores"]) & set(first["scores"])) / max(1, len(first["scores"]))
        row["slower"] = row["seconds"] / first["seconds"]
    columns = {
        "all_seconds": lower("time", "s"), "peak_resident": lower("peak", "B"), "agreed": neither("same top K", "%"),
        "slower": neither("times the first"),
    }  # fmt: skip
    peers = set(_SYSTEMS) - {"streamed", "resident"}
    result = {"conditions": conditions, "systems": rows}
    held = rows["streamed"]["peak_resident"] if "streamed" in rows else 0
    stats = rows.get("streamed", {}).get("stats")
    shown = stated(conditions) + (f"\nstreamed: {stated(stats)}" if stats else "")
    output.put(result, tabulate(rows, columns, peers=peers), shown, held=held, limit=parse_size(memory))


def made(shape: str, precision: str, folder: Path) -> Path:
    """The packed model of a published shape with random weights in a folder, which is made unless it is there."""
    place = folder / f"{shape}-{precision}"
    if not place.exists():
        say(f"making {shape} with random weights, {precision}")
        synth(shape, place, precision).close()  # type: ignore[arg-type]
    return place


def _row(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """The medians over the rounds. Of repeated runs in one process only the last counts; earlier ones warm up the
    process. The page cache of cold runs is dropped before each run."""
    seconds = [report["seconds"][-1] for report in reports]
    return {
        "seconds": statistics.median(seconds),
        "all_seconds": seconds,
        "peak_resident": max(report["peak_resident"] for report in reports),
        "peak_with_files": max((report.get("peak_with_files") or 0) for report in reports),
        "scores": reports[-1]["scores"],
        "stats": reports[-1].get("stats"),
        "cold": reports[-1].get("cold", False),
    }


def _found(seconds: Sequence[float], scores: Sequence[float], top_k: int) -> dict[str, Any]:
    """The report of a peer, which scores all documents."""
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    return {"seconds": seconds, "scores": {str(i): scores[i] for i in order[:top_k]}}


def work(task: dict[str, Any]) -> dict[str, Any]:
    """Scores the pairs with the task's `system`. Reports the seconds of each repetition, and the scores."""
    return {"edge": _edge, "onnxruntime": _onnxruntime}[task["system"]](task)


def _edge(task: dict[str, Any]) -> dict[str, Any]:
    from edge.config import Config
    from edge.runtimes.reranker import Reranker

    config, pack = Config.load(flags={"memory": task["memory"], "threads": task["threads"]}), Path(task["pack"])
    cold: list[bool] = []
    with Reranker(str(pack), config=config, max_tokens=task["max_tokens"]) as reranker:
        rankings, seconds = timed(
            lambda _: reranker.explain(task["query"], task["docs"], task["top_k"], threshold="inf"),
            range(_RUNS),
            before=lambda: cold.append(task["cold"] and drop_page_cache(pack)),
        )
    scores = {str(r.index): r.score for r in rankings[-1].results}
    return {"seconds": seconds, "scores": scores, "stats": rankings[-1].stats.to_json(), "cold": cold[-1]}


def _onnxruntime(task: dict[str, Any]) -> dict[str, Any]:
    from bench.plain_onnx import PlainReranker

    reranker = PlainReranker(Path(task["pack"]), threads=task["threads"])
    score = lambda _: reranker.score(task["query"], task["docs"], task["max_tokens"])  # noqa: E731
    found, seconds = timed(score, range(_RUNS))
    return _found(seconds, found[-1], task["top_k"])
