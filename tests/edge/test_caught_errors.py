"""An error that was caught keeps nothing alive: the memory of a refused or failed call is free before a collection."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import pytest

from edge.budget import MemoryBudget
from edge.runtimes.passes import Job
from edge.scheduling.background import Background


def _keeps_memory(fail: Callable[[], object]) -> bool:
    """Whether an array of a caller lives on after the error was caught."""
    kept: list[weakref.ref[np.ndarray]] = []

    def caller() -> None:
        array = np.zeros(10)
        kept.append(weakref.ref(array))
        fail()

    gc.disable()
    try:
        with suppress(Exception):
            caller()
        return kept[0]() is not None
    finally:
        gc.enable()


def _job() -> object:
    def fail() -> None:
        raise KeyError

    job = Job([], fail)
    with suppress(KeyError):
        job.begin()
    job.error = KeyError()
    return job.result


def _background() -> None:
    behind = Background("test")

    def fail() -> None:
        raise KeyError

    behind.submit(fail)
    while behind.busy:
        pass
    behind.settle()


@pytest.mark.parametrize(
    "fail",
    [
        lambda: MemoryBudget(1000, part=True).reserve("too large", 2000),
        lambda: MemoryBudget(1000, part=True).reserve("too large", 2000, wait=False),
        lambda: MemoryBudget(1000, part=True).reserve("own", 1).resize(2000),
        _background,
        _job,
    ],
    ids=["reserve", "reserve at once", "resize", "background", "job"],
)
def test_a_caught_error_keeps_nothing(fail: Callable[[], object]) -> None:
    assert not _keeps_memory(fail)
