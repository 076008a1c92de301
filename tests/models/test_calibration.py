"""A calibration that cannot be read is refused in one way, whatever the file holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge.errors import CorruptBlock
from edge.models.calibration import FILE, Calibration


@pytest.mark.parametrize("content", ["", "{}", "{", "[]", "7", "null", '"x"', "\x00", "[" * 100_000])
def test_what_is_no_calibration_is_to_be_removed(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE).write_text(content, encoding="utf-8")
    with pytest.raises(CorruptBlock, match=r"calibration\.json cannot be read .*; remove the file and calibrate again"):
        Calibration.load(tmp_path, "fingerprint")
