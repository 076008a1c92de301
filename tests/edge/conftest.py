"""Fixtures that several files of this folder use."""

from collections.abc import Iterator

import pytest
from naive.held import Held
from naive.residing import Rig
from naive.window import WindowRig

from edge.link import Lane


@pytest.fixture
def rigs() -> Iterator[list[WindowRig]]:
    """Windows put in here are closed when the test ends."""
    made: list[WindowRig] = []
    yield made
    for rig in made:
        rig.close()


@pytest.fixture
def lane() -> Iterator[Lane]:
    """A link at full speed."""
    with Lane() as made:
        yield made


@pytest.fixture
def held(lane: Lane) -> Iterator[Held]:
    """The same lane, kept busy until the test opens it."""
    made = Held(lane)
    yield made
    made.open()


@pytest.fixture
def rig() -> Iterator[Rig]:
    """A residency over a source and a lane of its own."""
    made = Rig()
    yield made
    made.source.gate.set()
    made.lane.close()


@pytest.fixture
def small_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledgers of these tests hold far less than the test process: nothing is to be given up for that."""
    monkeypatch.setattr("edge.budget.anonymous_resident", lambda: 0)
