"""`edge memory check`, `repair`, `backup` and `restore`: whether a memory is what was written, and bringing it back."""

from __future__ import annotations

from pathlib import Path

import click

from edge.apps.findings import print_check, print_copied, print_repair
from edge.apps.memory.checking import VERBS, Opener
from edge.apps.memory.checking import check as check_memory
from edge.apps.memory.memory import Memory
from edge.apps.memory.repairing import repair as repair_memory
from edge.apps.memory.store import DATABASE, default_path, holds_memory
from edge.apps.options import configure, engine_options
from edge.apps.progress import ProgressBar
from edge.apps.store.backup import Store, back_up
from edge.apps.store.backup import restore as put_back
from edge.budget import MemoryBudget
from edge.config import Config
from edge.errors import InputError

_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
_path = click.option("--path", type=click.Path(file_okay=False, path_type=Path), help="Directory of the memory.")


@click.command()
@click.option("--read-data", is_flag=True, help="Read every stored byte, not only the database's tables.")
@_path
@_json
@engine_options
def check(
    read_data: bool, path: Path | None, as_json: bool, memory: str | None, runtime: str | None, threads: int | None
) -> int:
    """Look whether the memory, of all users, agents and sessions, is what was written; exit code 2 if it is not.

    Nothing is changed; `edge memory repair` brings back what it can.
    """
    config = configure(memory=memory, runtime=runtime, threads=threads)
    report = check_memory(*_opener(path, config), read_data=read_data)
    return print_check(report, VERBS, as_json)


@click.command()
@_path
@_json
@engine_options
def repair(path: Path | None, as_json: bool, memory: str | None, runtime: str | None, threads: int | None) -> int:
    """Bring a damaged memory back, from what can still be read of it.

    A copy of what was damaged is kept in a folder beside it. Exit code 2 if something stays damaged.
    """
    config = configure(memory=memory, runtime=runtime, threads=threads)
    with ProgressBar(" texts") as bar:
        report = repair_memory(*_opener(path, config), budget=MemoryBudget(config.memory), progress=bar)
    return print_repair(report, VERBS, as_json)


@click.command()
@click.argument("target", metavar="DEST", type=click.Path(path_type=Path))
@_path
@_json
def backup(target: Path, path: Path | None, as_json: bool) -> None:
    """Copy the memory, of all users, agents and sessions, into the new folder DEST; others may go on writing."""
    nbytes = back_up(_store(path), target.absolute())
    print_copied(nbytes, f"copied to {target}", as_json)


@click.command()
@click.argument("source", metavar="SRC", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Put the backup in the place of a memory that is there.")
@_path
@_json
def restore(source: Path, force: bool, path: Path | None, as_json: bool) -> None:
    """Put the backup in SRC back; every byte of it is verified before."""
    store = _store(path)
    nbytes = put_back(store, source.absolute(), force=force)
    print_copied(nbytes, f"restored to {store.path}", as_json)


def _opener(path: Path | None, config: Config) -> tuple[Path, Opener]:
    """The folder of a memory that is there, and what opens it for all scopes.

    Raises:
        InputError: there is none.
    """
    place = (path or default_path()).absolute()
    if not holds_memory(place):
        raise InputError(f"there is no memory in {place}: `edge memory add` makes one, --path names another place")
    return place, lambda: Memory(place, config=config)


def _store(path: Path | None) -> Store:
    return Store("memory", (path or default_path()).absolute(), DATABASE, VERBS)
