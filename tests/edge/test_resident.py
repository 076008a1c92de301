"""The measured memory is really held, and freed memory is handed back."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from naive.program import printed
from naive.waiting import PATIENCE_S

from edge.resident import ResidentWatch, anonymous_resident, group_limit, measured_growth, trim_heap

CLOSE = 1_500_000
"""Arrays here are larger than anything the C library would keep in its heap when they are freed (32 MiB)."""


@pytest.fixture(autouse=True)
def nothing_else_is_freed() -> Iterator[None]:
    """Cyclic garbage of earlier tests is freed before a measurement and not within it."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.skipif(sys.platform != "linux", reason="Linux has huge pages")
def test_a_budget_keeps_huge_pages_away() -> None:
    """With huge pages, one byte written in each 2 MB would make all of them resident."""
    program = """
        import numpy as np
        from edge.budget import MemoryBudget
        from edge.resident import anonymous_resident
        MemoryBudget(10**12)
        before = anonymous_resident()
        data = np.empty(64 << 20, np.uint8)
        data[:: 1 << 20] = 1
        print(anonymous_resident() - before)
    """
    assert int(printed(program)) < 2 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="glibc keeps freed memory")
def test_what_an_owner_has_freed_is_there_for_the_next_one() -> None:
    """glibc keeps up to 64 MB that was freed, once a block of 32 MB was: a new owner's memory would come on top."""
    program = """
        from edge.budget import MemoryBudget
        from edge.resident import anonymous_resident
        budget = MemoryBudget(anonymous_resident() + (60 << 20))
        bytes(30 << 20)
        before = anonymous_resident()
        freed = [bytes(100 << 10) for _ in range(400)]
        del freed
        kept = anonymous_resident() - before
        with budget.reserve("the next owner", 50 << 20):
            print(kept, anonymous_resident() - before)
    """
    kept, left = map(int, printed(program).split())
    assert left < 5 << 20, f"{kept} bytes were kept at first"


def test_growth_is_measured_and_never_negative() -> None:
    ballast = [np.ones(48_000_000, np.uint8)]
    with measured_growth() as shrunk:
        ballast.clear()
    assert shrunk.nbytes == 0
    with measured_growth() as grown:
        ballast.append(np.ones(48_000_000, np.uint8))
    assert grown.nbytes == pytest.approx(48_000_000, abs=CLOSE)
    with measured_growth() as untouched:
        ballast.append(np.empty(200_000_000, np.uint8))
    assert untouched.nbytes == pytest.approx(0, abs=CLOSE)
    trim_heap()
    before = anonymous_resident()
    crumbs = [bytearray(5000) for _ in range(8000)]
    kept = crumbs[::50]
    assert anonymous_resident() - before > 35_000_000
    del crumbs
    trim_heap()
    assert anonymous_resident() - before < 20_000_000, "trimming gives scattered free pages back"
    assert len(kept) == 160


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
    before, seen = watching(), threading.Event()

    class Seeing(ResidentWatch):
        def sample(self) -> int:
            if threading.current_thread() is not threading.main_thread():
                seen.set()
            return super().sample()

    with Seeing(interval=0.001):
        assert seen.wait(PATIENCE_S), "it samples from its own thread until it is closed"
    assert watching() == before


def watching() -> set[threading.Thread]:
    """Threads of a watch; others belong to other tests, and may end at any moment."""
    return {thread for thread in threading.enumerate() if thread.name == "edge-resident-watch"}


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
    for _ in range(6):
        with turn:
            parts = [np.ones(size, np.uint8) for size in [100_000] * 60 + [3_000_000] * 4]
            del parts

before = anonymous_resident()
threads = [threading.Thread(target=work) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(anonymous_resident() - before)
"""
    assert int(printed(code)) < 25_000_000  # eight threads' heaps would be 144 MB


@pytest.mark.parametrize(
    ("groups", "files", "limit"),
    [
        ("0::/outer/own\n", {"outer/own/memory.max": "max\n", "outer/memory.max": "200000000\n"}, 200_000_000),
        ("0::/\n", {"memory.max": "150000000\n"}, 150_000_000),
        ("9:cpu:/a\n4:memory:/a\n", {"memory/a/memory.limit_in_bytes": "9223372036854771712\n"}, None),
        ("4:memory:/a/b\n0::/\n", {"memory/a/memory.limit_in_bytes": "90000000\n"}, 90_000_000),
        ("nonsense\n0::/gone\n", {"memory.max": "what\n"}, None),
        (None, {}, None),
    ],
)
def test_the_limit_of_a_container_is_that_of_its_groups(
    groups: str | None, files: dict[str, str], limit: int | None, tmp_path: Path
) -> None:
    if groups is not None:
        (tmp_path / "cgroup").write_text(groups)
    for name, text in files.items():
        (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / name).write_text(text)
    assert group_limit(tmp_path / "cgroup", tmp_path / "root") == limit
