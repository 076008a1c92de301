"""`rerank-peers`: FlashRank, fastembed and transformers rerank the same candidates with one checkpoint."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from bench import onnx_export
from bench.figures import Figure, higher, lower, tabulate
from bench.options import Output, names_option, output_options, rounds_option, threads_option, work_dir_option
from bench.process import measure_script, processor
from bench.rerank_quality import JudgedPool, read_pools
from edge.config import parse_size
from edge.errors import CapabilityError, EdgeError, InputError
from edge.models.pack import pack

_WORKER = Path(__file__).with_name("rerank_peers_worker.py")
_SYSTEMS = ("edge", "flashrank", "fastembed", "transformers")
_PRECISIONS = ("int8", "fp32")
_REFERENCE = "transformers, fp32"
_K = 10
_BATCH = 32


@click.command("rerank-peers")
@click.argument("pools", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--checkpoint", required=True, type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A cross-encoder of the BERT family in Hugging Face's format. It is packed, and exported to ONNX by torch.",
)  # fmt: skip
@click.option("--queries", type=click.IntRange(1), default=20, show_default=True, help="Of each file, the first ones.")
@click.option("--candidates", type=click.IntRange(2), default=60, show_default=True, help="First ones of a pool.")
@click.option("--max-tokens", type=click.IntRange(16), default=256, show_default=True, help="Of query + candidate.")
@click.option("--memory", default="300MB", show_default=True, help="Limit of this program.")
@threads_option
@rounds_option(2)
@names_option("--systems", _SYSTEMS)
@names_option("--precisions", _PRECISIONS, help="transformers runs in fp32 only.")
@click.option("--flashrank-python", help="A Python in which FlashRank is installed; this one if not given.")
@click.option("--fastembed-python", help="A Python in which fastembed is installed; this one if not given.")
@work_dir_option
@output_options
def rerank_peers(
    pools: Sequence[Path],
    checkpoint: Path,
    queries: int,
    candidates: int,
    max_tokens: int,
    memory: str,
    threads: int,
    rounds: int,
    systems: list[str],
    precisions: list[str],
    flashrank_python: str | None,
    fastembed_python: str | None,
    work_dir: Path,
    output: Output,
) -> None:
    """Rerank the candidates of POOLS with one checkpoint, in this program and in its peers, at full depth.

    `search-quality DATA --pools DIR` writes such files. The peers run with their own defaults: FlashRank puts all
    candidates into one batch, fastembed 64. Their int8 model is onnxruntime's dynamic quantization.
    """
    rows = _rows(systems, precisions)
    judged = {path.stem: [pool.cut(candidates) for pool in read_pools(path, queries)] for path in pools}
    if len(judged) < len(pools):
        raise InputError("two of the files have the same name")
    tasks = _tasks(checkpoint, work_dir, rows, max_tokens)
    common: dict[str, Any] = {
        "queries": [(pool.query, pool.docs) for found in judged.values() for pool in found],
        "max_tokens": max_tokens, "threads": threads, "memory": parse_size(memory), "batch": _BATCH,
    }  # fmt: skip
    pythons = {"flashrank": flashrank_python, "fastembed": fastembed_python}
    reports: dict[str, list[dict[str, Any]]] = {}
    notes: dict[str, str] = {}
    for turn in range(rounds):
        for name, task in tasks.items():
            if name in notes:
                continue
            click.echo(f"round {turn + 1} of {rounds}: {name}", err=True)
            python = pythons.get(task["system"]) or sys.executable
            try:
                report = measure_script(_WORKER, common | task | {"name": name}, threads=threads, python=python)
            except CapabilityError as error:
                notes[name] = f"{name} was left out: {error}."
                click.echo(f"  {notes[name]}", err=True)
                continue
            reports.setdefault(name, []).append(report)
    if not reports:
        raise EdgeError("nothing was measured")
    report = {name: row(found, judged, reports.get(_REFERENCE)) for name, found in reports.items()}
    result = {
        "conditions": {
            "checkpoint": checkpoint.name, "candidates": candidates, "max_tokens": max_tokens, "threads": threads,
            "queries": len(common["queries"]), "limit": common["memory"], "rounds": rounds, "processor": processor(),
        },
        "retrieved": {set_name: retrieved_quality(found) for set_name, found in judged.items()},
        "systems": report,
    }  # fmt: skip
    shown = (
        f"{checkpoint.name}, {len(common['queries'])} queries, {candidates} candidates of at most {max_tokens} tokens, "
        f"full depth, {threads} threads, {processor()}; medians of {rounds} alternating runs\n"
        "peak: anonymous resident memory of the process tree"
    )
    held = max((max(found["peak"]) for name, found in report.items() if name.startswith("edge")), default=0)
    output.put(result, figures(result), shown, notes.values(), held=held, limit=common["memory"])


def _rows(systems: list[str], precisions: list[str]) -> list[tuple[str, str]]:
    """The pairs of a system and a precision that run, in their order."""
    own = [(system, precision) for system in systems if system != "transformers" for precision in precisions]
    return own + ([("transformers", "fp32")] if "transformers" in systems else [])


def _tasks(
    checkpoint: Path, folder: Path, rows: Sequence[tuple[str, str]], max_tokens: int
) -> dict[str, dict[str, Any]]:
    """The task of each row, with its model, which is made unless it is there."""
    own = folder / f"{checkpoint.resolve().name}-{onnx_export.fingerprint(checkpoint)}"
    tasks: dict[str, dict[str, Any]] = {}
    for system, precision in rows:
        place = (
            checkpoint if system == "transformers" else own / f"{precision}-{'pack' if system == 'edge' else 'onnx'}"
        )
        if not place.exists():
            click.echo(f"making {place}", err=True)
        task: dict[str, Any] = {"system": system, "model": str(place.resolve())}
        if system == "edge":
            if not place.exists():
                pack(checkpoint, place, precision).close()  # type: ignore[arg-type]
        elif system == "transformers":
            task["pad_token"] = onnx_export.pad_token(checkpoint)
        else:
            onnx_export.export(checkpoint, place, precision, max_tokens)
            task |= {"name_there": onnx_export.MODEL_NAME, "file_there": onnx_export.MODEL_FILE}
        tasks[f"{system}, {precision}"] = task
    return tasks


def row(
    reports: Sequence[Mapping[str, Any]],
    judged: Mapping[str, Sequence[JudgedPool]],
    reference: Sequence[Mapping[str, Any]] | None,
) -> dict[str, Any]:
    """The figures of one system: values of each round, and the quality, which is the same in all rounds.

    `same` is the share of the first 10 candidates that are also among the first 10 of `reference`.
    """
    scores = reports[-1]["scores"]
    found: dict[str, Any] = {
        "seconds": [statistics.median(report["seconds"]) for report in reports],
        "first": [report["first"] for report in reports],
        "peak": [report["peak_resident"] for report in reports],
        "ndcg": {},
    }
    rest = iter(scores)
    for name, pools in judged.items():
        found["ndcg"][name] = statistics.mean(pool.ndcg(next(rest)) for pool in pools)
    if reference:
        pairs = list(zip(map(_best, scores), map(_best, reference[-1]["scores"]), strict=True))
        found["same"] = statistics.mean(len(own & its) / len(its) for own, its in pairs)
    return found


def retrieved_quality(pools: Sequence[JudgedPool]) -> float:
    """The mean nDCG@10 of the candidates in the order in which they were retrieved."""
    return statistics.mean(pool.ndcg(-np.arange(len(pool.docs))) for pool in pools)


def _best(scores: Sequence[float]) -> set[int]:
    return set(np.argsort(-np.asarray(scores), kind="stable")[:_K].tolist())


def figures(result: Mapping[str, Any]) -> Iterator[Figure]:
    """The figures of a stored run, by system."""
    sets = list(result["retrieved"])
    columns = {
        "seconds": lower("a query", "s"), "first": lower("first query from the start", "s"), "peak": lower("peak", "B"),
        **{f"ndcg {number}": higher(f"nDCG@10, {name}") for number, name in enumerate(sets)},
        "same": higher("same first 10 as transformers", "%"),
    }  # fmt: skip
    found = {**result["systems"], "order of retrieval": {"ndcg": result["retrieved"]}}
    # The names of files hold dots, which would lead into nested values.
    rows = {
        name: {**values, **{f"ndcg {number}": values["ndcg"][each] for number, each in enumerate(sets)}}
        for name, values in found.items()
    }
    yield from tabulate(rows, columns, peers=[name for name in rows if not name.startswith("edge")])
