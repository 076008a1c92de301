"""Formats plans for people, as JSON, and as a picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge.apps.options import save_picture
from edge.config import format_size

if TYPE_CHECKING:
    from edge.planner.schedule import Group, Problem
    from edge.planner.search import Plan


def duration(seconds: float) -> str:
    """A duration as text, such as `12.3 ms` or `2.47 s`."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} us"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:,.3g} s"


def arranged(plan: Plan) -> str:
    """The groups of stages that share devices, with batch sizes and numbers of devices, such as
    `[encode 2 + prefill 128] x 64`."""
    groups = []
    for group in plan.schedule.groups:
        stages = " + ".join(f"{choice.stage} {choice.point.batch}" for choice in group.choices)
        device = " servers" if group.retrieves else ""
        groups.append(f"[{stages}] x {group.devices}{device}")
    loop = f"; looping in batches of {plan.schedule.loop_batch}" if plan.schedule.loop_batch else ""
    return " ".join(groups) + loop


def table(plans: Sequence[Plan], chosen: Plan, rows: int) -> Iterator[str]:
    """Yields a header and about `rows` plans, picked evenly by time to first token. The chosen plan is marked."""
    yield f"  {'TTFT':>9}{'per token':>11}{'req/s':>9}{'per device':>12}{'memory':>10}  stages with their batches"
    step = max(1, -(-len(plans) // rows))
    for number, plan in enumerate(plans):
        if plan is chosen or number % step == 0 or number == len(plans) - 1:
            o = plan.outcome
            mark = "*" if plan is chosen else " "
            yield (
                f"{mark} {duration(o.ttft):>9}{duration(o.tpot):>11}{o.throughput:>9.3g}"
                f"{o.throughput_per_device:>12.3g}{format_size(int(o.nbytes)):>10}  {arranged(plan)}"
            )
    if step > 1:
        yield f"  ({len(plans)} schedules that no other one beats; --json prints all)"


def bottleneck(problem: Problem, plan: Plan) -> tuple[Group, str]:
    """The group that limits the throughput, and the slowest stage in it."""
    from edge.planner.schedule import stage_costs

    stages = {stage.name: stage for stage in problem.schema.stages()}

    def each(group: Group) -> dict[str, float]:
        return {c.stage: stage_costs(problem, stages[c.stage], c, plan.schedule.loop_batch)[1] for c in group.choices}

    slowest = max(plan.schedule.groups, key=lambda group: sum(each(group).values()))
    shares = each(slowest)
    return slowest, max(shares, key=lambda name: shares[name])


def sentence(problem: Problem, plan: Plan) -> str:
    """A summary of a plan in one sentence."""
    o = plan.outcome
    group, stage = bottleneck(problem, plan)
    where = "servers" if group.retrieves else "devices"
    share = f"its {group.devices} {where} set the rate" if group.devices > 1 else "it sets the rate"
    written = f", {duration(o.tpot)} per token after it" if o.tpot else ""
    return (
        f"{problem.schema.name} with {o.devices} device{'s' if o.devices != 1 else ''} and "
        f"{format_size(int(o.nbytes))} serves {o.throughput:.3g} requests per second, the first token after "
        f"{duration(o.ttft)}{written}; the stage {stage} is the bottleneck: {share}."
    )


def plan_json(plan: Plan) -> dict[str, Any]:
    """A plan as a dictionary with stable keys, in seconds, bytes and requests per second."""
    o = plan.outcome
    return {
        "ttft_s": o.ttft, "tpot_s": o.tpot, "throughput": o.throughput, "devices": o.devices,
        "throughput_per_device": o.throughput_per_device, "nbytes": o.nbytes, "loop_batch": plan.schedule.loop_batch,
        "groups": [
            {
                "devices": group.devices, "kind": "servers" if group.retrieves else "accelerators",
                "stages": [
                    {"name": c.stage, "batch": c.point.batch, "latency_s": c.point.latency, "how": c.point.how}
                    for c in group.choices
                ],
            }
            for group in plan.schedule.groups
        ],
    }  # fmt: skip


def plot_plans(plans: Sequence[Plan], chosen: Plan, title: str, path: Path) -> None:
    """Draws throughput per device over time to first token. Colour shows the time per token, size the peak memory.

    Args:
        chosen: the schedule that is marked.
        path: the file to write.
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
    save_picture(figure, path)
