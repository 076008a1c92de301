"""A short siege: the long one's tool works, and finds nothing."""

from __future__ import annotations

from pathlib import Path

import pytest


def test_a_short_siege(tmp_path: Path) -> None:
    for name in ("starlette", "uvicorn", "mcp", "llama_cpp"):
        pytest.importorskip(name)
    from making.random_gguf import made_model

    from campaign.siege import besiege, prepared

    llm = made_model(tmp_path, "tiny")
    report = besiege(prepared(tmp_path), tmp_path, clients=8, seconds=10, limit=10**9, llm=llm, kills=1)
    assert report.problems == []
    assert "write" in report.served
    assert len(report.served) > 3, "the clients ask for mixed work"
    assert len(report.killed) == 1
    assert report.texts > 1
    assert report.mischief > 0
    assert report.written > 0
    assert 0 < report.thirds[0] <= report.peak <= report.limit


def test_a_short_siege_at_the_smallest_limit(tmp_path: Path) -> None:
    """The one that a refusal names: it is enough, where a byte too much shows."""
    for name in ("starlette", "uvicorn", "mcp"):
        pytest.importorskip(name)
    from campaign.siege import besiege, prepared

    home = prepared(tmp_path)
    limit = home.edge("serve", "--port", "0", "-c", "col", "--memory", "20MB").named
    assert limit is not None
    report = besiege(home, tmp_path, clients=8, seconds=8, limit=limit, kills=1)
    assert report.problems == []
    assert report.served
    assert report.written > 0
    assert 0 < report.peak <= limit
