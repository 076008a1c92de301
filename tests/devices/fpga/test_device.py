"""The accelerator as a device: the codec's results, and times that are labelled as a model's."""

from __future__ import annotations

import shutil
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from naive.lists import NaiveCodec, trained

from edge.budget import MemoryBudget
from edge.devices.cpu import CpuDevice
from edge.devices.fpga import device as fpga
from edge.devices.fpga.device import FpgaDevice
from edge.devices.fpga.shape import (
    BUS,
    GOAL,
    JOULES_EACH,
    JOULES_PER_BYTE,
    JOULES_TOGETHER,
    Shape,
    cycles,
    joules,
    stages,
)
from edge.devices.fpga.simulation import BUILD_NBYTES, missing
from edge.devices.searchers import queue_length
from edge.devices.testing import check_device
from edge.errors import BudgetExceeded, CapabilityError
from edge.ivf.base import Codec, Vectors
from edge.ivf.device import Candidates, Estimate, ListScan, SearchPlace, SearchRequest, open_device
from edge.trace import Trace

DIM = 16
ROWS = (1000, 600, 50)
simulated = pytest.mark.skipif(bool(missing()), reason=missing())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the simulations of this file are kept."""
    return tmp_path_factory.mktemp("programs")


@pytest.fixture(autouse=True)
def _programs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fpga, "programs", lambda: folder)
    monkeypatch.setattr(fpga, "SimulatedSearch", partial(fpga.SimulatedSearch, level=0))


def codec_of(name: str) -> Codec:
    return trained(name, np.random.default_rng(3).standard_normal((600, DIM)).astype(np.float32))


def searched(device: SearchPlace, codec: Codec, probed: list[list[int]], width: int = 12) -> Candidates:
    """Lists of so many rows, each probed by some of three queries; of the second list every other row counts."""
    random = np.random.default_rng(4)
    scans = []
    for number, count in enumerate(ROWS):
        codes = codec.encode(random.standard_normal((count, DIM)).astype(np.float32))
        live = np.arange(0, count, 2) if number == 1 else None
        scans.append(ListScan(codes, sum(ROWS[:number]), count, live, probed[number]))
    asked = random.standard_normal((3, DIM)).astype(np.float32)
    return device.search(SearchRequest(codec, asked, scans, np.arange(sum(ROWS)), Candidates.empty(3, width)))


def best(found: Candidates) -> Vectors:
    return np.sort(found.scores, axis=1)


@pytest.mark.parametrize("name", ["flat", "sq8", "pq"])
def test_what_is_counted_is_what_the_model_says_of_the_same_lists(name: str) -> None:
    codec, trace = codec_of(name), Trace()
    device = FpgaDevice(MemoryBudget(1 << 36, baseline=0), trace=trace)
    searched(device, codec, [[0, 1], [0], [0]])
    counted = trace.snapshot()
    shape, kept, code = device.shape(codec.spec), queue_length(32, 8), codec.spec.code_size
    assert device.kept == kept
    assert counted["modelled.queries"] == 2
    assert counted["modelled.seconds"] == pytest.approx(cycles(shape, [ROWS, ROWS[:1]], bus=BUS) / GOAL)
    assert counted["modelled.joules"] == pytest.approx(joules([1350 * code, 1000 * code]))
    device.close()


def test_more_results_than_its_queues_hold_take_another_pass() -> None:
    def taken(width: int) -> float:
        trace = Trace()
        device = FpgaDevice(MemoryBudget(1 << 36, baseline=0), trace=trace, units=1)
        searched(device, NaiveCodec("coarse", DIM), [[0], [], []], width)
        device.close()
        return trace.snapshot()["modelled.seconds"]

    assert 2.2 * taken(32) < taken(90) < 3.1 * taken(32)


def test_its_estimate_is_a_models() -> None:
    device = open_device("fpga", MemoryBudget(1 << 36, baseline=0))
    assert isinstance(device, FpgaDevice)
    one, four = device.profile("scan", 1), device.profile("scan", 4)
    assert one.modelled
    assert four.modelled
    # 8 codes of 16 bytes, and a bit for each that says whether it counts, cross the bus of 128 bits in 9 cycles.
    scan = (1 << 22) / 128 * 9 / GOAL
    assert scan < one.latency < 1.1 * scan
    assert four.throughput == pytest.approx(4 / four.latency)
    assert one.latency + 3 * scan < four.latency < 4 * one.latency
    assert one.nbytes == 4 << 20
    with pytest.raises(CapabilityError, match="decode"):
        device.profile("decode", 1)
    device.close()
    assert not Estimate(1.0, 1.0, 1).modelled, "what a device measures is not modelled"


def test_a_codec_whose_design_does_not_fit_the_chip_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The product's own codes of 384 components: 96 bytes, for each of which a unit has a memory block."""
    vectors = np.random.default_rng(0).standard_normal((300, 384)).astype(np.float32)
    codec, budget = trained("pq", vectors), MemoryBudget(1 << 36, baseline=0)
    codes = codec.encode(vectors[:9])
    scan = ListScan(codes, 0, 9, None, [0])
    request = SearchRequest(codec, vectors[:1], [scan], np.arange(9), Candidates.empty(1, 3))
    with closing(FpgaDevice(budget)) as device:
        with pytest.raises(CapabilityError, match=r"816 of 208 memory blocks .*; with units=1 it fits") as refused:
            device.search(request)
        assert "pq codes of 96 bytes" in str(refused.value)
    with closing(FpgaDevice(budget, units=1)) as device:
        assert (device.search(request).labels >= 0).all()
    monkeypatch.setattr(shutil, "which", lambda name: None)
    ledger = MemoryBudget(1 << 36, baseline=0)
    with pytest.raises(CapabilityError, match=r"pip install|install g\+\+"):  # without a compiler
        open_device("fpga:simulate", ledger)
    assert ledger.used == 0


def test_a_scan_is_no_faster_than_the_memory_of_codes() -> None:
    """8 units score words of 8 * 65 bits, which cross the bus in 5 cycles."""
    shape = Shape("bytes", 384, 0, units=8, results=32, kept=8, lanes=8)
    free, bound = stages(shape, [80_000]), stages(shape, [80_000], BUS)
    assert bound.scan == 5 * free.scan
    few = Shape("bytes", 384, 0, units=1, results=32, kept=32, lanes=8)
    assert stages(few, [80_000]) == stages(few, [80_000], BUS)


@simulated
@pytest.mark.parametrize("name", ["flat", "sq8", "pq", "opq"])
def test_the_design_finds_what_the_codec_finds_and_takes_the_cycles_of_the_model(name: str) -> None:
    codec, trace = codec_of(name), Trace()
    ledger = MemoryBudget(1 << 36, baseline=0)
    host = CpuDevice(ledger)
    device = open_device("fpga:simulate,units=4,results=8", ledger, trace=trace)
    assert isinstance(device, FpgaDevice)
    assert device.name.startswith("simulated fpga")
    probed = [[0, 1], [0, 2], [0]]
    assert (best(searched(device, codec, probed)) == best(searched(host, codec, probed))).all()
    counted = trace.snapshot()
    assert counted["simulated.queries"] > 3, "more results are wanted than the queue holds"
    assert counted["simulated.rescored"] < 3 * sum(ROWS) / 4
    device.close()
    host.close()
    assert ledger.used == 0


@simulated
def test_a_simulation_keeps_the_contract_and_is_built_within_the_limit_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fpga, "programs", lambda: tmp_path)
    ledger = MemoryBudget(BUILD_NBYTES // 2, baseline=0)
    device = FpgaDevice(ledger, cap=1 << 20, simulate=True)
    with pytest.raises(BudgetExceeded, match="building the design"):
        searched(device, codec_of("pq"), [[0], [], []])
    assert not list(tmp_path.iterdir())
    device.close()
    check_device(partial(FpgaDevice, units=4, results=8, simulate=True))


MILLIJOULES = {
    16: [(53.6, 28.2, 21.5), (52.3, 26.9, 20.5)], 32: [(95.6, 55.0, 41.1)], 64: [(170.1, 107.8, 85.2)],
}  # fmt: skip
"""Of a query, by bytes of a code and queries at a time (1, 4, 16): thesis, table 4.3. A query scans a million codes."""


def test_energy_is_within_6_percent_of_the_twelve_published_cells() -> None:
    """Calibrated: the three numbers are the least squares of these very cells."""
    rows = [(code, batch, cell) for code, sets in MILLIJOULES.items() for cells in sets
            for batch, cell in zip((1, 4, 16), cells, strict=True)]  # fmt: skip
    for code, batch, cell in rows:
        assert 1e3 * joules([1e6 * code] * batch) / batch == pytest.approx(cell, rel=0.06)
    nbytes, batches, cells = (np.array(column, float) for column in zip(*rows, strict=True))
    nbytes *= 1e6
    terms = np.stack((1 / batches, nbytes / batches, nbytes), axis=1) / cells[:, None]
    fitted = 1e-3 * np.linalg.lstsq(terms, np.ones(len(rows)), rcond=None)[0]
    ours = (JOULES_EACH, JOULES_PER_BYTE, JOULES_TOGETHER)
    assert fitted == pytest.approx(ours, rel=0.005)
    assert joules([]) == 0
