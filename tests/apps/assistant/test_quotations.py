"""The sentences that are picked from passages."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from edge.apps.assistant.quotations import PickedSentences
from edge.runtimes.generation.base import Document, Message, Sampling

SCORES = {
    "The river floods in spring.": 0.8,
    "It rises for a week.": 0.7,
    "When does the river flood?": 0.9,
    "The snow melts then.": 0.5,
    "Bread needs flour.": 0.1,
    "In spring.": 0.6,
    "Floods of the river in spring": 0.7,
}


class Judge:
    """Sentences as good as `SCORES` says, passages as good as their best sentence."""

    def relevance(self, query: str, texts: Sequence[str]) -> list[float]:
        return [max(score for known, score in SCORES.items() if known in text) for text in texts]


def picked(*texts: str) -> str:
    generator = PickedSentences(Judge())  # type: ignore[arg-type]
    documents = [Document(str(i), text) for i, text in enumerate(texts)]
    pieces = generator.stream([Message("user", "when?")], Sampling(), documents=documents)
    return "".join(piece.text for piece in pieces)


def test_the_best_sentences_are_picked_with_their_passages() -> None:
    assert picked("The river floods in spring. It rises for a week.", "The snow melts then. Bread needs flour.") == (
        "The river floods in spring. [1] It rises for a week. [1] The snow melts then. [2]"
    )


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("When does the river flood? The river floods in spring.", "The river floods in spring. [1]"),
        ("In spring. The river floods in spring.", "The river floods in spring. [1]"),
        ("Floods of the river in spring\n\nThe river floods in spring.", "The river floods in spring. [1]"),
        ("The river floods in spring. Bread needs flour.", "The river floods in spring. [1]"),
    ],
)
def test_questions_fragments_and_what_is_much_worse_are_left_out(text: str, answer: str) -> None:
    assert picked(text) == answer


def test_sentences_are_judged_by_the_sentence_that_asks() -> None:
    asked: list[str] = []

    class Noting(Judge):
        def relevance(self, query: str, texts: Sequence[str]) -> list[float]:
            asked.append(query)
            return super().relevance(query, texts)

    message = Message("user", "We moved to the valley in May. When does the river flood? Thanks!")
    documents = [Document("1", "The river floods in spring.")]
    list(PickedSentences(Noting()).stream([message], Sampling(), documents=documents))  # type: ignore[arg-type]
    assert asked == ["When does the river flood?"]
