"""The profile of a device that is measured by its own searches."""

from __future__ import annotations

import time

import numpy as np

from edge.errors import CapabilityError
from edge.ivf.base import CodecSpec
from edge.ivf.device import Candidates, Estimate, ListScan, SearchPlace, SearchRequest


class MeasuredScan:
    """The capability `Profile` of a device that holds lists and searches them."""

    def profile(self: SearchPlace, stage: str, load: int) -> Estimate:
        """Measures stage `scan`: a search of `load` queries in 4 MB of float32 vectors on the device."""
        if stage != "scan":
            raise CapabilityError(f"device {self.name} profiles the stage scan, not {stage!r}")
        from edge.devices.faiss_codec import FaissCodec

        random = np.random.default_rng(0)  # of equal rows a device returns all
        vectors, queries = (random.standard_normal((rows, 256), np.float32) for rows in (4096, load))
        codec = FaissCodec(CodecSpec("flat", 256, 1024))
        with self.memory.reserve("profile", vectors.nbytes):
            buffer = self.allocate(vectors.nbytes)
            self.write(buffer, vectors.view(np.uint8))
            codes = buffer.reshape(4096, -1) if self.in_host_memory else buffer
            seconds = 0.0
            for _ in range(2):  # the first round compiles or loads the kernels
                scan = ListScan(codes, 0, 4096, None, range(load))
                request = SearchRequest(codec, queries, [scan], np.arange(4096), Candidates.empty(load, 10))
                started = time.perf_counter()
                self.search(request)
                seconds = time.perf_counter() - started
            self.free(buffer)
        return Estimate(latency=seconds, throughput=load / seconds, nbytes=vectors.nbytes)
