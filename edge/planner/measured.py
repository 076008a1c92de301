"""`MachineProfile`: the measured cost of an answer's stages on this machine; `Serving`: a server's schedule planned
from it (RAGO, section 6)."""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from edge.errors import InputError
from edge.files.sealed import recall, remember
from edge.planner.tables import frontier


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds as a function of a count, piecewise linear through measured points: `counts` ascending, `seconds` never
    falling; constant before the first point, and like the last piece past the last."""

    counts: tuple[int, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        ordered = all(a < b for a, b in pairwise(self.counts))
        rising = all(a <= b for a, b in pairwise(self.seconds))
        if not self.counts or len(self.counts) != len(self.seconds) or not ordered or not rising or self.seconds[0] < 0:
            raise InputError(f"a curve needs ascending counts and seconds that never fall, not {self.counts}")

    @classmethod
    def measured(cls, points: Sequence[tuple[int, float]]) -> Curve:
        """A curve through measurements in any order. Noise that makes it fall is flattened upwards."""
        ordered = sorted(points)
        return cls(tuple(count for count, _ in ordered), tuple(accumulate((s for _, s in ordered), max)))

    def __call__(self, count: float) -> float:
        if len(self.counts) == 1 or count <= self.counts[0]:
            return self.seconds[0]
        right = min(bisect.bisect_left(self.counts, count), len(self.counts) - 1)
        if count == self.counts[right]:
            return self.seconds[right]
        left = right - 1
        share = (count - self.counts[left]) / (self.counts[right] - self.counts[left])
        return self.seconds[left] + share * (self.seconds[right] - self.seconds[left])


_FORMAT = 5
_WHAT = "the profile of this machine"


@dataclass(frozen=True, slots=True)
class Reading:
    """Typical values over some questions, for one reranking depth (0: none) and one largest number of passages.

    `written` is the share of questions that were not refused. `write` (its part before the first text: `start`) is for
    one that was not, `draft` for one that was. `nbytes` is the process's high-water mark of anonymous memory."""

    depth: int
    passages: int
    questions: int
    written: float
    embed: float
    search: float
    rerank: float
    write: float
    draft: float
    other: float
    nbytes: float
    start: float = 0.0

    @property
    def mean_seconds(self) -> float:
        """Seconds until the answer is complete or refused, on average over the questions."""
        writing = self.written * self.write + (1 - self.written) * self.draft
        return self.embed + self.search + self.rerank + writing + self.other

    def __post_init__(self) -> None:
        values = (self.embed, self.search, self.rerank, self.write, self.draft, self.other, self.nbytes, self.start)
        if self.depth < 0 or self.passages < 1 or not all(0 <= value < math.inf for value in values):
            raise InputError("a reading has a depth, passages, seconds and bytes of at least 0")
        if self.questions < 1 or not 0 <= self.written <= 1:
            raise InputError("a reading has at least 1 question, and the share of written answers is from 0 to 1")


@dataclass(frozen=True, slots=True)
class Prediction:
    """The predicted seconds of each stage of a written answer, and peak bytes. The share `written` is not refused; a
    refused one takes `draft`."""

    limit: int
    depth: int
    passages: int
    stages: Mapping[str, float]
    nbytes: float
    written: float = 1.0
    draft: float = 0.0
    start: float = 0.0

    @property
    def first(self) -> float:
        return self.seconds - self.stages.get("write", 0.0) + self.start

    @property
    def seconds(self) -> float:
        return sum(self.stages.values())

    @property
    def mean_seconds(self) -> float:
        refused = self.seconds - self.stages.get("write", 0.0) + self.draft
        return self.written * self.seconds + (1 - self.written) * refused


@dataclass(frozen=True, slots=True)
class Company:
    """What so many answers at a time cost: seconds of each as a `ratio` to single ones, and peak memory."""

    answers: int
    generation: str
    ratio: float
    nbytes: float

    def __post_init__(self) -> None:
        if self.answers < 1 or not 0 < self.ratio < math.inf or not 0 <= self.nbytes < math.inf:
            raise InputError("answers at the same time are at least 1, and cost seconds and bytes")


@dataclass(slots=True)
class LimitProfile:
    """Readings under one memory limit, in bytes, and those of several answers at a time."""

    limit: int
    readings: list[Reading] = field(default_factory=list)
    company: list[Company] = field(default_factory=list)

    def predict(self, depth: int, passages: int) -> Prediction:
        like = [reading for reading in self.readings if (reading.depth > 0) == (depth > 0)]
        if not like:
            kind = "with" if depth else "without"
            raise InputError(f"nothing was measured {kind} reranking under {self.limit:,} bytes: run edge profile")
        # Each reading differs from a common one in its depth or its number of passages. The two differences are added.
        usual = _most_common([reading.passages for reading in like])
        middle = _most_common([reading.depth for reading in like])
        by_depth = [reading for reading in like if reading.passages == usual]
        by_passages = [reading for reading in like if reading.depth == middle]

        def between(name: str) -> float:
            deeper = _curve([(reading.depth, getattr(reading, name)) for reading in by_depth])(depth)
            more = _curve([(reading.passages, getattr(reading, name)) for reading in by_passages])
            return max(0.0, deeper + more(passages) - more(usual))

        # Writing hardly depends on the depth (4.87 s at 8 judged passages and 4.78 s at 30, with SmolLM2-135M). So the
        # depths are taken together: in each single one, the few answers that were written differ by chance.
        written = [reading for reading in like if reading.written > 0]
        refused = [reading for reading in like if reading.written < 1]
        stages = {
            "embed": float(np.median([reading.embed for reading in like])),
            "search": between("search"),
            "rerank": between("rerank"),
            "write": _pooled(written, "write", [r.written * r.questions for r in written], passages),
            "other": float(np.median([reading.other for reading in like])),
        }
        return Prediction(
            self.limit, depth, passages, stages, between("nbytes"),
            written=_share(by_depth, by_passages, depth, passages, usual),
            draft=_pooled(refused, "draft", [(1 - r.written) * r.questions for r in refused], passages),
            start=_pooled(written, "start", [r.written * r.questions for r in written], passages),
        )  # fmt: skip


def _most_common(counts: Sequence[int]) -> int:
    return max(sorted(set(counts)), key=list(counts).count)


def _pooled(readings: Sequence[Reading], name: str, weights: Sequence[float], passages: int) -> float:
    """The weighted mean of a value over the readings with each number of passages, interpolated; 0 without readings."""
    if not readings:
        return 0.0
    points = []
    for count in {reading.passages for reading in readings}:
        same = [(getattr(r, name), weight) for r, weight in zip(readings, weights, strict=True) if r.passages == count]
        points.append((count, sum(value * weight for value, weight in same) / sum(weight for _, weight in same)))
    return Curve.measured(points)(passages)


def _share(by_depth: Sequence[Reading], by_passages: Sequence[Reading], depth: int, passages: int, usual: int) -> float:
    """The share of answers that are written. Unlike seconds it may fall with the depth and with the passages."""

    def along(readings: Sequence[Reading], axis: str, place: int) -> float:
        counts = sorted({getattr(reading, axis) for reading in readings})
        means = [np.mean([r.written for r in readings if getattr(r, axis) == count]) for count in counts]
        return float(np.interp(place, counts, means))

    more = along(by_passages, "passages", passages) - along(by_passages, "passages", usual)
    return min(1.0, max(0.0, along(by_depth, "depth", depth) + more))


def _curve(points: Sequence[tuple[int, float]]) -> Curve:
    counts = sorted({count for count, _ in points})
    return Curve.measured([(n, float(np.mean([value for count, value in points if count == n]))) for n in counts])


@dataclass(slots=True)
class MachineProfile:
    """The measurements of a collection on a machine by memory limit in bytes, valid under their conditions alone."""

    conditions: Mapping[str, str]
    limits: dict[int, LimitProfile] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path, conditions: Mapping[str, str]) -> MachineProfile:
        """The profile at a path if it was measured under these conditions, else an empty one."""
        state = recall(path, _WHAT)
        profile = cls(dict(conditions))
        if state.get("format") != _FORMAT or state.get("conditions") != dict(conditions):
            return profile
        try:
            for text, rows in dict(state["limits"]).items():
                readings, company = [_reading(row) for row in rows["readings"]], map(_company, rows["company"])
                profile.limits[int(text)] = LimitProfile(int(text), readings, list(company))
        except (ValueError, TypeError, KeyError, InputError):
            profile.limits = {}
        return profile

    def save(self, path: Path) -> None:
        """Stores the profile. If that fails, it is measured again next time."""
        limits = {
            str(limit): {name: [asdict(one) for one in getattr(known, name)] for name in ("readings", "company")}
            for limit, known in self.limits.items()
        }
        remember(path, {"format": _FORMAT, "conditions": dict(self.conditions), "limits": limits})

    def choices(self, depths: Sequence[int], passages: Sequence[int]) -> list[Prediction]:
        """A prediction for every measured limit with these depths and passages."""
        return [
            known.predict(depth, count)
            for _, known in sorted(self.limits.items())
            for depth in depths
            for count in passages
            if any((reading.depth > 0) == (depth > 0) for reading in known.readings)
        ]


def unbeaten_choices(found: Sequence[Prediction]) -> list[Prediction]:
    """The predictions that no other one dominates in seconds, bytes, depth and passages together, fastest first."""
    costs = np.array([(p.seconds, p.nbytes, -p.depth, -p.passages) for p in found], dtype=np.float64)
    return [found[row] for row in frontier(costs)] if len(found) else []


def _reading(row: Any) -> Reading:
    values = (float(row[f.name]) for f in fields(Reading)[3:])
    return Reading(int(row["depth"]), int(row["passages"]), int(row["questions"]), *values)


def _company(row: Any) -> Company:
    return Company(int(row["answers"]), str(row["generation"]), float(row["ratio"]), float(row["nbytes"]))


BUSIEST = 0.9
"""The largest share of the time that a planned server is at work. Above it small errors double the wait."""


@dataclass(frozen=True, slots=True)
class Serving:
    """A schedule under `rate` independent arrivals a second (Poisson).

    All answers share the same cores, so a server is a queue with one working machine; at most `company.answers` are
    inside. Prompts are computed in turn, and answers are written when none is left."""

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
        """Mean seconds until a request's prompt is begun: the formula of Pollaczek and Khinchine with one answer at a
        time, for prompts alone with room for all, and fitted to a simulation in between."""
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
        return self.wait + self.prediction.first * self.company.ratio

    @property
    def seconds(self) -> float:
        """Mean seconds until a written answer is complete, if those inside share the writing equally: at least so many
        where prompts are long."""
        shared = (1 - self.busy**self.company.answers) / (1 - self.busy)
        return float(self.first + (self.prediction.seconds - self.prediction.first) * self.company.ratio * shared)

    @property
    def nbytes(self) -> float:
        """Peak bytes, once the server holds as many documents' states as it may."""
        return max(self.prediction.nbytes, self.company.nbytes)


def servings(known: MachineProfile, depths: Sequence[int], passages: Sequence[int], rate: float) -> list[Serving]:
    """Every schedule that keeps up with a rate of requests: each limit with each number of answers measured there."""
    if not any(limit.company for limit in known.limits.values()):
        raise InputError("nothing was measured as a server: run `edge profile --answers N`")
    found = [
        Serving(prediction, company, rate)
        for prediction in known.choices(depths, passages)
        for company in known.limits[prediction.limit].company
    ]
    return [serving for serving in found if serving.busy <= BUSIEST]


def best_serving(found: Sequence[Serving], within: float, memory: int | None) -> Serving:
    """The schedule that judges most, writes from most, is exact, and begins first, of those soon enough."""
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
