"""`Scope`: the owner of a memory, by user, agent and run. Data of one scope is never returned to another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from edge.apps.memory.arguments import check_unicode
from edge.errors import InputError

SCOPE_FIELDS = ("user_id", "agent_id", "run_id")


@dataclass(frozen=True, slots=True)
class Scope:
    """The ids of a user, an agent and a run; None leaves an id open.

    The scope of a stored memory is its three ids, including missing ones. The scope of a query matches every memory
    that has all the ids it names.
    """

    user_id: str | None = None
    agent_id: str | None = None
    run_id: str | None = None

    @classmethod
    def of(cls, ids: Mapping[str, Any]) -> Scope:
        """Reads the three ids from a mapping and ignores its other keys. Ids are converted to text and stripped.

        Raises:
            InputError: an id is empty, not valid Unicode, or neither text nor a whole number.
        """
        return cls(**{name: _identifier(name, ids.get(name)) for name in SCOPE_FIELDS})

    def __bool__(self) -> bool:
        return any(value is not None for _, value in self.items())

    def items(self) -> Iterator[tuple[str, str | None]]:
        """The names and values of the ids, in the order of `SCOPE_FIELDS`."""
        return ((field.name, getattr(self, field.name)) for field in fields(self))

    def within(self, bound: Scope) -> Scope:
        """This scope, narrowed to the scope that a memory is bound to.

        Raises:
            InputError: both name the same id with different values.
        """
        for (name, own), (_, outer) in zip(self.items(), bound.items(), strict=True):
            if own is not None and outer is not None and own != outer:
                raise InputError(f"this memory was opened for {name} {outer!r}; {own!r} is another scope")
        return Scope(*(own if own is not None else outer for own, outer in zip(self, bound, strict=True)))

    def __iter__(self) -> Iterator[str | None]:
        return (value for _, value in self.items())

    def condition(self, table: str = "memories") -> tuple[str, list[str]]:
        """SQL for the rows that this scope matches, with its parameters."""
        named = [(name, value) for name, value in self.items() if value is not None]
        return " AND ".join(f"{table}.{name} = ?" for name, _ in named) or "1", [value for _, value in named]

    def exactly(self, table: str = "memories") -> tuple[str, list[str | None]]:
        """SQL for the rows stored under exactly these ids, including missing ones, with its parameters."""
        return " AND ".join(f"{table}.{name} IS ?" for name in SCOPE_FIELDS), list(self)

    def __str__(self) -> str:
        return ", ".join(f"{name} {value!r}" for name, value in self.items() if value is not None) or "no scope"


def _identifier(name: str, value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{name} must be text that is not empty, not {value!r}")
    return check_unicode(value.strip(), name)
