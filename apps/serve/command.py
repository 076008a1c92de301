"""`edge serve`: one server for the machine."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from edge.apps.console import notice
from edge.apps.options import FiniteRange, Setup, collections_option, setup_options, several
from edge.apps.serve.connection import OWN, OwnServer, Unserved, own_socket, peer_pid, reach
from edge.apps.serve.limits import LEAVE_S, Limits
from edge.config import counted, format_size
from edge.errors import CapabilityError, ConfigError, InputError, StorageError
from edge.text.control_characters import escaped

PORT = 8777
_USUAL = Limits()


_OPTIONS = several(
    click.option("--host", default="127.0.0.1", show_default=True,
                 help="Address to listen on. Any other than this machine's own needs a token."),
    click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="0 takes a free one."),
    click.option("--host-name", "hosts", multiple=True, metavar="NAME",
                 help="A further name by which clients call this machine; may be repeated."),
    click.option("--allow-origin", "origins", multiple=True, metavar="ORIGIN",
                 help="A site whose pages may use the server, such as https://notes.example; may be repeated."),
    click.option("--token", "wants_token", is_flag=True, help="Ask for a token on this machine, too."),
    click.option("--new-token", is_flag=True, help="Make a new token, which ends the old one."),
    click.option("--add-folders", "adds_folders", is_flag=True,
                 help="Let whoever has the token, such as you on the page, have any of your folders indexed."),
    click.option("--rate", type=click.IntRange(0), default=0, show_default=True,
                 help="Requests a minute for each token or address; 0: no bound."),
    click.option("--connections", type=click.IntRange(1, 4096), default=_USUAL.connections, show_default=True,
                 help="Connections that may be open at once."),
    click.option("--timeout", type=FiniteRange(0.1), default=_USUAL.request_s, show_default=True,
                 help="Seconds that a request may take."),
    click.option("--memory-path", type=click.Path(file_okay=False, path_type=Path), help="Directory of the memory."),
    click.option("--reranker", help="Reranker: a known name or the path of a packed model."),
    click.option("--embedder", help="Embedder, likewise, for texts that belong to no collection."),
    click.option("--llm", help="Language model that writes answers, as for `edge ask`."),
    click.option("--answers", type=click.IntRange(1, 32),
                 help="Answers that a language model in this process writes at a time (4, if the memory allows). "
                 "Others wait."),
    click.option("--generation", type=click.Choice(["auto", "exact", "shared"]),
                 help="exact: a text does not depend on those that are written beside it. shared: they share steps and "
                 "documents' states, which is faster. auto (the default): shared if the memory allows."),
    click.option("--states", type=click.Choice(["auto", "exact", "anywhere"]),
                 help="exact: a document's states are used again behind the same documents. anywhere: behind any, "
                 "which changes some texts. auto (the default): anywhere if answers are shared."),
    click.option("--search-within", type=FiniteRange(0), metavar="SECONDS",
                 help="Hold as many lists of vectors in memory as 90 % of the searches need to end within this time."),
    click.option("--plan", type=click.Path(dir_okay=False, path_type=Path),
                 help="Run this plan of `edge plan rag --on here`. Other options go before it."),
    click.option("--no-port", is_flag=True,
                 help="Open no address: answer only your own commands, about any collection, over a socket that only "
                 "you can open."),
    click.option("--idle", type=FiniteRange(0.1), metavar="SECONDS",
                 help="End when the server was not used for so many seconds."),
    click.option("--background", "what", flag_value="background",
                 help="Start this server, with these options, in a process of its own, and return when it serves."),
    click.option("--status", "what", flag_value="status",
                 help="Say whether a server of yours runs, its address and its memory."),
    click.option("--stop", "what", flag_value="stop", help="End your server, and wait for its end."),
    click.option("--editor", default="", metavar="COMMAND",
                 help="Opens a document from the page, such as 'code --goto {path}:{line}'; {page} of a PDF."),
    click.option("--cluster", metavar="ADDRESS",
                 help="Serve one collection in shards, which Ray at ADDRESS reaches (-c names it)."),
    click.option("--no-sharing", is_flag=True, help="Rerank one request after the other, for comparisons."),
    collections_option,
    setup_options(),
)  # fmt: skip


@click.command()
@_OPTIONS
@click.pass_context
def serve(context: click.Context, /, what: str | None, setup: Setup, **given: Any) -> int:
    """Serve reranking, search, answers and memory to other programs, within one memory limit.

    Endpoints in the shapes of Jina, Cohere, text-embeddings-inference, OpenAI, Anthropic, Ollama and mem0;
    `docs/serve.md` lists them.
    Ctrl-C ends it. --status and --stop exit with 1 if no server of yours runs.
    """
    if what is not None:
        return _controlled(what, context)
    from edge.apps.serve.limits import load_libraries
    from edge.apps.serve.listening import address_of, bound_socket, owners_socket, run
    from edge.apps.serve.security import Access, is_loopback, known_token
    from edge.apps.serve.server import Editor, HttpServer, ServerOptions, system_command
    from edge.runtimes.engine import Tuning

    load_libraries()
    flags = {name: given[name] for name in ("llm", "answers", "generation", "states", "search_within")}
    planned = None
    if given["plan"] is not None:
        from edge.apps.plan.here import ServerPlan

        planned = ServerPlan.read(given["plan"])
        own = asdict(planned.manner) | {"llm": planned.llm}
        flags = {name: own.get(name) if value is None else value for name, value in flags.items()}
        flags["llm_threads"] = None if setup.threads is not None else own["llm_threads"]
        setup = replace(
            setup, memory=setup.memory or str(planned.memory), device=own["device"],
            threads=own["threads"] if setup.threads is None else setup.threads,
        )  # fmt: skip
    config = setup.config(**flags, reranker=given["reranker"], embedder=given["embedder"])
    host, private = given["host"], given["no_port"]
    outside = not is_loopback(host)
    if private:
        _check_private(context)
    digest = token = ""
    if outside or given["wants_token"] or given["new_token"] or given["adds_folders"]:
        digest, token = known_token(new=given["new_token"])
    options = ServerOptions(
        limits=Limits(connections=given["connections"], request_s=given["timeout"], rate=given["rate"]),
        access=Access(given["hosts"], given["origins"], digest),
        collections=given["collections"], memory=given["memory_path"],
        tuning=Tuning(share=False) if given["no_sharing"] else None,
        editor=Editor(given["editor"]), opener=Editor(system_command() if digest and not outside else ""),
        adds_folders=given["adds_folders"],
        usual={} if planned is None else planned.options, private=private, idle_s=given["idle"] or 0.0,
    )  # fmt: skip
    if outside and given["editor"]:
        raise ConfigError("--editor opens documents on this machine, and --host lets other machines ask for it")
    if given["adds_folders"] and (outside or given["cluster"] is not None):
        raise ConfigError("--add-folders is for a collection and clients on this machine, without --host and --cluster")
    with ExitStack() as held:
        if given["cluster"] is not None:
            from edge.apps.cluster.command import connected, existing

            existing(*given["collections"])
            options = replace(options, places=held.enter_context(connected(given["cluster"], config)))
        # First, so that a limit that is too small is refused before anything else is.
        server = held.enter_context(HttpServer(config, options))
        first = None if private else running_pid()
        try:
            opened = [] if private else [bound_socket(host, given["port"])]
        except StorageError as error:
            if first is None:
                raise
            raise StorageError(
                f"{yours(first)}; `edge serve --stop` ends it, and --port 0 starts another one"
            ) from error
        for one in opened:
            held.callback(one.close)
            server.url = address_of(one)
        if first is None:
            opened += held.enter_context(owners_socket())
        else:
            notice(f"{yours(first)}, which your commands go on using; this one answers at its address alone")
        if not opened:
            raise CapabilityError("--no-port needs a socket that only its owner can open, and this system has none")
        to = f"on {server.url}" if server.url else "your own commands"
        click.echo(f"edge: serving {to} within {format_size(config.memory)}")
        if outside:
            notice(f"{host} can be reached from other machines, so every request needs the token")
        if token:
            notice(f"the token, which is shown once only: {token}")
        elif digest:
            notice("the token was shown when it was made; --new-token makes another one")
        run(server, opened)
    if server.cut_off or _some_thread_works():  # Python would wait for the threads
        notice("some work did not end in time and was cut off")
        sys.stdout.flush()
        os._exit(0)
    return 0


def _some_thread_works() -> bool:
    end = time.monotonic() + LEAVE_S
    others = [one for one in threading.enumerate() if not one.daemon and one is not threading.current_thread()]
    for thread in others:
        thread.join(max(0.0, end - time.monotonic()))
    return any(thread.is_alive() for thread in others)


_ABOUT_ADDRESS = ("host", "port", "hosts", "origins", "wants_token", "new_token", "adds_folders", "rate")


def _check_private(context: click.Context) -> None:
    for parameter in context.command.params:
        given = context.get_parameter_source(str(parameter.name)) is ParameterSource.COMMANDLINE
        if given and parameter.name in _ABOUT_ADDRESS:
            raise InputError(f"--no-port opens no address, so {max(parameter.opts, key=len)} means nothing")


def _controlled(what: str, context: click.Context) -> int:
    given = _given(context)
    if what == "background":
        from edge.apps.serve.connection import started

        if (pid := running_pid()) is not None:
            raise StorageError(
                f"{yours(pid)}, and there is one in the background; a further one runs without --background, at a "
                f"--port of its own"
            )
        server, said = started(given, Path.cwd())
        click.echo(said, nl=False)
        click.echo(f"edge: process {server.hello['pid']}; `edge serve --stop` ends it")
        return 0
    if given:
        raise InputError(f"--{what} takes no other options")
    return status() if what == "status" else stop()


def _given(context: click.Context) -> list[str]:
    """The server's own options as given, for another process: relative paths are made absolute."""
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


_END_S = 30.0


def running_pid() -> int | None:
    """The process that listens on this user's socket, as the system says; it need not answer."""
    path = own_socket()
    if path is None:
        return None
    try:
        connected = reach(path)
    except OSError:
        return None
    with connected:
        return peer_pid(connected)


def yours(pid: int) -> str:
    """Says that a server of this user runs, where, and of which collections."""
    try:
        state = OwnServer().ask(f"{OWN}/status", {})
    except Unserved:
        return f"a server of yours runs already (process {pid})"
    where = f" on {state['url']}" if state["url"] else ""
    first, *others = [one["path"] for one in state["collections"]] or ["no collection"]
    serves = f"{first} and {counted(len(others), 'other')}" if others else first
    return escaped(f"a server of yours runs already{where} with {serves} (process {pid})")


def status() -> int:
    pid = running_pid()
    if pid is None:
        click.echo("no server of yours runs")
        return 1
    try:
        state = OwnServer().ask(f"{OWN}/status", {})
    except Unserved as reason:
        click.echo(f"process     {pid}, which does not answer ({reason})")
        return 0
    for line in _described(state):
        click.echo(line)
    return 0


def stop() -> int:
    pid = running_pid()
    if pid is None:
        click.echo("no server of yours runs")
        return 1
    os.kill(pid, signal.SIGTERM)
    ends = time.monotonic() + _END_S
    while _lives(pid):
        if time.monotonic() > ends:
            raise StorageError(f"process {pid} was told to end and has not done so within {_END_S:g} seconds")
        time.sleep(0.02)
    click.echo(f"the server has ended (process {pid})")
    return 0


def _described(state: dict[str, Any]) -> list[str]:
    memory, minutes = state["memory"], int(time.time() - state["started"]) // 60
    hours, minutes = divmod(minutes, 60)
    since = time.strftime("%Y-%m-%d %H:%M", time.localtime(state["started"]))
    lines = [
        f"process     {state['pid']}, since {since} ({hours} h {minutes} min)",
        f"address     {state['url'] or 'none: it answers your own commands'}",
        f"memory      {format_size(memory['resident'])} of {format_size(memory['limit'])}",
        f"requests    {state['requests']['served']:,} served, {state['requests']['working']} at work",
    ]
    lines += [f"model       {model['name']} ({format_size(model['nbytes'])})" for model in state["models"]]
    for collection in state["collections"]:
        empty = "" if collection["exists"] else "  (empty)"
        lines.append(f"collection  {collection['name']}  {collection['path']}{empty}")
    return [*lines, f"memories    {state['memory_path']}"]


def _lives(pid: int) -> bool:
    """Whether a process has not ended; a zombie has."""
    import psutil

    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
