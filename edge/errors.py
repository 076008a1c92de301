"""The exceptions a caller may want to tell apart. Each carries one sentence: what happened, the number, what to do."""

from __future__ import annotations


class EdgeError(Exception):
    """Base of every error this package raises on purpose; the command line prints it and exits with 2."""


class InputError(EdgeError):
    """What the caller passed cannot be used (an empty query, K <= 0, text that is not UTF-8)."""


class ArgumentError(InputError, TypeError):
    """An argument of a public call is of the wrong type, missing, or not known."""


class RangeError(InputError, ValueError):
    """A number that an argument cannot be, such as a size below zero."""


class ConfigError(EdgeError):
    """A setting cannot be parsed or two settings contradict each other."""


class BudgetExceeded(EdgeError):
    """A reservation does not fit the memory limit, even after every cache has given back what it can.

    Attributes:
        owner: who asked.
        asked: bytes asked for.
        free: bytes that were free after shrinking.
        needed: the smallest limit, in bytes, with which this reservation would have fitted.
    """

    def __init__(self, message: str, *, owner: str, asked: int, free: int, needed: int) -> None:
        super().__init__(message)
        self.owner = owner
        self.asked = asked
        self.free = free
        self.needed = needed


class CorruptBlock(EdgeError):
    """Bytes on disk do not match their checksum or end too early; the message names file and block."""


class ModelError(EdgeError):
    """A model is missing, of the wrong kind, or its weights cannot be used."""


class StorageError(EdgeError):
    """The disk refused (full, read-only, permission); what was being written has been taken back."""


class CapabilityError(EdgeError):
    """A runtime or device was asked for something it does not do, or is not installed."""


class DeviceLost(EdgeError):
    """A device does not answer any more: its process has died or its connection is broken."""
