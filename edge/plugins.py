"""Runtimes, devices and codecs by name. Installed packages, this one included, offer them through entry points. And
`AutomaticDevice`, the device that the setting `device = "auto"` takes."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoints, PackageNotFoundError, entry_points, version
from pathlib import Path
from typing import Any

import platformdirs

from edge.errors import CapabilityError, ConfigError
from edge.files.sealed import recall, remember


def names(group: str) -> set[str]:
    return {entry.name for entry in _registered(group)}


def load(group: str, name: str) -> Any:
    """Loads the object that is registered under `name` in an entry-point group, such as `edge.runtimes`."""
    found = {entry.name: entry for entry in _registered(group)}
    if name not in found:
        kind = group.removeprefix("edge.").removesuffix("s")
        raise CapabilityError(f"there is no {kind} {name!r}; installed: {', '.join(sorted(found)) or 'none'}")
    return found[name].load()


def parse_device(text: str) -> tuple[str, dict[str, str]]:
    """Splits `NAME:key=value,...` into name and options. An option without a value means `yes`."""
    name, _, rest = text.partition(":")
    options = {}
    for part in filter(None, rest.split(",")):
        key, sign, value = part.partition("=")
        if not key.strip() or (sign and not value.strip()):
            raise ConfigError(f"a device's options are written NAME:key=value,key=value, not {text!r}")
        options[key.strip()] = value.strip() if sign else "yes"
    return name.strip(), options


def number(device: str, option: str, given: float | str, low: float, high: float, *, whole: bool = False) -> float:
    """A device's option, a number or its text, as a number from `low` to `high`."""
    try:
        value = float(given)
    except ValueError:
        value = math.nan
    if not low <= value <= high or (whole and value != int(value)):  # "not a number" is not in between
        kind = "whole number" if whole else "number"
        raise ConfigError(f"the {option} of device {device} is a {kind} from {low:g} to {high:g}, not {given!r}")
    return value


def _registered(group: str) -> EntryPoints:
    found: EntryPoints = _all_registered().select(group=group)
    return found


@cache
def _all_registered() -> Any:
    """The entry points of all groups, whose type depends on the version of Python. It takes 5 ms to find them."""
    return entry_points()


CARD = "cuda"


@dataclass(frozen=True, slots=True)
class AutomaticDevice:
    """`name` is the device's, or empty for the host; `reason` is a clause."""

    name: str
    reason: str

    @classmethod
    def stored(cls) -> AutomaticDevice:
        """As measured last. It loads nothing, so that it costs nothing where there is no card."""
        try:
            torch = version("torch")
        except PackageNotFoundError:
            return cls("", "torch is not installed")
        known = recall(_file(), "the times of host and card")
        if known.get("torch") == torch:
            return cls(str(known["name"]), str(known["reason"]))
        return cls("", "`edge doctor` has compared no card with it yet")

    def store(self) -> None:
        """Keeps it for later processes, until torch changes; does nothing where there is no torch or no folder."""
        with suppress(PackageNotFoundError):
            remember(_file(), {"torch": version("torch"), "name": self.name, "reason": self.reason})

    def __str__(self) -> str:
        return f"auto takes {self.name or 'the host'}, because {self.reason}"


def _file() -> Path:
    return platformdirs.user_cache_path("edge-rag", appauthor=False) / "device.json"
