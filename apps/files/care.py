"""`edge check`, `repair`, `backup` and `restore`: whether a collection is what was written, and bringing it back."""

from __future__ import annotations

from pathlib import Path

import click

from edge.apps.collection.checking import check as check_collection
from edge.apps.collection.collection import DATABASE
from edge.apps.collection.lock import WriterLock
from edge.apps.collection.place import locate
from edge.apps.collection.repairing import repair as repair_collection
from edge.apps.files.index import allowed_roots
from edge.apps.findings import print_check, print_copied, print_repair
from edge.apps.options import collection_option, configure, engine_options
from edge.apps.progress import ProgressBar
from edge.apps.store.backup import Store, back_up
from edge.apps.store.backup import restore as put_back
from edge.apps.store.checking import checking_budget
from edge.apps.store.database import make_folder
from edge.budget import MemoryBudget

_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.command()
@click.option("--read-data", is_flag=True, help="Read every stored byte, not only the database's tables.")
@click.option("--memory", help="Memory limit of the whole process, such as 300MB; `edge doctor` shows the smallest.")
@collection_option
@_json_option
def check(read_data: bool, memory: str | None, collection: Path | None, as_json: bool) -> int:
    """Look whether the index is what was written; exit code 2 if it is not.

    Names what is damaged and the files it came from. Nothing is changed; `edge repair` brings it back.
    """
    config = configure(memory=memory)
    path = locate(collection)
    budget = checking_budget(config.memory, path / DATABASE, "chunks")
    report = check_collection(path, config=config, budget=budget, read_data=read_data)
    return print_check(report, "edge", as_json)


@click.command()
@collection_option
@engine_options
@_json_option
def repair(collection: Path | None, memory: str | None, runtime: str | None, threads: int | None, as_json: bool) -> int:
    """Bring a damaged index back: from what can still be read of it, and from the indexed files.

    A copy of what was damaged is kept in a folder beside it. Exit code 2 if something stays damaged.
    """
    config = configure(memory=memory, runtime=runtime, threads=threads)
    path = locate(collection)
    with ProgressBar(" passages") as bar:
        report = repair_collection(
            path,
            config=config,
            budget=MemoryBudget(config.memory),
            roots=lambda opened: allowed_roots(opened, collection),
            progress=bar,
        )
    return print_repair(report, "edge", as_json)


@click.command()
@click.argument("target", metavar="DEST", type=click.Path(path_type=Path))
@collection_option
@_json_option
def backup(target: Path, collection: Path | None, as_json: bool) -> None:
    """Copy the index into the new folder DEST, as it is at one moment; others may go on writing."""
    nbytes = back_up(_store(collection), target.absolute())
    print_copied(nbytes, f"copied to {target}", as_json)


@click.command()
@click.argument("source", metavar="SRC", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Put the backup in the place of an index that is there.")
@collection_option
@_json_option
def restore(source: Path, force: bool, collection: Path | None, as_json: bool) -> None:
    """Put the backup in SRC back; every byte of it is verified before."""
    store = _store(collection)
    make_folder(store.path)
    with WriterLock(store.path / "writer.lock")():
        nbytes = put_back(store, source.absolute(), force=force)
    print_copied(nbytes, f"restored to {store.path}", as_json)


def _store(collection: Path | None) -> Store:
    return Store("collection", locate(collection), DATABASE, "edge")
