"""`gpu`: all measurements of the device `cuda` on one machine, in one run of a few minutes, without network
and with the libraries of the machine."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from making.synth import SHAPES

from bench.figures import Figure, higher, lower, tabulate
from bench.options import Output, output_options
from bench.process import measure, processor
from edge.config import format_size
from edge.errors import EdgeError, InputError


def table(report: dict[str, Any]) -> str:
    """The measurements so far, as Markdown."""
    parts = report.get("parts", {})
    machine = parts.get("machine", {})
    lines = [f"# {machine.get('device', report['on'])}", ""]
    if report["rehearsal"]:
        lines += ["**Rehearsal on torch's CPU device with tiny models: these times say nothing about a GPU.**", ""]
    lines += [
        f"Host: {report['processor']}. torch {machine.get('torch', '?')}, CUDA {machine.get('cuda', 'none')}.",
        "",
    ]
    if "to_device" in machine:
        to, back = machine["to_device"] / 1e9, machine["from_device"] / 1e9
        lines += [
            f"Link {to:.1f} GB/s to the device and {back:.1f} GB/s back; half-precision products "
            f"{machine['half_products'] / 1e12:.1f} TFLOP/s, int8 {machine['int8_products'] / 1e12:.1f} TOP/s.",
            "",
        ]
    for shape in report["shapes"]:
        lines += _reranking(report, shape)
    lines += _search(parts.get("search", {}))
    if "layers" in parts.get("parity", {}):
        lines += ["## Distance of a layer from the reference", "", "| layer | mean | most |", "|---|---|---|"]
        found = parts["parity"]["layers"]
        lines += [f"| {name} | {row['mean']:.1e} | {row['most']:.1e} |" for name, row in found.items()]
        lines += [""]
    left = [f"- {name}: {found['left_out']}" for name, found in parts.items() if "left_out" in found]
    return "\n".join(lines + (["## Left out", "", *left, ""] if left else []))


def figures(report: dict[str, Any]) -> Iterator[Figure]:
    """The figures of a stored run: reranking of each shape, and searching."""
    parts = report.get("parts", {})
    columns = {"seconds": lower("time", "s"), "device_peak": lower("device memory", "B")}
    for shape in report["shapes"]:
        peers = {f"transformers, {n}": row for n, row in parts.get(f"{shape} transformers", {}).get("rows", {}).items()}
        yield from tabulate(peers, columns, shape, peers)
        for precision in ("fp16", "int8"):
            rows = parts.get(f"{shape} {precision}", {}).get("rows", {})
            yield from tabulate({f"edge {precision}, {name}": row for name, row in rows.items()}, columns, shape)
    found = parts.get("search", {}).get("rows", {})
    rates = {f"queries_per_second.{n}": higher(f"queries, {n} at a time", "/s") for n in (1, 16, 256)}
    others = [name for name in found if not name.startswith(("cpu", "cuda"))]
    yield from tabulate(found, rates | {"recall": higher("recall@10")}, "search", others)


def _reranking(report: dict[str, Any], shape: str) -> list[str]:
    parts = report.get("parts", {})
    peers = parts.get(f"{shape} transformers", {}).get("rows", {})
    lines = [f"## {shape}: {report['candidates']} candidates of about {report['tokens']} tokens", ""]
    lines += [f"Random weights. A decoder's {report['prefix_tokens']} tokens of template and query come on top.", ""]
    lines += ["| system | seconds | times sorted batches | device memory | note |", "|---|---|---|---|---|"]
    base = statistics.median(peers["sorted by length"]["seconds"]) if "sorted by length" in peers else None
    for name, row in peers.items():
        precision = "fp32" if report["rehearsal"] else "fp16"  # a CPU is slow in fp16
        lines.append(_table_row(f"transformers {precision}, {name}", row, base, f"batches of {row['batch']}"))
    for precision in ("fp16", "int8"):
        for name, row in parts.get(f"{shape} {precision}", {}).get("rows", {}).items():
            order = "order of resident" if row["same_order"] else f"scores within {row['apart']:.1e} of resident"
            lines.append(
                _table_row(f"edge {precision}, {name}", row, base, f"{row['weights']} layers on the device, {order}")
            )
    lines.append("")
    for precision in ("fp16", "int8"):
        crossing = parts.get(f"{shape} {precision}", {}).get("crossing")
        if crossing:
            within = [row["candidates"] for row in crossing if row["streamed"] <= 1.1 * row["resident"]]
            text = f"from {within[0]} candidates on" if within else "with none of these numbers"
            ratios = ", ".join(f"{row['candidates']}: {row['streamed'] / row['resident']:.2f}" for row in crossing)
            lines += [f"{precision}, two layers against resident ({ratios}): within 1.1 {text}.", ""]
    return lines


def _table_row(name: str, row: dict[str, Any], base: float | None, note: str) -> str:
    seconds = statistics.median(row["seconds"])
    speed = f"{base / seconds:.2f}" if base else ""
    memory = format_size(row["device_peak"]) if row.get("device_peak") else ""
    return f"| {name} | {seconds:.3f} | {speed} | {memory} | {note} |"


def _search(found: dict[str, Any]) -> list[str]:
    if "rows" not in found:
        return []
    sent = found["sent"]
    lines = [
        f"## Search of {found['vectors']:,} vectors of {found['dim']} dimensions, SQ8", "",
        f"{found['nprobe']} of {found['lists']:,} lists for each query. Sending all lists: "
        f"{sent['nbytes'] / sent['seconds'] / 1e9:.2f} GB/s.", "",
        "| system | queries/s, one at a time | 16 at a time | 256 at a time | recall@10 |", "|---|---|---|---|---|",
    ]  # fmt: skip
    for name, row in found["rows"].items():
        rates = " | ".join(f"{rate:,.0f}" for rate in row["queries_per_second"].values())
        lines.append(f"| {name} | {rates} | {row['recall']:.3f} |")
    if "equal_results" in found:
        lines += ["", f"Results of cpu and cuda are {'equal' if found['equal_results'] else 'NOT EQUAL'}."]
    reasons = found.get("absent", {})
    return [*lines, "", *(f"- {name} left out: {reason}" for name, reason in reasons.items()), ""]


_WORKER = "bench.gpu_worker"
_SHAPES = "qwen3-reranker-0.6b,bge-reranker-v2-m3"
_PREFIX_TOKENS = 90
"""Tokens of a decoder's prefix: the template of Qwen3-Reranker has 60 to 70, the rest is the query."""

_PARALLEL = 4
"""Models that are packed at a time."""


@dataclass
class Run:
    """One run of all measurements.

    Attributes:
        out: folder of the results, written after each measurement.
        until: reading of the clock after which no measurement begins.
        report: the results so far.
    """

    out: Path
    until: float
    report: dict[str, Any] = field(default_factory=dict)

    def take(self, name: str, task: dict[str, Any], *, seconds: float) -> None:
        """Runs one measurement, which takes about `seconds`. That it fails or finds no time, the report says."""
        left = self.until - time.monotonic()
        if left < seconds:
            self._keep(name, {"left_out": f"{seconds:.0f} s are needed, {max(0.0, left):.0f} s were left"})
            return
        started = time.monotonic()
        try:
            found = measure(_WORKER, {"name": name, "watch": 0.05, **task}, threads=task["threads"], timeout=left)
        except EdgeError as error:
            self._keep(name, {"left_out": str(error)})
            return
        self._keep(name, {**found, "took": time.monotonic() - started})

    def _keep(self, name: str, found: dict[str, Any]) -> None:
        self.report.setdefault("parts", {})[name] = found
        reason = found.get("left_out")
        click.echo(f"{name}: {'left out: ' + reason if reason else 'done'}", err=True)
        self.write()

    def write(self) -> None:
        """Writes the results so far, so that none is lost if the machine goes."""
        (self.out / "gpu.json").write_text(json.dumps(self.report, indent=1), encoding="utf-8")
        (self.out / "gpu.md").write_text(table(self.report), encoding="utf-8")


@click.command()
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), required=True, help="Folder of the results.")
@click.option("--on", default="cuda", show_default=True, help="cuda, cuda:1 ..., or cpu for a rehearsal without a GPU.")
@click.option("--shapes", help=f"Rerankers with random weights.  [default: {_SHAPES}; tiny ones in a rehearsal]")
@click.option("--candidates", type=int, help="Of a request.  [default: 1000; 40 in a rehearsal]")
@click.option("--tokens", default=200, show_default=True, help="Of a candidate on average; lengths differ by a half.")
@click.option("--vectors", type=int, help="Of the index.  [default: 1000000; 20000 in a rehearsal]")
@click.option("--minutes", default=9.0, show_default=True, help="After which no measurement begins.")
@click.option("--threads", default=0, help="Of the host (0: one per core).")
@output_options
def gpu(
    out: Path,
    on: str,
    shapes: str | None,
    candidates: int | None,
    tokens: int,
    vectors: int | None,
    minutes: float,
    threads: int,
    output: Output,
) -> None:
    """Measure reranking and search on a GPU beside transformers and the host; write gpu.json and gpu.md."""
    import os

    rehearsal = on == "cpu"
    chosen = (shapes or ("tiny-qwen3,tiny-xlm-roberta" if rehearsal else _SHAPES)).split(",")
    if unknown := set(chosen) - set(SHAPES):
        raise InputError(f"{', '.join(sorted(unknown))}: no such shape; known: {', '.join(SHAPES)}")
    count = candidates or (40 if rehearsal else 1000)
    rows = vectors or (20_000 if rehearsal else 1_000_000)
    common = {"on": on, "threads": threads or os.cpu_count() or 1, "tokens": min(tokens, 80 if rehearsal else 330)}
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{out} cannot be a folder of results: {error.strerror}") from error
    run = Run(out, time.monotonic() + 60 * minutes)
    run.report |= {
        "rehearsal": rehearsal, "on": on, "processor": processor(), "candidates": count, "vectors": rows,
        "tokens": common["tokens"], "shapes": chosen, "prefix_tokens": _PREFIX_TOKENS,
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="edge-gpu-") as scratch:
        packing = ThreadPoolExecutor(_PARALLEL)
        packs = {
            (shape, precision): packing.submit(_pack, common, shape, precision, Path(scratch) / f"{shape}-{precision}")
            for shape in chosen
            for precision in ("fp16", "int8")
        }
        run.take("machine", {"part": "machine", **common}, seconds=15)
        run.take("parity", {"part": "parity", **common}, seconds=20)
        for shape in chosen:
            task = {"part": "transformers", "shape": shape, "candidates": count, "prefix": _PREFIX_TOKENS, **common}
            run.take(f"{shape} transformers", task, seconds=40)
            for precision in ("fp16", "int8"):
                try:
                    packs[shape, precision].result()
                except EdgeError as error:
                    run.report.setdefault("parts", {})[f"{shape} {precision}"] = {"left_out": str(error)}
                    continue
                task = {
                    "part": "rerank", "shape": shape, "pack": str(Path(scratch) / f"{shape}-{precision}"),
                    "candidates": count, "prefix": _PREFIX_TOKENS, "scratch": scratch, **common,
                }  # fmt: skip
                run.take(f"{shape} {precision}", task, seconds=60)
        run.take("search", {"part": "search", "vectors": rows, **common}, seconds=60)
        packing.shutdown()
    run.report["seconds"] = 60 * minutes - (run.until - time.monotonic())
    run.write()
    output.put(run.report, figures(run.report), lambda: click.echo(table(run.report)))


def _pack(common: dict[str, Any], shape: str, precision: str, path: Path) -> None:
    """Packs random weights. Raises EdgeError if that fails."""
    task = {"part": "pack", "name": path.name, "shape": shape, "precision": precision, "path": str(path), **common}
    measure(_WORKER, task, threads=2)
