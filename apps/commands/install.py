"""`edge install`: the MCP servers, a skill and hooks in the settings of a coding agent, and out of them again."""

from __future__ import annotations

import difflib
import json
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from edge.apps.collection.registry import located
from edge.apps.mcp.command import CLIENTS, AgentProgram, client_named, configuration, entries, program
from edge.apps.options import collections_option
from edge.errors import InputError
from edge.files.input_file import read_small
from edge.files.sealed import replace
from edge.text.control_characters import escaped

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_SERVERS = ("edge-files", "edge-memory")
_TABLE = re.compile(rf"\n?^\[mcp_servers\.(?:{'|'.join(_SERVERS)})\] *\n(?:[A-Za-z].*\n?)*", re.MULTILINE)
_SKILL = Path(__file__).parents[1] / "mcp" / "skill.md"
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
