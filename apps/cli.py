"""The `edge` command: finds the verb, loads only what it needs, and turns errors into one sentence and an exit code."""

from __future__ import annotations

import io
import os
import sys
from typing import Any

import click

from edge.apps.lazy import LazyGroup
from edge.errors import EdgeError

_VERBS = {
    "index": "edge.apps.files.index:index",
    "search": "edge.apps.files.search:search",
    "watch": "edge.apps.files.index:watch_command",
    "status": "edge.apps.files.status:status",
    "list": "edge.apps.files.status:list_files",
    "remove": "edge.apps.files.manage:remove",
    "compact": "edge.apps.files.manage:compact",
    "memory": "edge.apps.memory.command:memory",
    "mcp": "edge.apps.mcp.command:mcp",
    "ask": "edge.apps.assistant.ask:ask",
    "chat": "edge.apps.assistant.chat:chat",
    "rerank": "edge.apps.rerank:rerank",
    "embed": "edge.apps.embed:embed",
    "models": "edge.apps.models:models",
    "demo": "edge.apps.demo.command:demo",
    "bench": "edge.apps.bench.command:bench",
    "doctor": "edge.apps.doctor:doctor",
    "config": "edge.apps.settings:config",
}


@click.group(
    cls=LazyGroup, verbs=_VERBS, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(package_name="edge-rag", prog_name="edge")
def edge() -> None:
    """Semantic ranking, search and retrieval-augmented answers within one memory limit."""


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line and exits: 0 ok, 1 nothing found, 2 error, 130 interrupted."""
    output = sys.stdout
    if isinstance(output, io.TextIOWrapper):
        output.reconfigure(errors="replace")  # a terminal that cannot show a character shows another
    try:
        result: Any = edge.main(args=arguments, prog_name="edge", standalone_mode=False)
        code = result if isinstance(result, int) else 0
        sys.stdout.flush()
    except click.exceptions.Exit as stop:
        code = stop.exit_code
    except click.ClickException as error:
        error.show()
        code = 2
    except EdgeError as error:
        click.echo(f"edge: {error}", err=True)
        code = 2
    except (KeyboardInterrupt, click.Abort):
        click.echo("edge: interrupted", err=True)
        code = 130
    except SystemExit as stop:
        # Where the reader of our output has gone (`edge ... | head`), Click puts another stream in its place and exits:
        # that is no error.
        gone = sys.stdout is not output
        code = 0 if gone else stop.code if isinstance(stop.code, int) else 2
    except BrokenPipeError:
        _discard_output()
        code = 0
    except OSError as error:
        _discard_output()
        what = f"{error.filename} cannot be used" if error.filename else "the output cannot be written"
        click.echo(f"edge: {what}: {error.strerror or error}", err=True)
        code = 2
    sys.exit(code)


def _discard_output() -> None:
    """Nothing more can be written: not even what Python flushes at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
