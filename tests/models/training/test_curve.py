"""The learning curve from a log."""

from __future__ import annotations

import json
from pathlib import Path

from edge.models.training.curve import draw, main, read


def write_log(path: Path, steps: list[int]) -> Path:
    lines = [{"step": s, "pairs": 480.0, "layers": [2.0 - s / 100, 1.0 - s / 100]} for s in steps]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def test_steps_repeated_after_a_resume_count_once(tmp_path: Path) -> None:
    curve = read(write_log(tmp_path / "log.jsonl", [10, 20, 30, 20, 30, 40]), smooth=2)
    assert curve.pairs == [960.0, 1920.0]
    assert [round(v, 3) for v in curve.layers[0]] == [1.85, 1.65]


def test_the_picture_has_a_line_for_every_layer(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.jsonl", [10, 20, 30])
    assert main([str(log), str(tmp_path / "curve.svg")]) == 0
    assert (tmp_path / "curve.svg").read_text(encoding="utf-8").count("<polyline") == 2
    (tmp_path / "empty.jsonl").write_text("", encoding="utf-8")
    draw(read(tmp_path / "empty.jsonl"), tmp_path / "empty.svg")
