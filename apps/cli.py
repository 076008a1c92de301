"""The `edge` command: imports only the called verb's modules, and turns errors into one sentence and an exit code."""

from __future__ import annotations

import _thread
import io
import os
import signal
import sys
import threading
from contextlib import suppress
from typing import Any, TextIO

import click

from edge.apps.console import notice, report, screens
from edge.apps.options import LazyGroup
from edge.config import format_size
from edge.errors import EdgeError, InputError
from edge.text.control_characters import escaped

_VERBS = {
    "index": "edge.apps.commands.index:index",
    "search": "edge.apps.commands.search:search",
    "watch": "edge.apps.commands.index:watch_command",
    "status": "edge.apps.commands.contents:status",
    "list": "edge.apps.commands.contents:list_files",
    "get": "edge.apps.commands.contents:get",
    "describe": "edge.apps.commands.contents:describe",
    "cluster": "edge.apps.cluster.command:cluster",
    "collections": "edge.apps.commands.contents:collections",
    "remove": "edge.apps.commands.contents:remove",
    "compact": "edge.apps.commands.contents:compact",
    "check": "edge.apps.collection.care:check",
    "repair": "edge.apps.collection.care:repair",
    "backup": "edge.apps.collection.care:backup",
    "restore": "edge.apps.collection.care:restore",
    "memory": "edge.apps.memory.command:memory",
    "mcp": "edge.apps.mcp.command:mcp",
    "install": "edge.apps.mcp.command:install",
    "ask": "edge.apps.assistant.ask:ask",
    "chat": "edge.apps.assistant.ask:chat",
    "serve": "edge.apps.serve.command:serve",
    "rerank": "edge.apps.commands.texts:rerank",
    "embed": "edge.apps.commands.texts:embed",
    "models": "edge.apps.commands.models:models",
    "demo": "edge.apps.demo:demo",
    "bench": "edge.apps.bench.command:bench",
    "doctor": "edge.apps.commands.doctor:doctor",
    "plan": "edge.apps.plan:plan",
    "profile": "edge.apps.plan.profile:profile",
    "config": "edge.apps.commands.config:config",
}


_NEEDED_DATA, _NEEDED_SPACE = 512 << 20, 704 << 20
"""Bytes that the system must let a process map, its own and altogether (`ulimit -d` and `-v`). With 400 and 600 MB the
libraries of a search crashed on two cores. Most of it never becomes resident."""

_LATER_S = 0.02

_EVERYDAY = ("demo", "index", "search", "ask", "memory", "serve", "mcp", "status")


@click.group(
    cls=LazyGroup,
    verbs=_VERBS,
    everyday=_EVERYDAY,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="edge-rag", prog_name="edge")
def edge() -> None:
    """Semantic ranking, search and retrieval-augmented answers within one memory limit.

    Begin with `edge demo`. Then `edge index DIR`, `edge search QUERY` and `edge ask QUESTION`.
    """


@edge.command("help")
@click.argument("words", nargs=-1, metavar="[COMMAND]...")
@click.pass_context
def help_(context: click.Context, words: tuple[str, ...]) -> None:
    """Print the help of COMMAND, such as `edge help memory add`."""
    command: click.Command = edge
    place = context.find_root()
    for word in words:
        if not isinstance(command, click.Group):
            raise InputError(f"`{place.command_path}` has no commands below it")
        name, found, _ = command.resolve_command(place, [word])
        assert found is not None
        command, place = found, click.Context(found, info_name=name, parent=place)
    click.echo(place.get_help())


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line and exits: 0 ok, 1 nothing found, 2 error, 130 interrupted."""
    _open_closed_streams()
    if reason := _too_tight():
        sys.exit(_failed(reason))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # characters that a terminal cannot show are replaced
    before, threading.excepthook = threading.excepthook, _thread_failed
    unraisable, sys.unraisablehook = sys.unraisablehook, _interrupted_later
    try:
        with screens():
            code = _run(arguments)
    finally:
        threading.excepthook, sys.unraisablehook = before, unraisable
        _flush(sys.stdout)
        _flush(sys.stderr)
    sys.exit(code)


def _run(arguments: list[str] | None) -> int:
    output = sys.stdout
    try:
        result: Any = edge.main(args=arguments, prog_name="edge", standalone_mode=False)
        code = result if isinstance(result, int) else 0
        sys.stdout.flush()
        return code
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return 2
    except click.ClickException as error:
        shown = io.StringIO()
        error.show(file=shown)
        message = error.format_message()  # the message may repeat arguments
        click.echo(shown.getvalue().rpartition(message)[0] + escaped(message), err=True)
        return 2
    except EdgeError as error:
        return _failed(str(error))
    except (KeyboardInterrupt, click.Abort):
        notice("interrupted")
        return 130
    except SystemExit as stop:
        # If the reader of the output has gone (`edge ... | head`), Click replaces sys.stdout and exits. That is not an
        # error.
        gone = sys.stdout is not output
        return 0 if gone else stop.code if isinstance(stop.code, int) else 2
    except BrokenPipeError:
        return 0
    except OSError as error:
        _discard(sys.stdout)
        return _failed(f"{_what_failed(error)}: {error.strerror or error}")
    except MemoryError:
        return _failed("the system has no more memory for this process; give a lower --memory, or less to work on")
    except Exception as error:
        if str(error) == "can't start new thread":
            return _failed("the system starts no more threads for this process; `ulimit -u` and `-v` bound them")
        return _failed(report(error, _verb(arguments)))


def _too_tight() -> str:
    """Why this process cannot work within the system's limits; empty if it can. Libraries crash where their threads get
    no memory."""
    if sys.platform != "linux":
        return ""
    import resource

    for limit, option, needed in ((resource.RLIMIT_DATA, "d", _NEEDED_DATA), (resource.RLIMIT_AS, "v", _NEEDED_SPACE)):
        held = resource.getrlimit(limit)[0]
        if held != resource.RLIM_INFINITY and held < needed:
            return (
                f"`ulimit -{option}` leaves this process {format_size(held)}, and its libraries need "
                f"{format_size(needed)} to start; --memory limits what it holds"
            )
    return ""


def _failed(sentence: str) -> int:
    with suppress(BrokenPipeError):
        notice(sentence)
    return 2


def _verb(arguments: list[str] | None) -> str:
    given = sys.argv[1:] if arguments is None else arguments
    return next((f"edge {name}" for name in given if name in _VERBS), "edge")


def _thread_failed(caught: threading.ExceptHookArgs) -> None:
    """Reports an unexpected exception in a thread, for which Python would print a traceback."""
    if caught.exc_value is not None and not isinstance(caught.exc_value, SystemExit):
        _failed(report(caught.exc_value, _verb(None)))


def _interrupted_later(caught: sys.UnraisableHookArgs) -> None:
    """Interrupts the command again. Ctrl-C may come in code that cannot raise, such as a destructor: Python would then
    print a traceback, and the command would go on."""
    if isinstance(caught.exc_value, KeyboardInterrupt):
        later = threading.Timer(_LATER_S, _interrupt)  # an interrupt raised here would be lost again
        later.daemon = True
        later.start()
    else:
        sys.__unraisablehook__(caught)


def _interrupt() -> None:
    """Interrupts the main thread, even while it waits."""
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    else:
        _thread.interrupt_main()


def _open_closed_streams() -> None:
    """Opens the null device for streams that the caller closed (`edge index . >&-`). The next file opened would get the
    free descriptor, and the output of libraries."""
    # In this order each file gets the lowest free descriptor, which is the stream's own.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 (open until the end)


def _what_failed(error: OSError) -> str:
    """The operation that failed. Without a file's name, it was writing the output or finding the working directory."""
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


def _flush(stream: TextIO) -> None:
    """Writes what a stream holds. If its reader has gone, Python's flush at exit would fail."""
    try:
        stream.flush()
    except OSError:
        _discard(stream)


def _discard(stream: TextIO) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
