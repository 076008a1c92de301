"""Runtimes, devices and codecs by name. Installed packages, this one included, offer them through entry points."""

from __future__ import annotations

import math
from functools import cache
from importlib.metadata import EntryPoints, entry_points
from typing import Any

from edge.errors import CapabilityError, ConfigError


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
