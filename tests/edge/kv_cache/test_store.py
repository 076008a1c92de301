"""States on disk: whole or gone, after any damage to the process or to the bytes."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from pathlib import Path
from stat import S_ISDIR
from typing import Any

import pytest
from naive.knowledge import Rig, segment
from naive.kv import CELL
from naive.waiting import PATIENCE_S

from edge.errors import CorruptBlock, StorageError
from edge.kv_cache.prefix_tree import Node, Usage
from edge.kv_cache.store import KnowledgeStore, StoredState, forget_states
from edge.trace import Trace

SYSTEM = segment("system", 5)
A, B, C = (segment(name, 8) for name in "abc")
STATE = bytes(range(256)) * 3


def node_of(*path: tuple[str, bytes]) -> Node:
    node = Node(None, "", b"")
    for id, tokens in path:
        node = Node(node, id, tokens)
    return node


def stored(folder: Path, fingerprint: str = "m") -> tuple[KnowledgeStore, Node]:
    store = KnowledgeStore(folder, fingerprint, 10**6, trace=Trace())
    node = node_of(("system", bytes(20)), ("naïve ☂.txt", b"\1\0\0\0" * 7))
    node.usage = Usage(7, 2, 0.5)
    return store, node


def states_in(folder: Path) -> list[Path]:
    return list(folder.glob("*/*.kv"))


def test_after_an_erasure_no_state_is_left_or_comes_from_a_process_that_began_before(tmp_path: Path) -> None:
    store, node = stored(tmp_path)
    other, _ = stored(tmp_path, "another model")
    store.put(node, STATE, 1.0)
    other.put(node, STATE, 1.0)
    (store.directory / ".draft.1").write_bytes(STATE)
    forget_states(tmp_path)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["erased"]
    with pytest.raises(StorageError, match="documents were erased"):
        store.put(node, STATE, 1.0)
    assert states_in(tmp_path) == []
    store, node = stored(tmp_path)
    store.put(node, STATE, 1.0)
    assert len(states_in(tmp_path)) == 1


def test_what_was_put_is_found_and_read(tmp_path: Path) -> None:
    store, node = stored(tmp_path)
    put = store.put(node, memoryview(STATE), 3.25)
    assert put.nbytes == put.path.stat().st_size == store.file_nbytes(node, len(STATE))
    (found,) = KnowledgeStore(tmp_path, "m", 10**6).scan()
    assert found.state == put
    assert found.ids == ("system", "naïve ☂.txt")
    assert found.tokens == (bytes(20), b"\1\0\0\0" * 7)
    assert found.usage == node.usage
    assert found.priority == 3.25
    buffer = bytearray(len(STATE) + 3)
    store.read(put, memoryview(buffer))
    assert buffer == STATE + bytes(3)
    stored(tmp_path, "0123456789abcdef-one")[0].put(node, STATE, 1.0)
    trace = Trace()
    assert list(KnowledgeStore(tmp_path, "0123456789abcdef-two", 10**6, trace=trace).scan()) == []
    assert trace.counters["knowledge.foreign"] == 1, "a state of another model in this one's directory is removed"


def test_the_past_is_rewritten_in_place(tmp_path: Path) -> None:
    store, node = stored(tmp_path)
    put = store.put(node, STATE, 1.0)
    store.note(put, Usage(9, 3, 0.75), 8.5)
    (found,) = store.scan()
    assert (found.usage, found.priority) == (Usage(9, 3, 0.75), 8.5)
    store.read(put, memoryview(bytearray(len(STATE))))
    whole = put.path.read_bytes()
    for place in range(16, 16 + 36):  # a torn record is forgotten, and the state kept
        put.path.write_bytes(whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :])
        (found,) = store.scan()
        assert (found.usage, found.priority) == (Usage(), 0.0)
        store.read(found.state, memoryview(bytearray(len(STATE))))
    store.remove(put)
    with pytest.raises(StorageError, match="cannot be updated"):
        store.note(put, Usage(), 0.0)


def test_a_state_has_its_name_only_when_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, node = stored(tmp_path)
    store.put(node, STATE, 1.0)
    (path,) = store.directory.iterdir()
    before = path.read_bytes()
    seen: list[tuple[bool, bytes]] = []
    monkeypatch.setattr(os, "fsync", lambda opened: seen.append((S_ISDIR(os.fstat(opened).st_mode), path.read_bytes())))
    store.put(node, STATE[::-1], 1.0)
    after = path.read_bytes()
    assert before != after
    assert seen[0] == (False, before), "as long as the new file is not flushed, the old one stands"
    assert seen[1:] == ([(True, after)] if os.name == "posix" else [])


def test_the_models_used_longest_ago_give_way(tmp_path: Path) -> None:
    trace = Trace()
    stores = [stored(tmp_path, f"m{n}")[0] for n in range(3)]
    _, node = stored(tmp_path, "m0")
    size = max(store.put(node, STATE, 1.0).nbytes for store in stores)
    for age, store in enumerate(stores):
        os.utime(store.directory, (age, age))
    KnowledgeStore(tmp_path, "m0", 10)  # which counts as a use
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("not ours")
    mine = KnowledgeStore(tmp_path, "m3", 3 * size, trace=trace)
    mine.put(node, STATE, 1.0)
    assert [len(list(store.scan())) for store in stores if store.directory.exists()] == [1, 1]
    assert not stores[1].directory.exists()
    assert trace.counters["knowledge.foreign"] == 1
    mine.put(node_of(("system", bytes(20))), STATE, 1.0)
    mine.put(node_of(("other", bytes(20))), STATE, 1.0)
    assert [store.directory.exists() for store in stores] == [False, False, False]
    assert (tmp_path / "notes" / "a.txt").exists()
    stores[2].put(node, STATE, 1.0)
    assert len(list(stores[2].scan())) == 1, "a directory that another process removed is made again"


def test_only_drafts_of_the_dead_are_removed(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    store = KnowledgeStore(tmp_path, "m", 10)
    alive, dead, mine = (store.directory / f".aa.{pid}" for pid in (child.pid, ended.pid, os.getpid()))
    others = [store.directory / name for name in ("notes.txt", ".hidden.x", "12.34")]
    for path in (alive, dead, mine, *others):
        path.write_bytes(b"x")
    list(store.scan())
    child.communicate()
    assert sorted(store.directory.iterdir()) == sorted([alive, *others]), "files of others are not ours to remove"


def test_every_bit_that_flips_is_noticed_or_harmless(tmp_path: Path) -> None:
    """Each byte of a stored file in turn: the answer is right, and only the record of its use may be forgotten."""
    rig = Rig(disk=10**6, folder=tmp_path)
    rig.ask([A, B])
    rig.tree.close()
    whole = {path: path.read_bytes() for path in states_in(tmp_path)}
    assert len(whole) == 2
    generator = random.Random(1)
    survived = 0
    for path, data in whole.items():
        for place in range(len(data)):
            flipped = bytearray(data)
            flipped[place] ^= 1 << generator.randrange(8)
            for other, bytes_of in whole.items():
                other.write_bytes(bytes_of)
            path.write_bytes(flipped)
            rig = Rig(disk=10**6, folder=tmp_path)
            places = rig.ask([A, B])
            assert places.count("nowhere") + rig.count("disk_hits") == 2
            if places == ["disk", "disk"]:
                survived += 1
            else:
                assert places.count("nowhere") == 1
                assert rig.count("corrupt") == 1
                assert not path.exists()
            rig.tree.close(save=False)
    assert survived == 2 * 36, "four numbers and their checksum"


@pytest.mark.parametrize("length", range(0, 400, 13))
def test_a_file_cut_off_anywhere_is_a_miss(tmp_path: Path, length: int) -> None:
    rig = Rig(disk=10**6, folder=tmp_path)
    rig.ask([A])
    rig.tree.close()
    (path,) = states_in(tmp_path)
    data = path.read_bytes()
    assert len(data) > 300
    path.write_bytes(data[:length] if length < len(data) else data + b"more")
    rig = Rig(disk=10**6, folder=tmp_path)
    assert rig.ask([A]) == ["nowhere"]
    assert rig.count("corrupt") == 1
    rig.tree.close()
    assert Rig(disk=10**6, folder=tmp_path).ask([A]) == ["disk"], "and is stored anew"


def test_damage_after_the_scan_is_noticed_when_read(tmp_path: Path) -> None:
    store, node = stored(tmp_path)
    put = store.put(node, STATE, 1.0)
    data = bytearray(put.path.read_bytes())
    data[-1] ^= 1
    put.path.write_bytes(data)
    buffer = memoryview(bytearray(len(STATE)))
    with pytest.raises(CorruptBlock, match="corrupt"):
        store.read(put, buffer)
    put.path.write_bytes(data[:-1])
    with pytest.raises(CorruptBlock, match="truncated"):
        store.read(put, buffer)
    put.path.unlink()
    with pytest.raises(StorageError, match="cannot be opened"):
        store.read(put, buffer)
    (tmp_path / "erased").write_text("in the way")
    with pytest.raises(StorageError, match="cannot be created"):
        KnowledgeStore(tmp_path / "erased" / "states", "m", 10)
    store.directory.rmdir()
    with pytest.raises(StorageError, match="cannot be read"):
        list(store.scan())


def test_what_another_process_removes_is_a_miss(tmp_path: Path) -> None:
    rig = Rig(disk=10**6, folder=tmp_path)
    rig.ask([SYSTEM, A])
    rig.tree.close()
    first, second = Rig(disk=10**6, folder=tmp_path), Rig(disk=10**6, folder=tmp_path)
    for path in states_in(tmp_path):
        path.unlink()
    assert first.ask([SYSTEM, A]) == ["nowhere", "nowhere"]
    first.tree.close()
    assert second.ask([SYSTEM, A]) == ["disk", "disk"], "the same path has the same name"
    second.tree.close()


def test_a_smaller_limit_removes_the_least_valuable(tmp_path: Path) -> None:
    rig = Rig(disk=10**6, folder=tmp_path)
    for document in (A, B, B, B, C, C):
        rig.ask([document])
    rig.tree.close()
    size = max(path.stat().st_size for path in states_in(tmp_path))
    rig = Rig(disk=2 * size, folder=tmp_path)
    rig.check()
    assert rig.held()[1] == {"b", "c"}
    rig.tree.close()
    first, _ = states_in(tmp_path)
    (first.parent / "copy.kv").write_bytes(first.read_bytes())
    rig = Rig(disk=10**6, folder=tmp_path)
    rig.check()
    assert rig.held()[1] == {"b", "c"}, "the same state under two names is held once"


def test_what_an_earlier_run_left_counts(tmp_path: Path) -> None:
    other, node = stored(tmp_path, "other")
    size = other.put(node, STATE, 1.0).nbytes
    mine = KnowledgeStore(tmp_path, "mine", 2 * size + size // 2)
    for _ in range(4):
        mine.remove(mine.put(node, STATE, 1.0))
    assert other.directory.exists(), "what was removed makes room before others go"
    KnowledgeStore(tmp_path, "mine", 10**6).put(node, STATE, 1.0)
    again = KnowledgeStore(tmp_path, "mine", 2 * size + size // 2)
    assert len(list(again.scan())) == 1
    again.put(node_of(("system", bytes(20)), ("more", bytes(28))), STATE, 1.0)
    assert not other.directory.exists()


def test_nobody_waits_for_the_disk_if_a_thread_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on, writing = threading.Event(), threading.Event()
    put = KnowledgeStore.put

    def slow(store: KnowledgeStore, *arguments: Any) -> StoredState:
        writing.set()
        assert goes_on.wait(PATIENCE_S)
        return put(store, *arguments)

    monkeypatch.setattr(KnowledgeStore, "put", slow)
    parts = [segment(name, 10) for name in "abcdef"]
    rig = Rig(disk=10**6, folder=tmp_path, host=3 * 10 * CELL, behind=True)
    for part in parts[:3]:
        rig.ask([part])
    assert writing.wait(PATIENCE_S), "the state that would leave next is saved before another one comes"
    for part in parts[3:]:
        rig.ask([part])
    assert rig.held() == ({"a", "b", "c"}, set()), "none has left before it was written"
    goes_on.set()
    rig.check()
    host, disk = rig.held()
    (leaves,) = disk - {"d", "e", "f"}
    assert host == {"a", "b", "c"}
    assert disk > {"d", "e", "f"}
    assert rig.count("dropped") == 0
    rig.ask([segment("g", 10)])
    rig.check()
    assert rig.held()[0] == {"a", "b", "c", "g"} - {leaves}, "one that is on disk leaves at once"
    rig.tree.close()
    assert rig.budget.used == 0


@pytest.mark.parametrize("save", [True, False])
def test_states_on_their_way_to_disk_are_saved_when_the_tree_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save: bool
) -> None:
    rig = Rig(disk=10**6, folder=tmp_path, host=0, behind=True)
    assert rig.writer is not None
    monkeypatch.setattr(rig.writer, "submit", lambda work: None)
    for name in "ab":
        rig.ask([segment(name, 10)])
    assert rig.budget.holders()["knowledge tree writing"] == 2 * 10 * CELL
    rig.tree.close(save=save)
    assert rig.budget.used == 0
    assert len(list(tmp_path.rglob("*.kv"))) == 2 * save
