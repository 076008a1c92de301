"""How results look on a terminal: colours and bold words, where somebody looks and has not asked for none."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from edge.apps.files.shown import shown


def is_terminal() -> bool:
    """Whether somebody looks at what is printed."""
    return sys.stdout.isatty()


def is_coloured() -> bool:
    """Whether to print colours: on a terminal that knows them, unless NO_COLOR is set (https://no-color.org)."""
    return is_terminal() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def styled(text: str, **style: bool | str) -> str:
    """A text in colours; as it is where there are none."""
    return click.style(text, **style) if is_coloured() else text  # type: ignore[arg-type]


def place(path: str, line: str) -> str:
    """A citation: the path, and behind it `:line` or ` p. N`."""
    return styled(shown(path), fg="cyan", bold=True) + styled(line, fg="green")


def highlighted(text: str, marks: Sequence[tuple[int, int]]) -> str:
    """A text whose marked stretches, in order, stand out."""
    parts, end = [], 0
    for start, stop in marks:
        parts += [text[end:start], styled(text[start:stop], fg="yellow", bold=True)]
        end = stop
    return "".join(parts) + text[end:]


def say(text: str) -> None:
    """Prints a line that may hold colours."""
    click.echo(text, color=is_coloured())
