"""`edge remove` and `edge compact`: take files out of a collection, and give their space back."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from edge.apps.collection.collection import Collection
from edge.apps.collection.place import locate
from edge.apps.collection.roots import resolved
from edge.apps.collection.scopes import nearest
from edge.apps.files.shown import shown
from edge.apps.options import collection_option, configure
from edge.apps.troubles import told
from edge.config import format_size
from edge.errors import StorageError

_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@collection_option
@_json_option
def remove(paths: tuple[str, ...], collection: Path | None, as_json: bool) -> int:
    """Take files, or folders with all below them, out of the index; exit code 1 if none of them was in it.

    Nothing on disk is touched. A removed folder is not watched or indexed any more. What lies below a folder that stays
    indexed comes back with the next `edge index`, unless a .gitignore or .edgeignore names it.
    """
    with told(_opened(collection)) as opened:
        removed = opened.delete(list(paths))
        roots = frozenset(opened.roots)
    coming_back = [path for path in paths if os.path.exists(path) and nearest(resolved(path), roots) is not None]
    if removed and coming_back:
        others = f" and {len(coming_back) - 1:,} others" if len(coming_back) > 1 else ""
        click.echo(
            f"edge: {shown(coming_back[0])}{others} will come back with the next `edge index`, because a folder above "
            f"is indexed; name it in that folder's .edgeignore to keep it out",
            err=True,
        )
    click.echo(json.dumps({"removed": removed}) if as_json else f"removed {removed:,} files")
    return 0 if removed else 1


@click.command()
@click.option("--memory", help="Memory limit of the whole process, such as 300MB; `edge doctor` shows the smallest.")
@collection_option
@_json_option
def compact(memory: str | None, collection: Path | None, as_json: bool) -> None:
    """Give back the space of what was removed, and bring the index into its best shape."""
    path = locate(collection)
    before = _nbytes(path)
    with told(_opened(collection, memory)) as opened:
        alone = opened.compact()
    after = _nbytes(path)  # closing gives SQLite's log back
    if as_json:
        click.echo(json.dumps({"bytes_before": before, "bytes_after": after}))
        return
    freed = f"gave {format_size(before - after)} back: " if before > after else "nothing to give back: "
    rest = "" if alone else "; the old vector lists go later, because another process is reading"
    click.echo(f"{freed}{format_size(after)}{rest}")


def _opened(chosen: Path | None, memory: str | None = None) -> Collection:
    """The collection, which must be there already.

    Raises:
        StorageError: it is not.
    """
    path = locate(chosen)
    if not Collection.exists(path):
        raise StorageError(f"there is no collection in {path}; `edge index DIR` makes one")
    return Collection(path, config=configure(memory=memory))


def _nbytes(path: Path) -> int:
    """Bytes of a collection's files."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
