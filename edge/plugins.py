"""Runtimes, devices and codecs by name: installed packages offer them through entry points, this one's own included."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

from edge.errors import CapabilityError


def names(group: str) -> set[str]:
    """What is registered in an entry-point group. An editable installation that is older than its sources lacks what
    was added since."""
    return {entry.name for entry in entry_points(group=group)}


def load(group: str, name: str) -> Any:
    """What is registered under `name` in an entry-point group (`edge.runtimes`, `edge.devices`, `edge.codecs`).

    Raises:
        CapabilityError: nothing is; the message lists what there is.
    """
    found = {entry.name: entry for entry in entry_points(group=group)}
    if name not in found:
        kind = group.removeprefix("edge.").removesuffix("s")
        raise CapabilityError(f"there is no {kind} {name!r}; installed: {', '.join(sorted(found)) or 'none'}")
    return found[name].load()
