"""Opening a device by name: devices are found through the entry-point group `edge.devices`."""

from __future__ import annotations

import inspect
from typing import Any

from edge.budget import MemoryBudget
from edge.errors import CapabilityError, ConfigError
from edge.ivf.device import Place, Profile, Search
from edge.plugins import load, names
from edge.trace import Trace

GROUP = "edge.devices"

_MOST = 64
"""Largest number of devices of a kind."""


def parse_device(text: str) -> tuple[str, dict[str, str]]:
    """Splits a device description, as `--device` takes it, into name and options: `limited:cap=64MB,bandwidth=1GB`.

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
    """Opens an installed device. The caller closes it.

    Args:
        text: the device's name and options, as `parse_device` reads them.
        memory: the process's ledger.
        options: further options.

    Raises:
        CapabilityError: there is no such device. The message names the installed ones.
        ConfigError: the device does not have such an option, or the option does not take such a value.
        BudgetExceeded: the device's memory does not fit the limit.
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


def open_devices(text: str, memory: MemoryBudget, *, trace: Trace | None = None) -> list[Place]:
    """Opens as many devices as the option `count` says, each with memory of its own. The caller closes them.

    A device that has an option `count` itself gets it, and is one device.

    Raises: as `open_device`.
    """
    name, written = parse_device(text)
    if "count" not in written or "count" in inspect.signature(load(GROUP, name)).parameters:
        return [open_device(text, memory, trace=trace)]
    count = written.pop("count")
    if not count.isdecimal() or not 1 <= int(count) <= _MOST:
        raise ConfigError(f"there are 1 to {_MOST} devices of a kind, not {count!r}")
    opened: list[Place] = []
    try:
        opened.extend(open_device(name, memory, trace=trace, **written) for _ in range(int(count)))
    except BaseException:
        while opened:
            opened.pop().close()
        raise
    return opened


def capabilities(device: Place) -> list[str]:
    """The capabilities of an open device: place, search, profile, layers."""
    found = ["place"]
    found += ["search"] if isinstance(device, Search) else []
    found += ["profile"] if isinstance(device, Profile) else []
    return found + (["layers"] if device.name in names("edge.runtimes") else [])
