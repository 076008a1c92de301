"""Draws docs/images/memory.svg from a stored run: `python docs/chart.py`."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

DOCS = Path(__file__).parent
RUN, PICTURE = DOCS / "runs" / "rerank-peers.json", DOCS / "images" / "memory.svg"
ROWS = {
    "edge, int8": "edge-rag, int8", "edge, fp32": "edge-rag, fp32", "transformers, fp32": "transformers, fp32",
    "flashrank, int8": "FlashRank, int8", "fastembed, int8": "fastembed, int8",
}  # fmt: skip
TOP, STEP, LEFT, WIDTH = 64, 34, 160, 380
"""The first bar's top, the distance of bars, their left edge, and the length of the longest, in pixels."""


def drawn() -> str:
    """The picture: a bar of peak memory and the seconds of a query for each program."""
    figures = json.loads(RUN.read_text(encoding="utf-8"))["figures"]
    value = {(f["row"], f["column"]): statistics.median(f["rounds"]) for f in figures}
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
    height = TOP + STEP * len(ROWS) + 4
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 680 {height}" font-family="sans-serif" font-size="14">',
        f'<rect width="680" height="{height}" rx="6" fill="#ffffff"/>',
        '<text x="16" y="26" font-size="16" font-weight="bold">Peak memory and time of one reranking</text>',
        '<text x="16" y="46" fill="#546e7a">60 passages of 160 tokens, one cross-encoder of 22 million weights, '
        "all layers, 2 cores</text>",
        *bars, "</svg>", "",
    ])  # fmt: skip


if __name__ == "__main__":
    PICTURE.write_text(drawn(), encoding="utf-8")
