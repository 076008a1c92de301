"""A calibration that is damaged is refused in one way for any content of the file, and never gives other values."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import numpy as np
import pytest

from edge.errors import CorruptBlock
from edge.files.sealed import sealed
from edge.models.calibration import FILE, Calibration, Forecast, Lens, Measured


def calibration() -> Calibration:
    generator = np.random.default_rng(0)
    lens = Lens(generator.normal(size=(3, 8)).astype(np.float32), generator.normal(size=3).astype(np.float32))
    points = (Measured(5, 20, "ranked", True, 1.0, 1.0, 1.0, 0.8),)
    lines = ((0.0, 0.5, 0.9, 1.0), (0.3, 0.1, 0.0, 0.0), (0.1, 0.2, 0.0, 0.0))
    margins = {"ranked": ((0.1, 3.0), (0.5, 2.0)), "top-k": ((0.1, 3.25),)}
    alone = Forecast(*lines, (math.inf, math.inf, 0.4, 0.0), margins)
    blended = Forecast(*lines, (1.4, 1.2, 0.4, 0.0), {"ranked": ((0.1, 2.0),), "top-k": ((0.1, 2.25),)})
    return Calibration("f", 0.99, 10, 20, (1, 2), alone, blended, 1.7, points, lens)


FORECAST = {"slopes": [0, 1], "pulls": [0, 0], "offsets": [0, 0], "errors": [None, 0], "margins": {"top-k": [[0.5, 2]]}}


@pytest.mark.parametrize("content", ["", "{}", "{", "[]", "7", "null", '"x"', "\x00", "[" * 100_000, "\ud800"])
def test_what_is_no_calibration_is_refused_with_the_way_out(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE).write_text(content, encoding="utf-8", errors="surrogatepass")
    with pytest.raises(
        CorruptBlock, match=r"calibration\.json is damaged: .*; `edge models calibrate` makes a new one"
    ):
        Calibration.load(tmp_path, "f")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 3}, "is of another version"),
        ({"points": 7}, "is no calibration"),
        ({"points": [{"k": 1}]}, "is no calibration"),
        ({"alone": 1}, "is no calibration"),
        ({"alone": {}}, "is no calibration"),
        ({"blended": {**FORECAST, "errors": ["wide", 0.0]}}, "is no calibration"),
        ({"blended": {**FORECAST, "errors": [0.0]}}, "is no calibration"),
        ({"blended": {**FORECAST, "margins": 2.0}}, "is no calibration"),
        ({"blended": {**FORECAST, "margins": {"ranked": []}}}, "is no calibration"),
        ({"blended": {**FORECAST, "margins": {"ranked": [[0.5, 1], [0.1, 2]]}}}, "is no calibration"),
        ({"lens": {"layers": 3, "hidden": 8, "weight": "AAAA", "bias": "AAAA"}}, "is no calibration"),
        ({"lens": 5}, "is no calibration"),
        ({"more": 5}, "is no calibration"),
    ],
)
def test_what_another_program_sealed_is_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    calibration().save(tmp_path)
    content = json.loads((tmp_path / FILE).read_text())
    del content["sha256"]
    (tmp_path / FILE).write_bytes(sealed({**content, **change}))
    with pytest.raises(CorruptBlock, match=message):
        Calibration.load(tmp_path, "f")


def test_errors_and_probes_come_back_bit_for_bit(tmp_path: Path) -> None:
    saved = calibration()
    saved.save(tmp_path)
    found = Calibration.load(tmp_path, "f")
    assert found == saved
    assert found is not None
    assert found.lens is not None
    assert saved.lens is not None
    assert np.array_equal(found.lens.weight, saved.lens.weight)
    assert np.array_equal(found.lens.bias, saved.lens.bias)
    assert found.lens.weight.flags.writeable  # the arrays are the reader's own, not views of the file's text


def test_no_single_damage_gives_other_values(tmp_path: Path) -> None:
    calibration().save(tmp_path)
    data = (tmp_path / FILE).read_bytes()
    chance = random.Random(0)
    for _ in range(600):
        at, bit = chance.randrange(len(data)), 1 << chance.randrange(8)
        (tmp_path / FILE).write_bytes(data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :])
        with pytest.raises(CorruptBlock):
            Calibration.load(tmp_path, "f")
    for cut in (*range(40), *(chance.randrange(len(data)) for _ in range(40))):
        (tmp_path / FILE).write_bytes(data[:cut])
        with pytest.raises(CorruptBlock):
            Calibration.load(tmp_path, "f")


def test_another_models_calibration_is_none(tmp_path: Path) -> None:
    calibration().save(tmp_path)
    assert Calibration.load(tmp_path, "another") is None
    assert Calibration.load(tmp_path / "nowhere", "f") is None
