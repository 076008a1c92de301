"""`ExtractiveGenerator`: the best sentences, cited, and always the same ones."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from edge.errors import InputError
from edge.runtimes.generation.base import Document, Message, Sampling
from edge.runtimes.generation.extractive import ExtractiveGenerator, Quoted

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
    assert stats is not None
    assert (stats.new_tokens, stats.finish, stats.dropped_documents) == (13, "stop", 0)
    assert answer(generator) == answer(generator)


def test_rows_and_items_stand_on_lines_of_their_own() -> None:
    """Behind each other they would read like one sentence."""
    rows = [Document("a", "name: Lena, city: Bonn"), Document("b", "name: Karl, city: Ulm"), *DOCUMENTS[2:]]
    generator = ExtractiveGenerator(lambda _, texts: [float(-n) for n in range(len(texts))])
    text = "name: Lena, city: Bonn [1]\nname: Karl, city: Ulm [2]\nMountains are high. [3]"
    assert answer(generator, rows) == text
    assert answer(generator, rows[1:]) == "name: Karl, city: Ulm [1]\nMountains are high. [2]"


def test_numbers_follow_the_order_of_the_documents() -> None:
    generator = ExtractiveGenerator(shared_words, most=1)
    assert answer(generator, DOCUMENTS[::-1]) == "The river floods in spring. [2]"


def test_ties_go_to_the_earlier_sentence() -> None:
    generator = ExtractiveGenerator(lambda _, texts: [1.0] * len(texts), most=2)
    assert answer(generator) == "The river floods in spring. [1] Boats are red. [1]"


def test_nothing_below_the_floor() -> None:
    assert answer(ExtractiveGenerator(shared_words, floor=100.0)) == ""
    both = "The river floods in spring. [1] In summer the river is low. [2]"
    assert answer(ExtractiveGenerator(shared_words, floor=2.0)) == both
    assert answer(ExtractiveGenerator(lambda _, texts: [float("nan")] * len(texts))) == ""


def test_only_the_citation_is_not_quoted() -> None:
    document = Document("a", "Oktay [2] says that frame[3] is the river.")
    pieces = list(ExtractiveGenerator(shared_words).stream(QUESTION, Sampling(), documents=[document]))
    assert [piece.text for piece in pieces if not isinstance(piece, Quoted)] == [" [1]"]
    assert "".join(piece.text for piece in pieces) == "Oktay [2] says that frame[3] is the river. [1]"


def test_no_documents_no_answer_and_nothing_to_score() -> None:
    def refuse(question: str, texts: Sequence[str]) -> list[float]:
        raise AssertionError("nothing to score")

    assert answer(ExtractiveGenerator(refuse), []) == ""


def test_an_answer_keeps_to_its_length() -> None:
    generator = ExtractiveGenerator(shared_words)
    assert answer(generator, max_tokens=13) == "The river floods in spring. [1] In summer the river is low. [2]"
    assert answer(generator, max_tokens=12) == "The river floods in spring. [1]"
    assert answer(generator, max_tokens=4) == "The river floods [1]"


def test_documents_beyond_the_context_are_left_out_from_the_end() -> None:
    generator = ExtractiveGenerator(shared_words, context=5 + 8 + 3)
    assert answer(generator) == "The river floods in spring. [1] Boats are red. [1]"
    assert generator.stats is not None
    assert generator.stats.dropped_documents == 2


def test_cancelled() -> None:
    cancel = threading.Event()
    generator = ExtractiveGenerator(shared_words)
    pieces = generator.stream(QUESTION, Sampling(), documents=DOCUMENTS, cancel=cancel)
    assert next(pieces).text == "The"
    cancel.set()
    assert list(pieces) == []
    assert generator.stats is not None
    assert (generator.stats.finish, generator.stats.new_tokens) == ("cancelled", 1)


def test_wrong_scores_are_no_answer() -> None:
    with pytest.raises(ValueError, match="6 sentences were given to score, and 1 scores"):
        answer(ExtractiveGenerator(lambda *_: [1.0]), [*DOCUMENTS, Document("d", "One more.")])
    with pytest.raises(InputError, match="at least 1 sentence"):
        ExtractiveGenerator(shared_words, most=0)
