"""`gpu`: all measurements of the device `cuda` or `webgpu` on one machine, in one run of a few minutes, without network
and with the libraries of the machine."""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from making.synth import SHAPES

from bench.figures import Column, Figure, tabulate
from bench.gpu_worker import work
from bench.options import Names, NewFolder, Output, benchmark
from bench.process import measure, processor, say
from edge.errors import EdgeError, InputError

_SHAPES = "ms-marco-minilm-l6,bge-reranker-v2-m3,qwen3-reranker-0.6b"
_PREFIX_TOKENS = 90
"""Tokens of a decoder's prefix: the template of Qwen3-Reranker has 60 to 70, the rest is the query."""

_PARTS = ("parity", "launches", "machine", "tokens", "search", "lookahead", "transformers", "rerank")

_LONGEST = 2.5
"""A measurement that takes so many times as long as it should is ended, so that others find time."""

_FORMS = {"int8 wide": "wide"}
"""What becomes of int8 layers, beside the way that the device takes by itself."""

_PARALLEL = 4
"""Models that are packed at a time."""


def figures(report: dict[str, Any]) -> Iterator[Figure]:
    parts = report.get("parts", {})
    rates = {
        "to_device": Column("GB to the device", "/s", 1e-9),
        "from_device": Column("GB from the device", "/s", 1e-9),
        "half_products": Column("half-precision TFLOP", "/s", 1e-12),
        "int8_products": Column("int8 TOP", "/s", 1e-12),
    }
    yield from tabulate({"device": parts.get("machine", {})}, rates, "machine")
    columns = {
        "seconds": Column("time", "s"), "host_s": Column("processor time of the host", "s"),
        "times": Column("times as fast as sorted batches"),
        "device_peak": Column("device memory", "B"), "batch": Column("batch"), "weights": Column("layers there"),
        "apart": Column("most that a score differs"), "same_order": Column("order as resident", "%"),
    }  # fmt: skip
    for shape in report["shapes"]:
        peers = parts.get(f"{shape} transformers", {}).get("rows", {})
        base = statistics.median(peers["sorted by length"]["seconds"]) if "sorted by length" in peers else None

        def rows_of(name: str, found: dict[str, Any], base: float | None = base) -> dict[str, Any]:
            times = {key: base and base / statistics.median(row["seconds"]) for key, row in found.items()}
            return {f"{name}, {key}": row | {"times": times[key]} for key, row in found.items()}

        yield from tabulate(rows_of("transformers", peers), columns, shape)
        for precision in ("fp16", "int8", *_FORMS):
            found = parts.get(f"{shape} {precision}", {})
            yield from tabulate(rows_of(f"edge {precision}", found.get("rows", {})), columns, shape)
            crossing = {
                f"{precision}, {row['candidates']} candidates": {"ratio": row["streamed"] / row["resident"]}
                for row in found.get("crossing", ())
            }
            caption = f"{shape}, two layers on the device"
            yield from tabulate(crossing, {"ratio": Column("time over that of resident")}, caption)
    found = parts.get("search", {}).get("rows", {})
    rates = {f"queries_per_second.{n}": Column(f"queries, {n} at a time", "/s") for n in (1, 16, 256)}
    more = {"recall": Column("recall@10"), "device_peak": Column("device memory", "B")}
    yield from tabulate(found, rates | more, "search")
    yield from _together(parts.get("lookahead", {}))
    counts = {"alone": Column("by torch alone"), "kernels": Column("by our kernels")}
    yield from tabulate(parts.get("launches", {}).get("rows", {}), counts, "launches")
    times = {"seconds": Column("a pass", "s"), "first": Column("the first pass, which sends the table", "s")}
    tokens = parts.get("tokens", {})
    caption = f"the host's time for the tokens of {tokens.get('candidates', 0):,} candidates"
    yield from tabulate(tokens.get("rows", {}), times, caption)
    apart = {"mean": Column("mean"), "most": Column("most")}
    layers = parts.get("parity", {}).get("layers", {})
    yield from tabulate(layers, apart, "distance of a layer from the reference")


def _together(found: dict[str, Any]) -> Iterator[Figure]:
    """Lists and a language model on one card."""
    rows = found.get("rows", {})
    medians = {name: statistics.median(row["seconds"]) for name, row in rows.items() if row["seconds"]}
    gains = {
        name: row | {"gain": medians[f"{name.partition(', ')[0]}, the host"] / medians[name]}
        for name, row in rows.items()
        if name in medians
    }
    columns = {
        "seconds": Column("a question", "s"), "search_s": Column("of it searches", "s"),
        "gain": Column("times as fast as the host's search"), "hits": Column("lists there", "%"),
        "questions": Column("questions"), "device_peak": Column("device memory", "B"),
    }  # fmt: skip
    yield from tabulate(gains, columns, "lookahead beside a language model")


@dataclass
class Run:
    """One run of all measurements. `out` gets the results after each, and none begins after the clock's reading
    `until`, and of parts only those in `only`, if there are some."""

    out: Path
    until: float
    only: Collection[str] = ()
    report: dict[str, Any] = field(default_factory=dict)

    def take(self, name: str, task: dict[str, Any], *, seconds: float) -> None:
        """Runs one measurement, which takes about `seconds`, and not much longer. That it fails or finds no time, the
        report says."""
        if self.only and task["part"] not in self.only:
            return
        left = self.until - time.monotonic()
        if left < seconds:
            self._keep(name, {"left_out": f"{seconds:.0f} s are needed, {max(0.0, left):.0f} s were left"})
            return
        started = time.monotonic()
        try:
            most = min(left, _LONGEST * seconds)
            found = measure(work, {"name": name, "watch": 0.05, **task}, threads=task["threads"], timeout=most)
        except EdgeError as error:
            self._keep(name, {"left_out": str(error)})
            return
        self._keep(name, {**found, "took": time.monotonic() - started})

    def _keep(self, name: str, found: dict[str, Any]) -> None:
        self.report.setdefault("parts", {})[name] = found
        reason = found.get("left_out")
        say(f"{name}: {'left out: ' + reason if reason else 'done'}")
        self.write()

    def write(self) -> None:
        """Writes the results so far, so that none is lost if the machine goes."""
        (self.out / "gpu.json").write_text(json.dumps(self.report, indent=1), encoding="utf-8")


@benchmark
def gpu(
    *,
    out: Annotated[NewFolder, "Folder of the results."],
    on: Annotated[str, "cuda, cuda:1 ..., webgpu, or cpu for a rehearsal without a GPU."] = "cuda",
    shapes: Annotated[
        str | None, f"Rerankers with random weights.  [default: {_SHAPES}; tiny ones in a rehearsal]"
    ] = None,
    candidates: Annotated[int | None, "Of a request.  [default: 1000; 40 in a rehearsal, 8 on webgpu]"] = None,
    tokens: Annotated[int, "Of a candidate on average; lengths differ by a half."] = 200,
    vectors: Annotated[int | None, "Of the index.  [default: 1000000; 20000 in a rehearsal]"] = None,
    lists: Annotated[
        int | None, "Vectors in host memory beside a language model.  [default: 5000000; 20000 in a rehearsal]"
    ] = None,
    only: Annotated[Sequence[str], Names(_PARTS), "Parts to measure; all if not given."] = (),
    minutes: Annotated[float, "After which it ends."] = 9.0,
    threads: Annotated[int, "Of the host (0: one per core)."] = 0,
    output: Output,
) -> None:
    """Measure reranking and search on a GPU beside transformers and the host; write gpu.json."""
    rehearsal = on == "cpu" or (on == "webgpu" and _software())
    known = "tiny-qwen3,tiny-xlm-roberta" if rehearsal else _SHAPES
    chosen = (shapes or (known.split(",")[1] if on == "webgpu" else known)).split(",")  # encoders only
    if unknown := set(chosen) - set(SHAPES):
        raise InputError(f"{', '.join(sorted(unknown))}: no such shape; known: {', '.join(SHAPES)}")
    few = 8 if on == "webgpu" else 40
    count = candidates or (few if rehearsal else 1000)
    rows = vectors or (20_000 if rehearsal else 1_000_000)
    common = {
        "on": on,
        "rehearsal": rehearsal,
        "threads": threads or os.cpu_count() or 1,
        "tokens": min(tokens, 80 if rehearsal else 330),
    }
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{out} cannot be a folder of results: {error.strerror}") from error
    run = Run(out, time.monotonic() + 60 * minutes, only)
    run.report |= {
        "rehearsal": rehearsal, "on": on, "processor": processor(), "candidates": count, "vectors": rows,
        "tokens": common["tokens"], "shapes": chosen,
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="edge-gpu-") as scratch:
        packing = ThreadPoolExecutor(_PARALLEL)
        packs = {
            (shape, precision): packing.submit(_pack, common, shape, precision, Path(scratch) / f"{shape}-{precision}")
            for shape in chosen
            for precision in ("fp16", "int8")
            if not only or "rerank" in only
        }
        run.take("parity", {"part": "parity", **common}, seconds=20)
        run.take("launches", {"part": "launches", **common}, seconds=60)
        wait(packs.values())  # packing takes cores from peers
        run.take("machine", {"part": "machine", **common}, seconds=15)
        run.take("tokens", {"part": "tokens", **common, "candidates": 1000, "tokens": tokens}, seconds=15)
        run.take("search", {"part": "search", "vectors": rows, **common}, seconds=60)
        if on != "webgpu":
            beside = {"part": "lookahead", "vectors": lists or (20_000 if rehearsal else 5_000_000), **common}
            run.take("lookahead", {**beside, "seconds": 0.2 if rehearsal else 4.0}, seconds=120)
        for shape in chosen:
            task = {"part": "transformers", "shape": shape, "candidates": count, "prefix": _PREFIX_TOKENS, **common}
            if on != "webgpu":  # transformers runs on torch's devices
                run.take(f"{shape} transformers", task, seconds=40)
            for precision in ("fp16", "int8") if packs else ():
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
                for name, form in _FORMS.items() if precision == "int8" and on != "webgpu" else ():
                    run.take(f"{shape} {name}", {**task, "int8": form}, seconds=60)
        packing.shutdown()
    run.report["seconds"] = 60 * minutes - (run.until - time.monotonic())
    run.write()
    shown = f"{count} candidates of about {common['tokens']} tokens, random weights"
    if rehearsal:
        shown = f"a rehearsal with tiny models: these times say nothing about a GPU; {shown}"
    output.put(run.report, figures(run.report), shown)


def _software() -> bool:
    """Whether the GPU that webgpu finds is the processor."""
    from edge.budget import MemoryBudget
    from edge.devices.webgpu.device import WebGpuDevice

    device = WebGpuDevice(MemoryBudget(4 << 30))
    try:
        return device.card.software
    finally:
        device.close()


def _pack(common: dict[str, Any], shape: str, precision: str, path: Path) -> None:
    """Packs random weights. Raises EdgeError if that fails."""
    task = {"part": "pack", "name": path.name, "shape": shape, "precision": precision, "path": str(path), **common}
    measure(work, task, threads=2)
