"""Answers quoted from passages, and held questions."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from naive.knowledge import segment

from edge.runtimes.generation.base import Document, Message, Sampling
from edge.runtimes.generation.extractive import ExtractiveGenerator, Quoted
from edge.runtimes.generation.prompt import Prompt
from edge.runtimes.generation.seat import HeldQuestions, alike

DOCUMENTS = [
    Document("a", "The river floods in spring. Boats are red.", title="rivers.txt"),
    Document("b", "Nobody lives there.\n\nThe river floods in spring. In summer the river is low."),
    Document("c", "Mountains are high."),
]
QUESTION = [Message("system", "Be brief."), Message("user", "when does the river flood")]


def shared_words(question: str, texts: Sequence[str]) -> list[float]:
    """How many of a sentence's words stand in the question."""
    asked = set(question.casefold().split())
    return [float(sum(word in asked for word in text.casefold().split())) for text in texts]


def answer(generator: ExtractiveGenerator, documents: Sequence[Document] = DOCUMENTS, max_tokens: int = 256) -> str:
    pieces = generator.stream(QUESTION, Sampling(max_tokens=max_tokens), documents=documents)
    return "".join(piece.text for piece in pieces)


def test_best_sentences_first_each_with_its_document() -> None:
    generator = ExtractiveGenerator(shared_words, most=2)
    assert answer(generator) == "The river floods in spring. [1] In summer the river is low. [2]"
    stats = generator.stats
    assert (stats.new_tokens, stats.finish, stats.dropped_documents) == (13, "stop", 0)
    assert answer(generator) == answer(generator)
    assert answer(ExtractiveGenerator(shared_words, most=1), DOCUMENTS[::-1]) == "The river floods in spring. [2]"
    for score, shown in ((1.0, "The river floods in spring. [1] Boats are red. [1]"), (float("nan"), "")):
        equal = ExtractiveGenerator(lambda _, texts, score=score: [score] * len(texts), most=2)
        assert answer(equal) == shown, "of equals the earlier ones; none without a score"
    assert answer(ExtractiveGenerator(lambda *_: 1 / 0), []) == "", "nothing to score"
    with pytest.raises(ValueError, match="6 sentences were given to score, and 1 scores"):
        answer(ExtractiveGenerator(lambda *_: [1.0]), [*DOCUMENTS, Document("d", "One more.")])
    document = Document("a", "Oktay [2] says that frame[3] is the river.")
    pieces = list(ExtractiveGenerator(shared_words).stream(QUESTION, Sampling(), documents=[document]))
    assert [piece.text for piece in pieces if not isinstance(piece, Quoted)] == [" [1]"], "all else is quoted"
    assert "".join(piece.text for piece in pieces) == "Oktay [2] says that frame[3] is the river. [1]"


def test_rows_and_items_stand_on_lines_of_their_own() -> None:
    """Behind each other they would read like one sentence."""
    rows = [Document("a", "name: Lena, city: Bonn"), Document("b", "name: Karl, city: Ulm"), *DOCUMENTS[2:]]
    generator = ExtractiveGenerator(lambda _, texts: [float(-n) for n in range(len(texts))])
    text = "name: Lena, city: Bonn [1]\nname: Karl, city: Ulm [2]\nMountains are high. [3]"
    assert answer(generator, rows) == text
    assert answer(generator, rows[1:]) == "name: Karl, city: Ulm [1]\nMountains are high. [2]"


def test_an_answer_keeps_to_its_length() -> None:
    generator = ExtractiveGenerator(shared_words)
    assert answer(generator, max_tokens=13) == "The river floods in spring. [1] In summer the river is low. [2]"
    assert answer(generator, max_tokens=12) == "The river floods in spring. [1]"
    assert answer(generator, max_tokens=4) == "The river floods [1]"
    generator.context = 5 + 8 + 3
    assert answer(generator) == "The river floods in spring. [1] Boats are red. [1]"
    assert generator.stats.dropped_documents == 2, "beyond the context, from the end"


def test_cancelled() -> None:
    cancel = threading.Event()
    generator = ExtractiveGenerator(shared_words)
    pieces = generator.stream(QUESTION, Sampling(), documents=DOCUMENTS, cancel=cancel)
    assert next(pieces).text == "The"
    cancel.set()
    assert list(pieces) == []
    assert (generator.stats.finish, generator.stats.new_tokens) == ("cancelled", 1)


PATHS = [(), (segment("a", 3),), (segment("a", 3), segment("b", 2)), (segment("b", 2),)]

text = st.lists(st.integers(0, 2), max_size=6).map(tuple)
prompt = st.builds(Prompt, st.sampled_from(PATHS), text)


@dataclass(eq=False)
class Seat:
    length: int

    def reusable(self, common: int, tokens: int) -> int:
        return min(common, tokens - 1)


@given(text, text)
def test_the_equal_beginning_of_two_texts(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    expected = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    assert alike(one, other) == expected


@given(st.lists(prompt, max_size=6), st.lists(prompt, max_size=3))
def test_cells_are_those_that_sequences_take_one_after_the_other(held: list[Prompt], more: list[Prompt]) -> None:
    """The oracle lets each prompt take the states of the sequence that holds most of it, as the engine does."""
    questions, seats, cells, paths = HeldQuestions(), list[Any](), 0, set()
    for one in [*held, *more]:
        prefixes = {one.path[: i + 1] for i in range(len(one.path))}
        path = sum(len(part.tokens) for part in one.path)
        cells += sum(len(prefix[-1].tokens) for prefix in prefixes - paths)
        cells += len(one.question) - questions.best(one)[0]
        paths |= prefixes
        seats.append(Seat(path + len(one.question)))
        questions.hold(seats[-1], one.path, one.question)
    for seat in seats[len(held) :]:
        questions.drop(seat)
    lengths = [(seat, seat.length + 5) for seat in [*seats[: len(held)], Seat(2)]]
    found = questions.cells(lengths, more) - 5 * len(lengths) - 2
    assert cells <= found <= cells + len(held) + len(more)


def test_a_sequence_that_was_cut_holds_less() -> None:
    questions, seat, whole = HeldQuestions(), Seat(9), Prompt(PATHS[1], (1, 2, 3, 4, 5, 6))
    questions.hold(seat, whole.path, whole.question)
    assert questions.best(whole) == (5, seat)
    assert questions.best(Prompt(PATHS[2], whole.question))[0] == 0
    seat.length = 5
    assert questions.best(whole, [seat]) == (2, seat)
    assert questions.cells([(seat, 8)], []) == 8
    seat.length = 0
    assert questions.best(whole)[0] == 0
