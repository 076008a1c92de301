"""The arithmetic of training: as told, or the faster one on this machine."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from edge.models.training import precision  # noqa: E402


@pytest.mark.parametrize("choice", ["bfloat16", "float32"])
def test_what_is_told_is_done(choice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "_seconds", lambda kind: pytest.fail("nothing is to be measured"))
    assert precision.in_bfloat16(choice) == (choice == "bfloat16")


@pytest.mark.parametrize("faster", [torch.bfloat16, torch.float32])
def test_auto_takes_the_faster_one(faster: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    precision.bfloat16_is_faster.cache_clear()
    monkeypatch.setattr(precision, "_seconds", lambda kind: 1.0 if kind == faster else 100.0)
    assert precision.in_bfloat16() == (faster == torch.bfloat16)
    precision.bfloat16_is_faster.cache_clear()


def test_a_try_is_timed() -> None:
    assert 0 < precision._seconds(torch.float32) < 10
