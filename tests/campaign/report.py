"""The findings of the campaign: counts per class as a table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from campaign.base import Outcome

MOST_FAILURES = 200
"""Failures of a class that are kept in the report; all are counted."""


@dataclass
class Tally:
    """The outcomes of one class. `closest`: the largest share of its limit that the memory of a case had."""

    name: str
    promise: str
    tried: int = 0
    held: int = 0
    failed: int = 0
    seconds: float = 0.0
    closest: float = 0.0
    failures: list[str] = field(default_factory=list)

    def add(self, number: int, label: str, outcome: Outcome, seconds: float) -> None:
        """Counts a case."""
        self.tried += 1
        self.seconds += seconds
        if outcome.limit:
            self.closest = max(self.closest, outcome.peak / outcome.limit)
        if outcome.held:
            self.held += 1
            return
        self.failed += 1
        if len(self.failures) < MOST_FAILURES:
            self.failures.append(f"FAILED {self.name} case {number}: {label}: {outcome.line}")


def table(tallies: Iterable[Tally]) -> str:
    """The counts per class, and below them the cases that failed."""
    rows = list(tallies)
    names = ("tried", "held", "failed", "seconds")
    lines = [f"{'class':18}" + "".join(f" {name:>10}" for name in names) + f" {'of limit':>10}"]
    total = Tally("all", "")
    for name in names:
        setattr(total, name, sum(getattr(tally, name) for tally in rows))
    total.closest = max((tally.closest for tally in rows), default=0.0)
    for each in (*rows, total):
        counts = "".join(f" {getattr(each, name):>10,.0f}" for name in names)
        lines.append(f"{each.name:18}{counts} {f'{each.closest:.3f}' if each.closest else '-':>10}")
    for tally in rows:
        lines += tally.failures
    return "\n".join(lines)
