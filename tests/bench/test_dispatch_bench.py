"""`dispatch` on a judged set of a few paragraphs: its micro-batches, its replies, and equal results."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from naive.program import output_of

from bench.dispatch import _ARMS, InTurn, _replies, batches, dispatch
from bench.rag_traces import cases, write_trace
from bench.run_record import RunRecord
from edge.ivf.dispatch import group
from edge.models.training.corpora import load


def test_questions_come_in_micro_batches() -> None:
    asked = np.random.default_rng(0).standard_normal((10, 4)).astype(np.float32)
    assert [numbers.tolist() for numbers in batches(asked, 4, grouped=False)] == [
        [0, 1, 2, 3], [4, 5, 6, 7], [8, 9],
    ]  # fmt: skip
    grouped = [numbers.tolist() for numbers in batches(asked, 4, grouped=True)]
    assert grouped == [numbers.tolist() for numbers in group(asked, 4)]
    assert InTurn([]).take([{1}, {2}], None) == 0  # type: ignore[arg-type]


def test_replies_last_as_long_as_their_tokens(judged: Path, tmp_path: Path) -> None:
    asked = cases(load(judged))[:2]
    write_trace(tmp_path / "t.jsonl", "hyde", asked, prefill=60.0, decode=10.0)
    passages, windows, answers = _replies(tmp_path / "t.jsonl", 60.0, 10.0)
    lines = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text("utf-8").splitlines()[1:]]
    assert len(passages) == len(windows) == len(answers) == 2
    for number, case in enumerate(asked):
        assert case.wrong in passages[number]
        assert windows[number] == pytest.approx(1.0 + len(lines[2 * number]["pieces"]) / 10)
        assert answers[number] == pytest.approx(6.0 + len(lines[2 * number + 1]["pieces"]) / 10)


def test_every_number_of_devices_finds_the_same(replaying: list[str], tmp_path: Path) -> None:
    options = ["--questions", "4", "--warmup", "2", "--micro-batch", "2", "--counts", "1,3"]
    report = json.loads(output_of(dispatch, *replaying, *options))
    assert "limited" in report["conditions"]["device"]
    assert report["conditions"]["identical"]
    assert [row["devices"] for row in report["devices"]] == [1, 3]
    assert {figure.row for figure in RunRecord.load(tmp_path / "run.json").figures} == {"1", "3"}
    for row in report["devices"]:
        assert list(row["arms"]) == list(_ARMS)
        for arm in row["arms"].values():
            assert 0 <= arm["hit_rate"] <= 1
            assert arm["rate"] == pytest.approx(4 / arm["seconds"])
    arguments = [*replaying[: replaying.index("--json")], *options]
    for counts in ("two", "0"):
        assert CliRunner().invoke(dispatch, [*arguments, "--counts", counts]).exit_code == 2
    refused = CliRunner().invoke(dispatch, [*arguments, "--questions", "100"])
    assert "has only" in str(refused.exception)
