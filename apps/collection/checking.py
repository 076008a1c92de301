"""`edge check`: whether a collection's stored data is undamaged, and otherwise which files are affected."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence, Set
from contextlib import suppress
from pathlib import Path
from typing import cast

import apsw
import numpy as np
import numpy.typing as npt

from edge.apps.collection.catalog import groups, verify_text
from edge.apps.collection.collection import DATABASE, Collection
from edge.apps.collection.registry import existing_collection
from edge.apps.collection.schema import FULL_TEXT
from edge.apps.store.checking import CheckReport, check_file, check_full_text, check_log, check_tables, check_vectors
from edge.apps.store.failures import DamagedStore, StoreUnavailable
from edge.apps.store.health import note
from edge.apps.store.pages import PAGE
from edge.apps.store.salvage import Wreck
from edge.budget import MemoryBudget
from edge.config import Config
from edge.connection import Connection
from edge.errors import EdgeError, StorageError
from edge.ivf.base import Ids

VERBS = "edge"


def check(
    path: Path, *, config: Config, budget: MemoryBudget, read_data: bool = False, noting: bool = True
) -> CheckReport:
    """Checks everything that a collection stores. Changes nothing, except that damage is recorded in the collection if
    possible, so that every later command reports it.

    Args:
        noting: whether to record damage in the collection.
        read_data: whether to read every byte. Otherwise the check only tests that files exist and that the database's
            tables agree.

    Raises:
        StorageError: there is no collection, or it cannot be opened for a reason other than damage.
        BudgetExceeded: the limit is too small.
    """
    existing_collection(path)
    report = CheckReport(path, read_data)
    check_file(report, path / DATABASE)
    try:
        with Collection(path, config=config, budget=budget, read_only=True) as collection:
            _check(report, collection)
            known = {trouble.kind: trouble for trouble in collection.health()}
    except StoreUnavailable:
        raise
    except StorageError as error:
        report.add("database", str(error).split("; `")[0])
        return report.end()
    if "lost commits" in known:
        report.add("commits", known["lost commits"].text)
    if noting and not report.sound and "damaged" not in known:
        _note(report, path, config, budget)
    return report.end()


def _check(report: CheckReport, collection: Collection) -> None:
    database = collection.database
    with database.read() as db:
        check_log(report, db, database.path)
        check_tables(report, db, database.path, VERBS)
        ids = _check_texts(report, db, database.path)
        check_full_text(report, db, FULL_TEXT, ids)
        index = collection.vectors
        if index is None:
            return
        rebuilding = any(trouble.kind == "rebuilding" for trouble in collection.health())
        missing = check_vectors(report, db, index, None if rebuilding else ids)
        if missing:
            report.add("vectors", f"{len(missing):,} passages have no vector that can be read", _files_of(db, missing))


def _check_texts(report: CheckReport, db: Connection, path: Path) -> Ids:
    """Compares every passage with its hash; returns the ids of the readable passages."""
    wreck = Wreck(cast(apsw.Connection, db), path.stat().st_size // PAGE)
    seen = array("q")  # three numbers for each passage: its id, its file, its ordinal
    broken: set[int] = set()
    for identifier, file, ordinal, context, text, stored in wreck.rows(
        "chunks", ("id", "file", "ordinal", "context", "text", "hash")
    ):
        if not (isinstance(file, int) and isinstance(ordinal, int)):  # damage that no page checksum revealed
            wreck.lost["chunks"] += 1
            continue
        seen.extend((identifier, file, ordinal))
        if report.read_data:
            try:
                verify_text(identifier, context, text, stored)
            except DamagedStore:
                broken.add(file)
    whole = array("q")  # completely indexed files: none of their passages may be missing
    known = array("q")
    for file, content in wreck.rows("files", ("id", "hash")):
        known.append(file)
        if content is not None:
            whole.append(file)
    table: npt.NDArray[np.int64] = np.frombuffer(seen, np.int64).reshape(-1, 3)
    of_file, place = table[:, 1], table[:, 2]
    files, each, count = np.unique(of_file, return_inverse=True, return_counts=True)
    last = np.full(len(files), -1, np.int64)
    np.maximum.at(last, each.reshape(-1), place)
    missing = (count != last + 1) & np.isin(files, np.frombuffer(whole, np.int64))
    unknown = ~np.isin(files, np.frombuffer(known, np.int64))
    broken.update(files[missing | unknown].tolist())
    lost = wreck.lost["chunks"] + wreck.lost["files"]
    if lost:
        report.add("texts", f"at {lost:,} places passages or files cannot be read", _names(wreck, broken))
    elif broken:
        report.add("texts", "passages are missing or not what was stored", _names(wreck, broken))
    return np.array(table[:, 0], np.int64)


def _names(wreck: Wreck, files: Set[int]) -> Iterator[str]:
    """Paths of the files with these ids, and `an unknown file` if some have no path."""
    named = 0
    for file, path in wreck.rows("files", ("id", "path")):
        if file in files:
            named += 1
            yield str(path)
    if named < len(files):
        yield "an unknown file"


def _files_of(db: Connection, ids: Sequence[int]) -> set[str]:
    """Paths of the files that these passages belong to."""
    found: set[str] = set()
    for group in groups(ids):
        marks = ", ".join("?" * len(group))
        sql = f"SELECT DISTINCT path FROM chunks JOIN files ON files.id = chunks.file WHERE chunks.id IN ({marks})"
        with suppress(apsw.Error):
            found.update(str(row[0]) for row in db.execute(sql, group))
    return found


def _note(report: CheckReport, path: Path, config: Config, budget: MemoryBudget) -> None:
    # A collection that is not writable reports this itself, so errors are suppressed.
    with (
        suppress(EdgeError),
        Collection(path, config=config, budget=budget) as collection,
        collection.database.write() as db,
    ):
        note(db, report.trouble(VERBS))
