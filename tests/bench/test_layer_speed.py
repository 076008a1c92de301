"""`layer-speed` on the layer of a tiny model: every system computes the same layer."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from bench.layer_speed import layer_speed
from bench.run_record import RunRecord
from edge.runtimes.native.library import processor_level


def test_systems_compute_the_same(tmp_path: Path) -> None:
    options = ["--shapes", "tiny-bert", "--sequences", "9", "--tokens", "30", "--rounds", "2", "--threads", "1"]
    ended = CliRunner().invoke(layer_speed, [*options, "--json", "--store", str(tmp_path / "run.json")])
    assert ended.exit_code == 0, ended.output
    report = json.loads(ended.output)["shapes"]["tiny-bert"]
    found, left_out = report["systems"], report["left_out"]
    assert {*found, *left_out} == {"native", "onnx", "onnxruntime", "transformers"}
    assert "onnx" in found
    assert ("native" in found) == (processor_level() > 0)
    for row in found.values():
        assert len(row["seconds"]) == len(row["cpu"]) == 2
        assert min(row["seconds"]) > 0
        assert row["apart"] < 0.03  # int8 against fp32, activations of deviation 1
    run = RunRecord.load(tmp_path / "run.json")
    assert {figure.row for figure in run.figures} == set(found)
    assert {figure.row for figure in run.figures if figure.peer} == {"onnxruntime", "transformers"} & set(found)
    assert all(len(figure.rounds) == 2 for figure in run.figures)
    if "native" in found:
        assert found["onnx"]["apart"] < 1e-3
