"""`edge models` goes on where one model is damaged, and names its damage."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from making.random_gguf import RandomModel

from edge.models import registry

Verb = Callable[..., Any]


@pytest.fixture
def models(tiny_models: Path, tmp_path: Path) -> Path:
    """A models directory that may be changed."""
    return Path(shutil.copytree(tiny_models, tmp_path / "models"))


def damage(folder: Path, how: str) -> None:
    if how == "no tokenizer":
        (folder / "tokenizer.json").unlink()
    else:
        (folder / "edge.json").write_text(how, encoding="utf-8")


@pytest.mark.parametrize("how", ["{}", "[", "[]", "[" * 100_000, "\x00", "no tokenizer"])
def test_a_damaged_model_is_listed_as_such(edge_verb: Verb, models: Path, how: str) -> None:
    shutil.copytree(models / "tiny", models / "multilingual-e5-small")
    damage(models / "multilingual-e5-small", how)
    ended = edge_verb("models", "list", "--json", EDGE_MODELS_DIR=str(models))
    document = json.loads(ended.out)
    assert ended.code == 0
    assert {"tiny", "tiny-embedder"} <= {row["name"] for row in document["installed"]}
    (row,) = document["damaged"]
    assert (row["name"], row["path"]) == ("multilingual-e5-small", str(models / "multilingual-e5-small"))
    assert "multilingual-e5-small" not in {row["name"] for row in (*document["installed"], *document["available"])}
    shown = edge_verb("models", "list", EDGE_MODELS_DIR=str(models))
    assert shown.code == 0
    assert f"multilingual-e5-small        damaged: {row['error']}\n" in shown.out
    assert "\ntiny  " in shown.out


@pytest.mark.parametrize("content", ["{}", "{", "[" * 100_000, "7"])
def test_a_model_is_described_though_its_calibration_is_damaged(edge_verb: Verb, models: Path, content: str) -> None:
    (models / "tiny" / "calibration.json").write_text(content, encoding="utf-8")
    shown = edge_verb("models", "show", "tiny", EDGE_MODELS_DIR=str(models))
    assert shown.code == 0
    assert "architecture  bert" in shown.out
    assert "calibration   damaged: " in shown.out
    facts = json.loads(edge_verb("models", "show", "tiny", "--json", EDGE_MODELS_DIR=str(models)).out)
    assert facts["calibration"] is None
    assert "calibration.json is damaged" in facts["calibration_damage"]


def test_a_deeply_nested_query_is_refused(edge_verb: Verb, tmp_path: Path) -> None:
    (tmp_path / "queries.jsonl").write_text("[" * 100_000, encoding="utf-8")
    ended = edge_verb("models", "calibrate", "tiny", "--queries", "queries.jsonl")
    assert 'queries.jsonl, line 1: needs "query" and "docs"' in ended.err
    assert ended.code == 2


def test_probabilities_are_fitted_for_a_pair_and_stored_with_the_reranker(
    edge_verb: Verb, tmp_path: Path, models: Path
) -> None:
    docs = [f"The river number {n} floods in month {n}." for n in range(20)]
    rows = [{"query": f"When does river {n} flood?", "docs": docs, "relevant": [n]} for n in range(8)]
    queries = tmp_path / "queries.jsonl"
    queries.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    asked = ("models", "calibrate", "tiny", "--queries", str(queries), "--embedder", "tiny-embedder")
    ended = edge_verb(*asked, EDGE_MODELS_DIR=str(models))
    assert ended.code == 0, ended.err
    assert "fitted the probabilities of `results with tiny-bert-embedder`" in ended.out
    stored = json.loads((models / "tiny" / "evidence.json").read_text("utf-8"))["models"]
    assert stored["results with tiny-bert-embedder"]["signals"] == ["blend", "best"]
    assert stored["results with tiny-bert-embedder"]["weights"][0] > 0, "the better blend is the more probable answer"
    queries.write_text("\n".join(json.dumps({**row, "relevant": None}) for row in rows), encoding="utf-8")
    ended = edge_verb(*asked, EDGE_MODELS_DIR=str(models))
    assert ended.code == 2
    assert "at least 8 queries with relevant documents, not 0" in ended.err


def test_a_pulled_generator_is_listed_and_described(
    edge_verb: Verb, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, known = next((n, k) for n, k in registry.KNOWN.items() if k.kind == "generator")
    file = models / f"{name}.gguf"
    RandomModel().write(file)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    done = edge_verb("models", "show", name, "--verify", EDGE_MODELS_DIR=str(models))
    assert done.code == 2, "the file is not the pinned one"
    assert f"edge models pull {name}" in done.err
    monkeypatch.setitem(registry.KNOWN, name, replace(known, files={"model.gguf": digest}, in_bytes=None))
    shown = json.loads(edge_verb("models", "show", name, "--verify", "--json", EDGE_MODELS_DIR=str(models)).out)
    assert (shown["kind"], shown["path"], shown["licence"]) == ("generator", str(file), known.licence)
    listed = json.loads(edge_verb("models", "list", "--json", EDGE_MODELS_DIR=str(models)).out)
    assert name in [row["name"] for row in listed["installed"]]
    assert name not in [row["name"] for row in listed["available"]]
    pulled = edge_verb("models", "pull", name, EDGE_MODELS_DIR=str(models))
    assert pulled.code == 0
    assert f"licence of the weights: {known.licence}" in pulled.out
    refused = edge_verb("models", "pull", name, "--precision", "fp16", EDGE_MODELS_DIR=str(models))
    assert refused.code == 2
    assert "leave --precision out" in refused.err


@pytest.mark.parametrize("name", ["calibration.json", "evidence.json", "tokenizer.json"])
def test_a_verification_finds_what_is_damaged_beside_the_weights(edge_verb: Verb, models: Path, name: str) -> None:
    assert edge_verb("models", "show", "tiny", "--verify", EDGE_MODELS_DIR=str(models)).code == 0
    (models / "tiny" / name).write_text('{"a": 1}')
    done = edge_verb("models", "show", "tiny", "--verify", EDGE_MODELS_DIR=str(models))
    assert done.code == 2
    assert name in done.err
    assert "`edge models p" in done.err or "`edge models calibrate" in done.err
