"""Figures of a modelled device. They are shown beside the measured figures, and never as measured."""

from __future__ import annotations

from collections.abc import Mapping

from edge.apps.counted import counted

_FIGURES = ("queries", "seconds", "joules")


def modelled(counters: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """A trace's counters of modelled devices, under the key `modelled`; empty if there were none."""
    if not counters.get("modelled.queries"):
        return {}
    return {"modelled": {name: counters[f"modelled.{name}"] for name in _FIGURES}}


def modelled_line(queries: float, seconds: float, joules: float) -> str:
    """The figures as a line for people."""
    return (
        f"modelled {counted(round(queries), 'request')} of a query would take the accelerator {seconds * 1e3:.3g} ms "
        f"and {joules * 1e3:.3g} mJ; nothing of that was measured"
    )
