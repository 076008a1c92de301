"""`edge serve`: one server for the machine."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from edge.apps.options import collections_option, configure, engine_options
from edge.apps.serve.limits import Limits
from edge.config import format_size
from edge.errors import ConfigError, InputError, StorageError

if TYPE_CHECKING:
    from edge.apps.serve.server import Server

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
    type=click.FloatRange(0.1),
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
    from edge.apps.serve.editor import Editor
    from edge.apps.serve.security import is_loopback
    from edge.apps.serve.server import Access, Server, load_libraries
    from edge.apps.serve.token import known_token
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
        opened = [_bound(host, port)]
        held.callback(opened[0].close)
        opened += held.enter_context(_owners_socket(opened[0]))
        address = _address(opened[0])
        click.echo(f"edge: serving on {address} within {format_size(config.memory)}")
        if outside:
            click.echo(f"edge: {host} can be reached from other machines, so every request needs the token", err=True)
        if token:
            click.echo(f"edge: the token, which is shown once only: {token}", err=True)
        elif digest:
            click.echo("edge: the token was shown when it was made; --new-token makes another one", err=True)
        run(server, opened)
    return 0


def _controlled(what: str, context: click.Context) -> int:
    """Does what is not serving. Options of the server belong to `--install` alone.

    Raises:
        InputError: there are others.
    """
    given = _given(context)
    if what == "install":
        from edge.apps.serve.service import install

        if context.params["new_token"]:
            raise InputError("--new-token would make another token at each start; give it in a terminal, once")
        return install(given)
    if given:
        raise InputError(f"--{what} takes no other options")
    if what == "uninstall":
        from edge.apps.serve.service import uninstall

        return uninstall()
    from edge.apps.serve.control import status, stop

    return status() if what == "status" else stop()


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


def run(server: Server, sockets: list[socket.socket]) -> None:
    """Serves on some listening sockets until a signal ends it."""
    import uvicorn

    from edge.apps.serve.protocol import bounded_protocol

    limits = server.limits
    config = uvicorn.Config(
        server.application(),
        http=bounded_protocol(limits),
        loop="asyncio",
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=int(limits.idle_s),
        timeout_graceful_shutdown=5,
        backlog=limits.connections,
        h11_max_incomplete_event_size=32 << 10,
    )

    class Quiet(uvicorn.Server):
        """Ends at the first signal, and lets the caller close what it opened."""

        should_exit: bool
        force_exit: bool

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            def end(number: int, frame: Any) -> None:
                self.force_exit = self.should_exit
                self.should_exit = True

            numbers = [signal.SIGINT, signal.SIGTERM]
            before = [(number, signal.signal(number, end)) for number in numbers]
            try:
                yield
            finally:
                for number, handler in before:
                    signal.signal(number, handler)

    Quiet(config).run(sockets)


def _bound(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        InputError: there is no such address here.
        StorageError: the port is taken.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise InputError(f"{host} is no address of this machine: {error.strerror}") from None
    family, kind, protocol, _, address = found[0]
    made = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
    except OSError as error:
        made.close()
        raise StorageError(f"{host}:{port} cannot be listened on: {error.strerror}; --port takes another") from None
    made.listen(128)
    return made


def _address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@contextmanager
def _owners_socket(listening: socket.socket) -> Iterator[list[socket.socket]]:
    """The Unix socket for programs of the same user, with a note that says how the server is reached; nothing where
    the system has no such sockets."""
    from edge.apps.serve.place import listen, socket_path, write_note

    path = socket_path()
    if path is None:
        yield []
        return
    made = listen(path)
    note = write_note({"pid": os.getpid(), "url": _address(listening), "started": time.time()})
    try:
        yield [made]
    finally:
        made.close()
        for file in (path, note):
            with suppress(OSError):
                file.unlink()
