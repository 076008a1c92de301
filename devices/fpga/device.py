"""The search accelerator as a device: its lists behind a modelled link, and its searches simulated or modelled."""

from __future__ import annotations

import math
import threading
from dataclasses import replace
from pathlib import Path

from edge.budget import MemoryBudget
from edge.devices.fpga.searching import Counted, SimulatedSearch, shape_for
from edge.devices.fpga.shape import BUS, CHIP, GOAL, Shape, cycles, joules, refusal
from edge.devices.limited import LimitedDevice
from edge.devices.searchers import queue_length
from edge.errors import CapabilityError, ConfigError, RangeError
from edge.ivf.base import CodecSpec
from edge.ivf.device import Candidates, Estimate, SearchRequest
from edge.plugins import number
from edge.trace import Trace

_UNITS, _RESULTS = 8, 32
"""Scoring units, and places of the last queue, if nothing else is asked for."""

_MOST = 1 << 10
"""Most scoring units and most places."""

_SAMPLE = CodecSpec("pq", 128, 16)
_SAMPLE_LISTS = (1 << 14,) * 16
"""What `profile` scans for a request: 4 MB of codes of 16 bytes in 16 lists."""

_SIMULATE = {"yes": True, "no": False}


class FpgaDevice(LimitedDevice):
    """Holds lists behind Chameleon's published network (100 Gbit/s, 10 microseconds), and counts the cycles of a design
    in hardware.

    Without `simulate` the host searches, and a model gives the cycles. With it the design runs as a compiled
    simulation, and the host scores exactly the rows that it finds. Counters: `modelled.queries`, `.seconds`, `.joules`;
    `simulated.queries` (again if asked again), `.cycles`, `.rescored`."""

    kind = "modelled fpga on"

    def __init__(
        self,
        memory: MemoryBudget,
        *,
        cap: int | str = 64 << 20,
        bandwidth: float | str = 12.5e9,
        latency: float | str = 10e-6,
        units: int | str = _UNITS,
        results: int | str = _RESULTS,
        simulate: bool | str = False,
        trace: Trace | None = None,
    ) -> None:
        """`units` score codes side by side, a power of two; a search for more than `results` takes several passes; to
        `simulate` needs the extra `fpga` and a C++ compiler."""
        if isinstance(simulate, str):
            if simulate not in _SIMULATE:
                raise ConfigError(f"the option simulate of device fpga is yes or no, not {simulate!r}")
            simulate = _SIMULATE[simulate]
        self.units = int(number("fpga", "units", units, 1, _MOST, whole=True))
        self.results = int(number("fpga", "results", results, 1, _MOST, whole=True))
        self.kept = queue_length(self.results, self.units)
        try:
            shape_for(_SAMPLE, self.units, self.results, self.kept)
        except RangeError as error:
            raise ConfigError(f"this fpga cannot be built: {error}") from None
        if simulate:
            from edge.devices.fpga.simulation import missing

            if reason := missing():
                raise CapabilityError(f"the fpga cannot be simulated here, because {reason}")
            self.kind = "simulated fpga on"
        super().__init__(memory, cap=cap, bandwidth=bandwidth, latency=latency, trace=trace)
        self.hardware = (
            f"design of {self.units} units for {CHIP}: cycles {'simulated' if simulate else 'modelled'}, clock of "
            f"{GOAL / 1e6:.0f} MHz and memory of {BUS / 8 * GOAL / 1e9:g} GB/s assumed; never run on a board"
        )
        self._trace = trace or Trace()
        self._host = memory
        self._simulated: dict[Shape, SimulatedSearch] | None = {} if simulate else None
        self._building = threading.Lock()

    def shape(self, spec: CodecSpec) -> Shape:
        """The design for a codec. CapabilityError if it does not fit the chip."""
        shape = shape_for(spec, self.units, self.results, self.kept)
        if (reason := refusal(shape)) is not None:
            fewer = (2**power for power in reversed(range(self.units.bit_length() - 1)))
            fitting = next((n for n in fewer if refusal(replace(shape, units=n)) is None), 0)
            remedy = f"with units={fitting} it fits" if fitting else "no number of units makes it fit; take sq8 or flat"
            raise CapabilityError(
                f"the fpga does not hold a design of {self.units} units for {spec.name} codes of {spec.code_size} "
                f"bytes: on {CHIP} it takes {reason}; {remedy}"
            )
        return shape

    def search(self, request: SearchRequest) -> Candidates:
        """Scans with the design or on the host, and counts the accelerator's time and energy for the same lists."""
        spec, width = request.codec.spec, request.seen.scores.shape[1]
        rows: list[list[int]] = [[] for _ in request.queries]
        live = [0] * len(request.queries)
        for item in request.lists:
            for query in item.queries:
                rows[query].append(item.count)
                live[query] += item.count if item.rows is None else len(item.rows)
        shape = self.shape(spec)
        passes = math.ceil(width / self.results)  # over the same rows, if the queues do not hold all results
        probing = [lists for lists in rows if lists]
        self._trace.count("modelled.queries", len(probing))
        self._trace.count("modelled.seconds", cycles(shape, probing * passes, bus=BUS) / GOAL)
        scanned = [own * passes * spec.code_size for lists, own in zip(rows, live, strict=True) if lists]
        self._trace.count("modelled.joules", joules(scanned))
        if self._simulated is None:
            return super().search(request)
        if probing:
            counted = self._simulate(request)
            self._trace.count("simulated.queries", counted.passes)
            self._trace.count("simulated.cycles", counted.cycles)
            self._trace.count("simulated.rescored", counted.rescored)
        return request.seen

    def profile(self, stage: str, load: int) -> Estimate:
        """Models stage `scan`: `load` queries that each scan 4 MB of codes of 16 bytes."""
        if stage != "scan":
            raise CapabilityError(f"device fpga profiles the stage scan, not {stage!r}")
        taken = cycles(self.shape(_SAMPLE), [_SAMPLE_LISTS] * load, bus=BUS) / GOAL
        return Estimate(taken, load / taken, sum(_SAMPLE_LISTS) * _SAMPLE.code_size, modelled=True)

    def _simulate(self, request: SearchRequest) -> Counted:
        from edge.devices.fpga.simulation import BUILD_NBYTES

        assert self._simulated is not None
        shape = self.shape(request.codec.spec)
        with self._building:  # a design is built once
            if shape not in self._simulated:
                with self._host.reserve("building the design's simulation", BUILD_NBYTES):
                    self._simulated[shape] = SimulatedSearch(shape, programs())
        nbytes = sum(item.count for item in request.lists) * request.codec.spec.code_size
        with self._host.reserve("words of the simulated design", _COPIES * nbytes):
            return self._simulated[shape].search(request)


_COPIES = 20
"""Bytes that a simulated search holds for each byte of codes: single bits as bytes, words, and the program's copies."""


def programs() -> Path:
    import platformdirs

    return platformdirs.user_cache_path("edge-rag", appauthor=False) / "fpga"
