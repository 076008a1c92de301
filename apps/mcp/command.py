"""`edge mcp`: Model Context Protocol servers over stdio, for agents on this machine. `edge install`: these servers, a
skill and hooks in the settings of an agent's program, and out of them again."""

from __future__ import annotations

import difflib
import json
import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import platformdirs

from edge.apps.collection.registry import located
from edge.apps.console import PYTHON
from edge.apps.options import CommandGroup, Setup, collections_option, setup_options
from edge.apps.verbs.memories import OfMemory
from edge.errors import InputError
from edge.files.named_file import read_small
from edge.files.sealed import replace
from edge.text.control_characters import escaped


@dataclass(frozen=True, slots=True)
class AgentProgram:
    """A program that talks to MCP servers. `style`: the key of the servers in its settings, or `toml`; `file`: the
    user's settings, in `folder` among the settings of programs if that is given; `project`: those of a project;
    `skills`, `hooks`: of the user and of a project."""

    name: str
    style: str
    file: str
    project: str = ""
    skills: tuple[str, str] | None = None
    hooks: tuple[str, str] | None = None
    folder: str = ""

    def settings(self, *, project: bool = False) -> Path:
        if project or not self.folder:
            return Path(self.project if project else self.file).expanduser()
        return platformdirs.user_config_path(self.folder, appauthor=False, roaming=True) / self.file


CLIENTS = (
    AgentProgram(
        "claude-code", "mcpServers", "~/.claude.json", ".mcp.json", ("~/.claude/skills", ".claude/skills"),
        ("~/.claude/settings.json", ".claude/settings.json"),
    ),
    AgentProgram(
        "codex", "toml", "~/.codex/config.toml", ".codex/config.toml", ("~/.agents/skills", ".agents/skills")
    ),
    AgentProgram(
        "cursor", "mcpServers", "~/.cursor/mcp.json", ".cursor/mcp.json", ("~/.cursor/skills", ".cursor/skills")
    ),
    AgentProgram(
        "gemini", "mcpServers", "~/.gemini/settings.json", ".gemini/settings.json",
        ("~/.gemini/skills", ".gemini/skills"),
    ),
    AgentProgram(
        "opencode", "mcp", "~/.config/opencode/opencode.json", "opencode.json",
        ("~/.config/opencode/skills", ".opencode/skills"),
    ),
    AgentProgram(
        "vscode", "servers", "User/mcp.json", ".vscode/mcp.json", ("~/.copilot/skills", ".github/skills"), folder="Code"
    ),
    AgentProgram("claude-desktop", "mcpServers", "claude_desktop_config.json", folder="Claude"),
    AgentProgram("windsurf", "mcpServers", "~/.codeium/windsurf/mcp_config.json"),
    AgentProgram("zed", "context_servers", "~/.config/zed/settings.json"),
)  # fmt: skip
"""Each from its maker's documents, as they were in November 2026."""


def client_named(name: str) -> AgentProgram:
    return next(client for client in CLIENTS if client.name == name)


def entries(client: AgentProgram, servers: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    command, *first = program()
    found: dict[str, Any] = {}
    for name, arguments in servers.items():
        entry: dict[str, Any] = {"command": command, "args": [*first, *arguments]}
        if client.style == "mcp":
            entry = {"type": "local", "command": [command, *first, *arguments], "enabled": True}
        found[name] = {"type": "stdio", **entry} if client.style == "servers" else entry
    return found


def configuration(client: AgentProgram, servers: Mapping[str, Sequence[str]]) -> str:
    found = entries(client, servers)
    if client.style == "toml":
        return "\n\n".join(
            "\n".join(
                [
                    f"[mcp_servers.{name}]",
                    *(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in entry.items()),
                ]
            )
            for name, entry in found.items()
        )
    return json.dumps({client.style: found}, indent=2, ensure_ascii=False)


def program() -> list[str]:
    found = shutil.which("edge")
    return [found] if found else list(PYTHON)


@click.group(cls=CommandGroup)
def mcp() -> None:
    """Serve memory or files to an agent over stdio (Model Context Protocol)."""


@mcp.command()
@OfMemory.add_to
@setup_options()
def memory(options: OfMemory, setup: Setup) -> None:
    """Serve the tools of a memory: add, search, list, update, supersede and delete memories, and their history."""
    from edge.apps.mcp.protocol import load_sdk, serve
    from edge.apps.mcp.tools import memory_server
    from edge.apps.memory.command import whose
    from edge.apps.memory.memory import Memory

    load_sdk()
    _greet("memory")
    config = setup.config()
    with Memory(options.path, **whose(options), config=config) as opened:
        opened.check_room()
        serve(memory_server(opened), opened.budget)


@mcp.command()
@click.option(
    "--here", is_flag=True, help="Serve the project that the server is started in, up to date at each search."
)
@collections_option
@setup_options()
def files(here: bool, collections: tuple[str, ...], setup: Setup) -> None:
    """Serve search, get, get_documents and status of indexed collections, without changing them."""
    from edge.apps.collection.collection import Together
    from edge.apps.collection.project import refresh
    from edge.apps.collection.registry import project_collection, project_root
    from edge.apps.mcp.protocol import load_sdk, serve
    from edge.apps.mcp.tools import files_server

    load_sdk()
    _greet("files")
    config = setup.config()
    root = project_root(collections) if here else ""
    if root:
        refresh(root, "", config)
    places = {"": str(project_collection(root))} if root else collections
    with Together.opened(places, config) as opened:
        opened.first.check_room("searching")
        serve(files_server(opened, root), opened.budget)


@mcp.command(context_settings={"ignore_unknown_options": True})
@click.argument("server", type=click.Choice(["files", "memory"]))
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[OPTIONS]...")
@click.option("--client", type=click.Choice([client.name for client in CLIENTS]), help="Print it for this client only.")
def config(server: str, options: tuple[str, ...], client: str | None) -> None:
    """Print the configuration of SERVER, ready to paste: for every known client, or for one.

    OPTIONS are those of `edge mcp SERVER`, such as `-c notes`.
    """
    _check(server, options)
    if client is not None:
        click.echo(configuration(client_named(client), {f"edge-{server}": ["mcp", server, *options]}))
        return
    for known in CLIENTS:
        project = f", or {known.project} in a project" if known.project else ""
        click.echo(f"# {known.name}: {known.settings()}{project}")
        click.echo(configuration(known, {f"edge-{server}": ["mcp", server, *options]}) + "\n")


def _check(server: str, options: Sequence[str]) -> None:
    """Refuses options that the server would refuse when the client starts it."""
    (memory if server == "memory" else files).make_context(server, list(options), click.get_current_context().parent)


def _greet(server: str) -> None:
    """Explains the server on stderr to a user that starts it by hand. Stdout belongs to the protocol."""
    if sys.stdin.isatty():
        own = sys.argv[sys.argv.index("mcp") + 1 :] if "mcp" in sys.argv else []
        click.echo(
            f"edge: this server talks to an MCP client on stdin and stdout; Ctrl-C ends it. A client is told of it by "
            f"(others: `edge mcp config {server}`):\n\n"
            + configuration(client_named("claude-desktop"), {f"edge-{server}": ["mcp", *own]})
            + "\n",
            err=True,
        )


_SERVERS = ("edge-files", "edge-memory")
_TABLE = re.compile(rf"\n?^\[mcp_servers\.(?:{'|'.join(_SERVERS)})\] *\n(?:[A-Za-z].*\n?)*", re.MULTILINE)
_SKILL = Path(__file__).with_name("skill.md")
_HOOK, _HOOK_S = "memory hook", 60
_EVENTS = {"SessionStart": {"matcher": "compact"}, "SessionEnd": {}}
"""Events of Claude Code at which a failure of the hook stops nothing."""


@dataclass(frozen=True, slots=True)
class Part:
    """A file of a client that holds something of ours: what puts it in, what takes it out, and what gives the rest, for
    comparisons; false if that is nothing."""

    file: Path
    put: Callable[[str], str]
    take: Callable[[str], str]
    rest: Callable[[str], object]

    @property
    def kept(self) -> Path:
        return self.file.with_name(f"{self.file.name}.before-edge")

    def after(self, before: bytes | None, *, remove: bool) -> bytes | None:
        """What the file is to hold; None for no file. Without ours it is the kept copy, unless something else has
        changed."""
        text = _decoded(self.file, before or b"")
        new = self.take(text) if remove else self.put(text)
        if new == text:
            return before
        old = _read(self.kept) if remove else None
        if old is not None and self.rest(_decoded(self.kept, old)) == self.rest(text):
            return old
        return new.encode() if self.rest(new) or not remove else None


@click.command()
@click.argument("client", type=click.Choice([client.name for client in CLIENTS]))
@click.option("--project", is_flag=True, help="Only for the project in the working directory.")
@click.option("--remove", is_flag=True, help="Take everything out again.")
@click.option("--yes", is_flag=True, help="Write without asking.")
@collections_option
def install(client: str, project: bool, remove: bool, yes: bool, collections: tuple[str, ...]) -> int:
    """Write the MCP servers of files and memory into the settings of CLIENT, with a skill that says when to use them.

    Claude Code also gets hooks: a conversation is remembered when it ends, and what was decided in it comes back after
    a compaction. The change is shown first, and the old file is kept beside it. Exit code 1 if you say no.
    """
    if not remove:
        from edge.apps.mcp.protocol import load_sdk

        load_sdk()
    places = located(collections).values() if collections else ()
    changes = []
    for part in _parts(client_named(client), project, [word for place in places for word in ("-c", place)]):
        before = _read(part.file)
        if (after := part.after(before, remove=remove)) != before:
            changes.append((part, before, after))
            old, new = ((each or b"").decode("utf-8", "replace").splitlines() for each in (before, after))
            for line in difflib.unified_diff(old, new, str(part.file), str(part.file), lineterm=""):
                click.echo(escaped(line))
    if not changes:
        click.echo(f"{client} has nothing of ours" if remove else f"{client} has everything already")
        return 0
    if not yes and not click.confirm("Write this?", err=True):
        return 1
    for part, before, after in changes:
        _write(part, before, after, remove, private=not project)
    click.echo(f"start {client} again", err=True)
    return 0


def _parts(client: AgentProgram, project: bool, options: Sequence[str]) -> list[Part]:
    if project and not client.project:
        raise InputError(f"{client.name} has no settings of a project: install it without --project")
    servers = dict(zip(_SERVERS, (["mcp", "files", *options], ["mcp", "memory"]), strict=True))
    settings, paste = _place(client.settings(project=project)), configuration(client, servers)

    def serving(document: dict[str, Any], put: bool) -> None:
        others = {name: value for name, value in document.get(client.style, {}).items() if name not in servers}
        _set(document, client.style, {**others, **(entries(client, servers) if put else {})})

    parts = [_toml(settings, paste) if client.style == "toml" else _json(settings, serving, paste)]
    if client.skills:
        parts.append(_skill(_place(client.skills[project], "edge-rag", "SKILL.md")))
    if client.hooks:
        command = {"type": "command", "command": f"{shlex.join(program())} {_HOOK}", "timeout": _HOOK_S}
        wanted = {event: {**more, "hooks": [command]} for event, more in _EVENTS.items()}

        def hooking(document: dict[str, Any], put: bool) -> None:
            hooks = dict(document.get("hooks", {}))
            for event, hook in wanted.items():
                _set(hooks, event, [*filter(_is_strange, hooks.get(event, [])), *([hook] if put else [])])
            _set(document, "hooks", hooks)

        paste = json.dumps({"hooks": {event: [hook] for event, hook in wanted.items()}}, indent=2)
        parts.append(_json(_place(client.hooks[project]), hooking, paste))
    return parts


def _is_strange(hook: dict[str, Any]) -> bool:
    return not any(str(each.get("command")).endswith(f" {_HOOK}") for each in hook.get("hooks", ()))


def _set(document: dict[str, Any], name: str, value: Any) -> None:
    if value:
        document[name] = value
    elif document.get(name):
        del document[name]


def _place(*parts: str | Path) -> Path:
    return Path(*parts).expanduser().absolute().resolve()


def _json(file: Path, edit: Callable[[dict[str, Any], bool], None], paste: str) -> Part:
    def edited(text: str, put: bool) -> str:
        try:
            document = json.loads(text or "{}")
            edit(document, put)
        except (ValueError, AttributeError, TypeError, RecursionError):
            raise _other(file, "no plain JSON object, perhaps it has comments", paste) from None
        if document == json.loads(text or "{}"):
            return text
        indent = re.search(r'^([ \t]+)"', text, re.MULTILINE)
        end = "\n" if text.endswith("\n") or not text else ""
        return json.dumps(document, indent=indent[1] if indent else 2, ensure_ascii=False) + end

    def rest(text: str) -> object:
        return {name: value for name, value in json.loads(edited(text, False) or "{}").items() if value}

    return Part(file, lambda text: edited(text, True), lambda text: edited(text, False), rest)


def _toml(file: Path, paste: str) -> Part:
    """At its end our tables stand."""

    def put(text: str) -> str:
        made = text if paste in text else f"{_TABLE.sub('', text).rstrip()}\n\n{paste}\n".lstrip()
        try:
            tomllib.loads(made)
        except tomllib.TOMLDecodeError:
            raise _other(file, "no TOML that the servers can be added to", paste) from None
        return made

    return Part(file, put, lambda text: _TABLE.sub("", text), lambda text: _TABLE.sub("", text).strip())


def _skill(file: Path) -> Part:
    ours = _SKILL.read_text(encoding="utf-8")
    first = ours[: ours.index("description")]

    def put(text: str) -> str:
        if text and not text.startswith(first):
            raise InputError(f"{file} is another skill: move it away first")
        return ours

    return Part(file, put, lambda text: "" if text.startswith(first) else text, lambda text: "")


def _other(file: Path, what: str, paste: str) -> InputError:
    click.echo(paste)
    return InputError(f"{file} is {what}: nothing was changed; the lines above can be added by hand")


def _read(file: Path) -> bytes | None:
    try:
        return read_small(file)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}") from error


def _decoded(file: Path, data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{file} is no text in UTF-8") from None


def _write(part: Part, before: bytes | None, after: bytes | None, remove: bool, *, private: bool) -> None:
    """Writes a file in its mode, or removes it; keeps what it was without ours, or removes that copy."""
    file, mode = part.file, None if before is None else part.file.stat().st_mode & 0o777
    if before is not None and not remove and part.take(text := _decoded(file, before)) == text:
        replace(part.kept, before, private=True)
        click.echo(escaped(f"the old file is in {part.kept}"), err=True)
    if after is None:
        file.unlink(missing_ok=True)
    else:
        replace(file, after, private=private)
        file.chmod(mode or file.stat().st_mode & 0o777)
    if remove:
        part.kept.unlink(missing_ok=True)
        with suppress(OSError):
            file.parent.rmdir()  # of a skill, or of settings that were made for it
    click.echo(escaped(f"{file} is {'removed' if after is None else 'written'}"), err=True)
