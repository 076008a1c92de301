"""The exceptions of this package. Each message is one sentence: the problem, the number, and a remedy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class EdgeError(Exception):
    """Base of every error this package raises on purpose; the command line prints it and exits with 2."""


class InputError(EdgeError):
    """The caller's input cannot be used (an empty query, K <= 0, text that is not UTF-8)."""


class ArgumentError(InputError, TypeError):
    """An argument of a public call is of the wrong type, missing, or not known."""


class RangeError(InputError, ValueError):
    """A number is outside the range of its argument, such as a negative size."""


class ConfigError(EdgeError):
    """A setting cannot be parsed or two settings contradict each other."""


class BudgetExceeded(EdgeError):
    """A reservation does not fit the memory limit, even after every cache has given back as much as it can.

    Attributes:
        owner: the owner for whom memory was asked.
        asked: bytes that were asked for.
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
    """The disk reported an error (full, read-only, permission). Unfinished writes have been undone."""


class StoreBusy(StorageError):
    """Another writer has had the store for longer than one waits."""


@contextmanager
def as_storage_error(what: str) -> Iterator[None]:
    """Raises errors of the system as `StorageError`: `what`, such as that a file cannot be written, and the reason."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"{what}: {error.strerror}") from error


class CollectionMissing(StorageError):
    """There is no collection in a directory that was named for reading."""


class Unreachable(StorageError):
    """A part of a store, on another machine, does not answer."""


class CapabilityError(EdgeError):
    """A runtime or device is not installed, or cannot do the requested operation."""


class DeviceLost(EdgeError):
    """A device has stopped answering: its process has died or its connection is broken."""


class PartLost(DeviceLost):
    """A part of a device does not answer any more. The lists on that part are gone, and the other parts go on."""


class Withdrawn(EdgeError):
    """The request was abandoned, because no caller waits for it any more."""


class DeadlinePassed(EdgeError):
    """The request was abandoned, because its deadline has passed."""
