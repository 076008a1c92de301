"""The vector indexes of all shards as one: their state, and their recall."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edge.ivf.storage.manifest import State


def merged(states: Sequence[dict[str, Any]]) -> State:
    """The state of all indexes as one."""
    whole = dict(states[0])
    rows = sum(state["trained_rows"] for state in states)
    for name in ("rows", "trained_rows", "newer_rows", "newer_misfit"):
        whole[name] = sum(state[name] for state in states)
    weighted = sum(state["trained_misfit"] * state["trained_rows"] for state in states)
    return State(**{**whole, "trained_misfit": weighted / max(1, rows), "recall": ()})


def averaged(curves: Sequence[tuple[int, Sequence[tuple[int, float]]]]) -> tuple[tuple[int, float], ...]:
    """The recall of all shards by the lists probed: the mean of theirs by their rows. It is a lower bound, because the
    nearest neighbours among all rows are nearer than those in a shard."""
    known = [(rows, curve) for rows, curve in curves if curve]
    total = sum(rows for rows, _ in known)
    points = sorted({nprobe for _, curve in known for nprobe, _ in curve})

    def at(curve: Sequence[tuple[int, float]], nprobe: int) -> float:
        return next((recall for lists, recall in reversed(curve) if lists <= nprobe), 0.0)

    return tuple((nprobe, sum(rows * at(curve, nprobe) for rows, curve in known) / total) for nprobe in points)
