"""`edge check` and `edge repair`: whether a collection's stored data is undamaged, which files are affected, and the
restoration from its readable rows and from the files themselves."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import apsw
import numpy as np
import numpy.typing as npt

from edge.apps.collection.catalog import PLACE, TEXT_ROOT, groups, passage, verify_file, verify_place, verify_text
from edge.apps.collection.collection import DATABASE, SEGMENTS, Collection
from edge.apps.collection.registry import existing_collection
from edge.apps.collection.schema import FULL_TEXT, migrations
from edge.apps.store.checking import CheckReport, check_file, check_full_text, check_tables, check_vectors
from edge.apps.store.database import Database
from edge.apps.store.failures import DamagedStore, StoreUnavailable
from edge.apps.store.health import note
from edge.apps.store.lexical import LexicalIndex
from edge.apps.store.rebuilding import Progress
from edge.apps.store.repairing import Mending, RepairReport, bring_index, end_damage, in_batches, repair_database
from edge.apps.store.salvage import Wreck
from edge.budget import MemoryBudget
from edge.config import Config, counted
from edge.errors import EdgeError, StorageError
from edge.ivf.base import Ids
from edge.ivf.storage.connection import Connection

VERBS = "edge"

_FILE = (
    "id", "path", "root", "size", "mtime_ns", "hash", "kind", "title", "status", "reason", "due", "racy",
    "inode", "ctime_ns", "checksum",
)  # fmt: skip
_CHUNK = (
    "id", "file", "ordinal", "text", "context", "line_start", "line_end", "page", "hash", "lines", "kinds", "checksum",
)  # fmt: skip

Roots = Callable[[Collection], list[str]]


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
    if noting and not report.sound and "damaged" not in known:
        _note(report, path, config, budget)
    return report.end()


def _check(report: CheckReport, collection: Collection) -> None:
    database = collection.database
    with database.read() as db:
        check_tables(report, db, database.path, VERBS)
        ids = _check_texts(report, db, database.path)
        check_full_text(report, db, FULL_TEXT, ids)
        index = collection.vectors
        if index is None:
            return
        rebuilding = any(trouble.kind == "rebuilding" for trouble in collection.health())
        missing = check_vectors(report, db, index, None if rebuilding else ids)
        if missing:
            report.add(
                "vectors",
                f"{counted(len(missing), 'passage')} without a vector that can be read",
                _files_of(db, missing),
            )


def _check_texts(report: CheckReport, db: Connection, path: Path) -> Ids:
    """Compares every passage with its hash; returns the ids of the readable passages."""
    wreck = Wreck(cast(apsw.Connection, db), path.stat().st_size)
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
        report.add("texts", f"at {counted(lost, 'place')} passages or files cannot be read", _names(wreck, broken))
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


def repair(
    path: Path, *, config: Config, budget: MemoryBudget, roots: Roots, progress: Progress | None = None
) -> RepairReport:
    """Checks every stored byte of a collection and repairs damage: the database from its readable rows, the full-text
    index, the vectors, and lost passages from the files. Copies of the damaged files are kept.

    Args:
        roots: returns the folders that may be read again.
        progress: called with the number of passages whose vectors are made, and their total.

    Raises:
        StorageError: there is no collection, or the disk refuses.
        ModelError: the embedder is missing; completed steps of the repair stay.
        BudgetExceeded: the limit is too small.
    """
    existing_collection(path)
    bringing = _Bringing()
    before, kept = repair_database(
        path / DATABASE, migrations(), bringing,
        lambda: check(path, config=config, budget=budget, read_data=True, noting=False), budget=budget, verbs=VERBS,
    )  # fmt: skip
    actions = [*bringing.said]
    with Collection(path, config=config, budget=budget) as collection:
        kept = _mend_vectors(collection, kept, actions, progress)
        _read_again(collection, roots(collection), actions)
        with collection.database.write() as db:
            end_damage(db)
    after = check(path, config=config, budget=budget, read_data=True)
    return RepairReport(before, after, actions, kept)


class _Bringing:
    """Copies the readable rows of a collection into a new database.

    Attributes:
        said: sentences about the losses and their remedies.
    """

    def __init__(self) -> None:
        self.said: list[str] = []
        self._lexical = LexicalIndex(FULL_TEXT)

    def __call__(self, wreck: Wreck, new: Database) -> None:
        self.said.clear()  # `make_again` calls this again if another process has written meanwhile
        files = self._files(wreck, new)
        passages, wrong = self._passages(wreck, new, set(files))
        embedder = [row for row in wreck.small("settings", ("name", "value")) if row[0] == "embedder"]
        index = bool(embedder) and bring_index(wreck, new)
        lost = wreck.lost["chunks"] + wreck.lost["files"] + wrong
        with new.write() as db:
            db.executemany("INSERT OR REPLACE INTO settings VALUES (?, ?)", embedder)
            if not index and passages:
                db.execute("INSERT OR REPLACE INTO settings VALUES ('rebuilding', '0')")
            if lost:
                db.execute("UPDATE files SET hash = NULL, due = 1 WHERE root <> ?", (TEXT_ROOT,))
        held = f"{counted(len(files), 'file')} and {counted(passages, 'passage')}"
        self.said.append(f"a new database holds {held} of the damaged one")
        if lost:
            what = "passages may be" if wreck.searched else f"at {counted(lost, 'place')} passages were"
            self.said.append(f"{what} lost; their files are read again")
            self._name_texts(new)
        if not index and passages:
            self.said.append("all vectors are made again")

    def _files(self, wreck: Wreck, new: Database) -> dict[int, str]:
        files: dict[int, str] = {}
        roots = {row[0] for row in wreck.small("roots", ("path",)) if isinstance(row[0], str)}
        marks = ", ".join("?" * len(_FILE))
        for some in in_batches(wreck.rows("files", _FILE, _is_file)):
            with new.write() as db:
                for row in some:
                    if not _is_file(row):
                        continue
                    with suppress(apsw.ConstraintError):  # a row that the table rejects was damaged
                        db.execute(f"INSERT INTO files({', '.join(_FILE)}) VALUES ({marks})", row)
                        files[row[0]] = row[1]
                        roots |= {row[2]} - {TEXT_ROOT}
        # If a row is lost, the index on paths may still hold its path.
        found = [(row[1], row[0]) for row in wreck.small("files", ("path", "id"), order=True) if row[1] not in files]
        texts = {file: path for file, path in found if not Path(path).is_absolute()}
        with new.write() as db:
            sql = (
                "INSERT OR IGNORE INTO files(id, path, root, size, mtime_ns, status) VALUES (?, ?, ?, 0, 0, 'indexed')"
            )
            db.executemany(sql, [(file, path, TEXT_ROOT) for file, path in texts.items()])
        files |= texts
        with new.write() as db:
            db.executemany("INSERT OR IGNORE INTO roots VALUES (?)", [(root,) for root in roots])
        return files

    def _passages(self, wreck: Wreck, new: Database, files: set[int]) -> tuple[int, int]:
        """Copies passages; returns how many, and how many differed from their hashes."""
        brought = wrong = 0
        marks = ", ".join("?" * len(_CHUNK))
        for some in in_batches(wreck.rows("chunks", _CHUNK, _is_sound)):
            good = [row for row in some if row[1] in files and _is_sound(row)]
            with new.write() as db:
                db.executemany(f"INSERT OR IGNORE INTO chunks({', '.join(_CHUNK)}) VALUES ({marks})", good)
                self._lexical.add(db, [row[0] for row in good], [passage(row[4], row[3]) for row in good])
            brought += len(good)
            wrong += len(some) - len(good)
        return brought, wrong

    def _name_texts(self, new: Database) -> None:
        """Reports added texts that are incomplete. They have no file to read them from again."""
        with new.read() as db:
            rows = db.execute(
                "SELECT path FROM files LEFT JOIN chunks ON chunks.file = files.id WHERE root = ? "
                "GROUP BY files.id HAVING count(chunks.id) <> coalesce(max(ordinal), 0) + 1",
                (TEXT_ROOT,),
            ).fetchall()
        if rows:
            self.said.append(f"of added texts parts are lost: {', '.join(str(row[0]) for row in rows)}; add them again")


def _is_file(row: tuple[Any, ...]) -> bool:
    """Whether a file's row is what was stored."""
    try:
        verify_file(row[1], row[6], row[7], row[-1])
    except DamagedStore:
        return False
    return True


def _is_sound(row: tuple[Any, ...]) -> bool:
    values = dict(zip(_CHUNK, row, strict=True))
    try:
        verify_text(row[0], values["context"], values["text"], values["hash"])
        verify_place(row[0], [values[name] for name in PLACE], values["checksum"])
    except (DamagedStore, AttributeError, TypeError):
        return False
    return True


def _mend_vectors(
    collection: Collection, kept: Path | None, actions: list[str], progress: Progress | None
) -> Path | None:
    """Makes unreadable vectors again; returns the folder with copies of the damaged files."""
    index = collection.vectors
    if any(trouble.kind == "rebuilding" for trouble in collection.health()):
        collection.rebuild(progress=progress)  # continues the unfinished rebuild
    if index is None:
        return kept
    with collection.database.read() as db:
        expected = np.array(db.execute("SELECT id FROM chunks ORDER BY id").fetchall(), np.int64).reshape(-1)
    mending = Mending(
        collection.database,
        index,
        collection.passages,
        collection.path / SEGMENTS,
        lambda: collection.rebuild(progress=progress),
    )
    return mending(expected, kept, "passages", actions)


def _read_again(collection: Collection, roots: list[str], actions: list[str]) -> None:
    present = [root for root in roots if Path(root).exists()]
    if present:
        report = collection.index(present)
        if report.changed:
            actions.append(f"read again: {counted(report.indexed, 'file')} ({counted(report.chunks, 'passage')})")
