"""`edge plan rag --on here`: the schedule of a server on this machine, from the measurements of `edge profile`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import click

from edge.apps.collection.registry import locate
from edge.apps.options import FiniteRange, OutputFile, collection_option, configure, gathered
from edge.apps.plan.profile import PROFILES, conditions, described
from edge.config import Config, counted, format_duration, format_size
from edge.errors import InputError
from edge.files.named_file import open_output, read_small
from edge.planner.measured import BUSIEST, MachineProfile, Manner, Queue, Serving
from edge.planner.schedule import Outcome, Plan, bottleneck


@dataclass(frozen=True, slots=True)
class Here:
    """A plan for this machine: questions a second (None: as many as it can answer), the collection and the generator
    that were profiled, and the file of the plan."""

    rate: float | None
    llm: str | None
    output: Path | None
    collection: Path | None


here_options = gathered(
    "here",
    Here,
    click.option("--rate", type=FiniteRange(0, min_open=True), help="Questions a second, on average (--on here)."),
    click.option("--llm", metavar="MODEL", help="As it was profiled with (--on here)."),
    click.option("--output", "-o", type=OutputFile(), help="Write the plan here, for `edge serve --plan` (--on here)."),
    collection_option,
)


@dataclass(frozen=True, slots=True)
class ServerPlan:
    """A server's limit in bytes, passages and reranking of questions that do not say, the generator (empty for the best
    sentences), and its manner."""

    memory: int
    passages: int
    rerank: bool
    llm: str
    manner: Manner

    @classmethod
    def of(cls, serving: Serving, llm: str) -> ServerPlan:
        llm = str(Path(llm).absolute()) if llm and Path(llm).is_file() else llm
        p = serving.reading
        return cls(p.limit, p.passages, p.depth > 0, llm, serving.company.manner)

    @classmethod
    def read(cls, path: Path) -> ServerPlan:
        try:
            own = json.loads(read_small(path))["serve"]
            manner = {one.name: own["manner"][one.name] for one in fields(Manner)}
            given = {one.name: own[one.name] for one in fields(cls) if one.name != "manner"}
            kinds = {"int": int, "str": str, "bool": bool}
            right = all(
                type(values[one.name]) is kinds[str(one.type)]
                for kind, values in ((cls, given), (Manner, manner))
                for one in fields(kind)
                if one.name in values
            )
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, RecursionError):
            right = False
        if not right:
            raise InputError(f"{path} is no plan of `edge plan rag --on here`")
        return cls(**given, manner=Manner(**manner))

    @property
    def options(self) -> Mapping[str, Any]:
        return {"passages": self.passages, "rerank": self.rerank}


@dataclass(frozen=True, slots=True)
class Row:
    """A schedule, and what it costs: under an endless load, or at a rate of independent arrivals."""

    serving: Serving
    plan: Plan
    queue: Queue | None = None

    @classmethod
    def of(cls, serving: Serving, pipeline: str, rate: float | None) -> Row:
        """The machine is one device, whatever its parts."""
        plan = serving.plan(pipeline)
        outcome = replace(plan.outcome, devices=1)
        if rate is None:
            return cls(serving, replace(plan, outcome=outcome))
        queue = Queue(serving, rate)
        soon = queue.first if queue.busy <= BUSIEST else float("inf")
        return cls(serving, replace(plan, outcome=replace(outcome, ttft=soon)), queue)

    @property
    def outcome(self) -> Outcome:
        return self.plan.outcome

    @property
    def quality(self) -> tuple[int, int]:
        """Passages judged, and passages to write from."""
        return self.serving.reading.depth, self.serving.reading.passages

    def like(self, other: Row) -> bool:
        return (self.quality, self.serving.reading.limit) == (other.quality, other.serving.reading.limit)

    @property
    def json(self) -> dict[str, Any]:
        p, o = self.serving.reading, self.outcome
        return {
            "memory": p.limit, "depth": p.depth, "passages": p.passages, "manner": asdict(self.serving.company.manner),
            "throughput": o.throughput, "first_s": o.ttft if o.ttft < float("inf") else None, "nbytes": o.nbytes,
            "clients": self.serving.company.clients,
        }  # fmt: skip


def rows(config: Config, pipeline: str, collection: Path | None, rate: float | None) -> list[Row]:
    """Each measured schedule under these conditions, on any device and number of threads."""
    folder, current = locate(collection), conditions(config, pipeline)
    known = MachineProfile.alike(sorted(folder.glob(PROFILES)), current, ("threads", "device"))
    found = [Row.of(serving, pipeline, rate) for profile in known for serving in profile.servings()]
    if not found:
        raise InputError(
            "nothing was measured for this collection, pipeline and models on this machine: run "
            "`edge profile --questions FILE`, once for each memory limit that you think of"
        )
    return found


Goals = Sequence[Callable[[Plan], float]]
"""What is smallest in the best plan; each breaks the ties of those before it."""


_NOISE = 0.1
"""A plan that is better by less than this part is none: measurements of one schedule differ by as much."""


def best(found: Sequence[Row], goals: Goals, ttft: float | None, memory: int | None, config: Config) -> Row:
    """Of the schedules that are soon enough and fit, those that judge most passages, then those that write from most,
    then the best one, or the server without a plan if it is nearly as good."""
    fitting = [row for row in found if memory is None or row.serving.reading.limit <= memory]
    if not fitting:
        smallest = min(row.serving.reading.limit for row in found)
        raise InputError(f"the smallest limit that was measured is {format_size(smallest, up=True)}")
    soonest = min(row.outcome.ttft for row in fitting)
    if soonest == float("inf"):
        raise InputError("no measured schedule keeps up with this rate: plan a smaller one, or more memory")
    soon = [row for row in fitting if row.outcome.ttft < float("inf") and (ttft is None or row.outcome.ttft <= ttft)]
    if not soon:
        raise InputError(
            f"the earliest first text comes after {soonest:.2f} s: allow as much, or plan fewer questions a second"
        )

    def order(row: Row) -> tuple[float, ...]:
        depth, passages = row.quality
        return -depth, -passages, *(goal(row.plan) for goal in goals)

    chosen = min(soon, key=order)
    naive = without(config, [row for row in soon if row.like(chosen)])
    aim, own = goals[0], goals[0](chosen.plan)
    return chosen if naive is None or abs(aim(naive.plan) - own) > _NOISE * abs(own) else naive


def without(config: Config, found: Sequence[Row]) -> Row | None:
    """The row of a server without a plan; if it was not measured with its own threads and device, then with others."""
    usual = Manner.of(config)
    alike = [
        row for row in found
        if replace(row.serving.company.manner, threads=usual.threads, device=usual.device) == usual
    ]  # fmt: skip
    return min(alike, key=lambda row: row.serving.company.manner != usual, default=None)


def plan_here(
    pipeline: str, here: Here, goals: Goals, ttft: float | None, memory: int | None, *, as_json: bool
) -> None:
    config = configure(llm=here.llm)
    found = rows(config, pipeline, here.collection, here.rate)
    chosen = best(found, goals, ttft, memory, config)
    alike = [row for row in found if row.quality == chosen.quality]
    naive = without(config, [row for row in alike if row.like(chosen)])
    serve = asdict(ServerPlan.of(chosen.serving, config.llm))
    if here.output is not None:
        with open_output(here.output) as file:
            file.write((json.dumps({"serve": serve, "predicted": chosen.json}, indent=1) + "\n").encode())
    text = sentence(chosen, naive, pipeline)
    if as_json:
        click.echo(json.dumps({
            "origin": "predicted", "from": "measured", "rate": here.rate, "conditions": conditions(config, pipeline),
            "plans": [row.json for row in found], "chosen": chosen.json, "serve": serve,
            "naive": None if naive is None else naive.json, "sentence": text,
        }))  # fmt: skip
        return
    click.echo("\n".join(table(alike, chosen, naive)))
    click.echo(text)


def table(found: Sequence[Row], chosen: Row, naive: Row | None) -> Iterator[str]:
    judged, passages = chosen.quality
    yield f"{counted(passages, 'passage')}, {f'the best of {judged} judged' if judged else 'not reranked'}:"
    yield f"  {'requests/s':>10}{'first text':>12}{'memory':>10}"
    for row in sorted(found, key=lambda row: -row.outcome.throughput):
        o, manner = row.outcome, row.serving.company.manner
        first = format_duration(o.ttft) if o.ttft < float("inf") else "too slow"
        yield (
            f"{'*' if row is chosen else ' '} {o.throughput:>10.3f}{first:>12}{format_size(int(o.nbytes)):>10}   "
            f"{format_size(row.serving.reading.limit)}: {described(manner)}{' (without a plan)' * (row is naive)}"
        )


def sentence(row: Row, naive: Row | None, pipeline: str) -> str:
    o, one = row.outcome, row.serving.company
    stage = bottleneck(row.serving.problem(pipeline), row.plan)[1]
    if row.queue is None:
        load = f"with {counted(one.clients, 'client')} that always wait"
    else:
        load = (
            f"and the whole answer after {format_duration(row.queue.seconds)}, at {row.queue.rate:g} questions a "
            f"second, which keep it at work for {row.queue.busy:.0%} of the time"
        )
    beside = "" if naive is None else f"; `edge serve` without a plan {naive.outcome.throughput:.3f}"
    beside = ", as `edge serve` does without a plan" if naive is row else beside
    return (
        f"{pipeline} should answer up to {o.throughput:.3f} questions a second{beside}. The first text comes after "
        f"{format_duration(o.ttft)}, {load}, on average. Most of the time goes into the stage {stage}."
    )
