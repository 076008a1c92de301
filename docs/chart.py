"""Draws memory.svg and load.svg in docs/images from stored runs: `python docs/chart.py`."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
RUNS, IMAGES = DOCS / "runs", DOCS / "images"
ROWS = {
    "edge, int8": "edge-rag, int8", "edge, fp32": "edge-rag, fp32", "transformers, fp32": "transformers, fp32",
    "flashrank, int8": "FlashRank, int8", "fastembed, int8": "fastembed, int8",
}  # fmt: skip
TOP, STEP, LEFT, WIDTH = 64, 34, 160, 380
"""The first bar's top, the distance of bars, their left edge, and the length of the longest, in pixels."""
COLOURS = "#b0bec5", "#00897b", "#3f51b5", "#f4511e"


def figures(run: str) -> list[dict[str, Any]]:
    """The figures of a stored run."""
    found: list[dict[str, Any]] = json.loads((RUNS / run).read_text(encoding="utf-8"))["figures"]
    return found


def framed(height: int, title: str, subtitle: str, parts: Sequence[str]) -> str:
    """A picture of 680 pixels with a title."""
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 680 {height}" font-family="sans-serif" font-size="14">',
        f'<rect width="680" height="{height}" rx="6" fill="#ffffff"/>',
        f'<text x="16" y="26" font-size="16" font-weight="bold">{title}</text>',
        f'<text x="16" y="46" fill="#546e7a">{subtitle}</text>',
        *parts, "</svg>", "",
    ])  # fmt: skip


def memory() -> str:
    """A bar of peak memory and the seconds of a query for each program."""
    value = {(f["row"], f["column"]): statistics.median(f["rounds"]) for f in figures("rerank-peers.json")}
    most = max(value[row, "peak"] for row in ROWS)
    bars = []
    for number, (row, name) in enumerate(ROWS.items()):
        y, peak, seconds = TOP + STEP * number, value[row, "peak"], value[row, "a query"]
        size = f"{peak / 1e9:.2f} GB" if peak >= 1e9 else f"{peak / 1e6:.0f} MB"
        bars.append(
            f'<text x="{LEFT - 10}" y="{y + 15}" text-anchor="end">{name}</text>'
            f'<rect x="{LEFT}" y="{y}" width="{WIDTH * peak / most:.0f}" height="20" rx="2" '
            f'fill="{"#3f51b5" if row.startswith("edge") else "#b0bec5"}"/>'
            f'<text x="{LEFT + WIDTH * peak / most + 8:.0f}" y="{y + 15}">{size}, {seconds:.2f} s</text>'
        )
    return framed(
        TOP + STEP * len(ROWS) + 4, "Peak memory and time of one reranking",
        "60 passages of 160 tokens, one cross-encoder of 22 million weights, all layers, 2 cores", bars,
    )  # fmt: skip


def load() -> str:
    """A curve for each system: the share of requests that kept their deadline, by the rate of their arrival."""
    shares: dict[str, list[tuple[float, float]]] = {}
    for f in figures("load.json"):
        if f["column"] == "within the deadline":
            rate = float(f["table"].removesuffix(" a second"))
            shares.setdefault(f["row"], []).append((rate, statistics.median(f["rounds"])))
    most, bottom = max(rate for points in shares.values() for rate, _ in points), TOP + 200

    def place(rate: float, share: float) -> str:
        return f"{60 + 440 * rate / most:.0f},{bottom - 200 * share:.0f}"

    parts = []
    for share in (0, 0.5, 0.9, 1):
        y = bottom - 200 * share
        parts.append(f'<line x1="60" y1="{y:.0f}" x2="500" y2="{y:.0f}" stroke="#cfd8dc"/>')
        parts.append(f'<text x="52" y="{y + 5:.0f}" text-anchor="end">{share:.0%}</text>')
    parts += [
        f'<text x="{60 + 440 * rate / most:.0f}" y="{bottom + 20}" text-anchor="middle">{rate:g}</text>'
        for rate in sorted({rate for points in shares.values() for rate, _ in points})
    ]
    parts.append(f'<text x="280" y="{bottom + 42}" text-anchor="middle" fill="#546e7a">questions a second</text>')
    for number, (name, points) in enumerate(shares.items()):
        line = " ".join(place(*point) for point in sorted(points))
        parts.append(f'<polyline points="{line}" fill="none" stroke="{COLOURS[number]}" stroke-width="2.5"/>')
        y = TOP + 20 + 24 * number
        parts.append(f'<rect x="516" y="{y - 10}" width="12" height="12" fill="{COLOURS[number]}"/>')
        parts.append(f'<text x="536" y="{y}">{name}</text>')
    subtitle = "share of first texts within 5 s; a language model of 135 million weights, 2 cores, 600 MB"
    return framed(bottom + 56, "Answers that begin in time", subtitle, parts)


PICTURES = memory, load

if __name__ == "__main__":
    for picture in PICTURES:
        (IMAGES / f"{picture.__name__}.svg").write_text(picture(), encoding="utf-8")
