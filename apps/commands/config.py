"""`edge config show` prints every setting, with `--resolved` the source of each value; `edge config set` writes one."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import click

from edge.apps.options import CommandGroup, alike, json_option
from edge.config import Config, format_size, parsed, user_file
from edge.errors import ConfigError
from edge.files.named_file import read_small
from edge.files.sealed import replace
from edge.models.registry import DEFAULT_EMBEDDER, DEFAULT_RERANKER, installed, models_dir
from edge.runtimes.generation.extractive import ExtractiveGenerator
from edge.text.control_characters import escaped


@click.group(cls=CommandGroup)
def config() -> None:
    """Show and change settings."""


@config.command()
@click.option("--resolved", is_flag=True, help="Say where each value came from.")
@json_option
def show(resolved: bool, as_json: bool) -> None:
    """Print the settings in force here."""
    settings = Config.load()
    values = {f.name: getattr(settings, f.name) for f in fields(Config) if f.name != "sources"}
    values["llm_key"] = "(set)" if settings.llm_key else ""
    values["models_dir"] = str(models_dir(settings.models_dir or None))
    values["scratch_dir"] = str(settings.scratch_path)
    values["reranker"] = settings.reranker or DEFAULT_RERANKER
    values["embedder"] = settings.embedder or DEFAULT_EMBEDDER
    values["llm"] = settings.llm or ExtractiveGenerator.name
    file = user_file()
    if as_json:
        rows = {n: {"value": v, "source": settings.sources[n]} for n, v in values.items()} if resolved else values
        click.echo(json.dumps(rows))
        return
    for name, value in values.items():
        shown = format_size(value) if name == "memory" else value
        source = settings.sources[name]
        if name in ("reranker", "embedder"):
            source += f", {_place(value, settings.models_dir)}"
        click.echo(f"{name:13} {shown}" + (f"  ({source})" if resolved else ""))
    click.echo(escaped(f"your file     {file}{'' if file.exists() else '  (`edge config set` makes it)'}"))


@config.command("set")
@click.argument("name")
@click.argument("value")
def set_(name: str, value: str) -> None:
    """Write the setting NAME into your file. With an empty VALUE ('') it is taken out, and the default counts again."""
    known = [f.name for f in fields(Config) if f.name != "sources"]
    if name not in known:
        meant = f"did you mean {close[0]}?" if (close := alike(name, known)) else f"they are {', '.join(known)}"
        raise ConfigError(f"there is no setting {name!r}; {meant}")
    settings = Config.load(flags={name: value or None})  # which checks the file as it is, and the value
    file = user_file().resolve()
    text = read_small(file).decode("utf-8-sig") if file.exists() else ""
    checked = getattr(settings, name)
    written = checked if isinstance(checked, int) and name != "memory" else value
    line = f"{name} = {json.dumps(written, ensure_ascii=False)}\n" if value else ""
    old = re.search(rf"^[ \t]*{name}[ \t]*=.*(?:\n|$)", text, re.MULTILINE)
    if old is not None:
        changed = f"{text[: old.start()]}{line}{text[old.end() :]}"
    else:
        changed = f"{text}\n{line}" if text and not text.endswith("\n") else f"{text}{line}"
    if {**parsed(text, file), name: None} != {**parsed(changed, file), name: None}:
        raise ConfigError(f"{name} stands in several lines of {file}: change it there")
    try:
        data = changed.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{value!a} is not valid Unicode") from None
    replace(file, data, private=True)  # it may hold a key
    said = "(set)" if name == "llm_key" else value
    click.echo(escaped(f"{name} is {said} in {file}" if value else f"{name} is not in {file}"))


def _place(model: str, directory: str) -> str:
    path = dict(reversed(list(installed(directory or None)))).get(model)
    if path is None and (named := Path(model).expanduser()).exists():
        path = named.absolute()
    return f"in {path}" if path is not None else f"not installed: edge models pull {model}"
