"""Blocks come back as they were written, or not at all."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from naive.waiting import at_once

from edge.blocks import ALIGNMENT, BlockFile, BlockId, Extent, RowTable, distinct
from edge.errors import CorruptBlock, StorageError

SIZES = (5000, 1, ALIGNMENT, 3 * 2**20 + 17)


@pytest.fixture(params=["preadv", "seek and read"], autouse=True)
def reading(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test here also runs the way a system without positioned reads has to go."""
    if request.param == "seek and read":
        monkeypatch.delattr(os, "preadv", raising=False)


class Written:
    """A block file on disk: blocks at aligned places, rubbish in between."""

    def __init__(self, folder: Path) -> None:
        random = np.random.default_rng(1)
        self.path = folder / "model.blk"
        self.blocks = {BlockId("layer", i): random.bytes(size) for i, size in enumerate(SIZES)}
        self.extents: dict[BlockId, Extent] = {}
        content = bytearray(random.bytes(10))
        for block, data in self.blocks.items():
            content += random.bytes(-len(content) % ALIGNMENT)
            self.extents[block] = Extent(len(content), len(data), zlib.crc32(data))
            content += data
        self.path.write_bytes(content)

    def damage(self, block: BlockId, at: int = 0) -> None:
        with open(self.path, "r+b") as file:
            file.seek(self.extents[block].offset + at)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 0x10]))


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return Written(tmp_path)


def test_round_trip(written: Written) -> None:
    file = BlockFile(written.path, written.extents)
    for _ in range(2):
        for block, data in written.blocks.items():
            assert file.nbytes(block) == len(data)
            buffer = bytearray(len(data) + 8)
            file.read(block, memoryview(buffer))
            assert bytes(buffer) == data + bytes(8), "nothing past the block is touched"
    file.close()
    file.close()


@pytest.mark.parametrize("index", range(len(SIZES)))
def test_one_flipped_bit_names_file_and_block_every_time(written: Written, index: int) -> None:
    victim = BlockId("layer", index)
    written.damage(victim, at=SIZES[index] - 1)
    file = BlockFile(written.path, written.extents)
    for _ in range(2):  # a block that failed once is not taken for checked
        with pytest.raises(CorruptBlock) as caught:
            file.read(victim, memoryview(bytearray(SIZES[index])))
        assert f"layer.{index}" in str(caught.value)
        assert str(written.path) in str(caught.value)
    for block, data in written.blocks.items():
        if block != victim:
            buffer = bytearray(len(data))
            file.read(block, memoryview(buffer))
            assert bytes(buffer) == data


def test_a_block_is_checked_the_first_time_only(written: Written) -> None:
    file = BlockFile(written.path, written.extents)
    block = BlockId("layer", 0)
    buffer = bytearray(SIZES[0])
    file.read(block, memoryview(buffer))
    written.damage(block)
    file.read(block, memoryview(buffer))
    with pytest.raises(CorruptBlock):
        BlockFile(written.path, written.extents).read(block, memoryview(buffer))


def test_a_truncated_file_is_refused_at_once(written: Written) -> None:
    open_already = BlockFile(written.path, written.extents)
    os.truncate(written.path, written.path.stat().st_size - 1)
    with pytest.raises(CorruptBlock, match=r"layer\.3"):
        open_already.read(BlockId("layer", 3), memoryview(bytearray(SIZES[3])))
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
    with pytest.raises(CorruptBlock, match=r"layer\.3") as caught:
        BlockFile(written.path, written.extents)
    assert str(written.path) in str(caught.value)
    if before is not None:
        assert len(os.listdir("/proc/self/fd")) == before, "the file stayed open"


def test_a_file_that_cannot_be_opened_or_read_is_named(written: Written, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="nowhere"):
        BlockFile(tmp_path / "nowhere.blk", {})
    file = BlockFile(written.path, written.extents)
    with pytest.raises(ValueError, match=r"layer\.0"):  # a buffer too small is no corrupt block
        file.read(BlockId("layer", 0), memoryview(bytearray(SIZES[0] - 1)))
    file.close()
    with pytest.raises(StorageError, match="layer"):
        file.read(BlockId("layer", 0), memoryview(bytearray(SIZES[0])))


@pytest.mark.parametrize("takes_advice", [True, False])
def test_coming_reads_are_announced_in_pieces(
    written: Written, monkeypatch: pytest.MonkeyPatch, takes_advice: bool
) -> None:
    asked: list[tuple[int, int]] = []
    if takes_advice:
        monkeypatch.setattr(os, "posix_fadvise", lambda fd, *asked_for: asked.append(asked_for[:2]), raising=False)
        monkeypatch.setattr(os, "POSIX_FADV_WILLNEED", 3, raising=False)
    else:
        monkeypatch.delattr(os, "posix_fadvise", raising=False)
    BlockFile(written.path, written.extents).announce([(100, (1 << 17) + 50), (7, 3)])
    assert asked == [(100, 1 << 17), (100 + (1 << 17), 50), (7, 3)] * takes_advice


def test_short_reads_are_continued(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read may bring less than was asked for: a signal, or the 2 GiB that Linux moves at once."""
    if hasattr(os, "preadv"):
        whole = os.preadv
        monkeypatch.setattr(os, "preadv", lambda fd, views, offset: whole(fd, [views[0][:1000]], offset))
    else:
        read = os.read
        monkeypatch.setattr(os, "read", lambda fd, n: read(fd, min(n, 1000)))
    file = BlockFile(written.path, written.extents)
    buffer = bytearray(SIZES[0])
    file.read(BlockId("layer", 0), memoryview(buffer))
    assert bytes(buffer) == written.blocks[BlockId("layer", 0)]


def test_threads_reading_the_same_file(written: Written) -> None:
    file = BlockFile(written.path, written.extents)
    wrong: list[BlockId] = []

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        for _ in range(30):
            block = BlockId("layer", int(random.integers(3)))
            buffer = bytearray(file.nbytes(block))
            file.read(block, memoryview(buffer))
            if bytes(buffer) != written.blocks[block]:
                wrong.append(block)

    at_once(work, 4)
    assert not wrong


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RowTable, np.ndarray]:
    rows = np.random.default_rng(2).integers(0, 256, (50, 12), np.uint8)
    path = tmp_path_factory.mktemp("rows") / "rows.blk"
    path.write_bytes(b"x" * 100 + rows.tobytes())
    return path, RowTable(100, 50, 12), rows


class CountingFile(BlockFile):
    calls = 0

    def _pread(self, view: memoryview, offset: int, what: str) -> None:
        self.calls += 1
        super()._pread(view, offset, what)


@given(ids=st.sets(st.integers(0, 49)))
def test_rows_read_together_equal_rows_read_singly(table: tuple[Path, RowTable, np.ndarray], ids: set[int]) -> None:
    path, place, rows = table
    file = CountingFile(path, {})
    wanted = np.array(sorted(ids), np.int64)
    out = np.zeros((len(ids), 12), np.uint8)
    file.read_rows(place, wanted, out)
    np.testing.assert_array_equal(out, rows[wanted])
    assert file.calls == sum(i - 1 not in ids for i in ids), "one read for each run of neighbours"
    file.close()


@pytest.mark.parametrize(("cached", "there"), [(9, 5), (4, 4), (1, 1), (0, 0)])
@pytest.mark.parametrize("short", [True, False])
def test_rows_of_the_page_cache_come_first_and_those_of_the_disk_follow(
    table: tuple[Path, RowTable, np.ndarray], cached: int, there: int, short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the rows 0, 3, 4, 5 and 9 the system is said to hold those before `cached`, or a part of them."""
    path, place, rows = table
    offsets = (place.offset + np.array([0, 3, 4, 5, 9]) * 12).tolist()
    positioned = hasattr(os, "preadv")

    def preadv(fd: int, buffers: list[memoryview], offset: int, flags: int = 0) -> int:
        if flags and offsets.index(offset) >= cached:
            if not short:
                raise BlockingIOError
            return whole(fd, [buffers[0][:7]], offset)
        return whole(fd, buffers, offset)

    if positioned:
        whole = os.preadv
        monkeypatch.setattr(os, "preadv", preadv)
        monkeypatch.setattr(os, "RWF_NOWAIT", 8, raising=False)
    file = BlockFile(path, {})
    out = np.zeros((5, 12), np.uint8)
    low = file.read_resident(offsets, out)
    assert low == (there if positioned else 0)
    np.testing.assert_array_equal(out[:low], rows[[0, 3, 4, 5, 9]][:low])
    file.read_scattered(offsets[low:], out[low:])
    np.testing.assert_array_equal(out, rows[[0, 3, 4, 5, 9]])


@pytest.mark.parametrize("row", [-1, 50])
def test_rows_outside_the_table_are_refused(table: tuple[Path, RowTable, np.ndarray], row: int) -> None:
    """Beside the table lie other blocks: their bytes must not be handed out as rows."""
    path, place, _ = table
    path.write_bytes(path.read_bytes()[: 100 + 600] + bytes(100))
    file = BlockFile(path, {})
    with pytest.raises(IndexError, match=str(row)):
        file.read_rows(place, np.array([row]), np.zeros((1, 12), np.uint8))
    with pytest.raises(CorruptBlock, match="rows at byte"):
        file.read_rows(RowTable(place.offset, 70, 12), np.array([3, 49, 60]), np.zeros((3, 12), np.uint8))


def test_block_ids_are_shown_and_sorted() -> None:
    blocks = [BlockId("layer", 10), BlockId("head"), BlockId("layer", 2)]
    assert [str(block) for block in sorted(blocks)] == ["head.0", "layer.2", "layer.10"]


def test_distinct_numbers_are_those_of_numpy() -> None:
    random = np.random.default_rng(0)
    for shape in ((0,), (1,), (50,), (7, 9), (3, 0)):
        numbers = random.integers(-9, 9, shape)
        found = distinct(numbers)
        assert found.dtype == numbers.dtype
        assert (found == np.unique(numbers)).all()
