"""The scope, the folder, the input and the output of a command of `edge memory`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edge.apps.console import told
from edge.apps.memory.arguments import SCOPE_FIELDS, default_path, existing_memory, written
from edge.apps.options import configure, json_option, several
from edge.apps.serve.background import connected, own_options
from edge.apps.serve.connection import OWN, SEARCH, Lost, OwnServer, Refused, Unserved
from edge.apps.store.health import Health, Trouble
from edge.config import Config
from edge.errors import InputError, StorageError

if TYPE_CHECKING:
    from edge.apps.memory.memory import Memory


path_option = click.option("--path", type=click.Path(file_okay=False, path_type=Path), help="Directory of the memory.")


def json_object(text: str | None, option: str) -> Any:
    """A JSON object given on the command line; None if the option was not given.

    Raises:
        InputError: the text is not a JSON object.
    """
    if text is None:
        return None
    try:
        value = json.loads(text)
    except RecursionError:
        raise InputError(f"{option} is nested too deep") from None
    except ValueError as error:
        raise InputError(f"{option} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise InputError(f"{option} takes a JSON object, not {text}")
    return value


def print_json(document: Any) -> None:
    """Prints one line of JSON."""
    click.echo(json.dumps(document, ensure_ascii=False))


def print_count(count: int, sentence: str, as_json: bool) -> None:
    """Prints a sentence that names a number, or the number alone as a JSON object."""
    if as_json:
        print_json({"count": count})
    else:
        click.echo(sentence, err=True)


def shown(document: dict[str, Any]) -> str:
    """A memory on one line, with its timestamp in the time zone in which it was given, and with its end."""
    when = document.get("local_timestamp") or document.get("timestamp")
    text = f"[{written(when)}] {document['memory']}" if when else str(document["memory"])
    until = document.get("valid_until")
    return f"{text}  (until {written(until)})" if until else text


def exit_code(found: bool) -> int:
    """The exit code of a query: 0 if something was found; otherwise 1, with a notice on stderr."""
    if not found:
        click.echo("edge: nothing found", err=True)
    return 0 if found else 1


DEFAULT_USER = "default"
"""The user id if no id is given, since most machines have one user."""

_SETTINGS = ("memory", "runtime", "threads", "embedder", "reranker")

everyone_option = click.option("--everyone", is_flag=True, help="All users, agents and sessions: a backup.")


def whose(user_id: str | None, agent_id: str | None, run_id: str | None) -> dict[str, Any]:
    """The ids of a scope; the default user's if none is given."""
    if user_id is None and agent_id is None and run_id is None:
        user_id = DEFAULT_USER
    return {"user_id": user_id, "agent_id": agent_id, "run_id": run_id}


scope_options = several(
    click.option("--user-id", help="Whose memory; `default` if no id is given."),
    click.option("--agent-id", help="Which agent's memory."),
    click.option("--run-id", help="Which session's memory."),
    path_option,
    json_option,
)


def own_memory(options: dict[str, Any], *, everyone: bool = False, make: bool = False) -> Memory:
    """The memory that the common options name, opened in this process and bound to their scope; unbound for `everyone`.

    Args:
        make: create the memory if there is none.
    """
    return _named(options, everyone, make)[2]()


def opened_memory(options: dict[str, Any], *, make: bool = False) -> AbstractContextManager[Memory | ServedMemory]:
    """The memory of `own_memory`, or the server's where `--no-server` is not given and a server serves the memory.
    Prints unfinished work and damage to stderr at the end."""
    config, place, alone, ids = _named(options, False, make)
    try:
        server = connected(config, SEARCH, own_options(memory=options.get("memory"), threads=options.get("threads")))
    except Unserved:
        return told(alone())
    return told(ServedMemory(server, place.expanduser().absolute(), ids, alone))


def _named(
    options: dict[str, Any], everyone: bool, make: bool
) -> tuple[Config, Path, Callable[[], Memory], dict[str, Any]]:
    """What the common options name: the configuration, the folder, a function that opens the memory, and its scope."""
    settings: dict[str, Any] = {name: options.get(name) for name in _SETTINGS}
    config = configure(**settings, no_server=bool(options.get("no_server", True)))
    given = tuple(options.get(name) for name in SCOPE_FIELDS)
    if everyone and any(given):
        raise InputError("--everyone means all users, agents and sessions; leave the ids out")
    place = (options["path"] or default_path()) if make else existing_memory(options["path"])
    ids = {} if everyone else whose(*given)

    def alone() -> Memory:
        from edge.apps.memory.memory import Memory

        return Memory(place, **ids, config=config)

    return config, place, alone, ids


READS = frozenset({"search", "get_all", "get", "history"})
WRITES = frozenset({"add", "update", "pin", "forget", "supersede", "delete", "delete_all"})


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
        return partial(self._done, verb)

    def health(self) -> Health:
        """The state of the memory after the last call."""
        return self._health if self._own is None else self._own.health()

    def _done(self, verb: str, *arguments: Any, **named: Any) -> Any:
        if self._own is None:
            asked = {**self._asked, "verb": verb, "arguments": arguments, "named": named}
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

    def __exit__(self, *error: object) -> None:
        if self._own is not None:
            self._own.close()
