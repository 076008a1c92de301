"""Fixtures of the tuning's tests."""

import pytest


@pytest.fixture
def small_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledgers of these tests hold far less than the test process: nothing is to be given up for that."""
    monkeypatch.setattr("edge.budget.anonymous_resident", lambda: 0)
