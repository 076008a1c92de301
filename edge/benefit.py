"""`BenefitGate`: speculative work starts only if it should save more seconds than it costs."""

from __future__ import annotations

from edge.predictor import Seconds, TimePredictor
from edge.trace import Trace

_TRIALS = 1.5
"""Work is done until so many observations, of which earlier ones count less, tell what it saves."""


class BenefitGate:
    """Everything speculative asks here before it starts. What such work saved is learned from each time it was done, in
    the `TimePredictor`. What did not pay is tried again once so much time has passed that little is known about it.

    Counters, all `gate.<kind>.`: `started`, `refused`, `saved_s`, `cost_s` of what was started. The trace shows each
    refusal with both figures.
    """

    def __init__(self, predictor: TimePredictor, trace: Trace) -> None:
        self.predictor = predictor
        self._trace = trace

    def opens(self, kind: str, where: str, cost: Seconds | None) -> bool:
        """Whether to start a piece of work.

        Args:
            kind: of work, as counters and trace name it, such as `lookahead`.
            where: what its benefit depends on, such as the step of a pipeline.
            cost: seconds that it takes from the caller; None while that is not known.
        """
        work = f"{kind}/{where}"
        saving = self.predictor.saving(work)
        spent = 0.0 if cost is None else cost.mean
        if saving.weight < _TRIALS or saving.mean + saving.error > spent:
            self._trace.count(f"gate.{kind}.started")
            self._trace.count(f"gate.{kind}.cost_s", spent)
            return True
        self.predictor.fade(work)
        self._trace.count(f"gate.{kind}.refused")
        self._trace.mark(
            f"no {kind}", "speculative", where=where, saves_s=saving.mean, error_s=saving.error, costs_s=spent
        )
        return False

    def learn(self, kind: str, where: str, saved: float) -> None:
        """Takes in the seconds that one piece of work saved, below 0 if it did harm."""
        self.predictor.learn_saving(f"{kind}/{where}", saved)
        self._trace.count(f"gate.{kind}.saved_s", saved)
