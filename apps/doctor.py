"""`edge doctor`: what this machine and this installation can do, and what is missing."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shutil
from importlib.metadata import PackageNotFoundError, entry_points, version
from typing import Any

import click
import psutil

from edge.config import Config, format_size
from edge.errors import EdgeError
from edge.models.registry import DEFAULT_EMBEDDER, DEFAULT_RERANKER, models_dir, resolve

_LIBRARIES = {
    "numpy": "", "onnxruntime": "", "onnx": "", "tokenizers": "", "safetensors": "", "faiss-cpu": "",
    "llama-cpp-python": "llm", "mlx": "mlx", "torch": "torch", "mcp": "mcp",
}  # fmt: skip
"""Libraries and the extra that brings each; those without one belong to the base installation."""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(as_json: bool) -> int:
    """Check libraries, models, memory and disk; exit code 2 if ranking cannot work here."""
    config = Config.load()
    memory = psutil.virtual_memory()
    models = {name: _model(name, config) for name in (DEFAULT_RERANKER, DEFAULT_EMBEDDER)}
    libraries = {name: _version(name) for name in _LIBRARIES}
    scratch = config.scratch_path
    while not scratch.exists():
        scratch = scratch.parent
    report: dict[str, Any] = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": psutil.cpu_count(logical=False) or os.cpu_count(),
        "memory_total": memory.total,
        "memory_available": memory.available,
        "memory_limit": config.memory,
        "scratch_free": shutil.disk_usage(scratch).free,
        "models_dir": str(models_dir(config.models_dir or None)),
        "libraries": libraries,
        "runtimes": sorted(entry.name for entry in entry_points(group="edge.runtimes") if _usable(entry.name)),
        "models": models,
    }
    broken = [name for name, extra in _LIBRARIES.items() if not extra and libraries[name] is None]
    if as_json:
        click.echo(json.dumps(report))
    else:
        _print(report)
    return 2 if broken or models[DEFAULT_RERANKER] != "ok" else 0


def _print(report: dict[str, Any]) -> None:
    click.echo(f"python       {report['python']} on {report['system']}, {report['cores']} cores")
    free, total = format_size(report["memory_available"]), format_size(report["memory_total"])
    click.echo(f"memory       {free} of {total} available; limit in force {format_size(report['memory_limit'])}")
    click.echo(f"scratch      {format_size(report['scratch_free'])} free for offloaded hidden states")
    click.echo(f"runtimes     {', '.join(report['runtimes'])}")
    for name, found in report["libraries"].items():
        extra = _LIBRARIES[name]
        missing = f"not installed (pip install 'edge-rag[{extra}]')" if extra else "MISSING: pip install edge-rag"
        click.echo(f"{name:20} {found or missing}")
    for name, state in report["models"].items():
        click.echo(f"{name:28} {state}")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _usable(runtime: str) -> bool:
    needs = {"onnx": "onnxruntime", "mlx": "mlx"}.get(runtime)
    return needs is None or importlib.util.find_spec(needs) is not None


def _model(name: str, config: Config) -> str:
    try:
        resolve(name, directory=config.models_dir or None).close()
    except EdgeError as error:
        return "missing: " + str(error).rsplit("; ", 1)[-1]
    return "ok"
