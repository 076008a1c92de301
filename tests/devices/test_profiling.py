"""The measured profile of a device: its rows differ, so that a device which returns all equal ones is not slow."""

from __future__ import annotations

from typing import Any

import numpy as np

from edge.budget import MemoryBudget
from edge.devices.cpu import MeasuredScan
from edge.ivf.device import SearchRequest


class Watched(MeasuredScan):
    name = "watched"
    in_host_memory = False

    def __init__(self) -> None:
        self.memory = MemoryBudget(1 << 23, baseline=0)
        self.requests: list[SearchRequest] = []
        self.vectors: Any = None

    def allocate(self, nbytes: int) -> str:
        return "place"

    def write(self, buffer: str, data: Any) -> None:
        self.vectors = data.view(np.float32).reshape(4096, 256)

    def search(self, request: SearchRequest) -> None:
        self.requests.append(request)

    def free(self, buffer: str) -> None:
        assert buffer == "place"


def test_the_second_of_two_equal_searches_is_measured() -> None:
    device = Watched()
    estimate = device.profile("scan", 3)
    assert len(device.requests) == 2
    assert estimate.nbytes == 4 << 20
    for request in device.requests:
        scores = request.queries @ device.vectors.T
        assert len(np.unique(scores)) > 0.99 * scores.size
        assert list(request.lists[0].queries) == [0, 1, 2]
    assert device.memory.used == 0
