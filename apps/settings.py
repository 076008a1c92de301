"""`edge config show`: every setting, and with `--resolved` where its value came from."""

from __future__ import annotations

import json
from dataclasses import fields

import click

from edge.config import Config, format_size
from edge.models.registry import models_dir


@click.group()
def config() -> None:
    """Show settings."""


@config.command()
@click.option("--resolved", is_flag=True, help="Say where each value came from.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def show(resolved: bool, as_json: bool) -> None:
    """Print the settings in force here."""
    settings = Config.load()
    values = {f.name: getattr(settings, f.name) for f in fields(Config) if f.name != "sources"}
    values["llm_key"] = "(set)" if settings.llm_key else ""
    values["models_dir"] = str(models_dir(settings.models_dir or None))
    values["scratch_dir"] = str(settings.scratch_path)
    if as_json:
        rows = {n: {"value": v, "source": settings.sources[n]} for n, v in values.items()} if resolved else values
        click.echo(json.dumps(rows))
        return
    for name, value in values.items():
        shown = format_size(value) if name == "memory" else value
        click.echo(f"{name:12} {shown}" + (f"  ({settings.sources[name]})" if resolved else ""))
