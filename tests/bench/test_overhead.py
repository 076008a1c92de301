"""`overhead` on a tiny model: the parts make up the whole, and without layers the same calls are made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from making.synth import synth

from bench.overhead import PARTS, overhead
from bench.run_record import RunRecord


def test_parts_make_up_the_whole(tmp_path: Path) -> None:
    packed = synth("tiny-bert", tmp_path / "pack")
    options = ["--model", str(packed.path), "--candidates", "5", "--tokens", "40", "--memory", "1GB"]
    options += ["--rows", "400", "--dim", "16", "--nprobe", "3", "--rounds", "2", "--threads", "1"]
    ended = CliRunner().invoke(
        overhead, [*options, "--work-dir", str(tmp_path), "--json", "--store", str(tmp_path / "run.json")]
    )
    assert ended.exit_code == 0, ended.output
    report = json.loads(ended.output)
    for name, rounds in report["rerank"]["arms"].items():
        assert len(rounds) == 2
        for row in rounds:
            assert row["seconds"] == pytest.approx(row["core"] + sum(row[part] for part in PARTS))
            assert min(row["core"], *(row[part] for part in PARTS)) > 0, name
    layers = {name: sum(row["layers"] for row in rounds) for name, rounds in report["rerank"]["arms"].items()}
    assert layers["null"] < layers["layers"]
    assert all(min(seconds) > 0 for seconds in report["search"].values())
    assert {figure.row for figure in RunRecord.load(tmp_path / "run.json").figures} == {"layers", "null", "cpu"}
