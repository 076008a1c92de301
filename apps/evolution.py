"""Draws the candidates' scores from layer to layer, and the layers at which candidates leave the ranking."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np

from edge.errors import CapabilityError, InputError, StorageError
from edge.runtimes.reranker import Ranking

_SUFFIXES = (".png", ".svg", ".pdf")


def check_picture(path: Path) -> None:
    """Checks that a picture can be drawn, before anything is computed for it.

    Raises:
        CapabilityError: matplotlib is not installed.
        InputError: the suffix names no supported format.
    """
    if path.suffix.lower() not in _SUFFIXES:
        raise InputError(f"{path} is no picture's name; it may end in {', '.join(_SUFFIXES)}")
    if importlib.util.find_spec("matplotlib") is None:
        raise CapabilityError("pictures need matplotlib: pip install 'edge-rag[plot]'")


def plot_scores(ranking: Ranking, names: list[str], path: Path) -> None:
    """Draws the provisional score of every candidate by layer: the results in colour, the others in grey. A cross marks
    a candidate that pruning dropped, a dot one that it selected early.

    Args:
        ranking: the result of `Reranker.explain(..., every_layer=True)`.
        names: a short name of each candidate, for the legend of the results.
        path: the file to write; its suffix (.png, .svg, .pdf) gives the format.

    Raises:
        StorageError: the file cannot be written.
    """
    from matplotlib.figure import Figure

    ways: dict[int, tuple[list[int], list[float]]] = {}
    for report in ranking.layers:
        for candidate, score in zip(report.ids.tolist(), report.scores.tolist(), strict=True):
            layers, scores = ways.setdefault(candidate, ([], []))
            layers.append(report.layer)
            scores.append(score)
    best = [result.index for result in ranking.results[:10]]
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.add_subplot()
    for candidate in sorted(ways, key=lambda c: c in best):
        layers, scores = ways[candidate]
        if candidate in best:
            label = f"{best.index(candidate) + 1}. {names[candidate][:48]}"
            axes.plot(layers, scores, linewidth=1.6, label=label, zorder=3)
        else:
            axes.plot(layers, scores, linewidth=0.8, color="0.75", zorder=1)
    for report in ranking.layers:
        place = {candidate: score for candidate, score in zip(report.ids.tolist(), report.scores.tolist(), strict=True)}
        for ids, marker, colour in ((report.decision.dropped, "x", "0.35"), (report.decision.selected, "o", "black")):
            if len(ids):
                heights = [place[candidate] for candidate in ids.tolist()]
                axes.scatter(np.full(len(ids), report.layer), heights, marker=marker, color=colour, s=22, zorder=4)
    rule = "no pruning" if ranking.threshold == float("inf") else f"pruning above CV {ranking.threshold:.2f}"
    if ranking.margin is not None:
        rule = f"pruning by a margin of {ranking.margin:.2f}"
    axes.set_title(f"{len(ways)} candidates; {rule} (crosses: dropped, dots: selected early)")
    axes.set_xlabel("layers run")
    axes.set_ylabel("score")
    axes.set_xticks([report.layer for report in ranking.layers])
    axes.spines[["top", "right"]].set_visible(False)
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda i: int(labels[i].split(".")[0]))
    axes.legend([handles[i] for i in order], [labels[i] for i in order], fontsize=7, frameon=False)
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise StorageError(f"the picture cannot be written to {path}: {error.strerror}") from error
