"""Writes docs/commands.md from the commands themselves: `python docs/commands.py`. A test compares the two."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

PAGE = Path(__file__).with_name("commands.md")

_HEAD = """# Commands

Every command and option. This page is made from the commands themselves by `python docs/commands.py`.
"""


def page() -> str:
    """The whole page."""
    from edge.apps.cli import edge

    return "\n".join([_HEAD, *(_section(path, command) for path, command in commands(edge, ("edge",)))])


def commands(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """A command and those below it, each with the words that call it, in the order of their names."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None and not inner.hidden:
                yield from commands(inner, (*path, name))


def _section(path: tuple[str, ...], command: click.Command) -> str:
    context = click.Context(command, info_name=" ".join(path))
    usage = " ".join([*path, *command.collect_usage_pieces(context)])
    lines = [f"## {' '.join(path)}", "", f"    {usage}", "", _help(command)]
    options = [param for param in command.params if isinstance(param, click.Option) and not param.hidden]
    if options:
        lines += ["", "| option | |", "|---|---|"]
        lines += [f"| {_names(option)} | {_meaning(option)} |" for option in options]
    if isinstance(command, click.Group):
        lines += ["", "| command | |", "|---|---|"]
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            lines.append(f"| [{name}](#{'-'.join((*path, name))}) | {_cell(inner.get_short_help_str(200))} |")
    return "\n".join(lines) + "\n"


def _help(command: click.Command) -> str:
    paragraphs = (command.help or "").replace("\f", "").strip().split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _names(option: click.Option) -> str:
    names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
    if option.is_flag:
        return names
    if isinstance(option.type, click.Choice):
        return f"{names} {_cell(' | '.join(map(str, option.type.choices)))}"
    return f"{names} {_cell(option.metavar or option.type.name.upper())}"


def _meaning(option: click.Option) -> str:
    text = option.help or ""
    if option.show_default and option.default is not None:
        default = option.default
        shown = ", ".join(map(str, default)) if isinstance(default, tuple | list) else str(default)
        text += f" Default: {shown}."
    return _cell(text + (" May be repeated." if option.multiple else ""))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
