"""`Check`: a published figure and the figure that this package's models give."""

from __future__ import annotations

from dataclasses import dataclass

from edge.planner.tables import Origin


@dataclass(frozen=True, slots=True)
class Check:
    """A comparison of a published figure with ours.

    Attributes:
        number: number in the list of checkable figures.
        what: name of the figure, with its unit.
        published, ours: its two values.
        tolerance: allowed difference as a share of `published`; 0 if they must be equal as printed.
        origin: origin of our value.
        source: place of the published value.
    """

    number: int
    what: str
    published: float
    ours: float
    tolerance: float
    origin: Origin
    source: str

    @property
    def error(self) -> float:
        """Difference as a share of the published value; the plain difference if that is 0."""
        difference = self.ours - self.published
        return difference / self.published if self.published else difference

    @property
    def holds(self) -> bool:
        """Whether our value is within the tolerance."""
        return abs(self.error) <= self.tolerance + 1e-12
