"""`edge memory repair`: restores a damaged memory from its readable data, and lost memories from their history."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import apsw
import numpy as np

from edge.apps.memory.checking import HISTORY, VERBS, Opener, check
from edge.apps.memory.memory_rebuild import MemoryRebuild
from edge.apps.memory.opening import OpenMemory
from edge.apps.memory.records import COLUMNS, Record, text_hash
from edge.apps.memory.records_writer import RecordsWriter
from edge.apps.memory.schema import ACTIONS, migrations
from edge.apps.memory.store import DATABASE, SEGMENTS
from edge.apps.memory.trajectories import ROW, read_action
from edge.apps.store.database import Database
from edge.apps.store.failures import DamagedStore
from edge.apps.store.health import forget
from edge.apps.store.lock import LOCK, WriterLock
from edge.apps.store.rebuilding import Progress
from edge.apps.store.repairing import Mending, RepairReport, bring_index, in_batches, make_again, move_log
from edge.apps.store.salvage import Row, Wreck
from edge.budget import MemoryBudget

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
    actions: list[str] = []
    kept: Path | None = None
    with WriterLock(path / LOCK)():
        now = before = check(path, opened, read_data=True, noting=False)
        if before.damaged("log") and (kept := move_log(path / DATABASE, VERBS)) is not None:
            actions.append("what the log held is in the database")
            now = check(path, opened, read_data=True, noting=False)
        if now.damaged("database", "log", "texts", "full text"):
            bringing = _Bringing()
            kept = make_again(path / DATABASE, migrations(), bringing, budget=budget, verbs=VERBS)
            actions += bringing.said
    with opened() as memory:
        kept = _mend_vectors(memory, kept, actions, progress)
        with memory.store.write() as db:
            for kind in ("damaged", "lost commits", "missing vectors"):
                forget(db, kind)
    if before.damaged("commits"):
        actions.append("what the lost commits held is not stored anywhere")
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
        known, wrong = self._memories(wreck, new)
        histories = self._history(wreck, new)
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
        self.said.append(f"a new database holds {len(known):,} memories and {actions:,} actions of the damaged one")
        lost = wreck.lost["memories"] + wrong
        if lost:
            self.said.append(f"{lost:,} memories could not be read")
        if back:
            shown = ", ".join(back)
            self.said.append(f"{len(back):,} came back from their history, without dates and metadata: {shown}")
        if wreck.lost["actions"] + wrong_actions:
            self.said.append(f"{wreck.lost['actions'] + wrong_actions:,} actions are lost")
        if not index and known:
            self.said.append("all vectors are made again")

    def _memories(self, wreck: Wreck, new: Database) -> tuple[dict[str, int], int]:
        """Copies the memories. Returns their row numbers by id, and the number of memories with a wrong hash."""
        known: dict[str, int] = {}
        numbers: set[int] = set()
        wrong = 0
        marks = ", ".join("?" * len(COLUMNS))
        insert = f"INSERT INTO memories ({', '.join(COLUMNS)}) VALUES ({marks})"
        for some in in_batches(wreck.rows("memories", COLUMNS)):
            records = [record for row in some if (record := _record(row)) is not None]
            wrong += len(some) - len(records)
            with new.write() as db:
                for record in records:
                    before = record.follows if record.follows in numbers else None
                    db.execute(insert, replace(record, follows=before).row)
                    numbers.add(record.id)
                    known[record.uuid] = record.id
                texts = [record.indexed_text for record in records]
                self._records_writer.lexical.add(db, [record.id for record in records], texts)
        return known, wrong

    def _history(self, wreck: Wreck, new: Database) -> dict[str, list[Row]]:
        """Copies the histories. Returns their lines by the id of the memory."""
        last: dict[str, list[Row]] = {}
        marks = ", ".join("?" * len(HISTORY))
        for some in in_batches(wreck.rows("history", HISTORY)):
            with new.write() as db:
                for row in some:
                    with suppress(apsw.ConstraintError):
                        db.execute(f"INSERT INTO history ({', '.join(HISTORY)}) VALUES ({marks})", row)
                        last.setdefault(row[1], []).append(row)
        return last

    def _from_history(self, new: Database, known: dict[str, int], histories: dict[str, list[Row]]) -> list[str]:
        """Restores lost memories from their histories. Returns their ids."""
        back: list[str] = []
        for uuid, lines in histories.items():
            fields = dict(zip(HISTORY, lines[-1], strict=True))
            text = fields["new_memory"]
            if uuid in known or fields["is_deleted"] or not isinstance(text, str):
                continue
            record = Record(
                id=0, uuid=uuid, text=text, hash=text_hash(text), metadata={}, importance=None, timestamp=None,
                local_timestamp=None, expiration_date=None, forgotten_at=None, pinned=False, follows=None,
                **{name: fields[name] for name in _KEPT},
            )  # fmt: skip
            for line in lines:
                event, when = line[HISTORY.index("event")], line[HISTORY.index("updated_at")]
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
        columns = (*ROW, "user_id", "agent_id", "run_id")
        marks = ", ".join("?" * len(columns))
        for some in in_batches(wreck.rows("actions", columns)):
            good = []
            for row in some:
                with suppress(DamagedStore):
                    read_action(row[: len(ROW)])
                    good.append(row)
            with new.write() as db:
                db.executemany(f"INSERT INTO actions ({', '.join(columns)}) VALUES ({marks})", good)
            brought += len(good)
            wrong += len(some) - len(good)
        return brought, wrong


_KEPT = ("user_id", "agent_id", "run_id", "actor_id", "role", "created_at", "updated_at")


def _record(row: Row) -> Record | None:
    try:
        return Record.of(row)
    except DamagedStore:
        return None


def _mend_vectors(memory: OpenMemory, kept: Path | None, actions: list[str], progress: Progress | None) -> Path | None:
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
