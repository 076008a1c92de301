"""Verbs that wait for Ray when its head dies: each ends with one sentence, and nothing is lost."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from naive.spread_kills import started

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")


def test_every_verb_ends_when_the_head_dies_and_a_repeated_run_goes_on(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "7" * 64, "RAY_USAGE_STATS_ENABLED": "0"}.items():
        monkeypatch.setenv(name, value)
    child = started("headless", tmp_path, model_folder)
    try:
        assert child.wait(300) == 0, (tmp_path / "errors").read_text(errors="replace")[-2000:]
    finally:
        child.kill()
        child.communicate()
    *verbs, last = (line.split("\t", 1) for line in (tmp_path / "log").read_text("utf-8").splitlines())
    names = ["readers", "index", "status", "load", "grow", "publish", "train", "search"]
    assert [name for name, _ in verbs] == names
    for name, told in verbs:
        assert "Ray's head (" in told, (name, told)
        assert told.startswith(("Unreachable: ", "ShardLost: ")), (name, told)
    assert last == ["again", "30\t30\t()"]
