"""Advice about coming reads changes nothing but when bytes arrive."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edge.blocks import BlockFile, BlockId, Extent


@pytest.mark.parametrize("takes_advice", [True, False])
def test_announced_bytes_are_read_as_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, takes_advice: bool) -> None:
    if not takes_advice:
        monkeypatch.delattr(os, "posix_fadvise", raising=False)
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 64)
    file = BlockFile(path, {BlockId("b"): Extent(100, 50, 0)})
    file.announce([(100, 50), (0, 10), (1 << 20, 10)])
    file.announce([])
    assert os.path.getsize(path) == 256 * 64
    file._verified.add(BlockId("b"))
    into = bytearray(50)
    file.read(BlockId("b"), memoryview(into))
    assert bytes(into) == bytes(range(100, 150))
    file.close()


def test_a_long_range_is_announced_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(
        os, "posix_fadvise", lambda fd, offset, nbytes, advice: asked.append((offset, nbytes)), raising=False
    )
    monkeypatch.setattr(os, "POSIX_FADV_WILLNEED", 3, raising=False)
    path = tmp_path / "file"
    path.write_bytes(b"x")
    file = BlockFile(path, {})
    file.announce([(100, (1 << 17) + 50), (7, 3)])
    file.close()
    assert asked == [(100, 1 << 17), (100 + (1 << 17), 50), (7, 3)]
