"""`ServedMemory`: a memory that the user's server holds open, as the commands of `edge memory` use it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from edge.apps.serve.connection import OWN, Lost, OwnServer, Refused, Unserved
from edge.apps.store.health import Health, Trouble
from edge.errors import StorageError

if TYPE_CHECKING:
    from edge.apps.memory.memory import Memory

READS = frozenset({"search", "get_all", "get", "history"})
WRITES = frozenset({"add", "update", "pin", "forget", "delete", "delete_all"})


class ServedMemory:
    """Has the verbs of `READS` and `WRITES`, as `Memory` has them. A context manager.

    This process does the work that the server refuses, and raises the errors of doing so. A write whose end is not
    known is not repeated.
    """

    def __init__(
        self, connection: OwnServer, place: Path, scope: Mapping[str, Any], alone: Callable[[], Memory]
    ) -> None:
        """
        Args:
            place: directory of the memory.
            scope: the ids that it is bound to.
            alone: opens it in this process.
        """
        self._connection = connection
        self._asked = {"path": str(place), "scope": dict(scope)}
        self._alone = alone
        self._own: Memory | None = None
        self._health = Health()

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        if verb not in READS | WRITES:
            raise AttributeError(verb)

        def call(*arguments: Any, **named: Any) -> Any:
            return self._done(verb, arguments, named)

        return call

    def health(self) -> Health:
        """The state of the memory after the last call."""
        return self._health if self._own is None else self._own.health()

    def _done(self, verb: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if self._own is None:
            asked = {**self._asked, "verb": verb, "arguments": list(arguments), "named": named}
            try:
                answer = self._connection.ask(f"{OWN}/memory", asked)
            except Unserved as reason:
                unsure = isinstance(reason, Lost) or (isinstance(reason, Refused) and reason.status >= 500)
                if unsure and verb in WRITES:
                    raise StorageError(
                        f"whether this was written is not known: {reason}; `edge memory list` shows what is remembered"
                    ) from None
                self._own = self._alone()
            else:
                self._health = Health(tuple(Trouble(**trouble) for trouble in answer["health"]))
                return answer["result"]
        return getattr(self._own, verb)(*arguments, **named)

    def __enter__(self) -> ServedMemory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._own is not None:
            self._own.close()
