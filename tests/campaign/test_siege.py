"""A short siege: the long one's tool works, and finds nothing."""

from __future__ import annotations

from pathlib import Path

import pytest


def test_a_short_siege(tmp_path: Path) -> None:
    for name in ("starlette", "uvicorn", "mcp"):
        pytest.importorskip(name)
    from campaign.siege import besiege, prepared

    report = besiege(prepared(tmp_path), tmp_path, clients=8, seconds=8, limit=10**9)
    assert report.problems == []
    assert {"rerank", "search", "remember"} <= report.served.keys()
    assert report.mischief > 0
    assert report.written > 0
    assert 0 < report.thirds[0] <= report.peak <= report.limit
