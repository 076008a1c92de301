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
    _open_closed_streams()
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
        click.echo(f"edge: {_what_failed(error)}: {error.strerror or error}", err=True)
        code = 2
    sys.exit(code)


def _open_closed_streams() -> None:
    """Puts the null device in the place of standard streams that the caller closed (`edge index . >&-`).

    Who closes the output wants none, as a reader who goes away: that is no error. Without this, the next file that is
    opened would get the free descriptor, and whatever a library prints would be written into it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):  # each takes the lowest that is free: its own
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 (open until the end)


def _what_failed(error: OSError) -> str:
    """What could not be done; where the system names no file, it was writing the output or asking where we are."""
    if error.filename:
        return f"{error.filename} cannot be used"
    if isinstance(error, FileNotFoundError) and not _has_working_directory():
        return "the working directory does not exist any more"
    return "the output cannot be written"


def _has_working_directory() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


def _discard_output() -> None:
    """Nothing more can be written: not even what Python flushes at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
