"""What a tier hands out: every part once, whenever it arrives."""

from __future__ import annotations

from pathlib import Path

import pytest
from naive.lists import gridded
from naive.searching import Rig

from edge.cache.residency import Handle
from edge.ivf.reading import Reader


def test_a_part_that_arrives_at_any_moment_is_handed_out_once(
    rigs: list[Rig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rigs.append(rig := Rig(tmp_path, gridded(300, 8), nlist=6))
    parts = [part for parts in rig.lists.snapshot.lists for part in parts]
    asked: set[int] = set()

    def ready(handle: Handle) -> bool:
        """On its way when first asked, there when asked again."""
        first = id(handle) not in asked
        asked.add(id(handle))
        return not first

    monkeypatch.setattr(Handle, "ready", property(ready))
    reader = Reader(rig.searcher.host, parts, range(len(parts)))
    handed = []
    for batch in reader:
        for readable in batch:
            handed.append(readable.number)
            readable.release()
    reader.close()
    assert sorted(handed) == list(range(len(parts)))
