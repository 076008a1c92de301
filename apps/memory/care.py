"""`MemoryCare`: the tables of a memory as they are checked and repaired; and the commands of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import apsw
import numpy as np

from edge.apps.commands.upkeep import Folder, backup_command, check_command, repair_command, restore_command
from edge.apps.console import ProgressBar
from edge.apps.memory.arguments import default_path, existing_memory
from edge.apps.memory.command import path_option
from edge.apps.memory.memory import Memory
from edge.apps.memory.records import (
    CONVERSATIONS,
    HISTORY_COLUMNS,
    STORED,
    TEXT_INDEX,
    Record,
    full_text,
    held_records,
    insert_record,
    migrations,
    text_hash,
)
from edge.apps.memory.searching import DEPTH
from edge.apps.memory.store import DATABASE
from edge.apps.options import Setup
from edge.apps.store import care as store_care
from edge.apps.store.backup import Store
from edge.apps.store.care import CheckReport, OpenedStore, RepairReport, StoreCare, bring_rows, checking_budget
from edge.apps.store.database import Database
from edge.apps.store.failures import DamagedStore
from edge.apps.store.models import retrieval_plan
from edge.apps.store.rows import Row, Table, held, row_sum
from edge.apps.store.salvage import Wreck
from edge.config import counted
from edge.ivf.base import Connection, Ids

VERBS = "edge memory"

Opener = Callable[[], AbstractContextManager[Memory]]


def _reads(read: Callable[[Row], object]) -> Callable[[Row], bool]:
    def proves(row: Row) -> bool:
        try:
            read(row)
        except DamagedStore:
            return False
        return True

    return proves


_MEMORIES = Table("memories", STORED, _reads(Record.of))
_HISTORY = Table("history", ("id", *HISTORY_COLUMNS), lambda row: row_sum("history", *row[1:-1]) == row[-1])

_KEPT = ("user_id", "agent_id", "run_id", "actor_id", "role", "created_at", "updated_at")
_CHANGES: dict[str, dict[str, Any]] = {
    "PIN": {"pinned": True},
    "UNPIN": {"pinned": False},
    "RECALL": {"forgotten_at": None},
    "REINSTATE": {"valid_until": None},
}
"""What events of the history change in a memory."""

_ENDS = {"FORGET": "forgotten_at", "SUPERSEDE": "valid_until"}
"""The fields that events of the history set to their moment."""


class MemoryCare(StoreCare):
    """A memory, of all scopes, that is checked and repaired."""

    noun = ("memory", "memories")
    full_text = TEXT_INDEX

    def __init__(self, path: Path, opener: Opener) -> None:
        super().__init__(place_of(path))
        self._opener = opener

    @contextmanager
    def opened(self, *, writable: bool) -> Iterator[OpenedStore]:
        with self._opener() as memory:
            store = memory.store
            yield OpenedStore(store.database, lambda: store.index, store.health, store.source, memory.rebuild)

    def check_rows(self, report: CheckReport, wreck: Wreck) -> Ids:
        ids: dict[str, list[int]] = {}
        wrong: list[str] = []
        for table in (_MEMORIES, *([_HISTORY] if report.read_data else [])):
            ids[table.name] = []
            for row in wreck.rows(table.name, table.columns):
                ids[table.name].append(row[0])
                if report.read_data and not table.proves(row):
                    wrong.append(str(row[1]))
        if lost := sum(wreck.lost.values()):
            report.add("texts", f"at {counted(lost, 'place')} memories or their history cannot be read", wrong)
        elif wrong:
            report.add("texts", "memories or their history are not what was stored", wrong)
        return np.array(ids[_MEMORIES.name], np.int64)

    def vector_ids(self, db: Connection) -> Ids:
        return np.array(db.execute("SELECT id FROM memories ORDER BY id").fetchall(), np.int64).reshape(-1)

    def bring(self, wreck: Wreck, new: Database) -> tuple[str, list[str]]:
        _, wrong_lines = bring_rows(wreck, new, _HISTORY)
        memories, wrong = _bring_memories(wreck, new)
        back = _from_history(new)
        with new.write() as db:
            for row in wreck.small("links", ("memory", "earlier", "similarity")):
                with suppress(apsw.ConstraintError):
                    db.execute("INSERT INTO links VALUES (?, ?, ?)", row)
        said: list[str] = []
        if lost := wrong + wreck.lost[_MEMORIES.name]:
            said.append(f"at {counted(lost, 'place')} memories could not be read")
        if back:
            shown = ", ".join(back)
            said.append(f"{len(back):,} came back from their history, without dates and metadata: {shown}")
        if wrong_lines:
            said.append(f"lost: {counted(wrong_lines, 'line')} of the history")
        return counted(memories, "memory", "memories"), said


def _bring_memories(wreck: Wreck, new: Database) -> tuple[int, int]:
    lexical = full_text()
    turns: list[tuple[int, int]] = []

    def is_there(db: Connection, row: Row) -> bool:
        sql = "SELECT is_deleted FROM history WHERE memory_id = ? ORDER BY id DESC LIMIT 1"
        return not any(deleted for (deleted,) in db.execute(sql, (row[1],)))

    def written(db: Connection, rows: list[Row]) -> None:
        records = held_records(db, rows)
        turns.extend((record.follows, record.id) for record in records if record.follows is not None)
        lexical.add(db, [record.id for record in records], [record.indexed_text for record in records])

    brought = bring_rows(wreck, new, _MEMORIES, wanted=is_there, written=written, empty="follows")
    with new.write() as db:  # a turn may come before the one that it follows
        db.executemany("UPDATE memories SET follows = (SELECT id FROM memories WHERE id = ?) WHERE id = ?", turns)
        db.execute(CONVERSATIONS)
    return brought


def _from_history(new: Database) -> list[str]:
    back: list[str] = []
    with new.write() as db:
        lost = db.execute("SELECT DISTINCT memory_id FROM history WHERE memory_id NOT IN (SELECT uuid FROM memories)")
        for (uuid,) in lost.fetchall():
            sql = f"SELECT {', '.join(HISTORY_COLUMNS)} FROM history WHERE memory_id = ? ORDER BY id"
            rows = db.execute(sql, (uuid,))
            lines = held(db, rows, lambda row: dict(zip(HISTORY_COLUMNS, row, strict=True)))
            fields, text = lines[-1], lines[-1]["new_memory"]
            if fields["is_deleted"] or not isinstance(text, str):
                continue
            kept = {name: fields[name] for name in _KEPT}
            record = Record(uuid=uuid, text=text, hash=text_hash(text), **kept)
            for line in lines:
                ended = {_ENDS[line["event"]]: line["updated_at"]} if line["event"] in _ENDS else {}
                record = replace(record, **_CHANGES.get(line["event"], ended))
            stored = insert_record(db, record)
            full_text().add(db, [stored.id], [stored.indexed_text])
            back.append(uuid)
    return back


def _check(path: Folder, setup: Setup, read_data: bool) -> CheckReport:
    """Check the stored memory, of all users, agents and sessions, for damage; exit code 2 if there is any.

    `edge memory repair` brings back everything that can still be read.
    """
    return store_care.check(_care(path, setup), read_data=read_data)


def _repair(path: Folder, setup: Setup, progress: ProgressBar) -> RepairReport:
    """Make a damaged memory again from everything that can still be read.

    A copy of the damaged files is kept in a folder beside it. Exit code 2 if something stays damaged.
    """
    config, care = setup.config(), _care(path, setup)
    whole = retrieval_plan(
        "the repair", config, embedder=None, reranker=None, rerank=True, candidates=DEPTH, writes=True, databases=1
    )
    budget = checking_budget(config.memory, care.path, "memories", whole)
    return store_care.repair(care, budget=budget, progress=progress)


def _care(path: Folder, setup: Setup) -> MemoryCare:
    folder, config = existing_memory(path and path.absolute()), setup.config()
    return MemoryCare(folder, lambda: Memory(folder, config=config))


def place_of(path: Folder) -> Store:
    """The memory in the folder `path`; None stands for the default folder."""
    return Store("memory", (path or default_path()).absolute(), DATABASE, VERBS, migrations())


def _backed_up(path: Folder) -> Store:
    """Copy the memory, of all users, agents and sessions, into the new folder DEST, as of one moment; others may go on
    writing."""
    return place_of(path)


def _put_back(path: Folder) -> Store:
    """Put the backup in SRC back; every byte of it is verified before."""
    return place_of(path)


check = check_command(_check, path_option, VERBS)
repair = repair_command(_repair, path_option, VERBS, "texts")
backup = backup_command(_backed_up, path_option)
restore = restore_command(_put_back, path_option, "a memory")
