"""Programs in processes of their own: `edge` with tiny models and none of the machine's settings, and Python code."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from click import Command
from click.testing import CliRunner
from making.synth import synth

from edge.config import Config

EDGE = (sys.executable, "-c", "from edge.apps.cli import main; main()")
"""The command `edge` of the code under test, whether it is installed or not."""


def write_tiny_models(folder: Path) -> Path:
    """Writes the reranker `tiny` and the embedder `tiny-embedder` into a models directory, and returns it."""
    synth("tiny-bert", folder / "tiny").close()
    synth("tiny-bert-embedder", folder / "tiny-embedder").close()
    return folder


def settings_of(home: Path, **own: str) -> dict[str, str]:
    """Environment variables that choose the tiny models of `home / "models"` and keep all folders of `edge` in `home`,
    and `own` ones."""
    return {
        "EDGE_MODELS_DIR": str(home / "models"), "EDGE_SCRATCH_DIR": str(home / "scratch"), "EDGE_RERANKER": "tiny",
        "EDGE_EMBEDDER": "tiny-embedder", "XDG_CONFIG_HOME": str(home / "config"),
        "XDG_CACHE_HOME": str(home / "cache"), "XDG_DATA_HOME": str(home / "data"),
        "XDG_STATE_HOME": str(home / "state"),
    } | own  # fmt: skip


def config_of(models: Path, scratch: Path, *, memory: int = 10**11, threads: int = 0) -> Config:
    """A configuration with the tiny models of a models directory, and by default more memory than any test needs."""
    return Config(
        memory=memory,
        threads=threads,
        embedder="tiny-embedder",
        reranker="tiny",
        models_dir=str(models),
        scratch_dir=str(scratch),
    )


def environment_of(home: Path, **own: str) -> dict[str, str]:
    """The environment of this process without its `EDGE_*` variables, and with `settings_of(home)`."""
    return {name: value for name, value in os.environ.items() if not name.startswith("EDGE_")} | settings_of(
        home, **own
    )


def printed(program: str, *arguments: str, folder: Path | None = None) -> str:
    """The output of Python code that runs in a new interpreter, in `folder`, and that must end with exit code 0."""
    command = [sys.executable, "-c", textwrap.dedent(program), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def output_of(command: Command, *arguments: str, stdin: str | None = None) -> str:
    """The output of a command of `edge` that runs in this process and must succeed. Its errors are raised."""
    done = CliRunner().invoke(command, arguments, input=stdin, standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    return done.stdout
