"""The report of `edge bench gpu` as a page."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from edge.apps.bench.figures import Figure, higher, lower, tabulate
from edge.config import format_size


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
        lines.append(_row(f"transformers {precision}, {name}", row, base, f"batches of {row['batch']}"))
    for precision in ("fp16", "int8"):
        for name, row in parts.get(f"{shape} {precision}", {}).get("rows", {}).items():
            order = "order of resident" if row["same_order"] else f"scores within {row['apart']:.1e} of resident"
            lines.append(
                _row(f"edge {precision}, {name}", row, base, f"{row['weights']} layers on the device, {order}")
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


def _row(name: str, row: dict[str, Any], base: float | None, note: str) -> str:
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
