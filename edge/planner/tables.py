"""The cost of a stage: a table of points, each for a number of devices and a batch, with the origin of its numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from edge.errors import InputError

Origin = Literal["measured", "predicted", "calibrated", "circular"]
"""The origin of a number: measured on this machine; computed from published constants alone; computed with a constant
that was chosen to fit published results; or fitted to the very result with which it is compared."""

ORIGINS: Sequence[Origin] = ("measured", "predicted", "calibrated", "circular")


@dataclass(frozen=True, slots=True)
class Point:
    """A stage on some devices with some requests at a time.

    Attributes:
        devices: number of accelerators, or of servers for retrieval.
        batch: number of calls that are done together.
        latency: seconds until the batch is done.
        interval: seconds until the next batch can begin. It is less than `latency` if parts of the model follow one
            another on several devices.
        weights: bytes of the stage's model on all its devices together.
        working: additional bytes while a batch runs, on all devices together.
        how: description of the division of the work, for people.
    """

    devices: int
    batch: int
    latency: float
    interval: float
    weights: float = 0.0
    working: float = 0.0
    how: str = ""


@dataclass(frozen=True, slots=True)
class StageTable:
    """The points of one stage.

    Raises:
        InputError: there are no points.
    """

    stage: str
    points: tuple[Point, ...]
    origin: Origin

    def __post_init__(self) -> None:
        if not self.points:
            raise InputError(f"nothing is known about the stage {self.stage}: it fits no number of devices")

    def devices(self) -> list[int]:
        """The numbers of devices for which there are points, ascending."""
        return sorted({point.devices for point in self.points})

    def at(self, devices: int) -> list[Point]:
        """The points for this number of devices."""
        return [point for point in self.points if point.devices == devices]

    def batched(self, devices: int, batch: int) -> list[Point]:
        """The points for this number of devices and this batch."""
        return [point for point in self.points if point.devices == devices and point.batch == batch]


def unbeaten(points: Iterable[Point]) -> list[Point]:
    """The points that no other one with the same devices and batch dominates in latency, interval and bytes."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda p: (p.devices, p.batch, p.latency, p.interval, p.weights + p.working)):
        rivals = (p for p in kept if (p.devices, p.batch) == (point.devices, point.batch))
        if not any(
            p.latency <= point.latency
            and p.interval <= point.interval
            and p.weights + p.working <= point.weights + point.working
            for p in rivals
        ):
            kept.append(point)
    return kept
