"""The schema of a memory, and the checksums of its rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from apsw import Connection

from edge.apps.memory.memory import Memory
from edge.apps.memory.store import DATABASE
from edge.apps.store.failures import DamagedStore, StoreUnavailable

Make = Callable[..., Memory]


@pytest.mark.parametrize("version", [1, 12])
def test_a_memory_from_before_the_first_release_is_refused(make: Make, tmp_path: Path, version: int) -> None:
    memory = make()
    memory.add("tea is good", user_id="ann")
    memory.close()
    path = tmp_path / "memory" / DATABASE
    old = Connection(str(path))
    old.execute(f"PRAGMA user_version = {version}").fetchall()
    old.close()
    with pytest.raises(StoreUnavailable, match=rf"before the first release of edge-rag \(schema {version}\)"):
        make()
    old = Connection(str(path))
    assert old.execute("SELECT text FROM memories").fetchall() == [("tea is good",)]
    old.close()


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
