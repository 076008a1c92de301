"""Opening a device by name: devices are found through the entry-point group `edge.devices`."""

from __future__ import annotations

from typing import Any

from edge.budget import MemoryBudget
from edge.errors import CapabilityError, ConfigError
from edge.ivf.device import Place, Profile, Search
from edge.plugins import load, names
from edge.trace import Trace

GROUP = "edge.devices"


def parse_device(text: str) -> tuple[str, dict[str, str]]:
    """Name and options of a device as `--device` takes them: `limited:cap=64MB,bandwidth=1GB`.

    Raises:
        ConfigError: an option has no value.
    """
    name, _, rest = text.partition(":")
    options = {}
    for part in filter(None, rest.split(",")):
        key, sign, value = part.partition("=")
        if not (key and sign and value):
            raise ConfigError(f"a device's options are written NAME:key=value,key=value, not {text!r}")
        options[key.strip()] = value.strip()
    return name.strip(), options


def open_device(text: str, memory: MemoryBudget, *, trace: Trace | None = None, **options: Any) -> Place:
    """Opens an installed device; whoever opens it closes it.

    Args:
        text: its name, and options as `parse_device` reads them.
        memory: the process's ledger.
        options: further ones.

    Raises:
        CapabilityError: there is no such device; the message names those there are.
        ConfigError: the device does not have such an option, or not with such a value.
        BudgetExceeded: its memory does not fit.
    """
    name, written = parse_device(text)
    kind = load(GROUP, name)
    try:
        device = kind(memory, trace=trace, **written, **options)
    except TypeError as error:
        raise ConfigError(f"device {name} cannot be opened with these options: {error}") from error
    if not isinstance(device, Place):
        raise CapabilityError(f"device {name} is no place for lists: it lacks a part of the contract")
    return device


def capabilities(device: Place) -> list[str]:
    """What an open device can do, found by asking: place, search, profile, layers."""
    found = ["place"]
    found += ["search"] if isinstance(device, Search) else []
    found += ["profile"] if isinstance(device, Profile) else []
    return found + (["layers"] if device.name in names("edge.runtimes") else [])
