"""`moved-states`: both arms ask the same questions, and moving computes fewer tokens."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from making.random_gguf import RandomModel, words
from naive.program import output_of

from bench.command import bench
from edge.apps.collection.collection import Collection


@pytest.mark.usefixtures("tiny_settings")
def test_states_are_used_again_anywhere(tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    files = tmp_path / "files"
    files.mkdir()
    for number in range(12):
        (files / f"{number}.txt").write_text(f"{words(60, number)} number{number}")
    chance = random.Random(1)
    questions = [
        {"question": " ".join(f"number{found}" for found in chance.sample(range(12), 3)), "answers": ["ice"]}
        for _ in range(25)
    ]
    asked = tmp_path / "own.jsonl"
    asked.write_text("\n".join(map(json.dumps, questions)))
    place, model = tmp_path / "collection", RandomModel().write(tmp_path / "tiny.gguf")
    with Collection(place, memory="8GB") as collection:
        collection.index([files])
    report = json.loads(
        output_of(
            bench,
            "moved-states",
            "--set",
            f"{place}={asked}",
            "--llm",
            str(model),
            "--warmup",
            "12",
            "--memory",
            "8GB",
            "--json",
        )
    )
    exact, anywhere = report["states"]["exact"], report["states"]["anywhere"]
    assert exact["reused"] < anywhere["reused"] < 1
    assert exact["right"] == anywhere["right"] == 0
    assert exact["likelihood"] < 0
    assert abs(exact["likelihood"] - anywhere["likelihood"]) < 0.5
