"""Fixtures of the index's tests."""

from collections.abc import Iterator

import pytest
from naive.searching import Rig


@pytest.fixture
def rigs(small_process: None) -> Iterator[list[Rig]]:
    """Searchers put in here are closed when the test ends."""
    made: list[Rig] = []
    yield made
    for rig in made:
        rig.close()
