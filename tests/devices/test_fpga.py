"""The modelled accelerator: the host's results, and times that are labelled as a model's."""

from __future__ import annotations

import numpy as np
import pytest
from naive.lists import NaiveCodec

from edge.budget import MemoryBudget
from edge.devices.faiss_codec import FaissCodecs
from edge.devices.fpga import FpgaDevice
from edge.errors import CapabilityError, ConfigError
from edge.ivf.base import Codec
from edge.ivf.device import Candidates, Estimate, ListScan, SearchRequest, open_device
from edge.planner.search_accelerator import LARGEST, PUBLISHED, Scanned, joules, queue_length, seconds
from edge.trace import Trace

DIM = 16
RANDOM = np.random.default_rng(3)


def searched(device: FpgaDevice, codec: Codec, rows: list[int], queries: list[list[int]], width: int = 12) -> None:
    """Lists of so many rows, each probed by some of three queries; of the second list every other row counts."""
    scans = []
    for number, count in enumerate(rows):
        codes = codec.encode(RANDOM.standard_normal((count, DIM)).astype(np.float32))
        live = np.arange(0, count, 2) if number == 1 else None
        scans.append(ListScan(codes, sum(rows[:number]), count, live, queries[number]))
    asked = RANDOM.standard_normal((3, DIM)).astype(np.float32)
    device.search(SearchRequest(codec, asked, scans, np.arange(sum(rows)), Candidates.empty(3, width)))


@pytest.mark.parametrize("name", ["flat", "sq8", "pq"])
def test_what_is_counted_is_what_the_model_says_of_the_same_lists(name: str) -> None:
    codecs = FaissCodecs(threads=1)
    codec = codecs.open(codecs.train(name, RANDOM.standard_normal((600, DIM)).astype(np.float32), seed=0))
    trace = Trace()
    device = FpgaDevice(MemoryBudget(1 << 36, baseline=0), trace=trace, units=8)
    searched(device, codec, [1000, 600, 50], [[0, 1], [0], [0]])
    kept = queue_length(12, 16)
    code = codec.spec.code_size
    first, second = Scanned(3, 1350, DIM, code, 1, kept), Scanned(1, 1000, DIM, code, 1, kept)
    counted = trace.snapshot()
    assert counted["modelled.queries"] == 2
    assert counted["modelled.seconds"] == pytest.approx(seconds([first, second], device.units))
    assert counted["modelled.joules"] == pytest.approx(joules([first, second]))
    device.close()


def test_more_results_than_its_queues_hold_take_another_pass() -> None:
    def taken(width: int) -> float:
        trace = Trace()
        device = FpgaDevice(MemoryBudget(1 << 36, baseline=0), trace=trace, units=1)
        searched(device, NaiveCodec("coarse", DIM), [20_000, 10], [[0], []], width)
        device.close()
        return trace.snapshot()["modelled.seconds"]

    few, many = taken(1000), taken(4000)
    assert 2.2 * few < many < 3 * few


def test_its_estimate_is_a_models() -> None:
    device = open_device("fpga", MemoryBudget(1 << 36, baseline=0))
    assert isinstance(device, FpgaDevice)
    one, four = device.profile("scan", 1), device.profile("scan", 4)
    assert one.modelled
    assert four.modelled
    # 4 MB of codes of 16 bytes on 57 units at 140 MHz, and building a table and a thousand cycles of each list before
    scan = (1 << 18) / LARGEST.scanning / PUBLISHED.frequency
    assert scan + 4392 / 140e6 < one.latency < 3 * scan
    assert four.throughput == pytest.approx(4 / four.latency)
    assert one.latency + 3 * scan < four.latency < 4 * one.latency
    assert one.nbytes == 4 << 20
    with pytest.raises(CapabilityError, match="decode"):
        device.profile("decode", 1)
    device.close()
    assert not Estimate(1.0, 1.0, 1).modelled, "what a device measures is not modelled"


def test_a_design_that_does_not_fit_the_chip_is_refused() -> None:
    ledger = MemoryBudget(1 << 36, baseline=0)
    with pytest.raises(ConfigError, match=r"at most 60% of it"):
        open_device("fpga:units=2000", ledger)
    for wrong in ("0", "many"):
        with pytest.raises(ConfigError, match="cannot be built"):
            open_device(f"fpga:units={wrong}", ledger)
    assert ledger.used == 0
    device = open_device("fpga:units=4", ledger)
    assert isinstance(device, FpgaDevice)
    assert device.resources.kept == queue_length(100, 8) == 23
    assert device.name.startswith("modelled fpga")
    device.close()
