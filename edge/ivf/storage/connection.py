"""`Connection`: the interface the core needs of a connection to the caller's SQLite database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol


class Rows(Protocol):
    """The rows of a statement, each a tuple of its columns."""

    def __iter__(self) -> Iterator[Any]: ...

    def fetchone(self) -> Any:
        """The next row; None if there is none."""

    def fetchall(self) -> list[Any]:
        """All remaining rows."""


class Connection(Protocol):
    """An open connection with the interface of `apsw`."""

    @property
    def in_transaction(self) -> bool: ...

    def execute(self, statement: str, bindings: Any = ..., /) -> Rows:
        """Runs one statement with its bindings."""

    def executemany(self, statement: str, bindings: Any, /) -> Rows:
        """Runs one statement for each of several bindings."""

    def create_scalar_function(
        self, name: str, callable: Callable[..., Any], numargs: int, /, *, deterministic: bool = ...
    ) -> None:
        """Registers a function for use in SQL."""
