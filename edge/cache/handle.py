"""The handle of a block in memory, which locks the block while it is read."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Protocol

from edge.cache.block_cache import Entry


class Owner(Protocol):
    """The owner of blocks, to which their handles return them."""

    def forget(self, entry: Entry) -> None:
        """Drops a block whose transfer has failed."""

    def unlock(self, entry: Entry) -> None:
        """Takes back the lock of a handle that was released."""


class Handle:
    """A locked block that is in memory or on its way there. It stays until `release`. A context manager.

    Attributes:
        entry: the block, for its owner; None after `release`.
        hit: whether the block was in memory, or on its way, before it was requested.
    """

    __slots__ = ("_owner", "entry", "hit")

    def __init__(self, owner: Owner, entry: Entry, hit: bool) -> None:
        self._owner = owner
        self.entry: Entry | None = entry
        self.hit = hit

    @property
    def ready(self) -> bool:
        """Whether the bytes have arrived, or their transfer has failed. In the latter case `wait` raises the error."""
        assert self.entry is not None
        return self.entry.ticket.done

    def wait(self) -> Any:
        """Waits for the bytes and returns them; they are valid until `release`.

        Raises:
            CorruptBlock, StorageError: the transfer failed. The block is dropped, and read again at the next request.
        """
        assert self.entry is not None
        try:
            self.entry.ticket.wait()
        except BaseException:
            self._owner.forget(self.entry)
            raise
        return self.entry.buffer

    def release(self) -> None:
        """Unlocks the block. Releasing twice is harmless."""
        entry, self.entry = self.entry, None
        if entry is not None:
            self._owner.unlock(entry)

    def __enter__(self) -> Handle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
