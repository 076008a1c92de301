"""`household`: asks everyday questions about the files of one household, in five languages.

Some files are tables and mails. Some questions are misspelled, need two places, are asked in another language than the
document's, or have no answer. Every other file belongs to the half `judge`: its questions are counted and never shown,
so that no rule is fitted to them.

What is shown below "This may not be in the documents" is no answer. An unanswerable question with such passages counts
as "closest passages", and another one as right if the answer is among them.
"""

from __future__ import annotations

import re
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import click

from bench.answers import FOLDER, HALVES, holds
from bench.figures import Figure, higher, lower, neither, tabulate
from bench.options import Folder, Output, benchmark
from bench.process import timed
from edge.apps.assistant.answer import Answer
from edge.apps.assistant.assistant import Assistant
from edge.apps.collection.collection import Collection
from edge.apps.verbs.requests import AskOptions
from edge.config import Config
from edge.models.training.corpora import load

SOURCE = FOLDER / "household.txt"
ANSWERED = ("plain", "paraphrased", "table", "mail", "misspelled", "two-place", "cross")
UNANSWERED = ("near", "other-name")

_ASKED = re.compile(r"([?!]) (\S+)(?: ([a-z]{2}))? (.+?)(?: = (.+?))?(?: \+ (\S+))?")


@dataclass(frozen=True, slots=True)
class Everyday:
    """One question, and the texts that must all be shown, each with its other wordings; empty if there is no answer."""

    kind: str
    language: str
    document: str
    half: str
    question: str
    files: tuple[str, ...]
    answers: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Result:
    """What a question led to: whether it was answered, rightly, with a warning, and with the right file first."""

    asked: Everyday
    found: bool
    right: bool
    warned: bool
    first: bool
    seconds: float
    text: str

    @property
    def language(self) -> str:
        """The row in which the question counts."""
        return "English" if self.asked.language == self.asked.document == "en" else "other languages"


def read(source: str) -> tuple[dict[str, str], list[Everyday]]:
    """The files by path, and the questions.

    >>> files, (asked, lacking) = read("## en a.txt\\nRent: 9\\n? plain How much? = 9 | nine\\n! near When?\\n")
    >>> files, asked.answers, lacking.answers
    ({'a.txt': 'Rent: 9\\n'}, (('9', 'nine'),), ())
    """
    files: dict[str, str] = {}
    asked: list[Everyday] = []
    for number, block in enumerate(re.split(r"^## ", source, flags=re.M)[1:]):
        head, *lines = block.rstrip("\n").split("\n")
        document, path = head.split(" ")
        files[path] = "\n".join(line for line in lines if line[:2] not in ("? ", "! ")).rstrip() + "\n"
        for line in lines:
            if line[:2] not in ("? ", "! "):
                continue
            match = _ASKED.fullmatch(line)
            if match is None:
                raise ValueError(f"this line asks nothing: {line}")
            _, kind, language, question, answers, other = match.groups()
            wanted = [tuple(part.split(" | ")) for part in answers.split(" & ")] if answers else []
            both = (path, other) if other else (path,)
            asked.append(
                Everyday(kind, language or document, document, HALVES[number % 2], question, both, tuple(wanted))
            )
    return files, asked


def write_files(files: Mapping[str, str], folder: Path) -> None:
    """Writes the texts of `read` as files below a folder."""
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, "utf-8")


def judge(asked: Everyday, answer: Answer, best: str, folder: Path, seconds: float) -> Result:
    """Compares an answer with the known one. `best` is the path of the best passage of a search."""
    paths = {str(folder / file) for file in asked.files}
    shown = [citation.path for citation in answer.citations]
    right = answer.found and paths <= set(shown) and all(
        any(holds(answer.text, text) for text in wordings) for wordings in asked.answers
    )  # fmt: skip
    return Result(asked, answer.found, right, answer.uncertain, best in paths, seconds, answer.text)


def summary(results: Sequence[Result]) -> dict[str, float]:
    """The shares of some questions, all with an answer or all without; empty if there are none."""
    if not results:
        return {}
    n = len(results)
    row: dict[str, float] = {"questions": n, "seconds": statistics.median(r.seconds for r in results)}
    if not results[0].asked.answers:
        return row | {
            "answered": sum(r.found and not r.warned for r in results) / n,
            "closest": sum(r.warned for r in results) / n,
        }
    return row | {
        "right": sum(r.right for r in results) / n,
        "warned": sum(r.right and r.warned for r in results) / n,
        "refused": sum(not r.found for r in results) / n,
        "wrong": sum(r.found and not r.right and not r.warned for r in results) / n,
        "first": sum(r.first for r in results) / n,
    }


def figures(report: dict[str, dict[str, dict[str, float]]]) -> Iterator[Figure]:
    common = {"questions": neither("questions"), "seconds": lower("time", "s")}
    there = {
        "right": higher("right", "%"), "warned": neither("among the closest passages", "%"),
        "refused": lower("refused", "%"), "wrong": lower("wrong as an answer", "%"),
        "first": higher("right file first", "%"),
    }  # fmt: skip
    gone = {"answered": lower("answered", "%"), "closest": neither("closest passages", "%")}
    for half, rows in report.items():
        answered = {name: row for name, row in rows.items() if "right" in row}
        yield from tabulate(answered, there | common, f"{half}: questions with an answer")
        lacking = {name: row for name, row in rows.items() if "answered" in row}
        yield from tabulate(lacking, gone | common, f"{half}: questions without an answer")


@benchmark
def household(
    *,
    llm: Annotated[str | None, "As for `edge ask`; not given, sentences of the documents are picked."] = None,
    embedder: Annotated[str | None, "The embedder; the default one if not given."] = None,
    among: Annotated[Folder | None, "A judged set in BEIR layout, whose documents lie beside the household's."] = None,
    others: Annotated[int, "How many of its documents."] = 1500,
    memory: Annotated[str, "Limit of the process."] = "600MB",
    verbose: Annotated[bool, "Print the questions of the half `choose` that failed."] = False,
    output: Output,
) -> None:
    """Ask everyday questions about a household's files: right, refused and wrong answers."""
    files, asked = read(SOURCE.read_text("utf-8"))
    config = Config.load(flags={"memory": memory, "llm": llm, "embedder": embedder})
    results: list[Result] = []
    with tempfile.TemporaryDirectory() as base:
        folder = Path(base) / "household"
        write_files(files, folder)
        with Collection(Path(base) / "collection", config=config) as collection:
            collection.index([folder])
            if among is not None:
                corpus = load(among)
                beside = [*islice(zip(corpus.ids, corpus.titles, corpus.texts, strict=True), others)]
                collection.add([text for *_, text in beside], ids=[name for name, *_ in beside],
                               title=[title for _, title, _ in beside])  # fmt: skip
            with Assistant(collection, options=AskOptions()) as assistant:
                for question in asked:
                    (answer,), (seconds,) = timed(assistant.ask, [question.question])
                    best = next((hit.path for hit in collection.search(question.question, 1)), "")
                    results.append(judge(question, answer, best, folder, seconds))
                generator = assistant.generator.name
    report = {half: _rows([r for r in results if r.asked.half == half]) for half in HALVES}
    shown: list[dict[str, Any]] = [
        {"kind": r.asked.kind, "language": r.asked.language, "question": r.asked.question, "text": r.text,
         "found": r.found, "right": r.right, "warned": r.warned, "first": r.first}
        for r in results if r.asked.half == "choose"
    ]  # fmt: skip
    output.put({"halves": report, "generator": generator, "choose": shown}, figures(report), f"answered by {generator}")
    if verbose and not output.as_json:
        for result in (r for r in results if r.asked.half == "choose"):
            if result.found != bool(result.asked.answers) or result.found != result.right:
                wanted = " & ".join(" | ".join(words) for words in result.asked.answers) or "no answer"
                mark = "" if result.first else ", another file first"
                click.echo(f"\n{result.asked.kind} {result.asked.language}: {result.asked.question}  = {wanted}{mark}")
                click.echo(f"  {'warned: ' if result.warned else ''}{result.text}")


def _rows(results: Sequence[Result]) -> dict[str, dict[str, float]]:
    """The summaries by language and by kind."""
    there = [r for r in results if r.asked.answers]
    gone = [r for r in results if not r.asked.answers]
    rows = {"all": summary(there)}
    for language in ("English", "other languages"):
        rows[language] = summary([r for r in there if r.language == language])
    for kind in ANSWERED:
        rows[kind] = summary([r for r in there if r.asked.kind == kind])
    rows["none: all"] = summary(gone)
    for kind in UNANSWERED:
        rows[f"none: {kind}"] = summary([r for r in gone if r.asked.kind == kind])
    return {name: row for name, row in rows.items() if row}
