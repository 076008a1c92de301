"""`answers`: asks the assistant questions with known answers, in the way of `edge ask` and `edge chat`.

A question is plain, paraphrased (it shares few words with its passage), or a follow-up in a conversation. The others
have no answer: to the near ones the documents hold something similar, to those with another name the answer for another
name or number, and to the far ones nothing. Rules and thresholds are chosen on questions of the half `choose`, and
judged on those of the half `judge`.
"""

from __future__ import annotations

import json
import re
import shutil
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import click

from bench.figures import Figure, higher, lower, neither, tabulate
from bench.options import Output, benchmark
from bench.process import timed
from edge.apps.assistant.answer import Answer
from edge.apps.assistant.assistant import Assistant
from edge.apps.collection.collection import Collection
from edge.apps.verbs.requests import AskOptions
from edge.config import Config

FOLDER = Path(__file__).parent / "answers_set"
KINDS = ("plain", "paraphrased", "follow-up", "near", "other-name", "far")
HALVES = ("choose", "judge")

_HIDDEN = ".txt"
"""A suffix added to Python files of the set, so that no tool takes them for files of this project."""

_LINES = 3
"""A citation is right if the answer begins within this many lines from the cited one."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question of the set, about a `file` that answers it or holds something similar, with the right texts, of which
    any one is enough. `after` are the questions asked before in the same conversation."""

    kind: str
    question: str
    half: str
    file: str = ""
    answers: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one question.

    Attributes:
        shown: whether the answer holds a right text and cites the right file.
        first: whether the first citation, or the best passage of a refused question, is from the right file.
        line: whether the right text begins at the cited line.
        warned: whether the answer was shown with the warning that its passages may not answer.
    """

    question: Question
    text: str
    place: str
    found: bool
    shown: bool
    first: bool
    line: bool
    seconds: float
    best: float | None
    warned: bool

    def to_json(self) -> dict[str, Any]:
        asked = self.question
        return {
            "kind": asked.kind, "half": asked.half, "question": asked.question, "after": list(asked.after),
            "answers": list(asked.answers), "file": asked.file, "text": self.text, "place": self.place,
            "found": self.found, "shown": self.shown, "first": self.first, "line": self.line,
            "seconds": self.seconds, "best": self.best, "warned": self.warned,
        }  # fmt: skip


@benchmark
def answers(
    *,
    half: Annotated[str, click.Choice([*HALVES, "both"])] = "judge",
    kinds: Annotated[tuple[str, ...], "--kind", click.Choice(KINDS), "Only questions of this kind."] = (),
    llm: Annotated[str | None, "As for `edge ask`; not given, sentences of the documents are picked."] = None,
    memory: Annotated[str, "Limit of the process."] = "500MB",
    min_relevance: Annotated[
        float | None, "Relevance that a passage needs; the default of `edge ask` if not given."
    ] = None,
    verbose: Annotated[bool, "Print the questions that failed, with the answers that were given."] = False,
    output: Output,
) -> None:
    """Ask questions about a small mixed collection: answers shown, refusals and false answers of each kind."""
    asked = [q for q in questions() if half in (q.half, "both") and (not kinds or q.kind in kinds)]
    config = Config.load(flags={"memory": memory, "llm": llm})
    options = AskOptions(min_relevance=min_relevance)
    with tempfile.TemporaryDirectory() as folder:
        documents = copy_documents(Path(folder))
        with Collection(Path(folder) / "collection", config=config) as collection:
            collection.index([documents])
            with Assistant(collection, options=options) as assistant:
                outcomes = [ask(assistant, question, documents) for question in asked]
                generator = assistant.generator.name
    rows = {kind: row for kind in KINDS if (row := summary([o for o in outcomes if o.question.kind == kind]))}
    report = {"half": half, "generator": generator, "kinds": rows, "questions": [o.to_json() for o in outcomes]}
    output.put(report, figures(rows), f"questions of the half {half!r}, answered with {generator}")
    if verbose and not output.as_json:
        for outcome in outcomes:
            if failure := _failure(outcome):
                before = "".join(f"{question} / " for question in outcome.question.after)
                click.echo(f"\n{failure}: {before}{outcome.question.question}")
                click.echo(f"  wanted  {outcome.question.file}: {' or '.join(outcome.question.answers) or 'no answer'}")
                click.echo(f"  said    {outcome.place}: {outcome.text}")


def figures(rows: dict[str, dict[str, float]]) -> Iterator[Figure]:
    common = {"questions": neither("questions"), "warned": neither("warned", "%"), "seconds": lower("time", "s")}
    with_answer = {
        "shown": higher("right shown", "%"), "first": higher("right file", "%"), "line": higher("right line", "%"),
        "refused": lower("refused", "%"), "words": neither("words"),
    }  # fmt: skip
    there = {kind: row for kind, row in rows.items() if "shown" in row}
    gone = {kind: row for kind, row in rows.items() if kind not in there}
    yield from tabulate(there, with_answer | common, "questions with an answer")
    yield from tabulate(gone, {"answered": lower("answered", "%")} | common, "questions without an answer")


def questions() -> list[Question]:
    lines = (FOLDER / "questions.jsonl").read_text("utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return [
        Question(row["kind"], row["question"], row["half"], row.get("file", ""),
                 tuple(row.get("answers", ())), tuple(row.get("after", ())))
        for row in rows
    ]  # fmt: skip


def copy_documents(folder: Path) -> Path:
    """Copies the set's documents into a new folder under `folder`, and returns it."""
    target = folder / "documents"
    shutil.copytree(FOLDER / "documents", target)
    for path in target.rglob(f"*.py{_HIDDEN}"):
        path.rename(path.with_suffix(""))
    return target


def ask(assistant: Assistant, question: Question, documents: Path) -> Outcome:
    """Asks one question, after the earlier questions of its conversation."""
    asking = assistant.ask
    if question.after:
        asking = assistant.chat().ask  # type: ignore[assignment]
        for earlier in question.after:
            asking(earlier)
    (answer,), (seconds,) = timed(asking, [question.question])
    return judge(question, answer, documents, seconds)


def judge(question: Question, answer: Answer, documents: Path, seconds: float) -> Outcome:
    """Compares an answer with the known right ones."""
    path = str(documents / question.file) if question.file else ""
    cited = [citation for citation in answer.citations if citation.path == path]
    best = answer.citations[0].path if answer.citations else _best_path(answer)
    shown = answer.found and bool(cited) and any(holds(answer.text, text) for text in question.answers)
    line = shown and any(_begins_at(Path(path), citation.line, question.answers) for citation in cited)
    place = answer.citations[0].place.removeprefix(f"{documents}/") if answer.citations else "refused"
    first = bool(path) and best == path
    best_relevance = answer.stats.best_relevance
    return Outcome(
        question, answer.text, place, answer.found, shown, first, line, seconds, best_relevance, answer.uncertain
    )


def holds(text: str, wanted: str) -> bool:
    """Whether a text holds a phrase as whole words, regardless of case and white space."""
    phrase = r"\s+".join(re.escape(word) for word in wanted.casefold().split())
    return re.search(rf"(?<!\w){phrase}(?!\w)", " ".join(text.casefold().split())) is not None


def summary(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """The figures of one kind of question, mostly shares of its questions; empty if there are no questions."""
    if not outcomes:
        return {}
    n = len(outcomes)
    row: dict[str, float] = {
        "questions": n,
        "answered": sum(o.found for o in outcomes) / n,
        "warned": sum(o.warned for o in outcomes) / n,
    }
    if outcomes[0].question.answers:
        shown = [o for o in outcomes if o.shown]
        row |= {
            "shown": len(shown) / n,
            "first": sum(o.first for o in outcomes) / n,
            "refused": 1 - row["answered"],
            "line": sum(o.line for o in shown) / max(1, len(shown)),
            "words": statistics.fmean([len(o.text.split()) for o in outcomes if o.found] or [0.0]),
        }
    return row | {"seconds": statistics.median(o.seconds for o in outcomes)}


def _best_path(answer: Answer) -> str:
    hits = [hit for entry in answer.rounds for hit in entry.passages]
    return hits[0].path if hits else ""


def _begins_at(path: Path, line: int, wanted: Sequence[str]) -> bool:
    lines = path.read_text("utf-8").splitlines()[line - 1 : line - 1 + _LINES]
    return any(holds(re.sub(r"<[^>]*>", " ", " ".join(lines)), text) for text in wanted)


def _failure(outcome: Outcome) -> str:
    if not outcome.question.answers:
        return "answered though unanswerable" if outcome.found else ""
    if not outcome.found:
        return "refused though answerable"
    return "" if outcome.shown else "right answer not shown"
