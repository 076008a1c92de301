"""Segments give back what was written to them, or say which block of which file is broken."""

from __future__ import annotations

import gc
import os
import sqlite3
import stat
import tempfile
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from edge.budget import MemoryBudget
from edge.devices.faiss_codec import FaissCodecs
from edge.errors import BudgetExceeded, CorruptBlock, StorageError
from edge.ivf.base import NO_IDS, Codec, CodecSpec
from edge.ivf.storage import segment_writer
from edge.ivf.storage.manifest import MIGRATIONS, IndexManifest
from edge.ivf.storage.segment_writer import WRITER_NBYTES, SegmentWriter
from edge.ivf.storage.segments import IndexSegment, OpenSegments, SegmentEntry

DIM = 8
FLAT = CodecSpec("flat", DIM, 4 * DIM)


def budget() -> MemoryBudget:
    return MemoryBudget(1 << 36, baseline=0)


def coded(name: str) -> Codec:
    random = np.random.default_rng(5)
    codecs = FaissCodecs()
    return codecs.open(codecs.train(name, random.standard_normal((300, DIM)).astype(np.float32), seed=1))


def write(
    folder: Path, codec: Codec, lists: dict[int, tuple[np.ndarray, np.ndarray]], ledger: MemoryBudget
) -> SegmentEntry:
    with SegmentWriter(folder, codec.spec, ledger) as writer:
        for number, (ids, vectors) in lists.items():
            half = len(ids) // 2
            for cut in (slice(0, half), slice(half, None)):  # a list may come in pieces
                writer.append(number, ids[cut], codec.encode(vectors[cut]), vectors[cut])
        return writer.finish()


def opened(
    folder: Path, codec: Codec, lists: dict[int, tuple[np.ndarray, np.ndarray]], ledger: MemoryBudget
) -> IndexSegment:
    return IndexSegment(folder, write(folder, codec, lists, ledger), codec.spec, ledger)


def lists_of(sizes: dict[int, int], seed: int = 0) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    random = np.random.default_rng(seed)
    ids = random.choice(10**9, sum(sizes.values()), replace=False)
    vectors = random.standard_normal((len(ids), DIM)).astype(np.float32)
    ends = np.cumsum(list(sizes.values()))
    return {
        number: (ids[end - size : end], vectors[end - size : end])
        for (number, size), end in zip(sizes.items(), ends, strict=True)
    }


@pytest.mark.parametrize("name", ["flat", "sq8", "pq"])
@pytest.mark.parametrize("part_nbytes", [4 << 20, 700])
def test_round_trip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, part_nbytes: int) -> None:
    monkeypatch.setattr(segment_writer, "PART_NBYTES", part_nbytes)
    monkeypatch.setattr(segment_writer, "_PAGE_ROWS", 7)
    monkeypatch.setattr(segment_writer, "_RUN_ROWS", 20)
    codec, ledger = coded(name), budget()
    lists = lists_of({0: 30, 2: 1, 3: 55, 9: 12})
    segment = opened(tmp_path, codec, lists, ledger)
    assert segment.rows == 98
    assert (len(segment.parts) > 4) == (part_nbytes == 700)
    assert sorted(os.listdir(tmp_path)) == [segment.name]
    seen: dict[int, list[int]] = {}
    for number, row in enumerate(segment.parts["list"].tolist()):
        part = segment.list_part(number)
        block = np.empty(part.nbytes + 5, np.uint8)
        segment.read(part.codes, block.data)
        ids, codes, _ = part.split(block)
        seen.setdefault(row, []).extend(ids.tolist())
        own = lists[row][1][np.isin(lists[row][0], ids)]
        np.testing.assert_array_equal(codes, codec.encode(own))
        if part.vectors is None:
            np.testing.assert_array_equal(codes.view(np.float32), own)
        else:
            raw = np.empty((part.rows, 4 * DIM), np.uint8)
            segment.read_rows(part.vectors, np.arange(part.rows), raw)
            np.testing.assert_array_equal(raw.view(np.float32), own)
    assert seen == {number: ids.tolist() for number, (ids, _) in lists.items()}
    segment.close()


@pytest.mark.parametrize("name", ["flat", "sq8"])
def test_streams_leave_out_what_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(segment_writer, "PART_NBYTES", 900)
    codec = coded(name)
    lists = lists_of({1: 40, 4: 33})
    segment = opened(tmp_path, codec, lists, budget())
    skip = np.array([0, 3, *range(10, 39), 40, 72])
    blocks = list(segment.stream(skip))
    rows = np.concatenate([block.rows for block in blocks])
    np.testing.assert_array_equal(rows, np.setdiff1d(np.arange(73), skip))
    everything = np.concatenate([lists[1][1], lists[4][1]])
    np.testing.assert_array_equal(np.concatenate([block.vectors for block in blocks]), everything[rows])
    np.testing.assert_array_equal(np.concatenate([block.ids for block in blocks]), segment.ids(rows))
    np.testing.assert_array_equal(np.concatenate([b.codes for b in blocks]), codec.encode(everything[rows]))
    np.testing.assert_array_equal(segment.vectors(rows), everything[rows])
    assert {block.list for block in blocks} == {1, 4}
    np.testing.assert_array_equal(segment.lists(np.array([0, 39, 40, 72])), [1, 1, 4, 4])


@settings(max_examples=40)
@given(data=st.data())
def test_every_id_is_found_and_no_other(data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, 2**40), min_size=1, max_size=80, unique=True))
    asked = sorted(set(data.draw(st.lists(st.sampled_from(ids) | st.integers(0, 2**40), max_size=60))))
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(segment_writer, "_PAGE_ROWS", 5)
        patch.setattr(segment_writer, "_RUN_ROWS", 17)
        vectors = np.zeros((len(ids), DIM), np.float32)
        segment = opened(Path(folder), FaissCodecs().open(FLAT), {0: (np.array(ids), vectors)}, budget())
        found = segment.lookup(np.array(asked, np.int64))
        assert found.tolist() == [ids.index(number) if number in ids else -1 for number in asked]
        segment.close()


def damage(path: Path, at: int) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 4]))


@pytest.mark.parametrize("name", ["flat", "sq8"])
def test_a_flipped_bit_is_named(tmp_path: Path, name: str) -> None:
    codec, ledger = coded(name), budget()
    entry = write(tmp_path, codec, lists_of({0: 30, 1: 30}), ledger)
    path = tmp_path / entry.name

    def again() -> IndexSegment:
        return IndexSegment(tmp_path, entry, codec.spec, ledger)

    part = again().list_part(1)
    offset = part.source.extents[part.codes].offset
    damage(path, offset + 30 * 8 + 3)  # a code
    with pytest.raises(CorruptBlock, match=rf"{entry.name}.*codes\.1"):
        list(again().stream(NO_IDS))
    damage(path, offset + 30 * 8 + 3)  # and back
    vectors = offset + 30 * 8 if part.vectors is None else part.vectors.offset
    damage(path, vectors + 4 * DIM + 1)
    with pytest.raises(CorruptBlock, match=rf"{entry.name}.*codes\.1"):
        list(again().stream(NO_IDS))
    with pytest.raises(CorruptBlock, match=rf"{entry.name}.*vector 1 of block codes\.1"):
        again().vectors(np.array([31, 32]))
    again().vectors(np.array([0, 5, 33]))
    damage(path, int(entry.pages["offset"][0]))
    with pytest.raises(CorruptBlock, match=rf"{entry.name}.*ids\.0"):
        again().lookup(entry.pages["first"][:1])


def test_truncated_and_missing_files(tmp_path: Path) -> None:
    ledger = budget()
    codec = coded("sq8")
    entry = write(tmp_path, codec, lists_of({0: 30}), ledger)
    os.truncate(tmp_path / entry.name, entry.nbytes - 1)
    with pytest.raises(CorruptBlock, match=entry.name):
        OpenSegments(tmp_path, ledger).open(entry, codec.spec)
    (tmp_path / entry.name).unlink()
    with pytest.raises(StorageError, match=entry.name):
        OpenSegments(tmp_path, ledger).open(entry, codec.spec)
    assert ledger.used == 0
    db = sqlite3.connect(":memory:")
    for step in MIGRATIONS:
        db.executescript(step)
    with pytest.raises(CorruptBlock, match=r"the table of 1\.ivf is not what was written"):
        IndexManifest(db).segment("1.ivf")
    db.close()


def test_an_unfinished_segment_leaves_no_file(tmp_path: Path) -> None:
    ledger = budget()
    ids, vectors = np.arange(3), np.zeros((3, DIM), np.float32)
    with SegmentWriter(tmp_path, FLAT, ledger) as writer:
        writer.append(0, ids, vectors.view(np.uint8), vectors)
        assert len(os.listdir(tmp_path)) == 1
    assert os.listdir(tmp_path) == []
    assert ledger.used == 0
    with pytest.raises(BudgetExceeded, match="index writer"):
        SegmentWriter(tmp_path, FLAT, MemoryBudget(WRITER_NBYTES - 1, baseline=0))
    assert os.listdir(tmp_path) == []


def test_a_segment_is_opened_once_and_closed_with_its_last_user(tmp_path: Path) -> None:
    ledger = budget()
    codec = coded("flat")
    entry = write(tmp_path, codec, lists_of({0: 5}), ledger)
    segments = OpenSegments(tmp_path, ledger)
    first = segments.open(entry, codec.spec)
    assert segments.open(entry, codec.spec) is first
    assert not segments.remove(entry.name), "somebody reads it"
    part = first.list_part(0)
    del first
    gc.collect()
    assert not segments.remove(entry.name), "its part keeps it open"
    part.source.read(part.codes, memoryview(bytearray(part.nbytes)))
    del part
    gc.collect()
    assert segments.remove(entry.name)
    assert os.listdir(tmp_path) == []
    assert ledger.used == 0


def test_a_segment_is_flushed_before_it_has_its_name_and_the_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "segments"
    flushed: list[tuple[str, bool]] = []

    def fsync(descriptor: int) -> None:
        kind = "folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
        flushed.append((kind, bool(list(folder.glob("*.blk")))))

    monkeypatch.setattr(os, "fsync", fsync)
    write(folder, FaissCodecs().open(FLAT), lists_of({0: 3}), budget())
    assert flushed == ([("file", False), ("folder", True)] if os.name == "posix" else [("file", False)])
