"""`MachineProfile`: the measured cost of an answer's stages on this machine; `Serving`: a server's schedule planned
from it, as a problem for RAGO's planner (section 6), and with the waits of a queue."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from edge.config import Config
from edge.errors import InputError
from edge.files.sealed import recall, remember
from edge.planner.schedule import Plan, Problem, plans
from edge.planner.tables import Model, Point, RagSchema, StageTable

_FORMAT = 8
_WHAT = "the profile of this machine"


@dataclass(frozen=True, slots=True)
class Reading:
    """Typical values over some questions, under one memory limit in bytes, for one reranking depth (0: none) and one
    largest number of passages. `tokens` of a written answer.

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
    tokens: float = 1.0

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
class Manner:
    """How a server works, in the words of `Config`. With `llm_threads` retrieval and writing have cores of their
    own."""

    answers: int
    generation: str
    states: str
    threads: int = 0
    llm_threads: int = 0
    device: str = ""

    @classmethod
    def of(cls, config: Config) -> Manner:
        return cls(**{one.name: getattr(config, one.name) for one in fields(cls)})


@dataclass(frozen=True, slots=True)
class Company:
    """What a manner of serving costs under a memory limit in bytes, if so many `clients` always wait for an answer:
    seconds of work for each answer and seconds to its first text as ratios to those of single answers (`ratio` and
    `delay`), and peak memory."""

    limit: int
    manner: Manner
    clients: int
    ratio: float
    delay: float
    nbytes: float

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Company:
        return cls(**{**row, "manner": Manner(**row["manner"])})

    def __post_init__(self) -> None:
        if min(self.manner.answers, self.clients) < 1 or not all(
            0 < value < math.inf for value in (self.ratio, self.delay, self.nbytes)
        ):
            raise InputError("answers at the same time are at least 1, and cost seconds and bytes")


@dataclass(slots=True)
class MachineProfile:
    """The measurements of a collection on a machine, by memory limit, valid under their conditions alone."""

    conditions: Mapping[str, str]
    readings: list[Reading] = field(default_factory=list)
    company: list[Company] = field(default_factory=list)

    @classmethod
    def load(cls, path: Path, conditions: Mapping[str, str]) -> Self:
        """The profile at a path if it was measured under these conditions, else an empty one."""
        state = recall(path, _WHAT)
        if state.get("format") == _FORMAT and state.get("conditions") == dict(conditions):
            with suppress(TypeError, KeyError, InputError):
                readings = [Reading(**row) for row in state["readings"]]
                return cls(dict(conditions), readings, list(map(Company.of, state["company"])))
        return cls(dict(conditions))

    @classmethod
    def alike(cls, paths: Iterable[Path], conditions: Mapping[str, str], besides: Collection[str]) -> list[Self]:
        """The profiles at some paths that were measured under conditions like these `besides` some."""
        found = []
        for path in paths:
            own = recall(path, _WHAT).get("conditions")
            if isinstance(own, dict) and {**own, **{name: conditions[name] for name in besides}} == dict(conditions):
                found.append(cls.load(path, own))
        return found

    def save(self, path: Path) -> None:
        """Stores the profile. If that fails, it is measured again next time."""
        parts = {"readings": list(map(asdict, self.readings)), "company": list(map(asdict, self.company))}
        remember(path, {"format": _FORMAT, "conditions": dict(self.conditions), **parts})

    def measured(self, readings: Sequence[Reading], company: Sequence[Company]) -> None:
        """Puts the measurements of one limit in place of earlier ones."""
        limit = readings[0].limit
        self.readings = sorted([*(p for p in self.readings if p.limit != limit), *readings], key=lambda p: p.limit)
        self.company = [*(one for one in self.company if one.limit != limit), *company]

    @property
    def limits(self) -> list[int]:
        return sorted({reading.limit for reading in self.readings})

    def servings(self) -> list[Serving]:
        """Each reading in each manner that was measured under its limit; else alone, as `edge ask` answers."""
        alone = Manner(1, "exact", "exact")
        return [
            Serving(reading, one)
            for reading in self.readings
            for one in [one for one in self.company if one.limit == reading.limit]
            or [Company(reading.limit, alone, 1, 1.0, 1.0, reading.nbytes)]
        ]


BUSIEST = 0.9
"""The largest share of the time that a planned server is at work. Above it small errors double the wait."""

_WEIGHTLESS = Model("measured", 1.0, 1, 1, weight_nbytes=0.0)


@dataclass(frozen=True, slots=True)
class Serving:
    """A schedule of a server: what an answer costs, and the manner in which several are written."""

    reading: Reading
    company: Company

    @property
    def service(self) -> float:
        """Seconds of work for a request, on average."""
        return self.reading.mean_seconds * self.company.ratio

    @property
    def nbytes(self) -> float:
        """Peak bytes, once the server holds as many documents' states as it may."""
        return max(self.reading.nbytes, self.company.nbytes)

    def problem(self, name: str) -> Problem:
        """The measured stages for RAGO's planner, under an endless load: the batch of the generator's stages are the
        answers that are written at a time. Stages take turns on the machine, or retrieval and writing have parts of
        it, of which the slower one sets the rate."""
        p, one = self.reading, self.company
        schema = RagSchema(
            name, _WEIGHTLESS, encoder=_WEIGHTLESS, encoder_tokens=1, reranker=_WEIGHTLESS if p.depth else None,
            decode_tokens=max(1, round(p.tokens)),
        )  # fmt: skip
        first = one.delay * p.first
        latency = {"encode": p.embed, "retrieve": p.search + p.other, "rerank": p.rerank, "prefill": p.start}
        work = latency | {
            "prefill": p.written * p.start + (1 - p.written) * p.draft, "decode": p.written * (p.write - p.start)
        }  # fmt: skip
        latency = {stage: one.delay * seconds for stage, seconds in latency.items()}
        # Each client has one request under way (Little's law).
        latency["decode"] = max(0.0, one.clients * self.service - first)
        names = tuple(stage.name for stage in schema.stages())
        placement = (names[:-2], names[-2:]) if one.manner.llm_threads else (names,)
        scale = self.service / max(sum(work[stage] for stage in group) for group in placement)
        batch = dict.fromkeys(names[:-2], 1) | dict.fromkeys(names[-2:], one.manner.answers)
        held = {"decode": self.nbytes}
        tables = {
            stage: StageTable(stage, (Point(
                1, batch[stage], latency[stage], scale * batch[stage] * work[stage], working=held.get(stage, 0.0)
            ),))
            for stage in names
        }  # fmt: skip
        return Problem(schema, tables, [placement], len(placement), math.inf)

    def plan(self, name: str) -> Plan:
        return plans(self.problem(name))[0]


@dataclass(frozen=True, slots=True)
class Queue:
    """A server under `rate` independent arrivals a second (Poisson).

    All answers share the same cores, so a server is a queue with one working machine; at most `answers` are inside.
    Prompts are computed in turn, and answers are written when none is left."""

    serving: Serving
    rate: float

    @property
    def busy(self) -> float:
        """The share of the time that the server is at work."""
        return self.rate * self.serving.service

    @property
    def wait(self) -> float:
        """Mean seconds until a request's prompt is begun: the formula of Pollaczek and Khinchine with one answer at a
        time, for prompts alone with room for all, and fitted to a simulation in between."""
        p, ratio = self.serving.reading, self.serving.company.ratio

        def queued(written: float) -> float:
            """The wait if writing took so long, up to its end."""
            mean = (p.written * written + (1 - p.written) * p.refused) * ratio
            squares = (p.written * written**2 + (1 - p.written) * p.refused**2) * ratio**2
            return self.rate * squares / 2 / (1 - self.rate * mean)

        whole, prompts = queued(p.seconds), queued(p.first)
        writing = 1 - p.first / p.seconds if p.seconds else 0.0
        answers = self.serving.company.manner.answers
        return float(prompts + (whole - prompts) * self.busy ** ((answers - 1) * writing))

    @property
    def first(self) -> float:
        return self.wait + self.serving.reading.first * self.serving.company.ratio

    @property
    def seconds(self) -> float:
        """Mean seconds until a written answer is complete, if those inside share the writing equally: at least so many
        where prompts are long."""
        p, one = self.serving.reading, self.serving.company
        shared = (1 - self.busy**one.manner.answers) / (1 - self.busy)
        return float(self.first + (p.seconds - p.first) * one.ratio * shared)
