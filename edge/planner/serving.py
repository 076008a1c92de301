"""The schedule of a server: how deep it judges, how many answers it gives at a time, and how soon (RAGO, section 6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edge.errors import InputError
from edge.planner.measured import Company, MachineProfile, Prediction

BUSIEST = 0.9
"""The largest share of the time that a planned server is at work. Above it a small error of the profile doubles the
wait."""


@dataclass(frozen=True, slots=True)
class Serving:
    """A schedule under a load of independent arrivals (Poisson), with its prediction.

    All answers share the same cores, so a server is a queue with one working machine. Of its requests at most
    `company.answers` are inside and share it equally. Others wait in the order of their arrival.

    Attributes:
        prediction: of an answer that is alone.
        rate: requests a second.
    """

    prediction: Prediction
    company: Company
    rate: float

    @property
    def service(self) -> float:
        """Seconds of work for a request, on average."""
        return self.prediction.mean_seconds * self.company.ratio

    @property
    def busy(self) -> float:
        """The share of the time that the server is at work."""
        return self.rate * self.service

    @property
    def wait(self) -> float:
        """Seconds until a request is inside, on average. With one answer at a time this is the formula of Pollaczek and
        Khinchine, for requests that are either written or refused."""
        p, ratio = self.prediction, self.company.ratio
        refused = p.seconds - p.stages.get("write", 0.0) + p.draft
        squares = p.written * (p.seconds * ratio) ** 2 + (1 - p.written) * (refused * ratio) ** 2
        return float(self.rate * squares / 2 * self.busy ** (self.company.answers - 1) / (1 - self.busy))

    @property
    def slowdown(self) -> float:
        """The factor by which the company inside slows a request: 1 if it is alone there, and 1 / (1 - busy) if nobody
        has to wait outside (processor sharing)."""
        return float((1 - self.busy**self.company.answers) / (1 - self.busy))

    @property
    def first(self) -> float:
        """Seconds until the first text of an answer that is written, on average."""
        return self.wait + self.prediction.first * self.company.ratio * self.slowdown

    @property
    def seconds(self) -> float:
        """Seconds until an answer that is written is complete, on average."""
        return self.wait + self.prediction.seconds * self.company.ratio * self.slowdown

    @property
    def nbytes(self) -> float:
        """Peak bytes, once the server holds as many documents' states as it may."""
        return max(self.prediction.nbytes, self.company.nbytes)


def servings(known: MachineProfile, depths: Sequence[int], passages: Sequence[int], rate: float) -> list[Serving]:
    """Every schedule that keeps up with a rate of requests: each limit with each number of answers measured there.

    Raises:
        InputError: no limit was measured as a server.
    """
    if not any(limit.company for limit in known.limits.values()):
        raise InputError("nothing was measured as a server: run `edge profile --answers N`")
    found = [
        Serving(prediction, company, rate)
        for prediction in known.choices(depths, passages)
        for company in known.limits[prediction.limit].company
    ]
    return [serving for serving in found if serving.busy <= BUSIEST]


def best_serving(found: Sequence[Serving], within: float, memory: int | None) -> Serving:
    """The schedule that judges most passages, then writes from most, of those whose first text comes soon enough. Exact
    answers go before shared ones, and then the earlier first text decides.

    Raises:
        InputError: there is none.
    """
    fitting = [one for one in found if memory is None or one.prediction.limit <= memory]
    if not fitting:
        raise InputError("no measured schedule keeps up with this rate: plan a smaller one, or more memory")
    soon = [one for one in fitting if one.first <= within]
    if not soon:
        raise InputError(
            f"the earliest first text under this rate comes after {min(one.first for one in fitting):.2f} s: allow as "
            f"much, or plan a smaller rate"
        )

    def order(one: Serving) -> tuple[int, int, bool, float, int]:
        p = one.prediction
        return -p.depth, -p.passages, one.company.generation == "shared", one.first, p.limit

    return min(soon, key=order)
