"""`answer-odds`: fits the probabilities that a window of a passage, and a unit in it, hold the answer to a question.

A file of questions has a line of JSON for each: `question`, `answers` (texts of which any one is right; none if the
collection does not answer), and optionally `without`, the paths that are taken out of the results. The models are
fitted on one half of the questions and judged on the other, and in the end fitted on all.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np

from bench.figures import Column, Figure, tabulate
from bench.options import Output, benchmark
from edge.apps.assistant.question import judged_question
from edge.apps.assistant.reading import ANSWER, EXACT, NEAREST, PassageReader, Reading, document_of
from edge.apps.collection.collection import Collection
from edge.apps.collection.hits import Hit
from edge.apps.verbs.requests import AskOptions
from edge.config import Config
from edge.errors import InputError
from edge.models.evidence import ANSWER_SIGNALS, CHOICE, UNIT, WINDOW, Evidence, Logistic, fit, save


@dataclass(frozen=True, slots=True)
class Candidate:
    """A window that was read.

    Attributes:
        signals: the values of `ANSWER_SIGNALS`.
        unit, window: whether its best unit holds a right answer, and whether the window does.
        words: the words of both.
    """

    signals: tuple[float, ...]
    unit: bool
    window: bool
    words: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Asked:
    """A question with the windows that were read for it.

    Attributes:
        source: the name of its file.
        answered: whether the collection holds an answer.
    """

    source: str
    answered: bool
    candidates: tuple[Candidate, ...]


Models = tuple[Logistic, Logistic, Logistic]
"""Those of `CHOICE`, `UNIT` and `WINDOW`."""


@benchmark
def answer_odds(
    *,
    sets: Annotated[tuple[str, ...], "--set", "COLLECTION=QUESTIONS; several are told apart by the file's name."],
    judge: Annotated[tuple[str, ...], "--judge", "The same, for questions that nothing is fitted on."] = (),
    memory: Annotated[str, "Limit of the process."] = "500MB",
    keep: Annotated[bool, "Store the models beside the reranker."] = False,
    output: Output,
) -> None:
    """Fit and judge how probable it is that what the assistant shows answers the question."""
    config = Config.load(flags={"memory": memory})
    fitted_on = [asked for each in sets for asked in read(each, config)]
    judged_on = [asked for each in judge for asked in read(each, config)]
    halves = fitted_on[::2], fitted_on[1::2]
    if not all(any(asked.candidates for asked in half) for half in halves):
        raise InputError("no window was read in a half of the questions: the reranker needs a reader")
    found: Counter[tuple[str, str]] = Counter()
    words: dict[str, list[int]] = {}
    for known, unknown in (halves, halves[::-1], (fitted_on, judged_on)):
        models = fit_models(known)
        for asked in unknown:
            voice, right, count = voice_of(asked, models)
            found[asked.source, cell(asked.answered, voice, right)] += 1
            if voice != "refused":
                words.setdefault(asked.source, []).append(count)
    rows = {
        source: {name: float(found[source, name]) for name in CELLS} | {"words": float(np.median(counts))}
        for source, counts in words.items()
    }
    output.put({"sets": rows}, figures(rows), "questions of the other half, or of sets that nothing was fitted on")
    if keep:
        with Collection(Path(sets[0].partition("=")[0]), config=config) as collection:
            examples = len(fitted_on)
            models = fit_models(fitted_on)
            named = {
                name: Evidence(ANSWER_SIGNALS, model, 0.0, "", examples)
                for name, model in zip((CHOICE, UNIT, WINDOW), models, strict=True)
            }
            save(collection.reranker.model, named)


CELLS = {
    "right": Column("shown and right", "questions"), "wrong": Column("shown and wrong", "questions"),
    "nearest right": Column("nearest and right", "questions"), "nearest other": Column("nearest, another"),
    "refused": Column("refused", "questions"), "none shown": Column("no answer: shown", "questions"),
    "none nearest": Column("no answer: nearest"), "none refused": Column("no answer: refused", "questions"),
}  # fmt: skip
"""The columns of a table of answers, by what may become of a question (see `cell`)."""


def figures(rows: Mapping[str, Mapping[str, float]]) -> Iterator[Figure]:
    """The figures of a stored run, by the file of questions."""
    yield from tabulate(rows, CELLS | {"words": Column("words")}, "questions")


def read(given: str, config: Config) -> list[Asked]:
    """Asks the questions of a set, `COLLECTION=QUESTIONS`."""
    place, _, file = given.partition("=")
    rows = [json.loads(line) for line in Path(file).read_text("utf-8").splitlines()]
    options = AskOptions()
    asked = []
    with Collection(place, config=config) as collection:
        reader = PassageReader(collection)
        for row in rows:
            question = judged_question(row["question"])
            hits = collection.search(question, options.read + 1, pool=options.pool)
            hits = [hit for hit in hits if hit.path not in row.get("without", ())][: options.read]
            reading = reading_of(reader, question, hits)
            candidates = [
                Candidate(
                    each.signals,
                    *(
                        any(holds(text, right) for right in row["answers"])
                        for text in (each.unit.text, each.window.text)
                    ),
                    (len(each.unit.text.split()), len(each.window.text.split())),
                )
                for each in reading.answers
                if each.signals  # a passage in a foreign language has none
            ]
            asked.append(Asked(Path(file).stem, bool(row["answers"]), tuple(candidates)))
    return asked


def holds(text: str, wanted: str) -> bool:
    """Whether a text holds a phrase as whole words, regardless of case and white space.

    >>> holds("Within SIX\\nweeks", "six weeks"), holds("It costs 145 euros.", "45 euros"), holds("`KEEP=5`", "KEEP=5")
    (True, False, True)
    """
    phrase = r"\s+".join(re.escape(word) for word in wanted.casefold().split())
    return re.search(rf"(?<!\w){phrase}(?!\w)", " ".join(text.casefold().split())) is not None


def reading_of(reader: PassageReader, question: str, hits: Sequence[Hit]) -> Reading:
    """What the passages of a search say about its question."""
    relevance = [hit.stages.reranker for hit in hits if hit.stages.reranker is not None]
    return reader.read(question, [document_of(hit) for hit in hits], relevance)


def fit_models(asked: Sequence[Asked]) -> Models:
    """The models fitted on the windows of these questions."""
    choice = _fitted([each for question in asked for each in question.candidates], of_units=False)
    chosen = [best(question.candidates, choice) for question in asked if question.candidates]
    return choice, _fitted(chosen, of_units=True), _fitted(chosen, of_units=False)


def _fitted(windows: Sequence[Candidate], *, of_units: bool) -> Logistic:
    right = np.array([each.unit if of_units else each.window for each in windows])
    return fit(np.array([each.signals for each in windows]), right)


def best(candidates: Sequence[Candidate], choice: Logistic) -> Candidate:
    """The window that is shown."""
    return max(candidates, key=lambda each: float(choice.probability([each.signals])[0]))


def voice_of(asked: Asked, models: Models) -> tuple[str, bool, int]:
    """How a question is answered, whether what is shown is right, and how many words it has."""
    if not asked.candidates:
        return "refused", False, 0
    each = best(asked.candidates, models[0])
    unit, window = (float(model.probability([each.signals])[0]) for model in models[1:])
    exact = unit >= EXACT
    chance = unit if exact else window
    voice = "shown" if chance >= ANSWER else "nearest" if chance >= NEAREST else "refused"
    return voice, each.unit if exact else each.window, each.words[0 if exact else 1]


def cell(answered: bool, voice: str, right: bool) -> str:
    """The one of `CELLS` that counts a question. `answered`: whether the documents hold an answer to it."""
    if not answered:
        return f"none {voice}"
    if voice == "refused":
        return voice
    return ("right" if right else "wrong") if voice == "shown" else f"nearest {'right' if right else 'other'}"
