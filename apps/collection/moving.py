"""A folder that was moved with the collection in it: the paths of its files move with it, and no file is read again."""

from __future__ import annotations

import os
from pathlib import Path

from edge.apps.collection.catalog import TEXT_ROOT, files_below
from edge.apps.collection.paths import ancestors, below, contains, on_disk
from edge.apps.collection.registry import PROJECT
from edge.apps.collection.schema import read_roots
from edge.apps.store.rows import ROW_SUM
from edge.ivf.base import Connection

_LOOKED_AT = 50

_ENOUGH = 0.8
"""The share of files of a missing root that must be below the collection's folder, in the same size."""


def follow_move(db: Connection, collection: Path) -> None:
    """Changes all paths of a collection that was moved with its folder, such as `notes` with `notes/.edge`."""
    here = str(collection.parent)
    roots = read_roots(db)
    if collection.name != PROJECT or any(contains(here, root) for root in roots):
        return
    for root in roots:
        if not os.path.lexists(root) and (old := _place_before(db, root, here)) is not None:
            _move(db, old, here)
            return


def _place_before(db: Connection, root: str, here: str) -> str | None:
    condition, params = files_below(root)
    rows = db.execute(
        f"SELECT path, size FROM files WHERE {condition} AND status = 'indexed' ORDER BY id LIMIT ?",
        (*params, _LOOKED_AT),
    ).fetchall()
    for old in (root, *ancestors(root)):
        if old == os.path.dirname(old):
            break
        same = sum(_is_of_size(here + path[len(old) :], size) for path, size in rows)
        if rows and same >= _ENOUGH * len(rows):
            return old
    return None


def _is_of_size(path: str, size: int) -> bool:
    try:
        return os.stat(on_disk(path)).st_size == size
    except (OSError, ValueError):
        return False


def _move(db: Connection, old: str, new: str) -> None:
    moved, rest = "? || substr({0}, ?)", (new, len(old) + 1)
    condition, params = below(old)
    path = moved.format("path")
    db.execute(
        f"UPDATE files SET path = {path}, root = CASE WHEN {below(old)[0].replace('path', 'root')} THEN "
        f"{moved.format('root')} ELSE root END, checksum = {ROW_SUM}('files', {path}, kind, title) "
        f"WHERE root <> ? AND {condition}",
        (*rest, *params, *rest, *rest, TEXT_ROOT, *params),
    )
    for table in ("roots", "descriptions"):
        db.execute(f"UPDATE {table} SET path = {path} WHERE {condition}", (*rest, *params))
    db.execute("DELETE FROM settings WHERE name = 'mounts'")
