"""`packing-loss` on single layers."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from bench.packing_loss import packing_loss

pytest.importorskip("transformers")


def test_single_layers() -> None:
    options = ["--families", "distilbert,modernbert", "--layers", "1", "--sequences", "2", "--json"]
    ended = CliRunner().invoke(packing_loss, options)
    assert ended.exit_code == 0, ended.output
    found = json.loads(ended.output)["families"]
    assert set(found) == {"distilbert", "modernbert"}
    for row in found.values():
        assert row["fp32"][0] < 1e-5
        assert 0 < row["int8"][0] <= row["worst"][0] < 0.01
