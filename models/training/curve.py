"""Learning curve of a run's log: ``python -m edge.models.training.curve OUT/log.jsonl curve.png``.

One line per layer: mean listwise cross-entropy against the number of pairs read. A target that ends in .svg is written
without matplotlib.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

WIDTH, HEIGHT, MARGIN = 720, 400, 48
COLOURS = ("#9aa5b1", "#7b8fa6", "#4f86c6", "#3a9d8f", "#d98e04", "#c0392b")


@dataclass(frozen=True)
class Curve:
    """Numbers of pairs read, and for each layer the smoothed ranking loss at these numbers."""

    pairs: list[float]
    layers: list[list[float]]


def read(log: Path, smooth: int = 10) -> Curve:
    """Means over ``smooth`` log lines. If a resumed run repeats a line, the later line is used."""
    lines: dict[int, tuple[float, list[float]]] = {}
    for text in log.read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        lines[int(line["step"])] = (float(line["pairs"]), [float(v) for v in line["layers"]])
    rows = [lines[step] for step in sorted(lines)]
    depth = len(rows[0][1]) if rows else 0
    pairs, total = [], 0.0
    layers: list[list[float]] = [[] for _ in range(depth)]
    for start in range(0, len(rows), smooth):
        group = rows[start : start + smooth]
        total += sum(count for count, _ in group)
        pairs.append(total)
        for n in range(depth):
            layers[n].append(sum(values[n] for _, values in group) / len(group))
    return Curve(pairs, layers)


def svg(curve: Curve) -> str:
    """The picture as SVG text, made without a plotting package."""
    top = max((max(values) for values in curve.layers if values), default=1.0)
    right = max(curve.pairs, default=1.0)

    def place(x: float, y: float) -> str:
        across = MARGIN + (WIDTH - 2 * MARGIN) * x / right
        return f"{across:.1f},{HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * y / top:.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 10}" text-anchor="middle">pairs read (0 to {right:,.0f})</text>',
        f'<text x="{MARGIN}" y="24">listwise cross-entropy by layer (0 to {top:.2f})</text>',
    ]
    for n, values in enumerate(curve.layers):
        colour = COLOURS[n % len(COLOURS)]
        points = " ".join(place(x, y) for x, y in zip(curve.pairs, values, strict=True))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{WIDTH - MARGIN + 4}" y="{60 + 18 * n}" fill="{colour}">{n + 1}</text>')
    return "\n".join([*parts, "</svg>"])


def draw(curve: Curve, target: Path) -> None:
    """Write ``target``. SVG needs no plotting package. Other formats need matplotlib; without it the program ends."""
    if target.suffix == ".svg":
        target.write_text(svg(curve), encoding="utf-8")
        return
    try:
        from matplotlib import pyplot
    except ImportError as missing:
        raise SystemExit(f"{target.suffix} pictures need matplotlib; a name ending in .svg does not") from missing
    figure, axes = pyplot.subplots(figsize=(8, 4.5))
    for n, values in enumerate(curve.layers):
        axes.plot(curve.pairs, values, label=f"layer {n + 1}")
    axes.set_xlabel("pairs read")
    axes.set_ylabel("listwise cross-entropy")
    axes.legend()
    figure.savefig(target, dpi=120)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="edge.models.training.curve", description=__doc__)
    parser.add_argument("log", type=Path)
    parser.add_argument("picture", type=Path)
    options = parser.parse_args(arguments)
    draw(read(options.log), options.picture)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
