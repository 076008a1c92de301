"""`edge memory check` and `repair`: find damage of a memory's files, and restore the readable rows."""

from __future__ import annotations

from collections.abc import Callable, Set
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import apsw
import numpy as np

from edge.apps.memory.arguments import holds_memory
from edge.apps.memory.memory import Memory
from edge.apps.memory.models import MemoryRebuild
from edge.apps.memory.records import HISTORY_COLUMNS, STORED, Record, RecordsWriter, text_hash
from edge.apps.memory.schema import ACTIONS, TEXT_INDEX, migrations
from edge.apps.memory.store import DATABASE, SEGMENTS, MemoryStore
from edge.apps.memory.trajectories import ROW, read_action
from edge.apps.store.checking import CheckReport, check_file, check_full_text, check_tables, check_vectors
from edge.apps.store.database import Database
from edge.apps.store.failures import DamagedStore, StoreUnavailable
from edge.apps.store.health import note
from edge.apps.store.rebuilding import Progress
from edge.apps.store.repairing import Mending, RepairReport, bring_index, end_damage, in_batches, repair_database
from edge.apps.store.rows import row_sum
from edge.apps.store.salvage import Row, Wreck
from edge.budget import MemoryBudget
from edge.config import counted
from edge.errors import EdgeError, StorageError
from edge.ivf.base import Ids
from edge.ivf.storage.connection import Connection

VERBS = "edge memory"
_HISTORY = ("id", *HISTORY_COLUMNS)


Opener = Callable[[], AbstractContextManager[Memory]]


def check(path: Path, opened: Opener, *, read_data: bool = False, noting: bool = True) -> CheckReport:
    """Checks everything that a memory stores, of all scopes. The only change it makes is a note of the damage found, so
    that every later command reports it.

    Args:
        opened: opens the memory.
        read_data: read every byte; otherwise check only that the files exist and that the tables agree.
        noting: record damage in the memory.

    Raises:
        StorageError: there is no memory, or it cannot be opened for a reason other than damage.
        BudgetExceeded: the limit is too small.
    """
    if not holds_memory(path):
        raise StorageError(f"there is no memory in {path}: `edge memory add` makes one, --path names another place")
    report = CheckReport(path, read_data)
    check_file(report, path / DATABASE)
    try:
        with opened() as memory:
            store = memory.store
            _check(report, store)
            known = {trouble.kind: trouble for trouble in store.health()}
            if noting and not report.sound and "damaged" not in known:
                with suppress(EdgeError), store.write() as db:
                    note(db, report.trouble(VERBS))
    except StoreUnavailable:
        raise
    except StorageError as error:
        report.add("database", str(error).split("; `")[0])
    return report.end()


def _check(report: CheckReport, store: MemoryStore) -> None:
    with store.read() as db:
        check_tables(report, db, store.database.path, VERBS)
        memories, actions = _check_rows(report, db, store.database.path)
        check_full_text(report, db, TEXT_INDEX, memories)
        index = store.index
        if index is None:
            return
        rebuilding = any(trouble.kind == "rebuilding" for trouble in store.health())
        expected = np.concatenate((memories, actions + ACTIONS))
        missing = check_vectors(report, db, index, None if rebuilding else expected)
        if missing:
            report.add(
                "vectors",
                f"{counted(len(missing), 'memory or action', 'memories or actions')} without a vector that can be read",
            )


def _check_rows(report: CheckReport, db: Connection, path: Path) -> tuple[Ids, Ids]:
    """Compares every memory and action with its hash. Returns the ids of the readable memories and actions."""
    wreck = Wreck(cast(apsw.Connection, db), path.stat().st_size)
    memories: list[int] = []
    actions: list[int] = []
    wrong: list[str] = []
    for row in wreck.rows("memories", STORED):
        memories.append(row[0])
        if report.read_data:
            try:
                Record.of(row)
            except DamagedStore:
                wrong.append(str(row[1]))
    for row in wreck.rows("actions", ROW):
        actions.append(row[0])
        if report.read_data:
            try:
                read_action(row)
            except DamagedStore:
                wrong.append(str(row[1]))
    if report.read_data:
        for _ in wreck.rows("history", _HISTORY):
            pass
    lost = sum(wreck.lost.values())
    if lost:
        report.add("texts", f"at {counted(lost, 'place')} memories, actions or their history cannot be read", wrong)
    elif wrong:
        report.add("texts", "memories or actions are not what was stored", wrong)
    return np.array(memories, np.int64), np.array(actions, np.int64)


_LAST: dict[str, dict[str, Any]] = {
    "PIN": {"pinned": True},
    "UNPIN": {"pinned": False},
    "RECALL": {"forgotten_at": None},
}


def repair(path: Path, opened: Opener, *, budget: MemoryBudget, progress: Progress | None = None) -> RepairReport:
    """Checks every stored byte of a memory, and repairs the damage. A copy of the damaged files is kept.

    Args:
        opened: opens the memory.
        progress: called with the number of texts embedded again, and of all these texts.

    Raises:
        StorageError: there is no memory, or the disk fails.
        ModelError: the embedder is missing. The repairs made before stay.
        BudgetExceeded: the limit is too small.
    """
    bringing = _Bringing()
    before, kept = repair_database(
        path / DATABASE, migrations(), bringing, lambda: check(path, opened, read_data=True, noting=False),
        budget=budget, verbs=VERBS,
    )  # fmt: skip
    actions = [*bringing.said]
    with opened() as memory:
        kept = _mend_vectors(memory, kept, actions, progress)
        with memory.store.write() as db:
            end_damage(db)
    after = check(path, opened, read_data=True)
    return RepairReport(before, after, actions, kept)


class _Bringing:
    """Copies the readable rows of a damaged memory into a new database.

    Attributes:
        said: messages about the copied and the lost rows.
    """

    def __init__(self) -> None:
        self.said: list[str] = []
        self._records_writer = RecordsWriter()

    def __call__(self, wreck: Wreck, new: Database) -> None:
        self.said.clear()
        settings = [row for row in wreck.small("settings", ("name", "value")) if row[0] != "rebuilding"]
        with new.write() as db:
            db.executemany("INSERT OR REPLACE INTO settings VALUES (?, ?)", settings)
        histories = self._history(wreck, new)
        deleted = {uuid for uuid, lines in histories.items() if lines[-1][_HISTORY.index("is_deleted")]}
        known, wrong = self._memories(wreck, new, deleted)
        back = self._from_history(new, known, histories)
        actions, wrong_actions = self._actions(wreck, new)
        with new.write() as db:
            for row in wreck.small("links", ("memory", "earlier", "similarity")):
                with suppress(apsw.ConstraintError):
                    db.execute("INSERT INTO links VALUES (?, ?, ?)", row)
        index = any(row[0] == "embedder" for row in settings) and bring_index(wreck, new)
        if not index and known:
            with new.write() as db:
                db.execute("INSERT OR REPLACE INTO settings VALUES ('rebuilding', '0')")
        held = f"{counted(len(known), 'memory', 'memories')} and {counted(actions, 'action')}"
        self.said.append(f"a new database holds {held} of the damaged one")
        lost = wreck.lost["memories"] + wrong
        if wreck.searched:
            self.said.append("rows were looked for in all pages; those that no page holds whole are lost")
        elif lost:
            self.said.append(f"{counted(lost, 'memory', 'memories')} could not be read")
        if back:
            shown = ", ".join(back)
            self.said.append(f"{len(back):,} came back from their history, without dates and metadata: {shown}")
        if wreck.lost["actions"] + wrong_actions and not wreck.searched:
            self.said.append(f"lost: {counted(wreck.lost['actions'] + wrong_actions, 'action')}")
        if not index and known:
            self.said.append("all vectors are made again")

    def _memories(self, wreck: Wreck, new: Database, deleted: Set[str]) -> tuple[dict[str, int], int]:
        """Copies the memories, except the `deleted` ones, whose rows may still stand in free pages. Returns their row
        numbers by id, and the number of memories with a wrong checksum."""
        known: dict[str, int] = {}
        numbers: set[int] = set()
        turns: list[tuple[int, int]] = []
        wrong = 0
        marks = ", ".join("?" * len(STORED))
        insert = f"INSERT INTO memories ({', '.join(STORED)}) VALUES ({marks})"
        for some in in_batches(wreck.rows("memories", STORED, lambda row: _record(row) is not None)):
            records = [record for row in some if (record := _record(row)) is not None]
            wrong += len(some) - len(records)
            with new.write() as db:
                for record in records:
                    if record.uuid in known or record.id in numbers or record.uuid in deleted:
                        continue
                    if record.follows is not None:
                        turns.append((record.follows, record.id))
                    db.execute(insert, replace(record, follows=None).row)
                    self._records_writer.lexical.add(db, [record.id], [record.indexed_text])
                    numbers.add(record.id)
                    known[record.uuid] = record.id
        with new.write() as db:  # rows from pages come in any order, so a turn may come before the one that it follows
            links = [turn for turn in turns if turn[0] in numbers]
            db.executemany("UPDATE memories SET follows = ? WHERE id = ?", links)
        return known, wrong

    def _history(self, wreck: Wreck, new: Database) -> dict[str, list[Row]]:
        """Copies the histories. Returns their lines by the id of the memory."""
        last: dict[str, list[Row]] = {}
        marks = ", ".join("?" * len(_HISTORY))
        for some in in_batches(wreck.rows("history", _HISTORY, _is_line)):
            with new.write() as db:
                for row in some:
                    if not _is_line(row):
                        continue
                    with suppress(apsw.ConstraintError):
                        db.execute(f"INSERT INTO history ({', '.join(_HISTORY)}) VALUES ({marks})", row)
                        last.setdefault(row[1], []).append(row)
        for lines in last.values():
            lines.sort(key=lambda row: row[0])  # rows from pages come in any order
        return last

    def _from_history(self, new: Database, known: dict[str, int], histories: dict[str, list[Row]]) -> list[str]:
        """Restores lost memories from their histories. Returns their ids."""
        back: list[str] = []
        for uuid, lines in histories.items():
            fields = dict(zip(_HISTORY, lines[-1], strict=True))
            text = fields["new_memory"]
            if uuid in known or fields["is_deleted"] or not isinstance(text, str):
                continue
            record = Record(
                id=0, uuid=uuid, text=text, hash=text_hash(text), metadata={}, importance=None, timestamp=None,
                local_timestamp=None, expiration_date=None, forgotten_at=None, pinned=False, follows=None,
                **{name: fields[name] for name in _KEPT},
            )  # fmt: skip
            for line in lines:
                event, when = line[_HISTORY.index("event")], line[_HISTORY.index("updated_at")]
                change = {"forgotten_at": when} if event == "FORGET" else _LAST.get(event, {})
                record = replace(record, **change)
            with new.write() as db:
                self._records_writer.bring(db, record)
            back.append(uuid)
        return back

    @staticmethod
    def _actions(wreck: Wreck, new: Database) -> tuple[int, int]:
        """Copies the actions. Returns the number copied, and the number with a wrong hash."""
        brought = wrong = 0
        marks = ", ".join("?" * len(ROW))
        for some in in_batches(wreck.rows("actions", ROW, _is_action)):
            good = [row for row in some if _is_action(row)]
            with new.write() as db:
                db.executemany(f"INSERT OR REPLACE INTO actions ({', '.join(ROW)}) VALUES ({marks})", good)
            brought += len(good)
            wrong += len(some) - len(good)
        return brought, wrong


_KEPT = ("user_id", "agent_id", "run_id", "actor_id", "role", "created_at", "updated_at")


def _is_line(row: Row) -> bool:
    """Whether a row of the history is what was stored."""
    return bool(row_sum("history", *row[1:-1]) == row[-1])


def _is_action(row: Row) -> bool:
    """Whether a row of the actions is what was stored."""
    try:
        read_action(row)
    except DamagedStore:
        return False
    return True


def _record(row: Row) -> Record | None:
    try:
        return Record.of(row)
    except DamagedStore:
        return None


def _mend_vectors(memory: Memory, kept: Path | None, actions: list[str], progress: Progress | None) -> Path | None:
    """Computes unreadable vectors again. Returns the folder with the copies of damaged files, if there is one."""
    store = memory.store
    with store.read() as db:
        memories, others = (
            np.array(db.execute(f"SELECT id FROM {table} ORDER BY id").fetchall(), np.int64).reshape(-1)
            for table in ("memories", "actions")
        )
    expected = np.concatenate((memories, others + ACTIONS))
    # Even if no text is left, the index may hold vectors of lost texts.
    index = store.claimed_index() if len(expected) else store.index
    if index is None:
        return kept
    if any(trouble.kind == "rebuilding" for trouble in store.health()):
        memory.rebuild(progress=progress)  # finishes the interrupted rebuild
    source, folder = MemoryRebuild(store.embed), store.path / SEGMENTS
    mending = Mending(store.database, index, source, folder, lambda: memory.rebuild(progress=progress))
    return mending(expected, kept, "memories and actions", actions)
