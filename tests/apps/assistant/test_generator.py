"""What a generator without a language model shows of passages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from edge.apps.assistant.answer import CLOSEST
from edge.apps.assistant.generator import QuotingGenerator
from edge.apps.assistant.reading import ANSWER, EXACT, LIKELY, PassageReader
from edge.runtimes.generation.base import Document, Message, Sampling
from edge.runtimes.generation.extractive import Quoted
from edge.runtimes.reader import Span

QUESTION = "When does the river flood?"


class Models:
    """A reranker that finds given answers in passages, each with a probability. `None` for one that is foreign."""

    def __init__(self, *answers: tuple[str, float] | None, reads: bool = True, relevance: float = 0.0) -> None:
        self.models = SimpleNamespace(read=self.read, answering=self.answering)
        self.calls: list[str] = []
        self._answers = answers
        self._reads = reads
        self._relevance = relevance

    def read(
        self, question: str, passages: Sequence[str], units: Sequence[Sequence[tuple[int, int]]]
    ) -> list[list[Span] | None] | None:
        assert len(units) == len(passages)
        self.calls.append(question)
        if not self._reads:
            return None
        found: list[list[Span] | None] = []
        for passage, own, answer in zip(passages, units, self._answers, strict=True):
            at = passage.index(answer[0]) if answer else 0
            spans = [
                Span(at, at + len(answer[0]), answer[1]) if answer and start <= at < end else Span(start, end, 0.0)
                for start, end in own
            ]
            found.append(spans if answer else None)
        return found

    def answering(self, signals: Sequence[Sequence[float]]) -> list[tuple[float, float, float]]:
        chances = [round(1 / (1 + math.exp(-odds)), 6) for _, _, odds, _, _ in signals]
        return [(chance, chance, chance) for chance in chances]

    def relevance(self, question: str, passages: Sequence[str]) -> list[float]:
        return [self._relevance] * len(passages)


def said(models: Models, *texts: str, question: str = QUESTION) -> str:
    generator = QuotingGenerator(PassageReader(models))  # type: ignore[arg-type]
    documents = [Document(str(number), text) for number, text in enumerate(texts)]
    pieces = generator.stream([Message("user", question)], Sampling(), documents=documents)
    return "".join(piece.text for piece in pieces)


RIVER = "Ice floats. The river floods in spring. Bread needs flour."


@pytest.mark.parametrize(
    ("text", "answer", "shown"),
    [
        (RIVER, "in spring", "The river floods in spring. [1]"),
        ("The gate is open:\n- in spring\n- never in autumn", "spring", "in spring [1]"),
        ("| River | Floods |\n|---|---|\n| Ombra | spring |\n| Kell | autumn |", "spring",
         "River: Ombra, Floods: spring [1]"),
        ("# Flooding\n\nCall this:\n\n```python\nimport river\nriver.flood()\n```", "river.flood()",
         "import river\nriver.flood() [1]"),
        ("Home | Rivers | Contact", "Rivers", "Home | Rivers | Contact [1]"),
        ("The river Ombra floods its whole valley in the weeks of spring and\nin autumn. Ice floats.",
         "spring and\nin autumn",
         "The river Ombra floods its whole valley in the weeks of spring and in autumn. [1]"),
    ],
)  # fmt: skip
def test_the_unit_around_an_answer_is_shown_without_a_denial(text: str, answer: str, shown: str) -> None:
    assert said(Models((answer, 0.9)), text) == shown
    assert said(Models(("Ice", 0.2), (answer, EXACT)), "Ice floats.", text) == shown.replace("[1]", "[2]")


def test_a_unit_that_is_less_certain_is_shown_with_the_words_around_it() -> None:
    assert said(Models(("in spring", EXACT - 0.01)), RIVER) == (
        "Ice floats. The river floods in spring. [1] Bread needs flour."
    )


def test_below_the_cost_of_a_wrong_answer_the_nearest_passage_is_shown_as_such() -> None:
    text = f"Dry {'bread ' * 60}is old. {RIVER} Old {'ice ' * 60}goes."
    shown = said(Models(("in spring", ANSWER - 0.01)), text)
    assert shown.startswith(f"{CLOSEST}\n")
    assert shown.endswith("Ice floats. The river floods in spring. [1] Bread needs flour.")


def test_the_same_passages_are_read_once_and_by_the_sentence_that_asks() -> None:
    models = Models(("in spring", 0.9))
    reader = PassageReader(models)  # type: ignore[arg-type]
    reader.read(QUESTION, [Document("1", RIVER)])
    asked = f"We moved to the valley in May. {QUESTION} Thanks!"
    for _ in range(2):
        list(QuotingGenerator(reader).stream([Message("user", asked)], Sampling(), documents=[Document("1", RIVER)]))
    assert models.calls == [QUESTION]
    reader.read("How long?", [Document("1", RIVER)])
    assert models.calls == [QUESTION, "How long?"]


@pytest.mark.parametrize(("relevance", "begins"), [(LIKELY, "Ice floats."), (LIKELY - 0.01, CLOSEST)])
def test_without_a_reader_the_best_passage_is_shown_in_part(relevance: float, begins: str) -> None:
    shown = said(Models(reads=False, relevance=relevance), f"{RIVER} Old {'ice ' * 60}goes.")
    assert shown.startswith(begins)
    assert "The river floods in spring. [1]" in shown
    assert "Old ice" not in shown


def test_a_passage_in_an_unknown_language_is_neither_certain_nor_refused() -> None:
    reading = PassageReader(Models(None)).read(QUESTION, [Document("1", "Der Fluss steigt im Mai.")])  # type: ignore[arg-type]
    assert not reading.is_answer
    assert reading.probability > 0
    assert said(Models(None), "Der Fluss steigt im Mai.") == f"{CLOSEST}\nDer Fluss steigt im Mai. [1]"
    long = f"{'Bald taut der Schnee. ' * 20}Der Fluss river steigt im Mai."
    assert "river" in said(Models(None), long, question="When does the river flood?"), "told by the words it shares"
    sure = PassageReader(Models(("Ice", 0.01))).read(QUESTION, [Document("1", RIVER)])  # type: ignore[arg-type]
    assert sure.probability == 0.01


def test_a_passage_in_an_unknown_language_hides_no_answer_of_another_one() -> None:
    """One line of code that is taken for a language made every answer beside it uncertain."""
    shown = said(Models(("in spring", EXACT), None), RIVER, "Der Fluss steigt im Mai.")
    assert shown == "The river floods in spring. [1]"
    shown = said(Models(None, ("in spring", EXACT)), "Der Fluss steigt im Mai.", RIVER)
    assert shown == "The river floods in spring. [2]"
    low = PassageReader(Models(("Ice", 0.01), None))  # type: ignore[arg-type]
    documents = [Document("1", RIVER), Document("2", "Der Fluss steigt im Mai.")]
    assert low.read(QUESTION, documents).probability == 0.01


def test_without_passages_nothing_is_said() -> None:
    assert said(Models()) == ""


def test_quoted_words_are_told_from_marks() -> None:
    generator: Any = QuotingGenerator(PassageReader(Models(("[3]", 0.9))))  # type: ignore[arg-type]
    pieces = list(generator.stream([Message("user", QUESTION)], Sampling(), documents=[Document("1", "See [3].")]))
    assert [(piece.text, isinstance(piece, Quoted)) for piece in pieces] == [
        ("See", True),
        (" [3].", True),
        (" [1]", False),
    ]


@pytest.mark.parametrize("probability", [EXACT, ANSWER, ANSWER - 0.1])
def test_no_answer_is_longer_than_its_limit(probability: float) -> None:
    """The words before the passage count as well, and an answer that lost some says so."""
    documents = [Document("1", RIVER), Document("2", "The snow melts then.")]
    whole = 0
    for most in [10_000, *range(1, 30)]:
        generator = QuotingGenerator(PassageReader(Models(("in spring", probability), ("snow", 0.1))))  # type: ignore[arg-type]
        pieces = generator.stream([Message("user", QUESTION)], Sampling(max_tokens=most), documents=documents)
        words = len("".join(piece.text for piece in pieces).split())
        whole = whole or words
        stats = generator.stats
        assert stats is not None
        assert words <= max(most, 2), "a word and its citation are the least"
        assert stats.new_tokens == words
        assert stats.finish == ("stop" if words == whole else "length")
