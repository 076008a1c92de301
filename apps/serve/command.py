"""`edge serve`: one server for the machine."""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import click
from click.core import ParameterSource

from edge.apps.options import FiniteRange, collections_option, configure, engine_options
from edge.apps.serve.limits import LEAVE_S, Limits
from edge.config import format_size
from edge.errors import ConfigError, InputError

PORT = 8777
_USUAL = Limits()


@click.command()
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on. Any other than this machine's own needs a token.",
)
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="0 takes a free one.")
@click.option(
    "--host-name",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="A further name by which clients call this machine; may be repeated.",
)
@click.option(
    "--allow-origin",
    "origins",
    multiple=True,
    metavar="ORIGIN",
    help="A site whose pages may use the server, such as https://notes.example; may be repeated.",
)
@click.option("--token", "wants_token", is_flag=True, help="Ask for a token on this machine, too.")
@click.option("--new-token", is_flag=True, help="Make a new token, which ends the old one.")
@click.option(
    "--rate",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Requests a minute for each token or address; 0: no bound.",
)
@click.option(
    "--connections",
    type=click.IntRange(1, 4096),
    default=_USUAL.connections,
    show_default=True,
    help="Connections that may be open at once.",
)
@click.option(
    "--timeout",
    type=FiniteRange(0.1),
    default=_USUAL.request_s,
    show_default=True,
    help="Seconds that a request may take.",
)
@click.option("--memory-path", type=click.Path(file_okay=False, path_type=Path), help="Directory of the memory.")
@click.option("--reranker", help="Reranker: a known name or the path of a packed model.")
@click.option("--embedder", help="Embedder, likewise, for texts that belong to no collection.")
@click.option("--llm", help="Language model that writes answers, as for `edge ask`.")
@click.option(
    "--status", "what", flag_value="status", help="Say whether a server of yours runs, its address and its memory."
)
@click.option("--stop", "what", flag_value="stop", help="End your server, and wait for its end.")
@click.option(
    "--install",
    "what",
    flag_value="install",
    help="Write the service that starts this server, with these options, when you log in (systemd, launchd).",
)
@click.option("--uninstall", "what", flag_value="uninstall", help="Remove that service.")
@click.option(
    "--editor",
    default="",
    metavar="COMMAND",
    help="Opens a document from the page, such as 'code --goto {path}:{line}'; {page} of a PDF.",
)
@click.option("--no-sharing", is_flag=True, help="Rerank one request after the other, for comparisons.")
@collections_option
@engine_options
@click.pass_context
def serve(
    context: click.Context,
    host: str,
    port: int,
    hosts: tuple[str, ...],
    origins: tuple[str, ...],
    wants_token: bool,
    new_token: bool,
    rate: int,
    connections: int,
    timeout: float,
    memory_path: Path | None,
    reranker: str | None,
    embedder: str | None,
    llm: str | None,
    what: str | None,
    editor: str,
    no_sharing: bool,
    collections: tuple[str, ...],
    memory: str | None,
    runtime: str | None,
    threads: int | None,
) -> int:
    """Serve reranking, search, answers and memory to other programs, within one memory limit.

    Endpoints in the shapes of Jina, Cohere, text-embeddings-inference, OpenAI and mem0; `docs/serve.md` lists them.
    Ctrl-C ends it. --status and --stop exit with 1 if no server of yours runs.
    """
    if what is not None:
        return _controlled(what, context)
    from edge.apps.serve.documents import Editor
    from edge.apps.serve.listening import address_of, bound_socket, owners_socket, run
    from edge.apps.serve.security import is_loopback, known_token
    from edge.apps.serve.server import Access, Server, load_libraries
    from edge.runtimes.tuning import Tuning

    load_libraries()
    config = configure(memory=memory, runtime=runtime, threads=threads, llm=llm, reranker=reranker, embedder=embedder)
    outside = not is_loopback(host)
    digest = token = ""
    if outside or wants_token or new_token:
        digest, token = known_token(new=new_token)
    limits = Limits(connections=connections, request_s=timeout, rate=rate)
    access = Access(hosts, origins, digest)
    tuning = Tuning(share=False) if no_sharing else None
    chosen = Editor(editor)
    if outside and editor:
        raise ConfigError("--editor opens documents on this machine, and --host lets other machines ask for it")
    with ExitStack() as held:
        # First, so that a limit that is too small is refused before anything else is.
        server = held.enter_context(
            Server(config, limits, access, collections, memory_path, config.llm, tuning, chosen)
        )
        opened = [bound_socket(host, port)]
        held.callback(opened[0].close)
        opened += held.enter_context(owners_socket(opened[0]))
        address = address_of(opened[0])
        click.echo(f"edge: serving on {address} within {format_size(config.memory)}")
        if outside:
            click.echo(f"edge: {host} can be reached from other machines, so every request needs the token", err=True)
        if token:
            click.echo(f"edge: the token, which is shown once only: {token}", err=True)
        elif digest:
            click.echo("edge: the token was shown when it was made; --new-token makes another one", err=True)
        run(server, opened)
    if server.cut_off or _some_thread_works():  # Python would wait for the threads
        click.echo("edge: some work did not end in time and was cut off", err=True)
        sys.stdout.flush()
        os._exit(0)
    return 0


def _some_thread_works() -> bool:
    """Whether threads that Python would wait for do not end within `LEAVE_S`."""
    end = time.monotonic() + LEAVE_S
    others = [one for one in threading.enumerate() if not one.daemon and one is not threading.current_thread()]
    for thread in others:
        thread.join(max(0.0, end - time.monotonic()))
    return any(thread.is_alive() for thread in others)


def _controlled(what: str, context: click.Context) -> int:
    """Does what is not serving. Options of the server belong to `--install` alone.

    Raises:
        InputError: there are others.
    """
    from edge.apps.serve.control import install, status, stop, uninstall

    given = _given(context)
    if what == "install":
        if context.params["new_token"]:
            raise InputError("--new-token would make another token at each start; give it in a terminal, once")
        return install(given)
    if given:
        raise InputError(f"--{what} takes no other options")
    return uninstall() if what == "uninstall" else status() if what == "status" else stop()


def _given(context: click.Context) -> list[str]:
    """The server's own options as they were given, for another process: relative paths are made absolute."""
    from edge.apps.collection.registry import Registry

    found: list[str] = []
    for parameter in context.command.params:
        name = str(parameter.name)
        if name == "what" or context.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            continue
        values = context.params[name]
        for value in values if isinstance(values, tuple) else (values,):
            found.append(max(parameter.opts, key=len))
            if isinstance(value, bool):
                continue
            is_place = isinstance(value, Path) or (name == "collections" and value not in Registry().names())
            if is_place or (name in ("reranker", "embedder", "llm") and Path(value).exists()):
                value = Path(value).expanduser().absolute()
            found.append(str(value))
    return found
