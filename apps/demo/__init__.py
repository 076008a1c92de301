"""`edge demo`: small demonstrations. Without the name of one, the passages are ranked."""

from __future__ import annotations

import click

from edge.apps.options import LazyGroup, alike

_DEFAULT = "passages"


class Demos(LazyGroup):
    """Demonstrations by name. If the first argument is no name, it is the first argument of the default one."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Inserts the name of the default demonstration where none is given. A word that is like a name is a mistyped
        name."""
        names = self.list_commands(ctx)
        if not args or not (args[0] in self.get_help_option_names(ctx) or alike(args[0], names)):
            args = [_DEFAULT, *args]
        return super().parse_args(ctx, args)


@click.group(
    cls=Demos, verbs={"passages": "edge.apps.demo.passages:passages", "recommend": "edge.apps.demo.recommend:recommend"}
)
def demo() -> None:
    """Show the program at work: `edge demo [QUESTION]` ranks passages by meaning, as `edge demo passages` does."""
