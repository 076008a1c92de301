"""A memory of an earlier version is brought up to date, and nothing in it is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from apsw import Connection

from edge.apps.memory.memory import Memory
from edge.apps.memory.store import DATABASE
from edge.apps.store.failures import DamagedStore

Make = Callable[..., Memory]

BACK = (
    "DROP INDEX memories_conversation", "ALTER TABLE memories DROP COLUMN conversation",
    *(f"DROP INDEX memories_{name}" for name in ("until", "since", "superseded")),
    "DROP INDEX memories_hash", "CREATE INDEX memories_hash ON memories(hash)",
    "ALTER TABLE memories DROP COLUMN local_timestamp",
    "DROP INDEX actions_key", "ALTER TABLE actions DROP COLUMN key",
    *(f"ALTER TABLE ivf_{name} DROP COLUMN crc" for name in ("codec", "lists", "segments", "pending")),
    "DROP TABLE ivf_tuning",
    *(f"ALTER TABLE {table} DROP COLUMN checksum" for table in ("memories", "history", "actions")),
    *(f"ALTER TABLE memories DROP COLUMN {name}" for name in ("valid_from", "valid_until", "superseded_by")),
    *(f"ALTER TABLE {table} DROP COLUMN quantizer" for table in ("ivf_state", "ivf_segments")),
    "PRAGMA user_version = 2",
)  # fmt: skip
"""Takes away what was added since the first version."""


def test_a_memory_of_the_first_version_is_understood(make: Make, tmp_path: Path) -> None:
    memory = make()
    told = {"user_id": "ann", "timestamp": "2026-05-09T06:30", "metadata": {"k": 1}}
    said = memory.add("tea is good", **told)["results"][0]["id"]
    action = memory.actions.add("open settings", [1], state="home", user_id="ann")
    memory.close()
    old = Connection(str(tmp_path / "memory" / DATABASE))
    for statement in BACK:
        old.execute(statement)
    old.close()

    memory = make()
    again = memory.add("tea is good", **told)["results"][0]
    assert (again["event"], again["id"]) == ("NONE", said)
    assert memory.get_all(user_id="ann", filters={"timestamp": "2026-05-09"})["results"]
    hit = memory.actions.lookup("open settings", state="home", user_id="ann")
    assert hit is not None
    assert hit.id == action
    assert memory.actions.add("open settings", [2], state="home", user_id="ann") == action
    memory.update(said, timestamp="2026-05-08T23:30-07:00")
    for question, found in (("on 8 May", True), ("on the 9", False)):
        hits = memory.search(question, user_id="ann", rerank=False, explain=True)["results"]
        assert ("bm25" in hits[0]["score_details"]) is found


@pytest.mark.parametrize(
    "change",
    [
        *(
            f"UPDATE memories SET {name} = 'x'"
            for name in ("text", "metadata", "user_id", "updated_at", "valid_from", "superseded_by")
        ),
        "UPDATE history SET new_memory = 'x'",
        "UPDATE actions SET trajectory = '[2]'",
        "UPDATE actions SET successes = 7",
    ],
)
def test_every_value_of_a_returned_row_is_verified(make: Make, change: str) -> None:
    memory = make()
    said = memory.add("tea is good", importance=1, user_id="ann")["results"][0]["id"]
    action = memory.actions.add("open settings", [1], state="home", user_id="ann")
    memory.actions.feedback(action, True)

    def read() -> None:
        memory.get(said)
        memory.history(said)
        memory.actions.get(action)

    read()
    with memory.store.write() as db:
        db.execute(change)
    with pytest.raises(DamagedStore, match="is not what was stored"):
        read()
