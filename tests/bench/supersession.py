"""`supersession`: counts what a memory's judge ends rightly and wrongly, in pairs of statements, and whether the newer
statement is found first. Three sets: pairs of forms that people use for changes, in five languages, pairs after
public complaints about other memories, in eight, and pairs by another author, in six."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

from bench.figures import Column, tabulate
from bench.memory import turns_of
from bench.options import Folder, Output, benchmark
from edge.apps.memory.memory import Memory
from edge.apps.memory.validity import ENDS, Judge
from edge.models.training.corpora import load

FOLDER = Path(__file__).parent / "supersession_set"
NOW = datetime(2025, 6, 1, tzinfo=UTC)
"""The day on which the questions are asked."""


@dataclass(frozen=True, slots=True)
class Pair:
    """An old and a new statement, and whether the new one ends the old one.

    Attributes:
        half: `open` for what was looked at while the judge was written. Of `sealed` only the totals were looked at.
    """

    half: str
    language: str
    ends: bool
    old: str
    new: str


def pairs() -> Iterator[Pair]:
    """The pairs of the set. A hash of the texts tells the half."""
    for line in (FOLDER / "pairs.tsv").read_text("utf-8").splitlines():
        language, _, ends, old, new = line.split("\t")
        sealed = hashlib.md5(f"{old}\t{new}".encode()).digest()[0] & 1
        yield Pair("sealed" if sealed else "open", language, ends == "1", old, new)


def strangers() -> Iterator[Pair]:
    """Pairs that somebody wrote who had seen neither the texts for training nor the other sets."""
    for line in (FOLDER / "strangers.tsv").read_text("utf-8").splitlines():
        language, ends, old, new = line.split("\t")
        yield Pair("strangers", language, ends == "1", old, new)


@dataclass(frozen=True, slots=True)
class Complaint:
    """A statement that ends an older one, after a complaint about a memory that kept both, and statements that do not.

    Attributes:
        half: `open` or `sealed`, as for `Pair`. The halves were chosen before the judge was changed.
        about: the memory that was complained about.
        question: what `old` answered, and `new` answers now. A near miss does not answer it.
        misses: statements near to `new` that end nothing: of another person or thing, narrower, a plan, a question, a
            past, or what holds beside the old one.
    """

    half: str
    about: str
    language: str
    question: str
    old: str
    new: str
    misses: tuple[str, ...]

    def pairs(self) -> list[Pair]:
        """Its statements, each with the old one; first the one that ends it."""
        return [Pair(self.half, self.language, new is self.new, self.old, new) for new in (self.new, *self.misses)]


def complaints() -> list[Complaint]:
    """The set of complaints."""
    lines = (line.split("\t") for line in (FOLDER / "complaints.tsv").read_text("utf-8").splitlines())
    return [Complaint(*told, misses=tuple(misses)) for *told, misses in ((*line[:6], line[6:]) for line in lines)]


def counts(judged: Iterable[Pair]) -> dict[str, dict[str, float]]:
    """The counts of each half: pairs that end, those found, pairs that do not, those wrongly ended. All count as
    related, so that no embedder is needed."""
    found: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    several = list(judged)
    told = [(pair.old, pair.new, 1.0) for pair in several]
    for pair, chance in zip(several, Judge().compare(told), strict=True):
        ended = chance >= ENDS
        row = found[pair.half]
        row["endings" if pair.ends else "others"] += 1
        row["right" if pair.ends else "wrong"] += ended
    for row in found.values():
        row["right_share"], row["wrong_share"] = row["right"] / row["endings"], row["wrong"] / row["others"]
    return {half: dict(row) for half, row in sorted(found.items())}


@benchmark
def supersession(
    *,
    data: Annotated[
        Folder | None, "Conversations in BEIR's layout (such as LoCoMo), all of whose pairs of turns are judged."
    ] = None,
    memory: str = "300MB",
    output: Output,
) -> None:
    """Count the endings that the judge of memories finds, the wrong ones, and the right facts after updates."""
    told = complaints()
    report: dict[str, Any] = {
        "pairs": counts([*pairs(), *strangers()]), "complaints": counts(pair for one in told for pair in one.pairs()),
        "order": order(told, memory), "questions": {**questions(memory), "facts": facts(memory)},
    }  # fmt: skip
    if data is not None:
        report["conversations"] = conversations(data)
    columns = {
        "right_share": Column("endings found", "%"), "wrong_share": Column("wrong endings", "%"),
        "endings": Column("pairs that end"), "others": Column("other pairs"),
    }  # fmt: skip
    asked = {
        "first": Column("right fact first", "%"), "in_three": Column("in the first three", "%"),
        "questions": Column("questions"),
    }  # fmt: skip
    first = {
        "newer": Column("newer first", "%"), "older": Column("older first after what ends nothing", "%"),
        "pairs": Column("pairs"),
    }  # fmt: skip
    figures = [
        *tabulate(report["pairs"], columns), *tabulate(report["complaints"], columns, "after complaints"),
        *tabulate(report["order"], first, "two statements of one user"),
        *tabulate(report["questions"], asked, "questions after updates"),
    ]  # fmt: skip
    output.put(report, figures, "what a new statement ends")


def order(told: Iterable[Complaint], limit: str) -> dict[str, dict[str, float]]:
    """For each half, the share of searches that find the newer statement first, and, where it answers something else,
    the older one. Each memory holds two statements, of one user."""
    found: dict[str, dict[bool, list[bool]]] = defaultdict(lambda: {True: [], False: []})
    with TemporaryDirectory() as folder, Memory(folder, memory=limit, clock=lambda: NOW) as memory:
        for number, one in enumerate(told):
            for place, pair in enumerate(one.pairs()):
                user = f"{number}-{place}"
                memory.add(pair.old, user_id=user, timestamp="2025-01-01")
                memory.add(pair.new, user_id=user, timestamp="2025-05-01")
                first = memory.search(one.question, 1, user_id=user)["results"][0]["memory"]
                found[one.half][pair.ends].append(first == (pair.new if pair.ends else pair.old))
    return {
        half: {
            "newer": sum(row[True]) / len(row[True]), "older": sum(row[False]) / len(row[False]),
            "pairs": len(row[True]) + len(row[False]),
        }
        for half, row in sorted(found.items())
    }  # fmt: skip


def questions(limit: str) -> dict[str, dict[str, float]]:
    """The share of questions after updates whose right fact is the first result: about now, with `as_of`, and with
    words that name a time."""
    asked: dict[str, list[bool]] = defaultdict(list)
    with TemporaryDirectory() as folder, Memory(folder, memory=limit, clock=lambda: NOW) as memory:
        for line in (FOLDER / "timelines.tsv").read_text("utf-8").splitlines():
            user, when, text = line.split("\t")
            memory.add(text, user_id=user, timestamp=when)
        for line in (FOLDER / "questions.tsv").read_text("utf-8").splitlines():
            user, as_of, question, right = line.split("\t")
            past = " did " in question or " was " in question
            results = memory.search(question, 1, user_id=user, as_of=None if as_of == "-" else as_of)["results"]
            kind = "as_of" if as_of != "-" else "named times" if past else "now"
            asked[kind].append(bool(results) and results[0]["memory"] == right)
    return {kind: {"first": sum(found) / len(found), "questions": len(found)} for kind, found in asked.items()}


def facts(limit: str) -> dict[str, float]:
    """The shares of questions about 60 facts of one person whose right fact is the first result, or one of three."""
    places: list[int] = []
    lines = [line.split("\t") for line in (FOLDER / "facts.tsv").read_text("utf-8").splitlines()]
    with TemporaryDirectory() as folder, Memory(folder, user_id="eva", memory=limit) as memory:
        for fact, _ in lines:
            memory.add(fact)
        for fact, question in lines:
            if question != "-":
                found = [result["memory"] for result in memory.search(question, 3)["results"]]
                places.append(found.index(fact) if fact in found else 3)
    return {"first": places.count(0) / len(places), "in_three": 1 - places.count(3) / len(places),
            "questions": len(places)}  # fmt: skip


def conversations(data: Path) -> dict[str, Any]:
    """The endings among all pairs of turns of each conversation, each as (old, new, probability)."""
    said: dict[str, list[str]] = defaultdict(list)
    for (conversation, _), turns in turns_of(load(data)).items():
        said[conversation] += [text for _, text in turns]
    judge, ended = Judge(), []
    for texts in said.values():
        for place, new in enumerate(texts):
            chances = judge.compare([(old, new, 1.0) for old in texts[:place]])
            ended += [(old, new, chance) for old, chance in zip(texts, chances, strict=False) if chance >= ENDS]
    return {"turns": sum(map(len, said.values())), "endings": ended}
