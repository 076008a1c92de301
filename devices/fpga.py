"""A search accelerator that is modelled: results come from the host's processor, times from a model of the hardware."""

from __future__ import annotations

import math
from dataclasses import replace

from edge.budget import MemoryBudget
from edge.devices.limited import LimitedDevice
from edge.errors import CapabilityError, ConfigError
from edge.ivf.device import Candidates, Estimate, SearchRequest
from edge.planner.search_accelerator import (
    LARGEST,
    Resources,
    Scanned,
    Units,
    joules,
    most_results,
    queue_length,
    queues,
    resources,
    seconds,
)
from edge.trace import Trace

_SAMPLE_ROWS, _SAMPLE_LISTS, _SAMPLE_DIM, _SAMPLE_CODE = 1 << 18, 16, 128, 16
"""Bytes that `profile` scans for a request: 4 MB of codes of the published size."""

_RESULTS = 100
"""Results for which a design is checked when the device is opened, and which `profile` takes to be wanted."""


class FpgaDevice(LimitedDevice):
    """Holds lists behind a cap and a link of the published bandwidth and latency (Chameleon's network: 100 Gbit/s, 10
    microseconds), and searches them on the host. It also counts the time and energy of the modelled accelerator.

    The accelerator keeps queues that lose one of the best rows in one search of a hundred at most. The host loses none,
    so results are the host's.

    Counters (in `trace`): `modelled.queries`, `modelled.seconds`, `modelled.joules`.
    """

    kind = "modelled fpga on"

    def __init__(
        self,
        memory: MemoryBudget,
        *,
        cap: int | str = 64 << 20,
        bandwidth: float | str = 12.5e9,
        latency: float | str = 10e-6,
        units: int | str = LARGEST.scanning,
        trace: Trace | None = None,
    ) -> None:
        """
        Args:
            memory: the host's ledger, which holds the cap.
            cap, bandwidth, latency: see `LimitedDevice`.
            units: that decode and score codes side by side; the other stages are those of the published design.

        Raises:
            BudgetExceeded: the cap does not fit.
            ConfigError: an option is no number, or there is no room for so many units on the chip.
        """
        try:
            self.units: Units = replace(LARGEST, scanning=int(units))
            self.resources: Resources = resources(self.units, _RESULTS)
        except ValueError as error:
            raise ConfigError(f"an fpga of {units!r} scanning units cannot be built: {error}") from None
        self._most = most_results(self.units)
        super().__init__(memory, cap=cap, bandwidth=bandwidth, latency=latency, trace=trace)
        self._trace = trace or Trace()

    def search(self, request: SearchRequest) -> Candidates:
        """Scans on the host, and counts the time and energy of the accelerator for the same lists."""
        width = request.seen.scores.shape[1]
        lists, rows = [0] * len(request.queries), [0] * len(request.queries)
        for item in request.lists:
            live = item.count if item.rows is None else len(item.rows)
            for query in item.queries:
                lists[query] += 1
                rows[query] += live
        spec = request.codec.spec
        passes = math.ceil(width / self._most)  # over the same rows, if the queues do not hold all results
        kept = queue_length(math.ceil(width / passes), queues(self.units))
        # Codes do not depend on their list's centroid, so one table serves all lists of a query.
        loads = [
            Scanned(count * passes, own * passes, spec.dim, spec.code_size, tables=1, kept=kept)
            for count, own in zip(lists, rows, strict=True)
            if count
        ]
        self._trace.count("modelled.queries", len(loads))
        self._trace.count("modelled.seconds", seconds(loads, self.units))
        self._trace.count("modelled.joules", joules(loads))
        return super().search(request)

    def profile(self, stage: str, load: int) -> Estimate:
        """Models stage `scan`: `load` queries that each scan 4 MB of codes of 16 bytes.

        Raises:
            CapabilityError: another stage.
        """
        if stage != "scan":
            raise CapabilityError(f"device fpga profiles the stage scan, not {stage!r}")
        each = Scanned(_SAMPLE_LISTS, _SAMPLE_ROWS, _SAMPLE_DIM, _SAMPLE_CODE, tables=1, kept=self.resources.kept)
        taken = seconds([each] * load, self.units)
        return Estimate(taken, load / taken, math.ceil(each.nbytes), modelled=True)
