"""`edge config show`: prints every setting, and with `--resolved` the source of its value."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import click

from edge.apps.options import CommandGroup, json_option
from edge.config import Config, format_size
from edge.models.registry import DEFAULT_EMBEDDER, DEFAULT_RERANKER, installed, models_dir
from edge.runtimes.generation.extractive import ExtractiveGenerator


@click.group(cls=CommandGroup)
def config() -> None:
    """Show settings."""


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
    if as_json:
        rows = {n: {"value": v, "source": settings.sources[n]} for n, v in values.items()} if resolved else values
        click.echo(json.dumps(rows))
        return
    for name, value in values.items():
        shown = format_size(value) if name == "memory" else value
        source = settings.sources[name]
        if name in ("reranker", "embedder"):
            source += f", {_place(value, settings.models_dir)}"
        click.echo(f"{name:12} {shown}" + (f"  ({source})" if resolved else ""))


def _place(model: str, directory: str) -> str:
    """The path of a model, or the command that fetches it."""
    path = dict(reversed(list(installed(directory or None)))).get(model)
    if path is None and (named := Path(model).expanduser()).exists():
        path = named.absolute()
    return f"in {path}" if path is not None else f"not installed: edge models pull {model}"
