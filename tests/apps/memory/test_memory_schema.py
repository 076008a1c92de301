"""A memory of an earlier version is brought up to date, and nothing in it is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from apsw import Connection

from edge.apps.memory.memory import Memory
from edge.apps.memory.store import DATABASE

Make = Callable[..., Memory]

BACK = (
    "DROP INDEX memories_hash", "CREATE INDEX memories_hash ON memories(hash)",
    "ALTER TABLE memories DROP COLUMN local_timestamp",
    "DROP INDEX actions_key", "ALTER TABLE actions DROP COLUMN key",
    *(f"ALTER TABLE ivf_{name} DROP COLUMN crc" for name in ("codec", "lists", "segments", "pending")),
    "DROP TABLE ivf_tuning",
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
