"""Rows come out of the scratch files sorted by list, all of them, in bounded memory."""

from __future__ import annotations

import tempfile
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from edge.budget import MemoryBudget
from edge.devices.faiss_codec import FaissCodecs
from edge.errors import StorageError
from edge.ivf.base import CodecSpec
from edge.ivf.maintenance import retraining
from edge.ivf.maintenance.retraining import Runs
from edge.ivf.storage.segment_writer import SegmentWriter
from edge.ivf.storage.segments import IndexSegment

DIM = 4
SPEC = CodecSpec("flat", DIM, 4 * DIM)
RECORD = 4 + 8 + 4 * DIM


@settings(max_examples=40)
@given(
    lists=st.lists(st.integers(0, 11), min_size=1, max_size=120),
    room=st.integers(1, 200),
    guess=st.lists(st.integers(0, 40), min_size=12, max_size=12),
    seed=st.integers(0, 99),
)
def test_sorted_by_list_whatever_was_expected(lists: list[int], room: int, guess: list[int], seed: int) -> None:
    random = np.random.default_rng(seed)
    numbers = np.array(lists, np.int32)
    ids = random.permutation(len(lists)).astype(np.int64)
    vectors = random.standard_normal((len(lists), DIM)).astype(np.float32)
    ledger = MemoryBudget(1 << 36, baseline=0)
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        folder = Path(name)
        patch.setattr(retraining, "_READ_NBYTES", 5 * RECORD)
        with (
            SegmentWriter(folder, SPEC, ledger) as writer,
            Runs(folder, DIM, np.array(guess, np.int64), room * RECORD) as runs,
        ):
            for start in range(0, len(lists), 17):
                cut = slice(start, start + 17)
                runs.add(numbers[cut], ids[cut], vectors[cut])
            written = list(runs.drain(writer, FaissCodecs().open(SPEC)))
            assert written[-1] == len(lists)
            assert written == sorted(written)
            entry = writer.finish()
        assert [path.name for path in folder.iterdir()] == [entry.name]
        segment = IndexSegment(folder, entry, SPEC, ledger)
        got = {}
        order = []
        for block in segment.stream(np.empty(0, np.int64)):
            order.append(block.list)
            for number, vector in zip(block.ids.tolist(), block.vectors, strict=True):
                got[number] = (block.list, vector.tolist())
        assert order == sorted(order)
        assert got == {
            number: (row, vector.tolist()) for number, row, vector in zip(ids.tolist(), lists, vectors, strict=True)
        }
        segment.close()


def test_scratch_files_go_when_it_fails(tmp_path: Path) -> None:
    with Runs(tmp_path, DIM, np.full(4, 100), 10 * RECORD) as runs:
        runs.add(np.zeros(3, np.int32), np.arange(3), np.zeros((3, DIM), np.float32))
        assert len(list(tmp_path.iterdir())) == 4
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="scratch"):
        Runs(tmp_path / "file" / "below", DIM, np.full(4, 100), 10)
