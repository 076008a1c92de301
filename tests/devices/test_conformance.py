"""The conformance suite: every built-in device passes it, an example of a third party passes it, broken ones do not."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parent))
import shelf_device
from shelf_device import ShelfDevice

from edge.budget import MemoryBudget
from edge.devices.cpu import CpuDevice, LimitedDevice
from edge.devices.cuda.device import CudaDevice
from edge.devices.fpga.device import FpgaDevice
from edge.devices.metal import MetalDevice
from edge.devices.remote import RemoteDevice
from edge.devices.searchers import SearchersDevice
from edge.devices.testing import check_device
from edge.devices.webgpu.device import WebGpuDevice
from edge.errors import CapabilityError
from edge.ivf.base import CodecSpec
from edge.ivf.device import Candidates, ListScan, Place, SearchRequest
from tests.conftest import webgpu

THREE = functools.partial(SearchersDevice, of="cpu+fpga+limited")
WHOLE = functools.partial(SearchersDevice, of="cpu", count=2, lists="whole")


@pytest.mark.parametrize(
    "kind", [CpuDevice, FpgaDevice, LimitedDevice, RemoteDevice, SearchersDevice, ShelfDevice, THREE, WHOLE]
)
def test_a_device_keeps_the_contract(kind: Callable[[MemoryBudget], Place]) -> None:
    check_device(kind)


GPUS: list[tuple[str, Callable[[MemoryBudget], Any]]] = [
    ("torch", partial(CudaDevice, on="cpu")), ("mlx.core", MetalDevice), *[("wgpu", WebGpuDevice)] * webgpu()
]  # fmt: skip
"""On the CPU: those of torch and mlx, and any GPU that there is."""


@pytest.mark.parametrize(("library", "kind"), GPUS)
def test_a_gpu_keeps_the_contract(library: str, kind: Callable[[MemoryBudget], Any]) -> None:
    pytest.importorskip(library)
    check_device(kind)


@pytest.mark.parametrize(("library", "kind"), GPUS)
def test_a_codec_that_is_not_known_there_is_refused(library: str, kind: Callable[[MemoryBudget], Any]) -> None:
    class Other:
        spec = CodecSpec("rotated", 4, 4)

    pytest.importorskip(library)
    device = kind(MemoryBudget(1 << 36, baseline=0))
    buffer = device.allocate(16)
    scan = ListScan(buffer[:16].reshape(4, 4) if library == "mlx.core" else buffer, 0, 4, None, [0])
    request = SearchRequest(Other(), np.ones((1, 4), np.float32), [scan], np.arange(4), Candidates.empty(1, 2))  # type: ignore[arg-type]
    with pytest.raises(CapabilityError, match="flat, sq8, pq and opq, not rotated"):
        device.search(request)
    device.free(buffer)
    device.close()


class Leaking(ShelfDevice):
    def close(self) -> None:
        self.link.close()


class Filterless(ShelfDevice):
    """Looks at rows that do not count."""

    def search(self, request: SearchRequest) -> Candidates:
        return super().search(replace(request, lists=[replace(item, rows=None) for item in request.lists]))


class Forgetful(ShelfDevice):
    """Forgets the results of earlier requests."""

    def search(self, request: SearchRequest) -> Candidates:
        fresh = Candidates.empty(*request.seen.scores.shape)
        return super().search(replace(request, seen=fresh))


class Eager(ShelfDevice):
    """Scans every list for every query."""

    def search(self, request: SearchRequest) -> Candidates:
        every = range(len(request.queries))
        return super().search(replace(request, lists=[replace(item, queries=every) for item in request.lists]))


class Inexact(ShelfDevice):
    def search(self, request: SearchRequest) -> Candidates:
        found = super().search(request)
        found.scores += 0.01
        return found


@pytest.mark.parametrize("kind", [Leaking, Filterless, Forgetful, Eager, Inexact])
def test_the_suite_finds_what_a_device_does_wrong(kind: type[ShelfDevice]) -> None:
    with pytest.raises(AssertionError):
        check_device(kind)
    assert len(inspect.getsource(shelf_device).splitlines()) <= 100, "the example is short"
