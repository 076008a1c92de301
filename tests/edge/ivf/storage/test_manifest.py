"""A row that a damaged page hides is damage, as one with other bytes is."""

from __future__ import annotations

import sqlite3

import pytest

from edge.errors import CorruptBlock
from edge.ivf.storage.manifest import MIGRATIONS, IndexManifest


def test_a_segment_whose_row_is_not_found_is_damaged() -> None:
    db = sqlite3.connect(":memory:")
    for step in MIGRATIONS:
        db.executescript(step)
    with pytest.raises(CorruptBlock, match=r"the table of 1\.ivf is not what was written"):
        IndexManifest(db).segment("1.ivf")
    db.close()
