"""An `edge.json` that is no description of a pack is refused, with any content."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge.errors import CorruptBlock
from edge.models.manifest import PackManifest


def test_a_deeply_nested_manifest_is_corrupt(tmp_path: Path) -> None:
    for depth in (100_000, *range(900, 1000)):  # some can just be read, and not be written again for the checksum
        nested = "[" * depth + "]" * depth
        content = f'{{"format": "edge-pack", "version": 1, "name": {nested}}}'
        (tmp_path / "edge.json").write_text(content, encoding="utf-8")
        with pytest.raises(CorruptBlock, match=r"edge\.json is corrupt"):
            PackManifest.read(tmp_path)
