"""`answer-odds`: windows are chosen, judged and counted as the assistant shows them."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from naive.program import output_of

from bench.answer_odds import Asked, Candidate, best, fit_models, voice_of
from bench.command import bench
from edge.apps.collection.collection import Collection
from edge.models.registry import DEFAULT_RERANKER


def asked(number: int) -> Asked:
    """A question whose first signal tells the right window, and whose unit is right only in every second question."""
    rng = random.Random(number)
    candidates = []
    for right in (False, False, True):
        noise = [rng.gauss(0, 1) for _ in range(4)]
        signals = (4.0 if right else -4.0, *noise)
        candidates.append(Candidate(signals, right and number % 2 == 0, right, (5, 50)))
    rng.shuffle(candidates)
    return Asked("made", True, tuple(candidates))


def test_the_window_that_the_signals_tell_is_chosen_and_shown() -> None:
    models = fit_models([asked(number) for number in range(60)])
    for number in range(60, 90):
        question = asked(number)
        assert best(question.candidates, models[0]).window
        assert voice_of(question, models) == ("shown", True, 50)
    assert voice_of(Asked("none", False, ()), models) == ("refused", False, 0)


@pytest.mark.usefixtures("tiny_settings")
def test_a_collection_is_asked_and_the_voices_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGE_RERANKER", DEFAULT_RERANKER)  # which has a reader
    (tmp_path / "river.md").write_text("# Ombra\n\nThe river Ombra floods in spring. Ice floats.\n")
    questions = [
        {"question": "When does the Ombra flood?", "answers": ["spring"]},
        {"question": "What floats?", "answers": ["ice"]},
        {"question": "Who painted the ceiling?", "answers": []},
        {"question": "Which colour has the Ombra?", "answers": [], "without": [str(tmp_path / "river.md")]},
    ]
    file = tmp_path / "own.jsonl"
    file.write_text("\n".join(map(json.dumps, questions)))
    place = tmp_path / "collection"
    with Collection(place, memory="8GB") as collection:
        collection.index([tmp_path / "river.md"])
    report = json.loads(output_of(bench, "answer-odds", "--set", f"{place}={file}", "--memory", "8GB", "--json"))
    row = report["sets"]["own"]
    assert sum(row[cell] for cell in row if cell != "words") == len(questions)
    assert row["right"] + row["wrong"] + row["nearest right"] + row["nearest other"] + row["refused"] == 2
