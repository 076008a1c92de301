from __future__ import annotations

import random

from bench.statements import beside, read, with_errors

PASSAGE = "The bridge was built in 1821 by Anna Berg. It has 3 piers of stone, and a Miller lived below it."
TEXT = "1. It was built in 1821 by Anna Berg as a bridge. Short one. The bridge has a strong wall of red brick."


def row(text: str, passage: str, **changes: object) -> dict[str, object]:
    asked = [{"speaker": "user", "text": "When?"}, {"speaker": "agent", "text": "Then."}]
    return {
        "answerability": ["ANSWERABLE"], "contexts": [{"text": passage, "title": "Bridges"}], "input": asked,
        "targets": [{"text": text}], **changes,
    }  # fmt: skip


def test_sentences_are_read_with_their_passages_and_get_errors() -> None:
    other = row("Mills were owned by the Ostheim family for ages.", "The Ostheim family owned mills in the bridge.")
    said = list(read(iter([row(TEXT, PASSAGE), other, row(TEXT, PASSAGE, answerability=["UNANSWERABLE"])])))
    built, wall, _ = said
    assert built.text == "It was built in 1821 by Anna Berg as a bridge."
    assert built.question == "When?"
    assert wall.text == "The bridge has a strong wall of red brick."
    rng = random.Random(1)
    errors = dict(with_errors(built, said, rng))
    assert errors.keys() == {"number, new", "number, exchanged", "name, new", "name, exchanged"}
    assert "1821" not in errors["number, new"].text
    assert " 3 " in errors["number, exchanged"].text
    assert "Ostheim" in errors["name, new"].text
    assert "Miller" in errors["name, exchanged"].text
    assert list(with_errors(wall, said, rng)) == []


def test_the_other_passages_are_those_with_most_words_of_the_sentence() -> None:
    rows = [row("Mills were owned by the Ostheim family.", text) for text in ("Mills of the family.", "Ice is cold.")]
    own = row("Mills were owned by an old family of the Ostheim.", PASSAGE)
    own["input"] = [{"speaker": "user", "text": "Who owned them?"}]
    said = list(read(iter([own, *rows])))
    (passage,) = beside(said[0], said, random.Random(1)).passages
    assert "Mills of the family." in passage.text
