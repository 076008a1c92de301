"""`BenefitGate`: speculative work starts only if it should save more seconds than it costs."""

from __future__ import annotations

from edge.scheduling.predictor import Seconds, TimePredictor
from edge.trace import Trace

_TRIALS = 1.5
"""Work is started without a forecast until the observations weigh this much; older ones weigh less."""


class BenefitGate:
    """Decides for each piece of speculative work whether to start it.

    The gate learns from each completed piece how many seconds such work saves, and keeps this in the `TimePredictor`.
    Work that did not pay is tried again after some time, when the old observations have lost their weight.

    Counters, all named `gate.<kind>.`: `started`, `refused`, `saved_s`, `lost_s`, and `cost_s` of the started work. The
    trace shows each refusal with its expected saving and cost.
    """

    def __init__(self, predictor: TimePredictor, trace: Trace) -> None:
        self.predictor = predictor
        self._trace = trace

    def opens(self, kind: str, where: str, cost: Seconds | None) -> bool:
        """Whether to start a piece of work.

        Args:
            kind: kind of work, as counters and the trace name it, such as `lookahead`.
            where: the circumstances that determine the saving, such as the step of a pipeline.
            cost: seconds that the work takes from the caller; None if unknown.
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
        """Learns the seconds that one piece of work saved; negative if it did harm."""
        self.predictor.learn_saving(f"{kind}/{where}", saved)
        self._trace.count(f"gate.{kind}.saved_s", saved)

    def charge(self, kind: str, where: str, lost: float) -> None:
        """Learns the seconds that a finished piece of work made others lose afterwards."""
        self.predictor.charge_saving(f"{kind}/{where}", lost)
        self._trace.count(f"gate.{kind}.lost_s", lost)
