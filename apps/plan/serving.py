"""`edge plan serve`: plans a server for a rate of questions, and writes the plan; `edge serve --plan` runs it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import click

from edge.apps.options import FiniteRange, OutputFile, collection_option, configure, json_option
from edge.apps.plan.machine import PASSAGES
from edge.apps.plan.profile import DEPTHS, known_profile
from edge.config import counted, format_duration, format_size, parse_size
from edge.errors import InputError
from edge.files.input_file import read_small
from edge.files.output_file import open_output
from edge.planner.serving import Serving, best_serving, servings


@dataclass(frozen=True, slots=True)
class ServerPlan:
    """What a server runs.

    Attributes:
        memory: its limit in bytes.
        answers, generation: see `edge.config.Config`.
        passages, rerank: of questions that do not say.
        llm: the generator; empty for the best sentences.
    """

    memory: int
    answers: int
    generation: str
    passages: int
    rerank: bool
    llm: str

    @classmethod
    def of(cls, serving: Serving, llm: str) -> ServerPlan:
        """The plan of a schedule."""
        p, company = serving.prediction, serving.company
        llm = str(Path(llm).absolute()) if llm and Path(llm).is_file() else llm
        return cls(p.limit, company.answers, company.generation, p.passages, p.depth > 0, llm)

    @classmethod
    def read(cls, path: Path) -> ServerPlan:
        """The plan in a file.

        Raises:
            InputError: it is none, or cannot be read.
        """
        try:
            values = json.loads(read_small(path))
            kinds = {"memory": int, "answers": int, "generation": str, "passages": int, "rerank": bool, "llm": str}
            right = all(type(values["serve"][name]) is kind for name, kind in kinds.items())
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, RecursionError):
            right = False
        if not right:
            raise InputError(f"{path} is no plan of `edge plan serve`")
        return cls(**{one.name: values["serve"][one.name] for one in fields(cls)})

    @property
    def options(self) -> Mapping[str, Any]:
        """The options of a question that does not say."""
        return {"passages": self.passages, "rerank": self.rerank}


@click.command("serve")
@click.option("--rate", type=FiniteRange(0, min_open=True), required=True, help="Questions a second, on average.")
@click.option(
    "--within", type=FiniteRange(0, min_open=True), required=True, help="Seconds to the first text, on average."
)
@click.option("--memory", help="Most bytes that the server may hold, such as 600MB.")
@click.option("--llm", metavar="MODEL", help="As it was profiled with.")
@click.option("--output", "-o", type=OutputFile(), help="Write the plan here, for `edge serve --plan`.")
@collection_option
@json_option
def serve(
    rate: float,
    within: float,
    memory: str | None,
    llm: str | None,
    output: Path | None,
    collection: Path | None,
    as_json: bool,
) -> None:
    """Plan `edge serve` on this machine with the measurements of `edge profile --answers`.

    Of the schedules that keep up with --rate and show the first text --within so many seconds, those that judge most
    passages are preferred, then those that write from most, then exact answers, then the earliest first text.
    """
    config = configure(llm=llm)
    found = servings(known_profile(config, "plain", collection), DEPTHS, PASSAGES, rate)
    best = best_serving(found, within, None if memory is None else parse_size(memory))
    plan = ServerPlan.of(best, config.llm)
    row = {
        "serve": {one.name: getattr(plan, one.name) for one in fields(plan)},
        "predicted": {
            "rate": rate, "busy": best.busy, "first_s": best.first, "seconds": best.seconds, "nbytes": best.nbytes,
        },
    }  # fmt: skip
    if output is not None:
        with open_output(output) as file:
            file.write((json.dumps(row, indent=1) + "\n").encode())
    if as_json:
        click.echo(json.dumps(row))
        return
    judged = f"the best {best.prediction.depth} judged" if plan.rerank else "not reranked"
    click.echo(
        f"{format_size(plan.memory)}, {counted(plan.answers, 'answer')} at a time ({plan.generation}), "
        f"{counted(plan.passages, 'passage')} ({judged})"
    )
    click.echo(
        f"At {rate:g} questions a second the first text should come after {format_duration(best.first)} and the whole "
        f"answer after {format_duration(best.seconds)}, on average. The server is at work for {best.busy:.0%} of the "
        f"time, and holds {format_size(int(best.nbytes))}."
    )
