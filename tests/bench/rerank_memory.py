"""`rerank-memory`: measures time and peak memory of one rerank, streamed and resident, beside plain
onnxruntime and transformers, with the same random weights, tokens and candidates."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

import click
from making.synth import synth, synth_checkpoint

from bench.figures import lower, neither, tabulate
from bench.options import Output, names_option, output_options, rounds_option, threads_option, work_dir_option
from bench.process import measure, processor
from bench.texts import documents
from edge.config import format_size, parse_size
from edge.errors import CapabilityError, EdgeError
from edge.models.packed import PackedModel
from edge.models.tokenizer import PairTokenizer

_WORKER = "bench.rerank_worker"
_QUERY = "how does a device answer a query within its memory budget"
_SYSTEMS = ("streamed", "resident", "onnxruntime", "transformers", "offload")


@click.command("rerank-memory")
@click.option("--shape", default="bge-reranker-v2-m3", show_default=True, help="Published shape, with random weights.")
@click.option("--candidates", default=60, show_default=True)
@click.option("--tokens", default=500, show_default=True, help="Tokens of each pair of query and document.")
@click.option("-k", "--top-k", default=10, show_default=True)
@click.option("--memory", default="300MB", show_default=True, help="Limit of the streamed run.")
@click.option("--resident-memory", default="4GB", show_default=True, help="Limit of the fully resident run.")
@click.option("--precision", type=click.Choice(["int8", "fp16", "fp32"]), default="int8", show_default=True)
@threads_option
@rounds_option(2)
@click.option("--repeats", default=2, show_default=True, help="Runs per process (transformers: 1); the last counts.")
@names_option("--systems", _SYSTEMS, "streamed,resident,onnxruntime,transformers")
@work_dir_option
@output_options
def rerank_memory(
    shape: str,
    candidates: int,
    tokens: int,
    top_k: int,
    memory: str,
    resident_memory: str,
    precision: str,
    threads: int,
    rounds: int,
    repeats: int,
    systems: list[str],
    work_dir: Path,
    output: Output,
) -> None:
    """Rerank the same candidates under a limit, fully resident, and with the peers, always without pruning."""
    pack = work_dir / f"{shape}-{precision}"
    if not pack.exists():
        click.echo(f"making {shape} with random weights, {precision}", err=True)
        synth(shape, pack, precision).close()  # type: ignore[arg-type]
    checkpoint = work_dir / f"{shape}-checkpoint"
    if {"transformers", "offload"} & set(systems) and not checkpoint.exists():
        click.echo(f"making the same model as a transformers checkpoint, fp32, in {checkpoint}", err=True)
        synth_checkpoint(shape, checkpoint)
    with PackedModel.open(pack) as model:
        tokenizer = PairTokenizer(model.tokenizer_path, model.spec)
        docs = documents(tokenizer, _QUERY, candidates, tokens)
        head = model.spec.head
        ids = _token_ids(model.tokenizer_path, [head.no_token, head.yes_token]) if head.kind == "yes-no" else []
    common: dict[str, Any] = {
        "pack": str(pack), "checkpoint": str(checkpoint), "query": _QUERY, "docs": docs, "top_k": top_k,
        "max_tokens": tokens, "threads": threads, "repeats": repeats, "batch": 4,
        "no": ids[0] if ids else None, "yes": ids[1] if ids else None,
    }  # fmt: skip
    tasks: dict[str, dict[str, Any]] = {
        "streamed": {"system": "edge", "memory": parse_size(memory), "cold": True},
        "resident": {"system": "edge", "memory": parse_size(resident_memory), "cold": False},
        "onnxruntime": {"system": "onnxruntime"},
        "transformers": {"system": "transformers", "repeats": 1},
        "offload": {"system": "offload", "repeats": 1},
    }
    reports: dict[str, list[dict[str, Any]]] = {name: [] for name in systems}
    with tempfile.TemporaryDirectory(dir=work_dir) as scratch:
        for turn in range(rounds):
            for name in systems:
                click.echo(f"round {turn + 1} of {rounds}: {name}", err=True)
                try:
                    task = common | tasks[name] | {"name": name, "scratch": scratch}
                    reports[name].append(measure(_WORKER, task, threads=threads))
                except CapabilityError as error:
                    click.echo(f"  left out: {error}", err=True)
    rows = {name: _row(found) for name, found in reports.items() if found}
    if not rows:
        raise EdgeError("nothing was measured")
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
    shown = _described(rows, conditions)
    output.put(result, tabulate(rows, columns, peers=peers), shown, held=held, limit=parse_size(memory))


def _row(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """The medians over the rounds. Of repeated runs in one process only the last counts; earlier ones warm up the
    process. The page cache of cold runs is dropped before each run."""
    seconds = [report["seconds"][-1] for report in reports]
    return {
        "seconds": statistics.median(seconds),
        "all_seconds": seconds,
        "peak_resident": max(report["peak_resident"] for report in reports),
        "peak_with_files": max((report["peak_with_files"] or 0) for report in reports),
        "scores": reports[-1]["scores"],
        "stats": reports[-1].get("stats"),
        "cold": reports[-1].get("cold", False),
    }


def _described(rows: dict[str, dict[str, Any]], conditions: dict[str, Any]) -> str:
    """The sentences above the table of figures."""
    text = (
        f"{conditions['shape']} (random weights, {conditions['precision']}), {conditions['candidates']} candidates of "
        f"{conditions['tokens']} tokens, top {conditions['top_k']}, full depth, {conditions['threads']} threads, "
        f"{conditions['processor']}; medians of {conditions['rounds']} alternating runs\n"
        "peak: anonymous resident memory of the whole process"
    )
    if "streamed" in rows and (stats := rows["streamed"]["stats"]):
        text += (
            f"\nstreamed: {stats['buffers']} of {stats['layers']} layers in memory, {format_size(stats['lane_bytes'])} "
            f"read, {stats['stall_s']:.2f} s waited, {stats['hidden_s']:.2f} s hidden, hidden states "
            f"{'on disk' if stats['offloaded'] else 'in memory'}, chunks of {stats['chunk_tokens']} tokens"
        )
    return text


def _token_ids(path: Path, tokens: list[str]) -> list[int]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    return [int(tokenizer.token_to_id(token) or 0) for token in tokens]
