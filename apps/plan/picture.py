"""Draws the Pareto-optimal schedules, which no other schedule beats."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edge.errors import StorageError
from edge.planner.search import Plan


def plot_plans(plans: Sequence[Plan], chosen: Plan, title: str, path: Path) -> None:
    """Draws throughput per device over time to first token. Colour shows the time per token, size the peak memory.

    Args:
        chosen: the schedule that is marked.
        path: the file to write; its suffix (.png, .svg, .pdf) gives the format.

    Raises:
        StorageError: the file cannot be written.
    """
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    first = [plan.outcome.ttft * 1e3 for plan in plans]
    rate = [plan.outcome.throughput_per_device for plan in plans]
    token = [plan.outcome.tpot * 1e3 for plan in plans]
    least = min(plan.outcome.nbytes for plan in plans)
    spread = max(plan.outcome.nbytes for plan in plans) - least or 1.0
    sizes = [14 + 130 * (plan.outcome.nbytes - least) / spread for plan in plans]
    written = min(token) > 0
    norm = LogNorm(min(token), max(max(token), min(token) * 1.01)) if written else None
    points = axes.scatter(
        first, rate, c=token if written else "tab:blue", s=sizes, norm=norm, cmap="viridis" if written else None,
        alpha=0.8, edgecolors="none",
    )  # fmt: skip
    axes.scatter(
        [chosen.outcome.ttft * 1e3], [chosen.outcome.throughput_per_device], marker="o", s=260, facecolors="none",
        edgecolors="tab:red", linewidths=2, label="chosen",
    )  # fmt: skip
    if written:
        figure.colorbar(points, label="ms per token")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("time to first token, ms")
    axes.set_ylabel("requests per second and device")
    axes.set_title(f"{title}\n(larger points hold more memory)", fontsize=10)
    axes.grid(True, which="both", linewidth=0.3, alpha=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise StorageError(f"the picture cannot be written to {path}: {error.strerror}") from error
