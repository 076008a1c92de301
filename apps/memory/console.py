"""What `edge memory` reads from its options and from stdin, and what it prints."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from edge.apps.memory.moments import written
from edge.errors import InputError


def stdin_lines() -> list[str]:
    """The lines of stdin that are not empty, stripped.

    Raises:
        InputError: it is not UTF-8.
    """
    try:
        return [line.strip() for line in sys.stdin.buffer.read().decode("utf-8").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise InputError(f"stdin is not valid UTF-8 (byte {error.start})") from None


def json_object(text: str | None, option: str) -> Any:
    """A JSON object given on the command line; None if it was not given.

    Raises:
        InputError: it is none.
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
    """Says how many memories went where."""
    if as_json:
        print_json({"count": count})
    else:
        click.echo(f"{count:,} {what}", err=True)


def shown(document: dict[str, Any]) -> str:
    """A memory on one line, with the moment it tells of as it was given."""
    when = document.get("local_timestamp") or document.get("timestamp")
    return f"[{written(when)}] {document['memory']}" if when else str(document["memory"])


def exit_code(found: bool) -> int:
    """0, or, where there is nothing, 1 and a notice."""
    if not found:
        click.echo("edge: nothing found", err=True)
    return 0 if found else 1
