"""The sentences that a generator without a language model picks from passages."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest

from edge.apps.assistant.answer import MAYBE
from edge.apps.assistant.evidence import UnitJudge
from edge.apps.assistant.generator import PickedSentences
from edge.runtimes.generation.base import Document, Message, Sampling

SCORES = {
    "The river floods in spring.": 0.8,
    "It rises for a week.": 0.7,
    "When does the river flood?": 0.9,
    "The snow melts then.": 0.65,
    "Bread needs flour.": 0.02,
    "In spring.": 0.6,
    "Floods of the river in spring": 0.97,
    "import river": 0.99,
    "Home | Rivers | Contact": 0.99,
    "Tool: gauge, Level: 3 m": 0.6,
    "We bought the boat in spring.": 0.99,
    "It cost 4,000 euros.": 0.02,
    "The berth costs 90 euros a year.": 1e-6,
    "Does bread rise?": 1 - 1e-6,
    "Does ice float?": 1 - 1e-5,
}


class Models:
    """Sentences as good as `SCORES` says; vectors that tell nothing."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.models = SimpleNamespace(floor=lambda: 0.0)

    def relevance(self, query: str, texts: Sequence[str]) -> list[float]:
        self.asked.append((query, len(texts)))
        return [max((score for known, score in SCORES.items() if known in text), default=0.0) for text in texts]

    def embed_queries(self, texts: Sequence[str]) -> np.ndarray:
        return np.zeros((len(texts), 2), np.float32)


def picked(*texts: str, title: str = "", question: str = "what?", models: Models | None = None) -> str:
    generator = PickedSentences(UnitJudge(models or Models()))  # type: ignore[arg-type]
    documents = [Document(str(i), text, title) for i, text in enumerate(texts)]
    pieces = generator.stream([Message("user", question)], Sampling(), documents=documents)
    return "".join(piece.text for piece in pieces)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("E4 In spring. Bread needs flour.\nE5 Dry bread.", "E4 In spring. [1] Bread needs flour. [1]"),
        ("The boat floats? E4 In spring. Bread needs flour.", "E4 In spring. [1] Bread needs flour. [1]"),
        ("E4 In spring.\nDry bread.", "E4 In spring. [1]"),
        ("E4 In spring. " + "Dry bread. " * 17, "E4 In spring. [1]"),
        ("Nothing else at all happens here or anywhere near: The river floods in spring. Dry bread.",
         "Nothing else at all happens here or anywhere near: The river floods in spring. [1]"),
    ],
)  # fmt: skip
def test_a_short_unit_is_quoted_with_the_rest_of_its_line(text: str, answer: str) -> None:
    assert picked(text, question="what?") == answer
    assert "flour" not in picked(text, question="when?"), "the season is all that was asked"


def test_passages_that_may_not_answer_are_shown_as_the_closest() -> None:
    """Two of them, with the units around the best one of each. A judgement of another question changes nothing."""
    texts = [
        f"Dry {'bread ' * 50}is old. Bread needs flour. The river floods in spring. Ice floats. Old {'ice ' * 50}goes.",
        "Home. It rises for a week.",
        "The snow melts then.",
    ]
    judge = UnitJudge(Models())  # type: ignore[arg-type]
    judge._doubted = {"when?": True, "what?": False}
    documents = [Document(str(i), text) for i, text in enumerate(texts)]

    def answer(question: str) -> str:
        pieces = PickedSentences(judge).stream([Message("user", question)], Sampling(), documents=documents)
        return "".join(piece.text for piece in pieces)

    around = "Bread needs flour. [1] The river floods in spring. [1] Ice floats. [1]"
    assert answer("when?") == f"{MAYBE}\n{around} Home. [2] It rises for a week. [2]"
    assert answer("what?").startswith("The river floods in spring. [1] The snow melts then. [3]")


def test_the_best_sentences_are_picked_with_their_passages() -> None:
    assert picked("The river floods in spring. It rises for a week.", "The snow melts then. Bread needs flour.") == (
        "The river floods in spring. [1] It rises for a week. [1] The snow melts then. [2]"
    )


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("When does the river flood?\nThe river floods in spring.", "The river floods in spring. [1]"),
        ("In spring.\nThe river floods in spring.", "The river floods in spring. [1]"),
        ("Floods of the river in spring\n\nThe river floods in spring.", "The river floods in spring. [1]"),
        ("import river\n\nThe river floods in spring.", "The river floods in spring. [1]"),
        ("Home | Rivers | Contact\n\nThe river floods in spring.", "The river floods in spring. [1]"),
        ("| Tool | Level |\n|---|---|\n| gauge | 3 m |", "Tool: gauge, Level: 3 m [1]"),
        ("The river floods in spring.\nBread needs flour.", "The river floods in spring. [1]"),
    ],
)
def test_what_is_no_sentence_or_much_worse_is_left_out(text: str, answer: str) -> None:
    first = picked(text)
    assert first == answer or first.startswith(answer)
    assert not {"import", "Home", "Floods", "Bread"} & set(first.split())


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Does bread rise? Yes. It rises for a week. The berth costs 90 euros a year. Does ice float? No.",
         "Yes. [1] It rises for a week. [1]"),
        ("Does ice float? It does so everywhere. Bread needs flour.", "It does so everywhere. [1]"),
        ("Does ice float? Does bread rise? Bread needs flour. Does ice float?", "Bread needs flour. [1]"),
        ("# Bread\nDoes bread rise?\n# Ice\nIt does so everywhere.", "Does bread rise? [1]"),
    ],
)  # fmt: skip
def test_a_question_in_the_documents_is_answered_by_what_follows_it(text: str, answer: str) -> None:
    assert picked(text, question="Does it rise?") == answer


def test_sentences_are_judged_by_the_sentence_that_asks_and_only_once() -> None:
    models = Models()
    question = "We moved to the valley in May. When does the river flood? Thanks!"
    judge = UnitJudge(models)  # type: ignore[arg-type]
    judge.windows(
        "When does the river flood?", [Document("1", "The river floods in spring. It rises for a week.", "Rivers")]
    )
    generator = PickedSentences(judge)
    documents = [Document("1", "The river floods in spring. It rises for a week.", "Rivers")]
    list(generator.stream([Message("user", question)], Sampling(), documents=documents))
    assert models.asked == [("When does the river flood?", 2)]
    list(generator.stream([Message("user", "How long?")], Sampling(), documents=documents))
    assert models.asked[1:] == [("How long?", 2)]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("We bought the boat in spring. It cost 4,000 euros. Bread needs flour.",
         "We bought the boat in spring. [1] It cost 4,000 euros. [1]"),
        ("It cost 4,000 euros. We bought the boat in spring.",
         "We bought the boat in spring. [1] It cost 4,000 euros. [1]"),
        ("We bought the boat in spring. It cost 4,000 euros. The berth costs 90 euros a year.",
         "We bought the boat in spring. [1] It cost 4,000 euros. [1]"),
        ("# Boat\nWe bought the boat in spring.\n# Car\nIt cost 4,000 euros.", "We bought the boat in spring. [1]"),
    ],
)  # fmt: skip
def test_the_value_asked_for_is_quoted_from_a_sentence_beside_the_best(text: str, answer: str) -> None:
    assert picked(text, question="How much did the boat cost?") == answer
    assert picked(text, question="Who bought the boat?").startswith("We bought the boat in spring. [1]")


@pytest.mark.parametrize("doubted", [True, False])
def test_no_answer_is_longer_than_its_limit(doubted: bool) -> None:
    """The words before the passages count as well, and an answer that lost some says so."""
    texts = ["The river floods in spring. It rises for a week. Bread needs flour.", "The snow melts then."]
    documents = [Document(str(i), text) for i, text in enumerate(texts)]
    judge = UnitJudge(Models())  # type: ignore[arg-type]
    judge._doubted = {"when?": doubted}
    whole = 0
    for most in [10_000, *range(1, 45)]:
        generator = PickedSentences(judge)
        pieces = generator.stream([Message("user", "when?")], Sampling(max_tokens=most), documents=documents)
        words = len("".join(piece.text for piece in pieces).split())
        whole = whole or words
        stats = generator.stats
        assert stats is not None
        assert words <= max(most, 2), "a word and its citation are the least"
        assert stats.new_tokens == words
        assert stats.finish == ("stop" if words == whole else "length")
