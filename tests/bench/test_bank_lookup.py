"""Look-ups in placed and joined tables return the tables' own rows, wherever the tables lie."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from bench.bank_lookup import BankLookup, DeviceBank, FileBank, joined_rows
from edge.budget import MemoryBudget
from edge.devices.limited import LimitedDevice
from edge.errors import BudgetExceeded, CorruptBlock, InputError, RangeError
from edge.link import Lane
from edge.planner.bank_placement import BankPlacement, Banks, EmbeddingTable, placed
from edge.trace import Trace

RANDOM = np.random.default_rng(4)
PARTS = {
    name: RANDOM.standard_normal((rows, dim)).astype(np.float32)
    for name, rows, dim in (("a", 3, 4), ("b", 50, 2), ("c", 7, 8), ("d", 400, 4), ("e", 12, 1))
}
TABLES = {name: EmbeddingTable(len(rows), rows.shape[1], (name,)) for name, rows in PARTS.items()}
IDS = np.stack([RANDOM.integers(len(rows), size=300) for rows in PARTS.values()], axis=1)
EXPECTED = np.concatenate([rows[column] for rows, column in zip(PARTS.values(), IDS.T, strict=True)], axis=1)

PLACEMENTS = {
    "planned": placed(list(TABLES.values()), Banks(count=2, near=1)),
    "single": placed(list(TABLES.values()), Banks(count=2, near=100), combine=False),
    "near": BankPlacement(tuple(TABLES.values()), (), 1.0),
    "three in one": BankPlacement(
        (TABLES["e"],), ((TABLES["c"].product(TABLES["a"]).product(TABLES["b"]),), (TABLES["d"],)), 1.0
    ),
}


@contextmanager
def opened(
    placement: BankPlacement, kind: str, folder: Path, budget: MemoryBudget, *, cached: int = 1,
    trace: Trace | None = None,
) -> Iterator[BankLookup]:  # fmt: skip
    lanes, devices = [Lane(trace=trace) for _ in range(2)], []
    try:
        if kind == "file":
            banks: Sequence[FileBank | DeviceBank] = [FileBank(folder / str(i), lanes[i]) for i in range(2)]
        else:
            devices = [LimitedDevice(budget, cap=1 << 20, latency=1e-6, trace=trace) for _ in range(2)]
            banks = [DeviceBank(device) for device in devices]
        with BankLookup(placement, PARTS, banks, budget, cached=cached, trace=trace) as lookup:
            yield lookup
    finally:
        for device in devices:
            assert device.memory.used == 0
            device.close()
        for lane in lanes:
            lane.close()


@pytest.mark.parametrize("kind", ["file", "device"])
@pytest.mark.parametrize("cached", [1, 20, 1000])
@pytest.mark.parametrize("name", PLACEMENTS)
def test_every_placement_returns_the_same_rows(tmp_path: Path, name: str, cached: int, kind: str) -> None:
    budget, trace = MemoryBudget(1 << 30, baseline=0), Trace()
    with opened(PLACEMENTS[name], kind, tmp_path, budget, cached=cached, trace=trace) as lookup:
        for ids, expected in (
            (IDS, EXPECTED),
            (IDS[:1], EXPECTED[:1]),
            (IDS[5:90], EXPECTED[5:90]),
            (IDS[:0], EXPECTED[:0]),
        ):
            found = lookup.vectors(ids)
            assert found.shape == (len(ids), lookup.dim)
            assert found.tobytes() == expected.tobytes()
            found[:] = 0  # the caller owns the rows
        counters = trace.snapshot()
        placement = PLACEMENTS[name]
        assert counters.get("lookup.bank", 0) == 4 * sum(map(len, placement.banks))
        assert counters.get("lookup.near", 0) == 4 * len(placement.near)
        lane = "disk" if kind == "file" else "link"
        assert (counters.get(f"{lane}.bytes", 0) > 0) == any(placement.banks), "rows of banks come over their lanes"
    assert budget.used == 0


def test_the_planned_placement_joins_tables() -> None:
    assert any(len(table.parts) == 2 for bank in PLACEMENTS["planned"].banks for table in bank)
    assert all(len(table.parts) == 1 for bank in PLACEMENTS["single"].banks for table in bank)


def test_rows_of_a_joined_table_stand_where_the_product_says() -> None:
    table = TABLES["b"].product(TABLES["e"])
    rows = np.concatenate(list(joined_rows(table, PARTS)))
    assert rows.nbytes == table.nbytes
    assert rows[7 * 12 + 5].tobytes() == np.concatenate([PARTS["b"][7], PARTS["e"][5]]).tobytes()
    with pytest.raises(InputError, match="size of its parts"):
        list(joined_rows(EmbeddingTable(5, 4, ("a",)), PARTS))


@pytest.mark.parametrize("row", [-1, 3])
def test_rows_that_do_not_exist_are_refused(tmp_path: Path, row: int) -> None:
    with opened(PLACEMENTS["planned"], "file", tmp_path, MemoryBudget(1 << 30, baseline=0)) as lookup:
        wrong = IDS.copy()
        wrong[3, 0] = row
        with pytest.raises(RangeError, match="table a has the rows 0 to 2"):
            lookup.vectors(wrong)
        with pytest.raises(InputError, match="5 tables"):
            lookup.vectors(IDS[:, :4])
        assert lookup.vectors(IDS).tobytes() == EXPECTED.tobytes()


def test_a_damaged_file_is_an_error_and_no_row(tmp_path: Path) -> None:
    budget = MemoryBudget(1 << 30, baseline=0)
    with opened(PLACEMENTS["single"], "file", tmp_path, budget) as lookup:
        for path in tmp_path.iterdir():
            with open(path, "r+b") as file:
                file.truncate(10)
        with pytest.raises(CorruptBlock, match="ends inside"):
            lookup.vectors(IDS)
    assert budget.used == 0


def test_what_cannot_be_placed_leaves_nothing_behind(tmp_path: Path) -> None:
    small, roomy = MemoryBudget(1000, baseline=0), MemoryBudget(1 << 30, baseline=0)
    for placement in (PLACEMENTS["near"], PLACEMENTS["single"]):
        with pytest.raises(BudgetExceeded), opened(placement, "file", tmp_path, small, cached=100):
            pass
        assert small.used == 0
    third = BankPlacement((), (*PLACEMENTS["single"].banks, PLACEMENTS["single"].near), 1.0)
    with pytest.raises(InputError, match="3 banks are needed"), opened(third, "file", tmp_path, roomy):
        pass
    twice = BankPlacement((TABLES["a"],), (tuple(TABLES.values()),), 1.0)
    with pytest.raises(InputError, match="exactly once"), opened(twice, "file", tmp_path, roomy):
        pass
    assert roomy.used == 0


def test_a_device_whose_memory_is_elsewhere_is_refused() -> None:
    device = LimitedDevice(MemoryBudget(1 << 30, baseline=0), cap=1 << 16)
    device.in_host_memory = False
    with pytest.raises(InputError, match="single rows"):
        DeviceBank(device)
    device.close()
