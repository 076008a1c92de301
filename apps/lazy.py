"""Groups of commands: a mistyped name gets a suggestion, and a command is imported only when it is called."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import click

_LIKENESS = 0.65
"""The least similarity of a suggested name, as `difflib` computes it. `serch` and `search` have 0.91."""


class CommandGroup(click.Group):
    """A group that suggests commands for a mistyped name."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the first argument names.

        Raises:
            UsageError: there is no command of that name.
        """
        name = args[0]
        names = self.list_commands(ctx)
        if name.startswith("-") or name in names:
            return super().resolve_command(ctx, args)
        close = alike(name, names)
        begun = [known for known in names if known.startswith(name.lower()) and known not in close]
        meant = [f"`{ctx.command_path} {known}`" for known in [*begun, *close][:3]]
        advice = f"did you mean {' or '.join(meant)}?" if meant else f"the commands are {', '.join(names)}."
        ctx.fail(f"there is no command {name!r}; {advice}")


def alike(name: str, names: Sequence[str]) -> list[str]:
    """Those of `names` that may be meant by a name, the most similar first."""
    return get_close_matches(name.lower(), names, cutoff=_LIKENESS)


class LazyGroup(CommandGroup):
    """A group of commands named by `module:attribute`. Each is imported when it is called, so that `edge rerank` does
    not wait for the modules of `edge search`. It may have commands of its own besides."""

    def __init__(self, *args: Any, verbs: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._verbs = verbs

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*self._verbs, *self.commands})

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self._verbs:
            return self.commands.get(name)
        module, attribute = self._verbs[name].split(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command
