"""`assignment` on a judged set of a few paragraphs: recorded texts, requests, and the prediction by events."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from naive.program import output_of

from bench.assignment import Load, assignment, micro_batches, recorded_texts
from bench.run_record import RunRecord
from edge.apps.cluster.catalogue import Replica


def test_recorded_texts_are_those_of_all_who_asked_in_turn() -> None:
    texts = recorded_texts()
    assert len(texts) > 300
    assert all(len(text.split()) >= 5 for text in texts)
    assert len(set(texts[:16])) > 12  # of different questions


def test_similar_searches_become_one_request() -> None:
    vectors = np.repeat(np.eye(4, dtype=np.float32), 3, axis=0)[[0, 3, 1, 4, 6, 9, 2, 5, 7, 8, 10, 11]]
    found = [np.frombuffer(one, np.float32).reshape(-1, 4) for one in micro_batches(vectors, 12, 3)]
    assert [len({tuple(row) for row in one}) for one in found] == [1, 1, 1, 1]
    assert [len(one) for one in micro_batches(vectors, 6, 4)] == [64, 32, 64, 32]


def test_an_arm_prefers_the_same_copy_for_the_same_request_or_the_next_one() -> None:
    copies = [Replica("s", number, "", "", 0) for number in range(3)]
    load = Load([b"one", b"two", b"one"], 0, 1, copies, None, 1, 0, 1.0)  # type: ignore[arg-type]
    assert [load.order("in turn", number)[0].number for number in range(3)] == [0, 1, 2]
    assert load.order("hashed", 0) == load.order("hashed", 2)
    assert all(sorted(one.number for one in load.order("hashed", number)) == [0, 1, 2] for number in range(3))


@pytest.mark.parametrize("traffic", ["recorded", "questions"])
def test_every_arm_finds_the_same(replaying: list[str], tmp_path: Path, traffic: str) -> None:
    options = ["--counts", "1,2", "--searches", "6", "--warmup", "1", "--micro-batch", "2", "--traffic", traffic]
    report = json.loads(output_of(assignment, *replaying[:6], *replaying[10:], *options))
    assert "throttled" in report["conditions"]["copies"]
    assert list(report["rows"]) == [
        f"{count} copies, {arm}" for count in (1, 2) for arm in ("in turn", "hashed", "assigned")
    ]  # fmt: skip
    for row in report["rows"].values():
        assert row["identical"]
        assert row["rate"] > 0
        assert row["predicted"] > 0
    assert report["rows"]["1 copies, hashed"]["gain"] == 1
    assert {figure.row for figure in RunRecord.load(tmp_path / "run.json").figures} == set(report["rows"])
