"""The scope, the folder, the input and the output of a command of `edge memory`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edge.apps.console import notice
from edge.apps.memory.arguments import default_path, existing_memory, written
from edge.apps.options import configure, json_option, several
from edge.apps.serve.background import own_options
from edge.apps.verbs.home import OwnHome
from edge.apps.verbs.memories import OfMemory
from edge.apps.verbs.verb import Verb, do
from edge.errors import InputError

if TYPE_CHECKING:
    from edge.apps.memory.memory import Memory


path_option = click.option("--path", type=click.Path(file_okay=False, path_type=Path), help="Directory of the memory.")


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

everyone_option = click.option("--everyone", is_flag=True, help="All users, agents and sessions: a backup.")

scope_options = several(OfMemory.add_to, json_option)


def whose(asked: OfMemory) -> dict[str, Any]:
    """The ids of a scope; the default user's if none is given."""
    return asked.ids if any(asked.ids.values()) else {**asked.ids, "user_id": DEFAULT_USER}


def done(verb: Verb, asked: OfMemory, *, make: bool = False, **settings: Any) -> dict[str, Any]:
    """What a verb of the memory returns (see `edge.apps.verbs.remembering`), done by the server or here. Prints
    unfinished work and damage to stderr.

    Args:
        make: whether the verb may create the memory.
        settings: options that override settings of the same name, and `no_server`.
    """
    config = configure(**settings)
    alone = own_options(memory=settings.get("memory"), threads=settings.get("threads"))
    bound = replace(asked, path=str(_place(asked, make)), **whose(asked))
    found: dict[str, Any] = do(verb, bound, OwnHome(config), alone=alone).result
    for trouble in found["troubles"]:
        notice(trouble)
    return found


def own_memory(asked: OfMemory, *, everyone: bool = False, make: bool = False, **settings: Any) -> Memory:
    """The memory of a request, opened in this process and bound to its scope; unbound for `everyone`.

    Args:
        make: create the memory if there is none.
        settings: options that override settings of the same name.

    Raises:
        InputError: ids are given beside `everyone`, or there is no memory.
    """
    from edge.apps.memory.memory import Memory

    if everyone and any(asked.ids.values()):
        raise InputError("--everyone means all users, agents and sessions; leave the ids out")
    ids = {} if everyone else whose(asked)
    return Memory(_place(asked, make), **ids, config=configure(**settings))


def _place(asked: OfMemory, make: bool) -> Path:
    """The directory of a memory, which must exist unless the verb makes one."""
    given = None if asked.path is None else Path(asked.path)
    return ((given or default_path()) if make else existing_memory(given)).expanduser().absolute()
