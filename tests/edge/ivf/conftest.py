"""Fixtures of the index's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from naive.index import IndexRig
from naive.searching import Rig


@pytest.fixture
def rigs(small_process: None) -> Iterator[list[Rig]]:
    """Searchers put in here are closed when the test ends."""
    made: list[Rig] = []
    yield made
    for rig in made:
        rig.close()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[IndexRig]:
    """An empty index."""
    rig = IndexRig(tmp_path)
    yield rig
    rig.close()
