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
    `company.answers` are inside, and others wait in the order of their arrival. Inside, prompts are computed in turn,
    and answers are written when no prompt is left.

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
        """Seconds until a request's prompt is begun, on average. With one answer at a time this is the formula of
        Pollaczek and Khinchine, for requests that are either written or refused; with room for all it is that of the
        prompts alone. Between the two it was fitted to a simulation."""
        p, ratio = self.prediction, self.company.ratio
        refused = p.seconds - p.stages.get("write", 0.0) + p.draft

        def queued(written: float) -> float:
            """The wait if writing took so long, up to its end."""
            mean = (p.written * written + (1 - p.written) * refused) * ratio
            squares = (p.written * written**2 + (1 - p.written) * refused**2) * ratio**2
            return self.rate * squares / 2 / (1 - self.rate * mean)

        whole, prompts = queued(p.seconds), queued(p.first)
        writing = 1 - p.first / p.seconds if p.seconds else 0.0
        return float(prompts + (whole - prompts) * self.busy ** ((self.company.answers - 1) * writing))

    @property
    def first(self) -> float:
        """Seconds until the first text of an answer that is written, on average."""
        return self.wait + self.prediction.first * self.company.ratio

    @property
    def seconds(self) -> float:
        """Seconds until an answer that is written is complete, on average, if the company that is inside shares the
        writing equally with it: at least so many where prompts are long."""
        shared = (1 - self.busy**self.company.answers) / (1 - self.busy)
        return float(self.first + (self.prediction.seconds - self.prediction.first) * self.company.ratio * shared)

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
