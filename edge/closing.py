"""`Closing`: the `with` statement for objects that are closed."""

from __future__ import annotations

from typing import TypeVar

Own = TypeVar("Own", bound="Closing")


class Closing:
    """A context manager that closes itself at the end."""

    __slots__ = ()

    def close(self) -> None:
        """Frees the memory and the files that the object holds. Each subclass defines it."""
        raise NotImplementedError

    def __enter__(self: Own) -> Own:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
