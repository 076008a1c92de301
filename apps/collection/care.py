"""`CollectionCare`: the tables of a collection as they are checked and repaired, which brings lost passages back from
the files themselves; and the commands of it."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import apsw
import numpy as np
import numpy.typing as npt

from edge.apps.collection.catalog import (
    FULL_TEXT,
    PLACE,
    TEXT_ROOT,
    full_text,
    groups,
    is_mail,
    migrations,
    passage,
    verify_file,
    verify_place,
    verify_text,
)
from edge.apps.collection.collection import DATABASE, Collection
from edge.apps.collection.registry import existing_collection, locate
from edge.apps.commands.index import allowed_roots
from edge.apps.commands.upkeep import Folder, backup_command, check_command, repair_command, restore_command
from edge.apps.console import ProgressBar
from edge.apps.documents.base import Mail
from edge.apps.options import Setup, collection_option, memory_option
from edge.apps.store import care as store_care
from edge.apps.store.backup import Store
from edge.apps.store.care import CheckReport, OpenedStore, RepairReport, StoreCare, bring_rows, checking_budget
from edge.apps.store.database import Database
from edge.apps.store.failures import DamagedStore
from edge.apps.store.models import INDEXING, retrieval_plan
from edge.apps.store.rows import Row, Table, row_sum
from edge.apps.store.salvage import Wreck
from edge.budget import MemoryBudget
from edge.config import Config, counted
from edge.ivf.base import Connection, Ids

VERBS = "edge"

Roots = Callable[[Collection], list[str]]


def place_of(path: Path) -> Store:
    return Store("collection", path, DATABASE, VERBS, migrations())


def _is_file(row: Row) -> bool:
    try:
        verify_file(row[1], row[6], row[7], row[-1])
    except DamagedStore:
        return False
    return True


def _is_passage(row: Row) -> bool:
    values = dict(zip(_CHUNKS.columns, row, strict=True))
    try:
        verify_text(row[0], values["context"], values["text"], values["hash"])
        verify_place(row[0], [values[name] for name in PLACE], values["checksum"])
    except (DamagedStore, AttributeError, TypeError):
        return False
    return True


_FILES = Table(
    "files",
    (
        "id", "path", "root", "size", "mtime_ns", "hash", "kind", "title", "status", "reason", "due", "racy", "inode",
        "ctime_ns", "checksum",
    ),
    _is_file,
)  # fmt: skip
_CHUNKS = Table(
    "chunks",
    (
        "id", "file", "ordinal", "text", "context", "line_start", "line_end", "page", "hash", "lines", "kinds",
        "checksum",
    ),
    _is_passage,
)  # fmt: skip


class CollectionCare(StoreCare):
    noun = ("passage", "passages")
    full_text = FULL_TEXT

    def __init__(
        self, path: Path, config: Config, budget: MemoryBudget, roots: Roots = lambda collection: collection.roots
    ) -> None:
        existing_collection(path)
        super().__init__(place_of(path))
        self._config = config
        self._budget = budget
        self._roots = roots

    @contextmanager
    def opened(self, *, writable: bool) -> Iterator[OpenedStore]:
        path, config, budget = self.place.path, self._config, self._budget
        with Collection(path, config=config, budget=budget, read_only=not writable) as collection:
            yield OpenedStore(
                collection.database, lambda: collection.vectors, collection.health, collection.passages,
                collection.rebuild, lambda: self._read_again(collection),
            )  # fmt: skip

    def check_rows(self, report: CheckReport, wreck: Wreck) -> Ids:
        seen = array("q")  # three numbers for each passage: its id, its file, its ordinal
        broken: set[int] = set()
        columns = ("id", "file", "ordinal", "context", "text", "hash")
        for identifier, file, ordinal, context, text, stored in wreck.rows("chunks", columns):
            if not (isinstance(file, int) and isinstance(ordinal, int)):  # damage that no page checksum revealed
                wreck.lost["chunks"] += 1
                continue
            seen.extend((identifier, file, ordinal))
            if report.read_data:
                try:
                    verify_text(identifier, context, text, stored)
                except DamagedStore:
                    broken.add(file)
        mails = ("file", "page", "sender", "recipients", "subject", "sent", "id", "thread", "checksum")
        for file, page, *fields, stored in wreck.rows("mails", mails):
            if not is_mail(file, page, Mail(*fields), stored):
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
        lost = wreck.lost["chunks"] + wreck.lost["files"] + wreck.lost["mails"]
        if lost:
            report.add("texts", f"at {counted(lost, 'place')} passages or files cannot be read", _names(wreck, broken))
        elif broken:
            report.add("texts", "passages are missing or not what was stored", _names(wreck, broken))
        return np.array(table[:, 0], np.int64)

    def vector_ids(self, db: Connection) -> Ids:
        return np.array(db.execute("SELECT id FROM chunks ORDER BY id").fetchall(), np.int64).reshape(-1)

    def named(self, db: Connection, ids: Sequence[int]) -> Iterable[str]:
        found: set[str] = set()
        for group in groups(ids):
            marks = ", ".join("?" * len(group))
            sql = f"SELECT DISTINCT path FROM chunks JOIN files ON files.id = chunks.file WHERE chunks.id IN ({marks})"
            with suppress(apsw.Error):
                found.update(str(row[0]) for row in db.execute(sql, group))
        return found

    def keeps(self, setting: str) -> bool:
        return setting in ("embedder", "mounts")

    def bring(self, wreck: Wreck, new: Database) -> tuple[str, list[str]]:
        files, wrong_files = _bring_files(wreck, new)
        lexical = full_text()

        def written(db: Connection, rows: list[Row]) -> None:
            lexical.add(db, [row[0] for row in rows], [passage(row[4], row[3]) for row in rows])

        table = replace(_CHUNKS, proves=lambda row: row[1] in files and _is_passage(row))
        passages, wrong = bring_rows(wreck, new, table, written=written)
        with new.write() as db:  # their senders and dates come from the files again, and their passages stay
            db.execute("UPDATE files SET hash = NULL, due = 1 WHERE kind = 'mail' AND root <> ?", (TEXT_ROOT,))
        lost = wreck.lost["chunks"] + wreck.lost["files"] + wrong_files + wrong
        said: list[str] = []
        if lost:
            said.append(f"at {counted(lost, 'place')} passages were lost; their files are read again")
            with new.write() as db:
                db.execute("UPDATE files SET hash = NULL, due = 1 WHERE root <> ?", (TEXT_ROOT,))
                texts = db.execute(
                    "SELECT path FROM files LEFT JOIN chunks ON chunks.file = files.id WHERE root = ? "
                    "GROUP BY files.id HAVING count(chunks.id) <> coalesce(max(ordinal), 0) + 1",
                    (TEXT_ROOT,),
                ).fetchall()
            if texts:  # they have no file to read them from again
                names = ", ".join(str(row[0]) for row in texts)
                said.append(f"of added texts parts are lost: {names}; add them again")
        return f"{counted(len(files), 'file')} and {counted(passages, 'passage')}", said

    def _read_again(self, collection: Collection) -> list[str]:
        present = [root for root in self._roots(collection) if Path(root).exists()]
        report = collection.index(present) if present else None
        if report is None or not report.changed:
            return []
        return [f"read again: {counted(report.indexed, 'file')} ({counted(report.chunks, 'passage')})"]


def _names(wreck: Wreck, files: Set[int]) -> Iterator[str]:
    named = 0
    for file, path in wreck.rows("files", ("id", "path")):
        if file in files:
            named += 1
            yield str(path)
    if named < len(files):
        yield "an unknown file"


def _bring_files(wreck: Wreck, new: Database) -> tuple[dict[int, str], int]:
    """The paths by id, and how many rows are not what was stored."""
    files: dict[int, str] = {}
    roots = {row[0] for row in wreck.small("roots", ("path",)) if isinstance(row[0], str)}

    def written(db: Connection, rows: list[Row]) -> None:
        files.update((row[0], row[1]) for row in rows)
        roots.update({row[2] for row in rows} - {TEXT_ROOT})

    _, wrong = bring_rows(wreck, new, _FILES, written=written)
    # If a row is lost, the index on paths may still hold its path.
    found = [(row[1], row[0]) for row in wreck.small("files", ("path", "id"), order=True) if row[1] not in files]
    texts = {file: path for file, path in found if not Path(path).is_absolute()}
    with new.write() as db:
        sql = (
            "INSERT OR IGNORE INTO files(id, path, root, size, mtime_ns, status, checksum) "
            "VALUES (?, ?, ?, 0, 0, 'indexed', ?)"
        )
        db.executemany(sql, [(file, path, TEXT_ROOT, row_sum("files", path, "", "")) for file, path in texts.items()])
        db.executemany("INSERT OR IGNORE INTO roots VALUES (?)", [(root,) for root in roots])
    return files | texts, wrong


def _check(collection: Folder, setup: Setup, read_data: bool) -> CheckReport:
    """Check the index for damage; exit code 2 if it is damaged.

    Names the damaged parts and the affected files. Later commands report the damage until `edge repair` mends it.
    """
    config = setup.config()
    path = locate(collection)
    budget = checking_budget(config.memory, path / DATABASE, "chunks")
    return store_care.check(CollectionCare(path, config, budget), read_data=read_data)


def _repair(collection: Folder, setup: Setup, progress: ProgressBar) -> RepairReport:
    """Repair a damaged index: from its readable parts, and from the indexed files.

    Copies of the damaged files are kept in a folder beside the index. Exit code 2 if damage remains.
    """
    config = setup.config()
    path = locate(collection)
    whole = retrieval_plan(
        "the repair", config, embedder=None, reranker=None, rerank=False, candidates=0, writes=True, extra=INDEXING,
        databases=1,
    )  # fmt: skip
    budget = checking_budget(config.memory, path / DATABASE, "chunks", whole)
    care = CollectionCare(path, config, budget, lambda opened: allowed_roots(opened, collection))
    return store_care.repair(care, budget=budget, progress=progress)


def _backed_up(collection: Folder) -> Store:
    """Copy the index into the new folder DEST, as of one moment; others may go on writing."""
    return place_of(locate(collection))


def _put_back(collection: Folder) -> Store:
    """Put the backup in SRC back; every byte of it is verified before."""
    return place_of(locate(collection))


check = check_command(_check, collection_option, VERBS, memory_option)
repair = repair_command(_repair, collection_option, VERBS, "passages")
backup = backup_command(_backed_up, collection_option)
restore = restore_command(_put_back, collection_option, "an index")
