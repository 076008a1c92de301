"""`MachineProfile`: the measured cost of an answer's stages on this machine; `Serving`: a server's schedule planned
from it (RAGO, section 6)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from edge.errors import InputError
from edge.files.sealed import recall, remember
from edge.planner.tables import frontier

_FORMAT = 7
_WHAT = "the profile of this machine"


@dataclass(frozen=True, slots=True)
class Reading:
    """Typical values over some questions, under one memory limit in bytes, for one reranking depth (0: none) and one
    largest number of passages.

    `written` is the share of questions that were not refused. `write` (its part before the first text: `start`) is for
    one that was not, `draft` for one that was. `nbytes` is the process's high-water mark of anonymous memory."""

    limit: int
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
    def seconds(self) -> float:
        """Of a written answer."""
        return self._before + self.write

    @property
    def first(self) -> float:
        return self._before + self.start

    @property
    def refused(self) -> float:
        return self._before + self.draft

    @property
    def mean_seconds(self) -> float:
        """Seconds until the answer is complete or refused, on average over the questions."""
        return self.written * self.seconds + (1 - self.written) * self.refused

    @property
    def _before(self) -> float:
        return self.embed + self.search + self.rerank + self.other

    def __post_init__(self) -> None:
        values = (self.embed, self.search, self.rerank, self.write, self.draft, self.other, self.nbytes, self.start)
        if self.depth < 0 or self.passages < 1 or not all(0 <= value < math.inf for value in values):
            raise InputError("a reading has a depth, passages, seconds and bytes of at least 0")
        if self.questions < 1 or not 0 <= self.written <= 1:
            raise InputError("a reading has at least 1 question, and the share of written answers is from 0 to 1")


@dataclass(frozen=True, slots=True)
class Company:
    """What so many answers at a time cost under a memory limit in bytes: seconds of each as a `ratio` to single ones,
    and peak memory."""

    limit: int
    answers: int
    generation: str
    ratio: float
    nbytes: float

    def __post_init__(self) -> None:
        if self.answers < 1 or not 0 < self.ratio < math.inf or not 0 <= self.nbytes < math.inf:
            raise InputError("answers at the same time are at least 1, and cost seconds and bytes")


@dataclass(slots=True)
class MachineProfile:
    """The measurements of a collection on a machine, by memory limit, valid under their conditions alone."""

    conditions: Mapping[str, str]
    readings: list[Reading] = field(default_factory=list)
    company: list[Company] = field(default_factory=list)

    @classmethod
    def load(cls, path: Path, conditions: Mapping[str, str]) -> MachineProfile:
        """The profile at a path if it was measured under these conditions, else an empty one."""
        state = recall(path, _WHAT)
        if state.get("format") == _FORMAT and state.get("conditions") == dict(conditions):
            with suppress(TypeError, KeyError, InputError):
                readings, company = ([kind(**row) for row in state[name]] for name, kind in _PARTS.items())
                return cls(dict(conditions), readings, company)
        return cls(dict(conditions))

    def save(self, path: Path) -> None:
        """Stores the profile. If that fails, it is measured again next time."""
        parts = {name: [asdict(one) for one in getattr(self, name)] for name in _PARTS}
        remember(path, {"format": _FORMAT, "conditions": dict(self.conditions), **parts})

    def measured(self, readings: Sequence[Reading], company: Sequence[Company]) -> None:
        """Puts the measurements of one limit in place of earlier ones."""
        limit = readings[0].limit
        self.readings = sorted([*(p for p in self.readings if p.limit != limit), *readings], key=lambda p: p.limit)
        self.company = [*(one for one in self.company if one.limit != limit), *company]

    @property
    def limits(self) -> list[int]:
        return sorted({reading.limit for reading in self.readings})


_PARTS: Mapping[str, Any] = {"readings": Reading, "company": Company}


def unbeaten_choices(found: Sequence[Reading]) -> list[Reading]:
    """The readings that no other one dominates in seconds, bytes, depth and passages together, fastest first."""
    costs = np.array([(p.seconds, p.nbytes, -p.depth, -p.passages) for p in found], dtype=np.float64)
    return [found[row] for row in frontier(costs)] if len(found) else []


BUSIEST = 0.9
"""The largest share of the time that a planned server is at work. Above it small errors double the wait."""


@dataclass(frozen=True, slots=True)
class Serving:
    """A schedule under `rate` independent arrivals a second (Poisson).

    All answers share the same cores, so a server is a queue with one working machine; at most `company.answers` are
    inside. Prompts are computed in turn, and answers are written when none is left."""

    reading: Reading
    company: Company
    rate: float

    @property
    def service(self) -> float:
        """Seconds of work for a request, on average."""
        return self.reading.mean_seconds * self.company.ratio

    @property
    def busy(self) -> float:
        """The share of the time that the server is at work."""
        return self.rate * self.service

    @property
    def wait(self) -> float:
        """Mean seconds until a request's prompt is begun: the formula of Pollaczek and Khinchine with one answer at a
        time, for prompts alone with room for all, and fitted to a simulation in between."""
        p, ratio = self.reading, self.company.ratio

        def queued(written: float) -> float:
            """The wait if writing took so long, up to its end."""
            mean = (p.written * written + (1 - p.written) * p.refused) * ratio
            squares = (p.written * written**2 + (1 - p.written) * p.refused**2) * ratio**2
            return self.rate * squares / 2 / (1 - self.rate * mean)

        whole, prompts = queued(p.seconds), queued(p.first)
        writing = 1 - p.first / p.seconds if p.seconds else 0.0
        return float(prompts + (whole - prompts) * self.busy ** ((self.company.answers - 1) * writing))

    @property
    def first(self) -> float:
        return self.wait + self.reading.first * self.company.ratio

    @property
    def seconds(self) -> float:
        """Mean seconds until a written answer is complete, if those inside share the writing equally: at least so many
        where prompts are long."""
        shared = (1 - self.busy**self.company.answers) / (1 - self.busy)
        return float(self.first + (self.reading.seconds - self.reading.first) * self.company.ratio * shared)

    @property
    def nbytes(self) -> float:
        """Peak bytes, once the server holds as many documents' states as it may."""
        return max(self.reading.nbytes, self.company.nbytes)


def servings(known: MachineProfile, rate: float) -> list[Serving]:
    """Every schedule that keeps up with a rate of requests: each limit with each number of answers measured there."""
    if not known.company:
        raise InputError("nothing was measured as a server: run `edge profile --answers N`")
    pairs = product(known.readings, known.company)
    found = [Serving(reading, company, rate) for reading, company in pairs if reading.limit == company.limit]
    return [serving for serving in found if serving.busy <= BUSIEST]


def best_serving(found: Sequence[Serving], within: float, memory: int | None) -> Serving:
    """The schedule that judges most, writes from most, is exact, and begins first, of those soon enough."""
    fitting = [one for one in found if memory is None or one.reading.limit <= memory]
    if not fitting:
        raise InputError("no measured schedule keeps up with this rate: plan a smaller one, or more memory")
    soon = [one for one in fitting if one.first <= within]
    if not soon:
        raise InputError(
            f"the earliest first text under this rate comes after {min(one.first for one in fitting):.2f} s: allow as "
            f"much, or plan a smaller rate"
        )

    def order(one: Serving) -> tuple[int, int, bool, float, int]:
        p = one.reading
        return -p.depth, -p.passages, one.company.generation == "shared", one.first, p.limit

    return min(soon, key=order)
