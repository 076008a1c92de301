"""The row cache hands out the table's own rows, and forgets the least recently used ones."""

from __future__ import annotations

import zlib

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from naive.lru import Lru
from naive.source import MemoryRows

from edge.budget import MemoryBudget
from edge.errors import BudgetExceeded, CorruptBlock
from edge.link import Lane, Link
from edge.streaming.embedding_rows import RowCache
from edge.trace import Trace

ROWS = 20
TABLE = np.random.default_rng(3).integers(0, 256, (ROWS, 8), np.uint8)
LINK = Link("rows of tests")
REQUESTS = st.lists(st.lists(st.integers(0, ROWS - 1), max_size=12), max_size=20)


def cache_of(capacity: int, **keys: object) -> tuple[RowCache, MemoryRows, MemoryBudget]:
    source = MemoryRows(TABLE)
    budget = MemoryBudget(10**6, baseline=0)
    lane = Lane("rows", link=LINK, trace=keys.get("trace"))  # type: ignore[arg-type]
    return RowCache(source, source.table, capacity, budget, lane, **keys), source, budget  # type: ignore[arg-type]


@given(requests=REQUESTS, capacity=st.integers(0, ROWS + 5))
def test_rows_are_the_tables_and_what_is_forgotten_was_not_used_longest(
    requests: list[list[int]], capacity: int
) -> None:
    trace = Trace()
    cache, source, _ = cache_of(capacity, trace=trace)
    assert cache.capacity == max(1, min(capacity, ROWS))
    twin = Lru(cache.capacity)
    hits = misses = 0
    for ids in requests:
        source.reads.clear()
        rows = cache.gather(np.array(ids, np.int64))
        np.testing.assert_array_equal(rows, TABLE[np.array(ids, np.int64)])
        rows[:] = 0  # the caller owns them
        read = [row for reads in source.reads for row in reads]
        misses += len(read)
        if len(set(ids)) > cache.capacity:
            assert read == sorted(set(ids)), "read past the cache, which stays as it was"
        else:
            assert twin.request(set(ids), read) == []
            hits += len(set(ids)) - len(read)
    counters = trace.snapshot()
    assert [counters.get(f"rows.{name}", 0) for name in ("hits", "misses", "bytes")] == [hits, misses, misses * 8]


def test_memory_is_leased_to_the_byte_and_given_back() -> None:
    cache, source, budget = cache_of(ROWS * 2)
    assert cache.capacity == ROWS
    assert budget.holders() == {"embedding rows": RowCache.memory_needed(source.table, ROWS)}
    held = sum(a.nbytes for a in vars(cache).values() if isinstance(a, np.ndarray))
    assert held == budget.used
    cache.close()
    cache.close()
    assert budget.used == 0
    with pytest.raises(BudgetExceeded):
        RowCache(source, source.table, ROWS, MemoryBudget(300, baseline=0), Lane("rows", link=LINK))


@pytest.mark.parametrize("capacity", [2, ROWS])
def test_a_row_that_does_not_match_its_checksum_is_named_and_never_kept(capacity: int) -> None:
    checksums = np.array([zlib.crc32(row.tobytes()) for row in TABLE], np.uint32)
    cache, source, _ = cache_of(capacity, checksums=checksums)
    cache.gather(np.array([1]))
    source.rows = TABLE.copy()
    source.rows[7, 3] ^= 1
    for _ in range(2):
        with pytest.raises(CorruptBlock, match="row 7"):
            cache.gather(np.array([1, 2, 7, 8, 9][: capacity + 1 if capacity == 2 else 5]))
    np.testing.assert_array_equal(cache.gather(np.array([1, 2])), TABLE[[1, 2]])
    source.rows = TABLE
    np.testing.assert_array_equal(cache.gather(np.array([2, 7])), TABLE[[2, 7]])


@pytest.mark.parametrize("capacity", [1, ROWS])
@pytest.mark.parametrize("row", [-1, ROWS])
def test_a_row_outside_the_table_is_refused(capacity: int, row: int) -> None:
    """A tokenizer with more tokens than the table has rows must not be served its neighbours' bytes."""
    cache, _, _ = cache_of(capacity)
    with pytest.raises(IndexError, match=str(row)):
        cache.gather(np.array([3, row]))
    np.testing.assert_array_equal(cache.gather(np.array([ROWS - 1])), TABLE[[ROWS - 1]])


def test_a_failed_read_leaves_the_cache_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, source, _ = cache_of(3)
    cache.gather(np.array([0, 1, 2]))

    def fail(*arguments: object) -> None:
        raise OSError

    with monkeypatch.context() as patch:
        patch.setattr(source, "read_rows", fail)
        with pytest.raises(OSError):  # noqa: PT011
            cache.gather(np.array([2, 9]))
    source.reads.clear()
    np.testing.assert_array_equal(cache.gather(np.array([0, 1, 2])), TABLE[[0, 1, 2]])
    assert source.reads == []
    cache, source, _ = cache_of(3)
    cache.prefetch(np.array([1, 5, 6, 7]))
    cache.gather(np.array([6, 1, 5]))
    assert source.reads == [[1, 5, 6]], "rows are made resident up to the capacity"
