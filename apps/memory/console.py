"""The input of `edge memory` from options and stdin, and its output."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from edge.apps.memory.moments import written
from edge.apps.texts import Lines
from edge.errors import InputError

path_option = click.option("--path", type=click.Path(file_okay=False, path_type=Path), help="Directory of the memory.")


def stdin_lines(limit: int) -> list[str]:
    """The lines of stdin, stripped, without empty ones.

    Args:
        limit: the bytes that the whole process may hold.

    Raises:
        InputError: stdin is not UTF-8.
        BudgetExceeded: the lines alone need more memory than the limit leaves.
    """
    return [line for _, line in Lines(sys.stdin.buffer, "stdin", limit)]


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


def print_count(count: int, what: str, as_json: bool) -> None:
    """Prints a number of memories with a phrase after it, or as a JSON object."""
    if as_json:
        print_json({"count": count})
    else:
        click.echo(f"{count:,} {what}", err=True)


def shown(document: dict[str, Any]) -> str:
    """A memory on one line, with its timestamp in the time zone in which it was given."""
    when = document.get("local_timestamp") or document.get("timestamp")
    return f"[{written(when)}] {document['memory']}" if when else str(document["memory"])


def exit_code(found: bool) -> int:
    """The exit code of a query: 0 if something was found; otherwise 1, with a notice on stderr."""
    if not found:
        click.echo("edge: nothing found", err=True)
    return 0 if found else 1
