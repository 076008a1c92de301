"""A project that is searched without `edge index` before: `refresh` at each search, `complete` in the background."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

from edge.apps.collection.registry import project_collection, projects_folder
from edge.apps.store.connections import LOCK, WriterLock
from edge.budget import MemoryBudget
from edge.config import Config
from edge.errors import BudgetExceeded, EdgeError, ModelError, StoreBusy
from edge.interpreter import FORKED, python
from edge.models.registry import models_dir

_LOCK, _FAILURE = "background.lock", "background.failure"
_PATIENCE = 2.0
_NICE = 10  # One that starves while it holds a lock would make searches wait.


def refresh(root: str, query: str, config: Config, budget: MemoryBudget | None = None) -> None:
    """Brings the collection of a project up to date, with a part of the files at once; not while somebody else changes
    it. The rest is left to a process in the background."""
    from edge.apps.collection.collection import Collection

    with Collection(project_collection(root), config=config, budget=budget) as collection:
        with suppress(StoreBusy):
            collection.refresh(root, query)
        left = {trouble.kind for trouble in collection.health()} & {"indexing", "rebuilding"}
    settings = {"memory": config.memory, "models_dir": config.models_dir, "embedder": config.embedder}
    if left and (left != {"rebuilding"} or not _has_failed(collection.path, settings)):
        _go_on(collection.path, settings)


def _has_failed(collection: Path, settings: dict[str, Any]) -> bool:
    """Whether the background could not make vectors with these settings and models."""
    failure, models = collection / _FAILURE, models_dir(settings["models_dir"] or None)
    with suppress(OSError):
        newest = models.stat().st_ctime_ns if models.exists() else 0
        return failure.stat().st_mtime_ns > newest and failure.read_text() == json.dumps(settings)
    return False


def _go_on(collection: Path, settings: dict[str, Any]) -> None:
    """Starts a process that reads the rest and makes the vectors, at a low priority; nothing if one runs, or where
    a process cannot outlive its parent: then every search reads a part."""
    if not hasattr(os, "fork") or WriterLock(collection / _LOCK).is_held():
        return
    code = f"{FORKED}from edge.apps.collection.project import complete\ncomplete(*sys.argv[1:])"
    subprocess.run(
        python(code, str(collection), json.dumps(settings)), cwd=collection, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True,
    )  # fmt: skip


def complete(path: str, settings: str) -> None:
    """The work of the process in the background."""
    from edge.apps.collection.collection import Collection

    os.nice(_NICE)
    config = Config.load(flags=json.loads(settings))
    with suppress(StoreBusy), WriterLock(Path(path) / _LOCK)(0), Collection(path, config=config) as own:
        try:
            own.complete()
        except (BudgetExceeded, ModelError):  # in vain until something else is set or there
            (own.path / _FAILURE).write_text(settings)


def abandoned(config: Config) -> dict[Path, str]:
    """The collections of projects whose folders are gone, or on a disk that is not there, with these folders."""
    from edge.apps.collection.collection import Collection

    found: dict[Path, str] = {}
    for path in sorted(projects_folder().glob("*")):
        with suppress(EdgeError), Collection(path, config=config, read_only=True) as collection:
            roots = collection.roots
            if roots and not any(map(os.path.lexists, roots)):
                found[path] = roots[0]
    return found


def drop(collection: Path) -> None:
    """Deletes a project's collection. Raises `StoreBusy` while somebody changes it, or the background has it open."""
    gone = collection
    with WriterLock(collection / _LOCK)(_PATIENCE), WriterLock(collection / LOCK)(_PATIENCE):
        if os.name == "posix":  # elsewhere no background starts now, and a file that is open cannot be moved
            gone = collection.with_name(f"{collection.name}.gone")
            shutil.rmtree(gone, ignore_errors=True)  # left by one that was killed
            collection.rename(gone)
    shutil.rmtree(gone)
