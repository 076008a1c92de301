"""Fixtures of the index's tests."""

from collections.abc import Iterator

import pytest
from naive.searching import Rig


@pytest.fixture
def small_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledgers of these tests hold far less than the test process: nothing is to be given up for that."""
    monkeypatch.setattr("edge.budget.anonymous_resident", lambda: 0)


@pytest.fixture
def rigs(small_process: None) -> Iterator[list[Rig]]:
    """Searchers put in here are closed when the test ends."""
    made: list[Rig] = []
    yield made
    for rig in made:
        rig.close()
