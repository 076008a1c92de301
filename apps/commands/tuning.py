"""`edge index --tune`: chooses the parameters of a collection's vector index, and says why."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from edge.apps.collection.collection import Collection
from edge.apps.commands.texts import read_texts
from edge.apps.console import ProgressBar
from edge.apps.options import Command, gathered
from edge.config import counted, format_size, parse_size
from edge.errors import InputError
from edge.ivf.base import Goal, IndexOptions, IndexTuning, Parameters


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """None where an option was not given."""

    tune: bool
    recall: float | None
    within: float | None
    lists_size: str | None
    questions: Path | None

    def goal(self) -> Goal | None:
        given = {
            "--recall": self.recall, "--within": self.within, "--lists-size": self.lists_size,
            "--questions": self.questions,
        }  # fmt: skip
        if not self.tune:
            alone = [name for name, value in given.items() if value is not None]
            if alone:
                raise InputError(f"{alone[0]} says what the index is tuned to: it needs --tune")
            return None
        recall = self.recall
        if recall is None and self.within is None:
            recall = IndexOptions().recall_target
        seconds = None if self.within is None else self.within / 1e3
        return Goal(recall, seconds, None if self.lists_size is None else parse_size(self.lists_size))


def tune_options(command: Command) -> Command:
    return gathered(
        "tuning",
        TuneOptions,
        click.option(
            "--tune", is_flag=True, help="Choose the parameters of the vector index by measuring, and train it anew."
        ),
        click.option(
            "--recall",
            type=float,
            help="With --tune: share of the 10 nearest passages that a search must find (0.95 without --within).",
        ),
        click.option("--within", type=float, metavar="MS", help="With --tune: milliseconds that a query may take."),
        click.option("--lists-size", metavar="SIZE", help="With --tune: most bytes of all lists, such as 100MB."),
        click.option(
            "--questions",
            type=click.Path(dir_okay=False, path_type=Path),
            help="With --tune: file with questions such as yours, one per line; made from passages if not given.",
        ),
    )(command)


def tune(collection: Collection, goal: Goal, questions: Path | None) -> IndexTuning:
    index = collection.vectors
    if index is None:
        raise InputError("the collection has no vectors yet; index something before it is tuned")
    given = None if questions is None else _embedded(collection, questions)
    with ProgressBar(" rows") as bar:
        return index.tune(
            collection.database.write, goal, questions=given, progress=lambda stage, done, total: bar(done, total)
        )


def _embedded(collection: Collection, questions: Path) -> npt.NDArray[np.float32]:
    embedder, budget = collection.embedder, collection.budget
    documents = read_texts(str(questions), budget.limit)
    with budget.reserve("questions", sum(document.nbytes for document in documents)):
        return embedder.embed([document.text for document in documents], query=True)


def as_figures(done: IndexTuning) -> dict[str, Any]:
    chosen = asdict(done.tuned)
    return {"changed": done.changed, **chosen.pop("parameters"), **chosen}


def sentence(done: IndexTuning) -> str:
    chosen = done.tuned
    aim = wished(chosen.goal)
    verb = "tuned" if done.changed else "already tuned"
    reason = "the highest recall" if chosen.goal.recall is None else "the fastest"
    what = described(chosen.parameters, chosen.rows, chosen.nprobe)
    return (
        f"{verb} for {aim}: {what}. Of all parameters that keep this goal, these are predicted to be {reason}: "
        f"{chosen.seconds * 1e3:.2f} ms per query, a recall of {chosen.recall:.3f} on the sampled questions, "
        f"{format_size(chosen.nbytes)} of lists."
    )


def wished(goal: Goal) -> str:
    parts = [
        f"a recall of {goal.recall:g}" if goal.recall is not None else "",
        f"{goal.seconds * 1e3:g} ms per query" if goal.seconds is not None else "",
        f"lists of at most {format_size(goal.nbytes)}" if goal.nbytes is not None else "",
    ]
    return " and ".join(filter(None, parts))


def described(p: Parameters, rows: int, nprobe: int) -> str:
    if p.lists == 1:
        return f"one list of {counted(rows, 'vector')}, scanned exactly"
    codes = {
        "flat": "exact vectors", "sq8": "one byte per component", "pq": f"codes of {counted(p.code_size, 'byte')}",
        "opq": f"codes of {counted(p.code_size, 'byte')} after a rotation",
    }[p.codec]  # fmt: skip
    scored = "" if p.codec == "flat" else f", and at most {counted(p.rescore, 'exact score')} per result"
    return f"{counted(p.lists, 'list')} of {counted(rows, 'vector')} ({p.codec}: {codes}), {nprobe:,} probed{scored}"
