"""`shards` on a judged set of a few paragraphs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from naive.program import output_of, settings_of, write_tiny_models

from bench.shards import shards


def test_shards_and_one_collection_give_the_same(judged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tiny_models(tmp_path / "models")
    for name, value in settings_of(tmp_path).items():
        monkeypatch.setenv(name, value)
    words = [
        str(judged), "--counts", "1,2", "--lists", "4", "--judged", "2", "--work-dir", str(tmp_path), "--json",
        "--grown",
    ]  # fmt: skip
    report = json.loads(output_of(shards, *words))
    assert list(report["rows"]) == ["1 shards", "2 shards", "2 shards and one more"]
    assert report["conditions"]["lists"] > 1
    for row in report["rows"].values():
        assert (row["orders"], row["scores"]) == (1, 1)
        assert row["held"] > 0
    assert report["rows"]["2 shards"]["reranked"] == 1
    assert report["rows"]["2 shards"]["trips"] >= 1
    assert report["rows"]["1 shards"]["whole_median"] > 0
    assert 0 <= report["rows"]["2 shards and one more"]["moved"] < 1
    assert report["rows"]["1 shards"]["reranked"] is None
