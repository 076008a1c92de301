"""The cost table interpolates measurements, survives being stored, and says when it does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from naive.kv import FakeContext

from bench.cost_table import CostTable
from edge.errors import CorruptBlock, InputError, StorageError
from edge.files import sealed

TABLE = CostTable("m", (0, 100, 300), (1, 50, 200), ((1, 10, 40), (2, 12, 48), (4, 20, 80)))


def test_points_of_the_grid_are_what_was_measured() -> None:
    for cached, row in zip(TABLE.cached, TABLE.seconds, strict=True):
        for computed, seconds in zip(TABLE.computed, row, strict=True):
            assert TABLE.estimate(cached, computed) == pytest.approx(seconds)


def test_between_them_it_is_bilinear() -> None:
    # Algorithm 1 of RAGCache, lines 6 to 9, at cached 200 (halfway) and computed 125 (halfway).
    low = 12 + (200 - 100) / (300 - 100) * (20 - 12)
    high = 48 + (200 - 100) / (300 - 100) * (80 - 48)
    assert TABLE.estimate(200, 125) == pytest.approx(low + (125 - 50) / (200 - 50) * (high - low))


@given(cached=st.integers(0, 300), computed=st.integers(1, 200))
def test_inside_the_grid_it_is_one_interpolation_after_the_other(cached: int, computed: int) -> None:
    columns = [np.interp(cached, TABLE.cached, column) for column in zip(*TABLE.seconds, strict=True)]
    assert TABLE.estimate(cached, computed) == pytest.approx(np.interp(computed, TABLE.computed, columns))


@given(cached=st.integers(0, 2000), computed=st.integers(0, 2000))
def test_a_plane_is_reproduced_everywhere(cached: int, computed: int) -> None:
    """Inside the grid and outside it: a cost that is linear in both lengths is met exactly."""
    grid, lengths = (0, 100, 1000), (1, 64, 512)
    plane = tuple(tuple(0.5 + 0.01 * a + 0.2 * b for b in lengths) for a in grid)
    expected = 0.5 + 0.01 * cached + 0.2 * computed if computed else 0.0
    assert CostTable("m", grid, lengths, plane).estimate(cached, computed) == pytest.approx(expected)


def test_it_is_never_negative() -> None:
    falling = CostTable("m", (0, 10), (1, 10), ((5.0, 6.0), (1.0, 1.0)))
    assert falling.estimate(1000, 5) == 0.0


def test_one_point_is_enough() -> None:
    assert CostTable("m", (0,), (8,), ((3.0,),)).estimate(500, 2) == 3.0


@pytest.mark.parametrize(
    ("cached", "computed", "seconds"),
    [
        ((), (), ()),
        ((0, 0), (1,), ((1.0,), (1.0,))),
        ((0,), (2, 1), ((1.0, 1.0),)),
        ((0,), (0, 1), ((1.0, 1.0),)),
        ((-1,), (1,), ((1.0,),)),
        ((0,), (1,), ((-1.0,),)),
        ((0,), (1,), ((float("nan"),),)),
        ((0, 1), (1,), ((1.0,),)),
        ((0, 1), (1, 2), ((1.0, 1.0), (1.0,))),
    ],
)
def test_what_is_no_table_is_refused(cached: tuple[int], computed: tuple[int], seconds: tuple[tuple[float]]) -> None:
    with pytest.raises(InputError, match="ascending grids"):
        CostTable("m", cached, computed, seconds)


def test_measuring_times_each_pair_after_its_prefix() -> None:
    backend = FakeContext(capacity=500)
    backend.prefill([9, 9, 9])
    table = CostTable.measure(
        backend, list(range(400)), cached=(0, 100, 300), computed=(1, 10, 100), repeats=2, clock=lambda: backend.clock
    )
    assert (table.cached, table.computed) == ((0, 100, 300), (1, 10, 100))
    for cached, row in zip(table.cached, table.seconds, strict=True):
        for computed, seconds in zip(table.computed, row, strict=True):
            # The fake context takes 1 + position / 100 per token.
            assert seconds == pytest.approx(sum(1 + p / 100 for p in range(cached, cached + computed)))
    assert backend.length == 0
    assert table.fingerprint == "fake"


def test_measuring_leaves_out_what_does_not_fit() -> None:
    backend = FakeContext(capacity=250)
    table = CostTable.measure(backend, list(range(1000)), cached=(0, 100, 200, 300), computed=(10, 150, 400), repeats=1)
    assert (table.cached, table.computed) == ((0, 100), (10, 150))
    with pytest.raises(InputError, match="5 tokens are too few"):
        CostTable.measure(backend, list(range(5)), computed=(10, 150))


def test_a_stored_table_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "costs.json"
    assert CostTable.load(path) is None
    TABLE.save(path)
    assert CostTable.load(path) == TABLE
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"fingerprint": "m"}', "null", b"\xff\xfe"])
def test_a_damaged_table_says_so(tmp_path: Path, text: str | bytes) -> None:
    path = tmp_path / "costs.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(CorruptBlock, match="no cost table"):
        CostTable.load(path)


def test_a_table_with_other_numbers_says_so(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    TABLE.save(path)
    data = json.loads(path.read_text())
    data["seconds"][0][0] = -1
    path.write_text(json.dumps(data))
    with pytest.raises(CorruptBlock, match="no cost table"):
        CostTable.load(path)


def test_a_disk_that_refuses_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match="cannot be written"):
        TABLE.save(tmp_path / "file" / "costs.json")
    with pytest.raises(StorageError, match="cannot be read"):
        CostTable.load(tmp_path)


class SlowPrefill(FakeContext):
    """Its prefills numbered `slow` take a thousand seconds more."""

    def __init__(self, *slow: int) -> None:
        super().__init__(capacity=500)
        self.slow = slow
        self.calls = 0

    def prefill(self, tokens: Any, cancelled: Any = None) -> Any:
        self.clock += 1000.0 * (bool(tokens) and self.calls in self.slow)
        self.calls += bool(tokens)
        return super().prefill(tokens, cancelled)


def test_the_first_run_which_brings_the_weights_in_does_not_count() -> None:
    backend = SlowPrefill(0)
    table = CostTable.measure(
        backend, list(range(400)), cached=(0,), computed=(10,), repeats=1, clock=lambda: backend.clock
    )
    assert table.seconds[0][0] < 100


def test_one_slow_run_does_not_count() -> None:
    backend = SlowPrefill(3)
    table = CostTable.measure(
        backend, list(range(400)), cached=(0,), computed=(10,), repeats=3, clock=lambda: backend.clock
    )
    assert table.seconds[0][0] < 100


def test_a_table_that_cannot_be_written_whole_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "costs.json"
    TABLE.save(path)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(sealed.os, "fsync", full)
        with pytest.raises(StorageError, match="No space left"):
            TABLE.save(path)
    assert CostTable.load(path) == TABLE
    assert list(tmp_path.iterdir()) == [path]
