"""`edge bench answers`: questions with known answers, asked through the assistant as `edge ask` and `edge chat` do.

The questions and the documents were written for this purpose and belong to the project. A question is plain,
paraphrased (it shares few words with its passage) or a follow-up in a conversation; or it has no answer, near (the
documents hold something similar) or far. Every document belongs to one half: questions of the half `choose` are for
choosing rules and thresholds, those of the half `judge` are for judging them.
"""

from __future__ import annotations

import json
import re
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from edge.apps.assistant.answer import Answer
from edge.apps.assistant.assistant import Assistant
from edge.apps.assistant.base import AskOptions
from edge.apps.collection.collection import Collection
from edge.config import Config

FOLDER = Path(__file__).parent / "answers_set"
KINDS = ("plain", "paraphrased", "follow-up", "near", "far")
HALVES = ("choose", "judge")

_HIDDEN = ".txt"
"""Python files of the set end in it, so that no tool takes them for files of this project."""

_LINES = 3
"""The answer begins on the cited line or within so many lines: what an editor shows at once."""


@dataclass(frozen=True, slots=True)
class Question:
    """One question of the set.

    Attributes:
        kind: one of `KINDS`.
        half: one of `HALVES`.
        file: the document that answers it, or is about something similar; empty for far misses.
        answers: texts of which any is right; none if the documents do not say.
        after: questions that were asked before in the same conversation.
    """

    kind: str
    question: str
    half: str
    file: str = ""
    answers: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one question.

    Attributes:
        found: it was answered, and not refused.
        shown: the answer holds a right text, and cites the right file.
        first: the first citation, or of a refused question the best passage, is of the right file.
        line: the right text begins where the citation points.
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

    def to_json(self) -> dict[str, Any]:
        asked = self.question
        return {
            "kind": asked.kind, "half": asked.half, "question": asked.question, "after": list(asked.after),
            "answers": list(asked.answers), "file": asked.file, "text": self.text, "place": self.place,
            "found": self.found, "shown": self.shown, "first": self.first, "line": self.line,
            "seconds": self.seconds, "best": self.best,
        }  # fmt: skip


@click.command("answers")
@click.option("--half", type=click.Choice([*HALVES, "both"]), default="judge", show_default=True)
@click.option("--kind", "kinds", multiple=True, type=click.Choice(KINDS), help="Only questions of this kind.")
@click.option("--llm", metavar="MODEL", help="As for `edge ask`; not given, sentences of the documents are picked.")
@click.option("--memory", default="500MB", show_default=True, help="Limit of the process.")
@click.option("--min-relevance", type=float, help="Relevance that a passage needs; the default of `edge ask` if none.")
@click.option("--verbose", is_flag=True, help="Print the questions that failed, with what was said.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def answers(
    half: str,
    kinds: Sequence[str],
    llm: str | None,
    memory: str,
    min_relevance: float | None,
    verbose: bool,
    as_json: bool,
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
    if as_json:
        report = {"half": half, "generator": generator, "kinds": rows, "questions": [o.to_json() for o in outcomes]}
        click.echo(json.dumps(report, ensure_ascii=False))
        return
    _print(rows, half, generator)
    if verbose:
        for outcome in outcomes:
            if failure := _failure(outcome):
                before = "".join(f"{question} / " for question in outcome.question.after)
                click.echo(f"\n{failure}: {before}{outcome.question.question}")
                click.echo(f"  wanted  {outcome.question.file}: {' or '.join(outcome.question.answers) or 'no answer'}")
                click.echo(f"  said    {outcome.place}: {outcome.text}")


def questions() -> list[Question]:
    """All questions of the set."""
    lines = (FOLDER / "questions.jsonl").read_text("utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return [
        Question(row["kind"], row["question"], row["half"], row.get("file", ""),
                 tuple(row.get("answers", ())), tuple(row.get("after", ())))
        for row in rows
    ]  # fmt: skip


def copy_documents(folder: Path) -> Path:
    """Copies the set's documents under `folder`; returns the folder they are in."""
    target = folder / "documents"
    shutil.copytree(FOLDER / "documents", target)
    for path in target.rglob(f"*.py{_HIDDEN}"):
        path.rename(path.with_suffix(""))
    return target


def ask(assistant: Assistant, question: Question, documents: Path) -> Outcome:
    """Asks one question, after those that come before it in its conversation."""
    started = time.perf_counter()
    if question.after:
        chat = assistant.chat()
        for earlier in question.after:
            chat.ask(earlier)
        started = time.perf_counter()
        answer = chat.ask(question.question)
    else:
        answer = assistant.ask(question.question)
    return judge(question, answer, documents, time.perf_counter() - started)


def judge(question: Question, answer: Answer, documents: Path, seconds: float) -> Outcome:
    """Compares an answer with the right one."""
    path = str(documents / question.file) if question.file else ""
    cited = [citation for citation in answer.citations if citation.path == path]
    best = answer.citations[0].path if answer.citations else _best_path(answer)
    shown = answer.found and bool(cited) and any(holds(answer.text, text) for text in question.answers)
    line = shown and any(_begins_at(Path(path), citation.line, question.answers) for citation in cited)
    place = answer.citations[0].place.removeprefix(f"{documents}/") if answer.citations else "refused"
    first = bool(path) and best == path
    return Outcome(question, answer.text, place, answer.found, shown, first, line, seconds, answer.stats.best_relevance)


def holds(text: str, wanted: str) -> bool:
    """Whether a text holds a phrase as whole words, whatever the case and the spaces."""
    phrase = r"\s+".join(re.escape(word) for word in wanted.casefold().split())
    return re.search(rf"(?<!\w){phrase}(?!\w)", " ".join(text.casefold().split())) is not None


def summary(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """The figures of one kind of question; shares of its questions. Empty if there are none."""
    if not outcomes:
        return {}
    n = len(outcomes)
    row: dict[str, float] = {"questions": n, "answered": sum(o.found for o in outcomes) / n}
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


def _print(rows: dict[str, dict[str, float]], half: str, generator: str) -> None:
    click.echo(f"questions of the half {half!r}, answered with {generator}")
    click.echo(
        f"{'kind':<13}{'questions':>9}{'right shown':>13}{'right file':>12}{'refused':>9}{'answered':>10}"
        f"{'right line':>12}{'words':>7}{'seconds':>9}"
    )
    for kind, row in rows.items():
        if "shown" in row:
            click.echo(
                f"{kind:<13}{row['questions']:>9.0f}{row['shown']:>13.0%}{row['first']:>12.0%}{row['refused']:>9.0%}"
                f"{'':>10}{row['line']:>12.0%}{row['words']:>7.0f}{row['seconds']:>9.2f}"
            )
        else:
            click.echo(f"{kind:<13}{row['questions']:>9.0f}{'':>34}{row['answered']:>10.0%}{row['seconds']:>28.2f}")
