"""`raw-rate` on a tiny model: a share for each number of answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.raw_rate import raw_rate
from bench.run_record import RunRecord


def test_the_loop_is_the_measure(tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    options = ["--at-once", "1,3", "--answer", "12", "--rounds", "2", "--threads", "1", "--work-dir", str(tmp_path)]
    ended = CliRunner().invoke(raw_rate, [*options, "--json", "--store", str(tmp_path / "run.json")])
    assert ended.exit_code == 0, ended.output
    tables = json.loads(ended.output[ended.output.index("{") :])["tables"]
    assert list(tables) == ["1 at once", "3 at once"]
    for found in tables.values():
        for ours, theirs, share in zip(
            found["edge"]["tokens_per_s"], found["loop"]["tokens_per_s"], found["edge"]["share"], strict=True
        ):
            assert share == pytest.approx(ours / theirs)
        assert min(found["edge"]["cpu"]) > 0
    run = RunRecord.load(tmp_path / "run.json")
    assert {(figure.row, figure.peer) for figure in run.figures} == {("edge", False), ("loop", True)}
