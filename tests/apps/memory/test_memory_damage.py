"""Damaged memories: what is told, what is brought back. The schema of a memory, and the checksums of its rows."""

from __future__ import annotations

import random
import shutil
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from naive.rewriting import rewrite
from naive.words import WordEmbedder, WordReranker

from edge.apps.memory.care import MemoryCare
from edge.apps.memory.memory import Memory
from edge.apps.store.care import RepairReport, check, repair
from edge.apps.store.connections import plain
from edge.apps.store.failures import DamagedStore
from edge.budget import MemoryBudget
from edge.errors import CorruptBlock, StorageError
from tests.apps.memory.conftest import Make

PAGE = 4096


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `whole` is a copy of."""
    place = tmp_path_factory.mktemp("kept") / "memory"
    noon = datetime(2026, 6, 1, 12, tzinfo=UTC)
    memory = Memory(place, embedder=WordEmbedder(), reranker=WordReranker(), clock=lambda: noon, memory="10GB")
    for n in range(40):
        memory.add(f"Fact {n}: the river floods in year {n}. " + "It is long. " * (n % 8 * 80), user_id="ann")
    turns = [{"role": role, "content": f"{role} says {n}"} for n in range(5) for role in ("user", "assistant")]
    memory.add(turns, user_id="ann", run_id="talk")
    first, second = (m["id"] for m in memory.get_all(user_id="ann", top_k=2)["results"])
    memory.pin(first)
    memory.delete(second)
    memory.maintain(full=True)
    memory.close()
    return place


@pytest.fixture
def whole(kept: Path, tmp_path: Path) -> Path:
    """A memory with long and short texts, turns, a pinned and a deleted memory."""
    return shutil.copytree(kept, tmp_path / "memory")


def look(make: Make) -> list[tuple[str, str, bool]]:
    memory = make()
    try:
        found = memory.get_all(user_id="ann", top_k=1000)["results"]
        for query in ("river year 7", "assistant says"):
            found += memory.search(query, 5, user_id="ann", rerank=False)["results"]
        return [(m["id"], m["memory"], m.get("pinned", False)) for m in found]
    finally:
        memory.close()


def mended(make: Make, path: Path) -> RepairReport:
    return repair(MemoryCare(path, make), budget=MemoryBudget(10**10))


@pytest.mark.parametrize("kind", ["flip", "zero"])
def test_damage_of_a_page_shows_nothing_that_was_not_stored_and_is_found_if_it_matters(
    make: Make, whole: Path, kind: str
) -> None:
    right = look(make)
    path = whole / "memory.db"
    before = path.read_bytes()
    for page in range(len(before) // PAGE):
        data = bytearray(before)
        own = slice(page * PAGE, (page + 1) * PAGE)
        if kind == "flip":
            data[page * PAGE + 1234] ^= 4
        elif not any(data[own]):
            continue
        else:
            data[own] = bytes(PAGE)
        for name in ("-wal", "-shm"):
            path.with_name(path.name + name).unlink(missing_ok=True)
        rewrite(path, data)
        same = False
        try:
            found = look(make)
            same = found == right
            assert set(found) <= set(right), f"page {page + 1}"
        except (StorageError, CorruptBlock) as error:
            assert "`edge memory " in str(error)  # noqa: PT017 - not every page is read here
        rewrite(path, data)
        assert same or not check(MemoryCare(whole, make), read_data=True).sound, f"page {page + 1}"


@pytest.mark.parametrize("seed", range(4))
def test_repair_brings_back_what_can_be_read(make: Make, whole: Path, seed: int) -> None:
    right = look(make)
    path = whole / "memory.db"
    data = bytearray(path.read_bytes())
    chance = random.Random(seed)
    for page in chance.sample(range(len(data) // PAGE), 2) if seed else [0]:
        data[page * PAGE : (page + 1) * PAGE] = chance.randbytes(PAGE)
    path.write_bytes(data)
    report = mended(make, whole)
    assert report.after.findings == []
    assert report.aside is not None
    assert (report.aside / "memory.db").read_bytes() == bytes(data)
    memory = make()
    assert memory.health()
    have = {m["id"]: m for m in memory.get_all(user_id="ann", top_k=1000)["results"]}
    memory.close()
    wanted = {row[0] for row in right[:-1]}
    assert have.keys() <= wanted, "nothing comes back that was deleted"
    assert len(have) >= len(wanted) - (20 if seed else 0), "the first page holds no memory"
    for identifier, text, pinned in right[:-1]:
        if identifier in have:
            assert have[identifier]["memory"] == text
            assert have[identifier].get("pinned", False) == pinned


def _turns(make: Make) -> list[tuple[str, ...]]:
    """The ids of turns that follow one another, each with that of the first turn of its conversation."""
    memory = make()
    joined = "JOIN memories b ON b.id = a.follows JOIN memories c ON c.id = a.conversation"
    with memory.store.read() as db:
        found = [tuple(map(str, row)) for row in db.execute(f"SELECT a.uuid, b.uuid, c.uuid FROM memories a {joined}")]
    memory.close()
    return sorted(found)


def test_a_lost_first_page_loses_no_memory_and_nothing_is_said_to_be_lost(make: Make, whole: Path) -> None:
    right, turns = look(make), _turns(make)
    assert turns
    with (whole / "memory.db").open("r+b") as file:
        file.write(bytes(PAGE))
    report = mended(make, whole)
    assert sorted(look(make)) == sorted(right)
    assert _turns(make) == turns
    assert not any("could not be read" in action or action.startswith("lost") for action in report.actions)


@pytest.mark.parametrize("how", ["deleted", "reset"])
def test_what_was_deleted_does_not_come_back_from_free_pages(make: Make, tmp_path: Path, how: str) -> None:
    memory = make()
    said = [f"Fact {n}: " + "the river floods. " * 40 for n in range(60)]
    added = [memory.add(text, user_id="ann")["results"][0]["id"] for text in said]
    kept = added[:5]
    if how == "deleted":
        for identifier in added[5:]:
            memory.delete(identifier)
    else:
        memory.reset()
        kept = [memory.add("A new beginning.", user_id="ann")["results"][0]["id"]]
    memory.close()
    path = tmp_path / "memory" / "memory.db"
    assert how == "reset" or path.read_bytes().count(b"Fact 30: ") > 1, "not only in a page of its history"
    with path.open("r+b") as file:
        file.write(bytes(PAGE))
    assert mended(make, path.parent).after.findings == []
    memory = make()
    assert {m["id"] for m in memory.get_all(user_id="ann", top_k=1000)["results"]} == set(kept)
    memory.close()


def test_memories_come_back_from_their_history(make: Make, tmp_path: Path) -> None:
    memory = make()
    kept = memory.add("I am allergic to peanuts", user_id="ann")["results"][0]["id"]
    gone = memory.add("a passing thought", user_id="ann")["results"][0]["id"]
    memory.update(kept, "I am allergic to walnuts")
    memory.pin(kept)
    memory.delete(gone)
    with memory.store.database.read() as db:
        root = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'memories'").fetchone()[0]
    memory.close()
    path = tmp_path / "memory" / "memory.db"
    data = bytearray(path.read_bytes())
    data[data.index(b"I am allergic to walnuts", (root - 1) * PAGE)] ^= 1
    path.write_bytes(data)
    report = mended(make, tmp_path / "memory")
    assert report.after.findings == []
    assert any(kept in action and "came back from their history" in action for action in report.actions)
    memory = make()
    (found,) = memory.get_all(user_id="ann")["results"]
    assert (found["id"], found["memory"], found["pinned"]) == (kept, "I am allergic to walnuts", True)
    assert memory.search("walnuts", user_id="ann", rerank=False)["results"][0]["id"] == kept


def test_a_memory_that_is_named_from_the_working_directory_is_repaired(
    make: Make, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = whole / "memory.db"
    data = bytearray(path.read_bytes())
    data[10 * PAGE + 5] ^= 1
    path.write_bytes(data)
    monkeypatch.chdir(tmp_path)
    assert mended(make, Path("memory")).after.findings == []


@pytest.mark.parametrize("segments", [True, False])
def test_vectors_of_memories_that_are_all_lost_are_removed(make: Make, tmp_path: Path, segments: bool) -> None:
    memory = make()
    for n in range(5):
        memory.add(f"Fact {n}: the river floods in year {n}.", user_id="ann")
    if segments:
        memory.maintain(full=True)
    memory.close()
    path = tmp_path / "memory"
    with closing(plain(path / "memory.db")) as db:  # as if all their pages were lost, and those of their history
        db.execute("PRAGMA foreign_keys = OFF")
        db.execute("DELETE FROM memories")
        db.execute("DELETE FROM history")
    assert not check(MemoryCare(path, make), read_data=True).sound
    repaired = mended(make, path)
    assert repaired.after.findings == []
    assert make().get_all(user_id="ann", top_k=10)["results"] == []


def test_a_wrong_line_of_a_history_is_named_and_left_out(make: Make, tmp_path: Path) -> None:
    memory = make()
    kept = memory.add("I am allergic to peanuts", user_id="ann")["results"][0]["id"]
    memory.update(kept, "I am allergic to walnuts")
    memory.close()
    path = tmp_path / "memory"
    with closing(plain(path / "memory.db")) as db:
        db.execute("UPDATE history SET new_memory = 'I am allergic to nothing' WHERE event = 'UPDATE'")
    found = check(MemoryCare(path, make), read_data=True, noting=False)
    assert [(finding.part, finding.items) for finding in found.findings] == [("texts", (kept,))]
    report = mended(make, path)
    assert report.after.findings == []
    assert "lost: 1 line of the history" in report.actions
    memory = make()
    assert [change["event"] for change in memory.history(kept)] == ["ADD"]
    assert memory.get(kept)["memory"] == "I am allergic to walnuts"  # type: ignore[index]


def test_texts_without_a_vector_index_get_one(make: Make, tmp_path: Path) -> None:
    memory = make()
    kept = memory.add("I am allergic to peanuts", user_id="ann")["results"][0]["id"]
    memory.close()
    path = tmp_path / "memory"
    with closing(plain(path / "memory.db")) as db:
        db.execute("DELETE FROM settings WHERE name = 'embedder'")
    assert mended(make, path).after.findings == []
    assert make().search("peanuts", user_id="ann", rerank=False)["results"][0]["id"] == kept


@pytest.mark.parametrize(
    "change",
    [
        *(
            f"UPDATE memories SET {name} = 'x'"
            for name in ("text", "metadata", "user_id", "updated_at", "valid_from", "superseded_by")
        ),
        "UPDATE history SET new_memory = 'x'",
    ],
)
def test_every_value_of_a_returned_row_is_verified(make: Make, change: str) -> None:
    memory = make()
    said = memory.add("tea is good", importance=1, user_id="ann")["results"][0]["id"]

    def read() -> None:
        memory.get(said)
        memory.history(said)

    read()
    with memory.store.write() as db:
        db.execute(change)
    with pytest.raises(DamagedStore, match="is not what was stored"):
        read()
