"""`knowledge`: measures the time to the first token with reused document states, beside llama.cpp without
reuse and llama-cpp-python's own prompt cache of the same size, on the same random model and stream of requests."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import numpy as np
from making.random_gguf import SHAPES, made_model
from naive.policies import POLICIES

from bench.cost_table import CostTable
from bench.figures import higher, lower, tabulate
from bench.options import Output, names_option, output_options, stated, threads_option, work_dir_option
from bench.process import measure, processor
from bench.request_stream import RequestStream, StreamShape, replay, reusable, uncached
from edge.apps.options import FiniteRange
from edge.config import parse_size
from edge.errors import CapabilityError, EdgeError

_WORKER = "bench.knowledge_worker"
_DISK = "pgdsf+disk"
_PEERS = ("none", "ram-cache", "ram-cache-held")
_AHEAD = {"read when needed": "", "path read ahead": "path", "named before": "named"}
"""The arms of `--cold`, which are all PGDSF with a disk: how states are read ahead."""
_SYSTEMS = (*_PEERS, *POLICIES, _DISK, *_AHEAD)
_BATCH = 512


@click.command("knowledge")
@click.option("--shape", type=click.Choice(sorted(SHAPES)), default="0.1b", show_default=True, help="Random model.")
@click.option("--requests", default=120, show_default=True)
@click.option("--warmup", default=40, show_default=True, help="Requests at the start that do not count.")
@click.option("--topics", default=30, show_default=True, help="Different lists of documents.")
@click.option("--documents", default=60, show_default=True)
@click.option("--per-request", default=4, show_default=True, help="Documents of a request.")
@click.option("--tokens", default=500, show_default=True, help="Of a document, on average.")
@click.option("--spread", default=0.0, show_default=True, help="Deviation of the logarithm of a document's length.")
@click.option("--zipf", "exponent", default=1.0, show_default=True, help="Exponent of popularity; 0 is uniform.")
@click.option("--drift", default=0, show_default=True, help="Requests after which other topics are popular; 0: never.")
@click.option("--cache", default="256MB", show_default=True, help="Bytes for states, the same for every system.")
@click.option("--disk", default="2GB", show_default=True, help=f"Bytes of {_DISK} on disk, beside those in memory.")
@click.option("--every", default=8, show_default=True, help="Without reuse, serve one request in so many.")
@click.option(
    "--cold",
    type=FiniteRange(0),
    help=f"Compare {', '.join(_AHEAD)}: the system's cache of stored states is dropped before each request, and in the "
    "last arm its documents are named so many seconds before the prompt, as a search does before it reranks.",
)
@threads_option
@names_option("--systems", _SYSTEMS, ",".join((*_PEERS, *POLICIES, _DISK)))
@click.option("--simulate", is_flag=True, help="Measure prefill only, and replay the stream in simulated time.")
@work_dir_option
@output_options
def knowledge(
    shape: str,
    requests: int,
    warmup: int,
    topics: int,
    documents: int,
    per_request: int,
    tokens: int,
    spread: float,
    exponent: float,
    drift: int,
    cache: str,
    disk: str,
    every: int,
    cold: float | None,
    threads: int,
    systems: list[str],
    simulate: bool,
    work_dir: Path,
    output: Output,
) -> None:
    """Serve the same skewed stream of requests with document states kept by different rules, and without."""
    if not 0 <= warmup < requests:
        raise click.BadParameter(f"{warmup} requests of warm-up leave none of {requests} to measure")
    systems = systems if cold is None else list(_AHEAD)
    stream = RequestStream.draw(StreamShape(requests, topics, documents, per_request, tokens, spread, exponent, drift))
    work_dir.mkdir(parents=True, exist_ok=True)
    model = made_model(work_dir, shape)
    longest = max(sum(stream.lengths[i] for i in request) for request in stream.requests)
    common: dict[str, Any] = {
        "model": str(model), "folder": str(work_dir), "context": -(-(longest + 320) // 256) * 256, "threads": threads,
        "memory": 2 * model.stat().st_size + 4 * parse_size(cache) + 2 * 10**9, "bytes": parse_size(cache),
        "costs": str(work_dir / f"random-{shape}-costs.json"), "repeats": 3, "batch": _BATCH, "answer": 4,
        "warmup": warmup, "every": every, "disk": parse_size(disk), "stream": asdict(stream.shape),
        "cold": cold,
    }  # fmt: skip
    click.echo("measuring prefill", err=True)
    measured = measure(_WORKER, common | {"name": "costs", "system": "costs"}, threads=threads)
    conditions = {
        "shape": shape, "cache": parse_size(cache), "disk": parse_size(disk), "threads": threads, "warmup": warmup,
        "processor": processor(), "reusable": reusable(stream.requests, warmup), "simulated": simulate, "cold": cold,
        "stream": asdict(stream.shape),
    }  # fmt: skip
    rows = _simulated(systems, stream, common, measured["bytes_per_token"]) if simulate else _served(systems, common)
    columns = {
        **{key: lower(key, "s") for key in ("mean", "p50", "p95")}, "hit_rate": higher("documents found", "%"),
        "peak_resident": lower("peak", "B"),
    }  # fmt: skip
    figures = tabulate(rows, columns, "time to the first token", [name for name in _PEERS if name in rows])
    output.put({"conditions": conditions, "systems": rows}, figures, stated(conditions))


def _served(chosen: list[str], common: dict[str, Any]) -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    answers: dict[int, list[int]] = {}
    for name in chosen:
        click.echo(f"serving: {name}", err=True)
        stored = name == _DISK or name in _AHEAD
        system = "edge" if name in POLICIES or stored else name
        beside = {"disk": common["disk"], "policy": "pgdsf"} if stored else {"disk": 0, "policy": name}
        beside["ahead"] = _AHEAD.get(name, "path")
        task = common | beside | {"name": name, "system": system}
        try:
            report = measure(_WORKER, task, threads=common["threads"])
        except CapabilityError as error:
            click.echo(f"  left out: {error}", err=True)
            continue
        rows[name] = _row(report, common["warmup"], common["stream"]["per_request"])
        if system in ("none", "edge"):  # llama-cpp-python computes other batches and answers in text, not tokens
            for number, answer in zip(report["numbers"], report["answers"], strict=True):
                if answers.setdefault(number, answer) != answer:
                    raise EdgeError(f"request {number} was answered differently by {name}")
    return rows


def _row(report: dict[str, Any], warmup: int, per_request: int) -> dict[str, Any]:
    counted = [i for i, number in enumerate(report["numbers"]) if number >= warmup]
    cached = [report["cached"][i] for i in counted if report["cached"][i] is not None]
    misses = report["counters"].get("knowledge.misses")
    return _figures([report["ttft"][i] for i in counted]) | {
        "cached": sum(cached) / sum(report["prompt"][i] for i in counted) if cached else None,
        # Every miss is a document's, because the system prompt of every request was found.
        "hit_rate": None if misses is None else 1 - misses / (per_request * len(counted)),
        "held": report["held"],
        "peak_resident": report["peak_resident"],
        "counters": report["counters"],
    }


def _simulated(
    chosen: list[str], stream: RequestStream, common: dict[str, Any], bytes_per_token: int
) -> dict[str, dict[str, Any]]:
    costs = CostTable.load(common["costs"])
    assert costs is not None
    tokens = common["bytes"] // bytes_per_token
    rows = {}
    for name in chosen:
        if name == "none":
            found = uncached(stream, costs, warmup=common["warmup"])
        elif name in POLICIES:
            found = replay(stream, costs, tokens=tokens, policy=POLICIES[name], warmup=common["warmup"])
        else:
            continue
        rows[name] = _figures(found.ttft) | {"cached": found.cached, "hit_rate": found.hit_rate}
    return rows


def _figures(ttft: Sequence[float]) -> dict[str, Any]:
    return {
        "requests": len(ttft),
        "mean": statistics.fmean(ttft),
        "p50": float(np.percentile(ttft, 50)),
        "p95": float(np.percentile(ttft, 95)),
    }
