"""`edge memory check`: finds damage of a memory's files, and the memories that are affected."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import cast

import apsw
import numpy as np

from edge.apps.memory.opening import OpenMemory
from edge.apps.memory.place import holds_memory
from edge.apps.memory.records import COLUMNS, Record
from edge.apps.memory.schema import ACTIONS, TEXT_INDEX
from edge.apps.memory.store import DATABASE, MemoryStore
from edge.apps.memory.trajectories import ROW, read_action
from edge.apps.store.checking import CheckReport, check_file, check_full_text, check_log, check_tables, check_vectors
from edge.apps.store.failures import DamagedStore, StoreUnavailable
from edge.apps.store.health import note
from edge.apps.store.pages import PAGE
from edge.apps.store.salvage import Wreck
from edge.connection import Connection
from edge.errors import EdgeError, StorageError
from edge.ivf.base import Ids

VERBS = "edge memory"
HISTORY = (
    "id", "memory_id", "old_memory", "new_memory", "event", "created_at", "updated_at", "is_deleted", "actor_id",
    "role", "user_id", "agent_id", "run_id",
)  # fmt: skip


Opener = Callable[[], AbstractContextManager[OpenMemory]]


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
            if "lost commits" in known:
                report.add("commits", known["lost commits"].text)
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
        check_log(report, db, store.database.path)
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
            report.add("vectors", f"{len(missing):,} memories or actions have no vector that can be read")


def _check_rows(report: CheckReport, db: Connection, path: Path) -> tuple[Ids, Ids]:
    """Compares every memory and action with its hash. Returns the ids of the readable memories and actions."""
    wreck = Wreck(cast(apsw.Connection, db), path.stat().st_size // PAGE)
    memories: list[int] = []
    actions: list[int] = []
    wrong: list[str] = []
    for row in wreck.rows("memories", COLUMNS):
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
        for _ in wreck.rows("history", HISTORY):
            pass
    lost = sum(wreck.lost.values())
    if lost:
        report.add("texts", f"at {lost:,} places memories, actions or their history cannot be read", wrong)
    elif wrong:
        report.add("texts", "memories or actions are not what was stored", wrong)
    return np.array(memories, np.int64), np.array(actions, np.int64)
