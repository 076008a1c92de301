"""Memory really held is what is measured, and what is freed is handed back."""

from __future__ import annotations

import subprocess
import sys
import threading

import numpy as np
import pytest

from edge.resident import ResidentWatch, anonymous_resident, measured_growth, trim_heap

CLOSE = 1_500_000
"""Arrays here are larger than anything the C library would keep in its heap when they are freed (32 MiB)."""


def test_allocated_and_freed_bytes_show() -> None:
    trim_heap()
    before = anonymous_resident()
    data = np.ones(48_000_000, np.uint8)
    assert anonymous_resident() - before == pytest.approx(data.nbytes, abs=CLOSE)
    del data
    assert anonymous_resident() - before == pytest.approx(0, abs=CLOSE)


def test_memory_that_was_never_touched_does_not_count() -> None:
    before = anonymous_resident()
    data = np.empty(200_000_000, np.uint8)
    assert anonymous_resident() - before == pytest.approx(0, abs=CLOSE)
    assert data.nbytes == 200_000_000


def test_trimming_gives_scattered_free_pages_back() -> None:
    trim_heap()
    before = anonymous_resident()
    crumbs = [bytearray(5000) for _ in range(8000)]
    kept = crumbs[::50]
    del crumbs
    trim_heap()
    assert anonymous_resident() - before < 20_000_000
    assert len(kept) == 160


def test_growth_is_measured_and_never_negative() -> None:
    ballast = [np.ones(48_000_000, np.uint8)]
    with measured_growth() as shrunk:
        ballast.clear()
    assert shrunk.nbytes == 0
    with measured_growth() as grown:
        ballast.append(np.ones(48_000_000, np.uint8))
    assert grown.nbytes == pytest.approx(48_000_000, abs=CLOSE)


def test_the_watch_keeps_the_highest_value_of_its_samples() -> None:
    trim_heap()
    with ResidentWatch(interval=1000.0) as watch:  # only samples taken by hand
        first = watch.high_water
        data = np.ones(48_000_000, np.uint8)
        assert watch.high_water == first
        assert watch.sample() - first == pytest.approx(data.nbytes, abs=CLOSE)
        del data
        watch.sample()
        assert watch.high_water - first == pytest.approx(48_000_000, abs=CLOSE)
        watch.reset()
        assert watch.high_water - first == pytest.approx(0, abs=CLOSE)


def test_the_watch_samples_from_its_own_thread_until_closed() -> None:
    threads = threading.active_count()
    seen = threading.Event()

    class Seeing(ResidentWatch):
        def sample(self) -> int:
            if threading.current_thread() is not threading.main_thread():
                seen.set()
            return super().sample()

    with Seeing(interval=0.001):
        assert seen.wait(30)
    assert threading.active_count() == threads


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_threads_that_take_turns_hold_the_memory_of_one() -> None:
    """In a process of its own: the heaps that other tests' threads have made stay."""
    code = """
import threading
import numpy as np
from edge.budget import MemoryBudget
from edge.resident import anonymous_resident

budget = MemoryBudget(10**12)
turn = threading.Lock()

def work():
    for _ in range(20):
        with turn:
            parts = [np.ones(size, np.uint8) for size in [100_000] * 60 + [3_000_000] * 4]
            del parts

before = anonymous_resident()
threads = [threading.Thread(target=work) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(anonymous_resident() - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 25_000_000  # eight threads' heaps would be 144 MB
