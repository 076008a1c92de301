"""`TimePredictor`: predicts the seconds of work, as `mean` or rarely exceeded `upper`, from earlier work."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edge.files.sealed import recall, remember
from edge.trace import Trace

_SMOOTHING = 0.2
_DEVIATIONS = 2.0


class RunningMean:
    """Exponentially smoothed mean and deviation of `count` readings (assumed ones included). Thread-safe."""

    def __init__(self, mean: float = 0.0, deviation: float = 0.0, *, count: int = 0) -> None:
        """Begins with a mean and a deviation that are assumed from `count` earlier readings."""
        self.mean = mean
        self._variance = deviation**2
        self.count = count
        self._lock = threading.Lock()

    @property
    def upper(self) -> float:
        with self._lock:
            return self.mean + _DEVIATIONS * float(self._variance**0.5)

    def add(self, reading: float) -> None:
        with self._lock:
            self.count += 1
            step = max(_SMOOTHING, 1 / self.count)
            off = reading - self.mean
            self.mean += step * off
            self._variance = (1 - step) * (self._variance + step * off**2)


_FORMAT = 2
_WHAT = "the times of generations"

_FORGET = 0.9
"""Factor by which the weight of earlier readings falls with each further one."""

_FADE = 0.97
"""Factor by which earlier savings lose weight each time the work is refused, so that it is tried again later."""

_DOUBT_S = 0.02
"""Assumed deviation of the saving of one piece of speculative work: the time of a few disk reads."""

_LENGTHS = 64
"""Lengths of replies remembered for each step."""


@dataclass(frozen=True, slots=True)
class Seconds:
    """A predicted time: its mean and its standard deviation, in seconds."""

    mean: float
    deviation: float = 0.0

    @property
    def upper(self) -> float:
        return self.mean + _DEVIATIONS * self.deviation

    def __add__(self, other: Seconds) -> Seconds:
        return Seconds(self.mean + other.mean, math.hypot(self.deviation, other.deviation))


@dataclass(frozen=True, slots=True)
class PromptWork:
    """The work of reading a prompt: tokens whose states must be computed, and tokens whose states are copied."""

    computed: int
    restored: int = 0


class _Sums:
    """Three sums of readings that lose weight (`weight` is that of the units or observations). Not thread-safe."""

    def __init__(self, sums: Sequence[float] = (0.0, 0.0, 0.0)) -> None:
        self.weight, self._seconds, self._squares = map(float, sums)

    @property
    def sums(self) -> tuple[float, float, float]:
        return self.weight, self._seconds, self._squares

    @property
    def mean(self) -> float:
        return self._seconds / self.weight if self.weight else 0.0

    def _learn(self, weight: float, seconds: float, square: float) -> None:
        self.weight = _FORGET * self.weight + weight
        self._seconds = _FORGET * self._seconds + seconds
        self._squares = _FORGET * self._squares + square


class Rate(_Sums):
    """Seconds per unit: least squares through zero, from sums of units, seconds, and seconds² over units."""

    @property
    def deviation(self) -> float:
        return math.sqrt(max(0.0, self._squares / self.weight - self.mean**2)) if self.weight else 0.0

    def add(self, units: float, seconds: float) -> None:
        self._learn(units, seconds, seconds**2 / units)


class Saving(_Sums):
    """Seconds that speculative work saved less those lost, from sums of weights, seconds, and squares."""

    @property
    def error(self) -> float:
        """Standard error of the mean, with one more reading of the deviation `_DOUBT_S`."""
        spread = max(0.0, self._squares - self.weight * self.mean**2) + _DOUBT_S**2
        return math.sqrt(spread) / (self.weight + 1)

    def add(self, seconds: float) -> None:
        self._learn(1, seconds, seconds**2)

    def charge(self, seconds: float) -> None:
        """Subtracts seconds that earlier work turned out to cost others."""
        self._seconds -= seconds
        self._squares += seconds**2

    def fade(self) -> None:
        """Lowers the weight of the observations, after the work was refused."""
        self.weight, self._seconds, self._squares = (_FADE * part for part in self.sums)


class ReplyLengths:
    """Lengths in tokens of the last replies of one step. Not thread-safe."""

    def __init__(self, lengths: Sequence[int] = ()) -> None:
        self.lengths = list(lengths)[-_LENGTHS:]

    def add(self, length: int) -> None:
        self.lengths = [*self.lengths, length][-_LENGTHS:]

    def remaining(self, written: int, most: int) -> tuple[float, float]:
        """Mean and deviation of the tokens, at most `most` in all, that follow `written` ones, by longer replies;
        without any by an exponential tail."""
        left = [length - written for length in self.lengths if length > written]
        if not left:
            ordered = sorted(self.lengths)
            median = ordered[len(ordered) // 2]
            beyond = [length - median for length in ordered if length > median]
            mean = sum(beyond) / len(beyond) if beyond else max(1.0, median / 2)
            return min(mean, float(max(0, most - written))), mean
        left = [min(tokens, max(0, most - written)) for tokens in left]
        mean = sum(left) / len(left)
        return mean, math.sqrt(sum((tokens - mean) ** 2 for tokens in left) / len(left))


class TimePredictor:
    """Learns times of work by name. Thread-safe. A file that cannot be read or written is ignored."""

    def __init__(self, path: Path | None = None) -> None:
        """Loads the state saved at `path`; with None nothing is stored."""
        self._path = path
        self._lock = threading.Lock()
        self._rates: dict[str, Rate] = {}
        self._lengths: dict[str, ReplyLengths] = {}
        self._savings: dict[str, Saving] = {}
        self._load()

    def learn(self, work: str, units: float, seconds: float) -> None:
        """Learns the seconds that `units` of some work took. An impossible reading is ignored."""
        if units > 0 and 0 <= seconds < math.inf:
            with self._lock:
                self._rates.setdefault(work, Rate()).add(units, seconds)

    def seconds(self, work: str, units: float = 1.0) -> Seconds | None:
        """Predicts the seconds that `units` of some work take; None before the first reading."""
        with self._lock:
            rate = self._rates.get(work)
            return None if rate is None else Seconds(rate.mean * units, rate.deviation * units)

    def learn_saving(self, work: str, seconds: float) -> None:
        """Learns the seconds that one piece of speculative work saved; negative if it did harm."""
        if math.isfinite(seconds):
            with self._lock:
                self._savings.setdefault(work, Saving()).add(seconds)

    def charge_saving(self, work: str, seconds: float) -> None:
        """Learns the seconds that others lost by earlier work of this kind."""
        if math.isfinite(seconds):
            with self._lock:
                self._savings.setdefault(work, Saving()).charge(seconds)

    def saving(self, work: str) -> Saving:
        with self._lock:
            return Saving(self._savings.get(work, Saving()).sums)

    def fade(self, work: str) -> None:
        """Lowers the weight of the savings of such work, after it was refused."""
        with self._lock:
            self._savings.setdefault(work, Saving()).fade()

    def learn_reply(
        self, generator: str, step: str, work: PromptWork, *, new: int, ttft_s: float, restore_s: float, seconds: float
    ) -> None:
        """Learns from one finished generation: its prompt, tokens written, and seconds to the first token (`restore_s`
        of them on restoring states) and to the last."""
        if new < 1 or not 0 <= restore_s <= ttft_s <= seconds < math.inf:
            return
        with self._lock:
            self._lengths.setdefault(f"{generator}/{step}", ReplyLengths()).add(new)
        self.learn(f"{generator}/prefill", work.computed, ttft_s - restore_s)
        self.learn(f"{generator}/restore", work.restored, restore_s)
        self.learn(f"{generator}/token", new - 1, seconds - ttft_s)

    def reply(
        self, generator: str, step: str, *, prompt: PromptWork | None = None, written: int = 0, most: int
    ) -> Seconds | None:
        """Predicts the remaining seconds of a reply of at most `most` tokens; None before the first of its step.
        `prompt` is what is still to be read."""
        token = self.seconds(f"{generator}/token")
        with self._lock:
            lengths = self._lengths.get(f"{generator}/{step}")
            if lengths is None or token is None:
                return None
            tokens, spread = lengths.remaining(written, most)
        total = Seconds(tokens * token.mean, math.hypot(spread * token.mean, tokens * token.deviation))
        for work, count in (("prefill", prompt.computed), ("restore", prompt.restored)) if prompt else ():
            total += self.seconds(f"{generator}/{work}", count) or Seconds(0.0)
        return total

    def save(self) -> None:
        if self._path is None:
            return
        with self._lock:
            state = {
                "format": _FORMAT,
                "rates": {work: list(rate.sums) for work, rate in self._rates.items()},
                "lengths": {step: known.lengths for step, known in self._lengths.items()},
                "savings": {work: list(saving.sums) for work, saving in self._savings.items()},
            }
        remember(self._path, state)

    def _load(self) -> None:
        state = recall(self._path, _WHAT) if self._path is not None else {}
        if state.get("format") != _FORMAT:
            return
        try:
            self._rates = {work: Rate(sums) for work, sums in state["rates"].items()}
            self._lengths = {step: ReplyLengths(lengths) for step, lengths in state["lengths"].items()}
            self._savings = {work: Saving(sums) for work, sums in state["savings"].items()}
        except (ValueError, TypeError, KeyError, AttributeError):
            self._rates, self._lengths, self._savings = {}, {}, {}


_TRIALS = 1.5
"""Work is started without a forecast until the observations weigh this much; older ones weigh less."""


class BenefitGate:
    """Decides for each piece of speculative work whether to start it, by the seconds that such work has saved. What did
    not pay is tried again after some time.

    Counters, all named `gate.<kind>.`: `started`, `refused`, `saved_s`, `lost_s`, and `cost_s` of the started work."""

    def __init__(self, predictor: TimePredictor, trace: Trace) -> None:
        self.predictor = predictor
        self._trace = trace

    def opens(self, kind: str, where: str, cost: Seconds | None) -> bool:
        """Whether to start a piece of work of a kind, such as `lookahead`, at the step `where` of a pipeline. `cost`:
        time that it takes from the caller, if known."""
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
