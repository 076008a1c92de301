"""The meaning of a memory's relevance."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bench.answers import FOLDER

from edge.apps.memory.searching import NAME, SIGNALS, first_person, relevance, signals
from edge.models.evidence import Evidence, Logistic, log_odds


@pytest.mark.parametrize(
    ("question", "names", "asked"),
    [
        ("what can Ada eat?", ["ada"], "what can I eat?"),
        ("does Ada have allergies?", ["ada"], "do I have allergies?"),
        ("where does Ada's sister live?", ["ada", None, None], "where does my sister live?"),
        ("is ADA sporty?", ["ada"], "am I sporty?"),
        ("has the user a dog?", ["u-17"], "have I a dog?"),
        ("what does Adam eat?", ["ada"], "what does Adam eat?"),
        ("who is Mr. (B)?", ["Mr. (B)"], "who am I?"),
        ("what do I eat?", [None, None, None], "what do I eat?"),
        ("which 7 dwarfs?", ["7"], "which 7 dwarfs?"),
    ],
)
def test_questions_are_asked_as_the_person_would(question: str, names: list[str | None], asked: str) -> None:
    assert first_person(question, names) == asked


def test_relevance_is_the_rerankers_where_nothing_was_fitted() -> None:
    assert relevance(None, 0.3, 0.9, 0.9) == 0.3
    fitted = Evidence(SIGNALS, Logistic((0.0, 0.0, 5.0, 0.0), (0.0,) * 3, (1.0,) * 3), 0.1, "tiny", 1)
    assert relevance(fitted, 0.3, 0.1, 0.9) == pytest.approx(fitted.probability(signals(0.3, 0.1, 0.9)))
    assert relevance(fitted, 0.3, 0.1, 0.9) > relevance(fitted, 0.3, 0.1, 0.2)
    assert signals(0.5, 0.4, 0.1) == [log_odds(0.5), 0.4, 0.4], "a question in the third person may fit better"


def test_a_search_uses_what_was_fitted(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    memory.add("red", user_id="ann")
    fitted = Evidence(SIGNALS, Logistic((0.0, 0.0, 0.0, 2.0), (0.0,) * 3, (1.0,) * 3), 0.1, "tiny", 1)
    (before,) = memory.search("what does ann like? red", user_id="ann", explain=True)["results"]
    asked: list[str] = []
    models = memory.store.models

    def fit_for(name: str, named: tuple[str, ...]) -> Evidence:
        assert (name, named) == (NAME, SIGNALS)
        return fitted

    embed = memory.store.embed

    def noted(texts: list[str], **options: Any) -> Any:
        asked.extend(texts)
        return embed(texts, **options)

    monkeypatch.setattr(models, "evidence", fit_for)
    monkeypatch.setattr(memory.store, "embed", noted)
    (hit,) = memory.search("what does ann like? red", user_id="ann", explain=True)["results"]
    assert hit["score"] == pytest.approx(1 / (1 + 2.718281828**-2), abs=1e-6)
    assert hit["score_details"]["reranker"] == before["score"]
    assert "what do I like? red" in asked
    assert memory.search("what does ann like? red", user_id="ann", threshold=0.95)["results"] == []


def test_the_set_of_memories_is_in_two_halves() -> None:
    rows = [json.loads(line) for line in Path(FOLDER / "memories.jsonl").read_text("utf-8").splitlines()]
    assert len(rows) >= 40
    assert {row["half"] for row in rows} == {"choose", "judge"}
    assert all(len(row["questions"]) >= 2 for row in rows)
