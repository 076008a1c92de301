"""Chunks cover everybody once; hidden states come back as stored, from memory or from disk, or not at all."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from naive.waiting import PATIENCE_S

from edge.budget import MemoryBudget
from edge.errors import BudgetExceeded, StorageError
from edge.link import Lane
from edge.streaming.hidden_states import (
    HiddenStates,
    OffloadedStates,
    ResidentStates,
    StatesShape,
    TokenChunk,
    plan_chunks,
)

WIDTH = 3
LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=14)


@given(lengths=LENGTHS, max_tokens=st.integers(1, 30), data=st.data())
def test_chunks_partition_in_order_within_the_bound(lengths: list[int], max_tokens: int, data: st.DataObject) -> None:
    stored = np.array(lengths, np.int32)
    ids = np.array(data.draw(st.permutations(range(len(lengths))))[: data.draw(st.integers(0, len(lengths)))], np.int64)
    chunks = plan_chunks(ids, stored, max_tokens)
    joined = np.concatenate([c.ids for c in chunks]) if chunks else ids[:0]
    np.testing.assert_array_equal(joined, ids)
    for chunk in chunks:
        np.testing.assert_array_equal(chunk.lengths, stored[chunk.ids])
        assert chunk.tokens == chunk.lengths.sum() > 0
        assert chunk.tokens <= max_tokens or len(chunk.ids) == 1
    for one, two in pairwise(chunks):
        assert one.tokens + two.lengths[0] > max_tokens, "a chunk ends only where the next sequence does not fit"


class Rig:
    def __init__(self, folder: Path, lengths: list[int], chunk_tokens: int, *, free: int = 10**6) -> None:
        self.folder = folder
        self.budget = MemoryBudget(free, baseline=0)
        self.lane = Lane()
        shape = StatesShape(np.array(lengths, np.int32), WIDTH, "float32")
        self.states = OffloadedStates(shape, self.budget, self.lane, folder, chunk_tokens)

    def close(self) -> None:
        self.states.close()
        self.lane.close()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path / "scratch", [4, 4, 3, 3, 2, 2], 5)
    yield made
    made.close()


def fill(states: HiddenStates, value: float, max_tokens: int = 5) -> list[TokenChunk]:
    chunks = plan_chunks(states.order, states.lengths, max_tokens)
    for chunk in chunks:
        states.store(chunk, np.full((chunk.tokens, WIDTH), value, np.float32))
    return chunks


def hinder(patch: pytest.MonkeyPatch, how: str) -> None:
    """Takes something from the file system."""
    if how == "short writes" and hasattr(os, "pwrite"):
        whole = os.pwrite
        patch.setattr(os, "pwrite", lambda fd, data, offset: whole(fd, data[:7], offset))
    elif how == "no positions":
        for name in ("preadv", "pwrite", "posix_fallocate"):
            patch.delattr(os, name, raising=False)
        write = os.write
        patch.setattr(os, "write", lambda fd, data: write(fd, data[:7]))
    elif code := getattr(errno, how, 0):

        def refuse(*arguments: object) -> None:
            raise OSError(code, os.strerror(code))

        patch.setattr(os, "posix_fallocate", refuse, raising=False)


@settings(max_examples=120)
@given(
    lengths=LENGTHS,
    data=st.data(),
    dtype=st.sampled_from(["float32", "float16"]),
    how=st.sampled_from(["", "", "short writes", "no positions", "EOPNOTSUPP", "EINVAL", "ENOSYS"]),
)
def test_offloaded_states_equal_resident_ones(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], data: st.DataObject, dtype: str, how: str
) -> None:
    """Over layers, with other chunk sizes each time and sequences pruned in between, against a plain dictionary; on
    any file system."""
    patch = pytest.MonkeyPatch()
    hinder(patch, how)
    stored = np.array(lengths, np.int32)
    largest = data.draw(st.integers(max(lengths), sum(lengths)))
    budget = MemoryBudget(10**6, baseline=0)
    random = np.random.default_rng(len(lengths))
    lane = Lane()
    shape = StatesShape(stored, WIDTH, dtype)
    resident = ResidentStates(shape, budget)
    offloaded = OffloadedStates(shape, budget, lane, tmp_path_factory.getbasetemp(), largest)
    truth: dict[int, np.ndarray] = {}

    def store(chunk: TokenChunk, rooms: Iterable[np.ndarray]) -> None:
        values = random.random((chunk.tokens, WIDTH)).astype(dtype)
        parts = np.split(values, np.cumsum(chunk.lengths)[:-1])
        truth.update(zip(chunk.ids.tolist(), parts, strict=True))
        for states, into in zip((resident, offloaded), rooms, strict=True):
            into[...] = values
            states.store(chunk, into)

    try:
        np.testing.assert_array_equal(resident.order, offloaded.order)
        assert sorted(resident.order.tolist()) == list(range(len(lengths)))
        assert np.all(np.diff(stored[resident.order]) <= 0)
        active = resident.order
        for layer in range(data.draw(st.integers(1, 5))):
            chunks = plan_chunks(active, stored, data.draw(st.integers(max(lengths), largest)))
            if layer == 0:
                for chunk in chunks:
                    store(chunk, [states.room(chunk) for states in (resident, offloaded)])
                continue
            seen = []
            for (chunk, one), (same, two) in zip(resident.stream(chunks), offloaded.stream(chunks), strict=True):
                assert chunk is same
                expected = np.concatenate([truth[i] for i in chunk.ids.tolist()])
                assert one.dtype == two.dtype == np.dtype(dtype)
                np.testing.assert_array_equal(one, expected)
                np.testing.assert_array_equal(two, expected)
                seen += chunk.ids.tolist()
                store(chunk, (one, two) if data.draw(st.booleans()) else np.empty((2, *one.shape), dtype))
            assert seen == active.tolist()
            keep = data.draw(st.lists(st.booleans(), min_size=len(active), max_size=len(active)))
            active = active[np.array(keep, bool)]
    finally:
        for states in (resident, offloaded):
            states.close()
            states.close()
        lane.close()
        patch.undo()
    assert budget.used == 0


def test_at_most_three_chunks_are_in_memory(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays: set[int] = set()
    whole = {name: getattr(type(rig.states._file), name) for name in ("read", "write")}
    for name, method in whole.items():

        def watch(file: object, data: memoryview, offset: int, method: Any = method) -> int:
            held: Any = data.obj
            while held.base is not None:
                held = held.base
            arrays.add(held.ctypes.data)
            moved: int = method(file, data, offset)
            return moved

        monkeypatch.setattr(rig.states._file, name, watch.__get__(rig.states._file), raising=True)
    assert rig.budget.used == OffloadedStates.memory_needed(5, WIDTH, "float32") == 3 * 5 * WIDTH * 4
    for value in range(4):
        chunks = plan_chunks(rig.states.order, rig.states.lengths, 5)
        assert len(chunks) > 3
        for chunk, states in rig.states.stream(chunks) if value else ((c, None) for c in chunks):
            assert states is None or np.all(states == value - 1)
            rig.states.store(chunk, np.full((chunk.tokens, WIDTH), value, np.float32))
    for _ in rig.states.stream(chunks):
        pass
    assert len(arrays) == 3


def test_the_next_chunk_is_read_while_one_computes(rig: Rig) -> None:
    chunks = fill(rig.states, 1.0)
    stream = rig.states.stream(chunks)
    next(stream)
    rig.lane.submit("last", lambda: 0, 0, priority=1e9).wait()
    counters = rig.lane.trace.snapshot()
    stored = 18 * WIDTH * 4
    assert counters["disk.bytes"] == stored + (chunks[0].tokens + chunks[1].tokens) * WIDTH * 4
    assert all(np.all(states == 1.0) for _, states in rig.states.stream(chunks)), "after one that was left early"


def test_close_leaves_nothing_under_way(rig: Rig) -> None:
    """The read ahead of an abandoned pass must not outlive the buffers and the file it belongs to."""
    chunks = fill(rig.states, 1.0)
    gate, entered = threading.Event(), threading.Event()
    stream = rig.states.stream(chunks)
    whole = rig.states._file.read
    late: list[str] = []

    def slow(data: memoryview, offset: int) -> int:
        entered.set()
        assert gate.wait(PATIENCE_S)
        if rig.budget.used == 0:
            late.append("a read went on after its buffers had been given back")
        return whole(data, offset)

    next(stream)  # chunk 0 is here; chunk 1 was asked for
    next(stream)  # chunk 1 is here; chunk 2 will be slow
    rig.lane.submit("last", lambda: 0, 0, priority=1e9).wait()
    rig.states._file.read = slow  # type: ignore[method-assign]
    next(stream)
    assert entered.wait(PATIENCE_S)
    closer = threading.Thread(target=rig.states.close)
    closer.start()
    closer.join(0.05)
    gate.set()
    closer.join(PATIENCE_S)
    rig.lane.submit("last", lambda: 0, 0, priority=1e9).wait()
    assert late == []
    assert rig.budget.used == 0


@pytest.fixture
def descriptors() -> Iterator[None]:
    """As many files are open afterwards as before."""

    def count() -> int:
        return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0

    before = count()
    yield
    assert count() == before


def full(*arguments: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="this system cannot claim room beforehand")
@pytest.mark.usefixtures("descriptors")
def test_a_full_disk_is_found_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "posix_fallocate", full)
    budget = MemoryBudget(10**6, baseline=0)
    with Lane() as lane, pytest.raises(StorageError) as caught:
        OffloadedStates(StatesShape(np.array([10**6], np.int32), WIDTH, "float32"), budget, lane, tmp_path, 5)
    assert "12 MB" in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    assert budget.used == 0


@pytest.mark.usefixtures("descriptors")
def test_no_scratch_file_is_left_behind_or_seen_and_none_is_made_without_room_for_three_buffers(tmp_path: Path) -> None:
    with pytest.raises(BudgetExceeded) as caught:
        Rig(tmp_path, [3, 3], 6, free=100)
    assert caught.value.needed == 3 * 6 * WIDTH * 4
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="file"):
        Rig(tmp_path / "file" / "scratch", [3], 5)
    rig = Rig(tmp_path / "new" / "folder", [3, 2], 5)
    if os.name == "posix":
        assert list(rig.folder.iterdir()) == [], "nobody else sees the scratch file"
    fill(rig.states, 1.0)
    rig.close()
    assert list(rig.folder.iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "pwrite"), reason="writes go another way here")
@pytest.mark.parametrize("lengths", [[2], [3, 3], [4, 4, 3, 3, 2, 2]], ids=["one chunk", "two chunks", "many chunks"])
def test_a_write_that_failed_behind_the_back_surfaces_and_never_as_old_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lengths: list[int]
) -> None:
    rig = Rig(tmp_path, lengths, 5)
    chunks = fill(rig.states, 1.0)
    assert len(list(rig.states.stream(chunks))) == len(chunks)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with suppress(StorageError):
            fill(rig.states, 2.0)
        rig.lane.submit("last", lambda: 0, 0, priority=1e9).wait()
    for _ in range(3):  # another try must not be served the former content
        with pytest.raises(StorageError, match="No space"):
            list(rig.states.stream(chunks))
    rig.close()
    assert rig.budget.used == 0
    assert list(tmp_path.iterdir()) == []


def test_a_failed_read_and_a_file_cut_short_are_storage_errors(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = fill(rig.states, 1.0)

    def fail(*arguments: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv" if hasattr(os, "preadv") else "read", fail)
        with pytest.raises(StorageError):
            list(rig.states.stream(chunks))
    rig.lane.submit("last", lambda: 0, 0, priority=1e9).wait()
    os.ftruncate(rig.states._file._fd, 20)
    with pytest.raises(StorageError):
        list(rig.states.stream(chunks))


def test_states_cross_the_lane_before_weights(rig: Rig) -> None:
    order: list[str] = []
    gate, entered = threading.Event(), threading.Event()
    rig.lane.submit("held", lambda: entered.set() or int(gate.wait(PATIENCE_S)), 0)
    assert entered.wait(PATIENCE_S)
    rig.lane.submit("weights", lambda: order.append("weights") or 0, 0)
    write = rig.states._file.write
    rig.states._file.write = lambda data, offset: order.append("states") or write(data, offset)
    chunk = plan_chunks(rig.states.order, rig.states.lengths, 5)[0]
    rig.states.store(chunk, np.zeros((chunk.tokens, WIDTH), np.float32))
    gate.set()
    rig.lane.submit("last", lambda: 0, 0, priority=1e9).wait()
    assert order == ["states", "weights"]
