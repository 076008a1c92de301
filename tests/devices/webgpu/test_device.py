"""Lists on the device `webgpu`: its contract, results equal to the host's, its memory, its loss, its refusals."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from making.random_gguf import RandomModel, words
from naive.beside import Both
from naive.lists import clustered, gridded

from edge.budget import MemoryBudget
from edge.devices.faiss_codec import FaissCodec
from edge.devices.testing import check_search
from edge.devices.webgpu import device as search
from edge.devices.webgpu.device import WebGpuDevice
from edge.errors import BudgetExceeded, CapabilityError, ConfigError, DeviceLost
from edge.ivf.base import CodecSpec, Vectors
from edge.ivf.device import Candidates, ListScan, SearchRequest, open_device
from edge.runtimes.generation.base import Message, Sampling
from edge.runtimes.generation.llama_cpp import LlamaGenerator

HUGE = 1 << 36


def budget() -> MemoryBudget:
    return MemoryBudget(HUGE, baseline=0)


def both_of(folder: Path, codec: str, vectors: Vectors, **options: Any) -> Both:
    return Both(folder, codec, partial(WebGpuDevice, always=True), vectors=vectors, **options)


@pytest.mark.parametrize("codec", ["flat", "sq8", "pq", "opq"])
def test_rows_are_cut_into_blocks(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_MOST_SLOTS", 8)
    check_search(WebGpuDevice, codec)


@pytest.mark.parametrize(
    ("codec", "dim"), [("flat", 6), ("flat", 48), ("sq8", 48), ("sq8", 33), ("pq", 64), ("opq", 36)]
)
def test_results_equal_those_of_the_host(tmp_path: Path, codec: str, dim: int) -> None:
    """Widths whose codes begin at multiples of 16 bytes, of 4 bytes, and anywhere."""
    both = both_of(tmp_path, codec, clustered(2500, dim), cap="4MB")
    queries = clustered(11, dim, seed=3)
    for allowed in (None, np.sort(both.lists.ids[::7])):
        for some in (queries, queries[:1]):
            found = both.check(some, nprobe=4, allowed=allowed)
    assert found.hits > 0
    assert both.device.card.held <= both.device.memory.limit
    both.close()


@pytest.mark.parametrize("codec", ["flat", "sq8"])
def test_more_rows_tie_than_may_come_back(tmp_path: Path, codec: str) -> None:
    both = both_of(tmp_path, codec, gridded(3000, 16, distinct=3), nlist=2)
    for queries in (gridded(3, 16, seed=1), gridded(1, 16, seed=2)):
        both.check(queries, nprobe=2)
    both.close()


def scanned(device: WebGpuDevice, vectors: Vectors, queries: Vectors, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of rows that the host scored in a search for ten rows of one list of each query."""
    rows: list[int] = []
    original = FaissCodec.scanner

    def watched(codec: FaissCodec) -> Any:
        scanner = original(codec)
        scan: Callable[..., None] = scanner.scan

        def counted(codes: Any, labels: Any, *into: Any) -> None:
            rows.append(len(labels))
            scan(codes, labels, *into)

        monkeypatch.setattr(scanner, "scan", counted, raising=False)
        return scanner

    monkeypatch.setattr(FaissCodec, "scanner", watched)
    codec = FaissCodec(CodecSpec("flat", vectors.shape[1], 4 * vectors.shape[1]))
    buffer = device.allocate(vectors.nbytes)
    device.write(buffer, vectors.view(np.uint8))
    scan = ListScan(buffer, 0, len(vectors), None, range(len(queries)))
    seen = Candidates.empty(len(queries), 10)
    device.search(SearchRequest(codec, queries, [scan], np.arange(len(vectors)), seen))
    best = np.sort(queries @ vectors.T, axis=1)[:, -10:]
    assert np.allclose(np.sort(seen.scores, axis=1), best, atol=1e-5)
    device.free(buffer)
    return rows


@pytest.mark.parametrize("queries", [1, 3, 8, 9])
def test_only_rows_above_the_floor_come_back(queries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    device = WebGpuDevice(budget())
    random = np.random.default_rng(0)
    vectors = random.standard_normal((5000, 32)).astype(np.float32)
    rows = scanned(device, vectors, random.standard_normal((queries, 32)).astype(np.float32), monkeypatch)
    assert len(rows) == queries
    assert all(10 <= each <= 20 for each in rows)
    device.close()


def test_a_search_of_a_query_is_one_submission() -> None:
    """Each costs as much as a small scan, also one without commands."""
    device = WebGpuDevice(budget())
    queue, submitted = device.card.device.queue, []
    submit, codec = queue.submit, FaissCodec(CodecSpec("flat", 8, 32))
    buffer = device.allocate(3200)
    device.write(buffer, np.random.default_rng(0).standard_normal((100, 8), np.float32).view(np.uint8))
    queue.submit = lambda commands: (submitted.append(len(commands)), submit(commands))
    scan = ListScan(buffer, 0, 100, None, [0])
    device.search(SearchRequest(codec, np.ones((1, 8), np.float32), [scan], np.arange(100), Candidates.empty(1, 5)))
    assert submitted == [1]
    device.close()


def test_wide_vectors_are_searched_by_one_query_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    device = WebGpuDevice(budget())
    random = np.random.default_rng(0)
    vectors, queries = (random.standard_normal((n, 2064)).astype(np.float32) for n in (300, 3))
    scanned(device, vectors, queries, monkeypatch)
    with pytest.raises(CapabilityError, match="at most 16384 components, not 16400"):
        scanned(device, np.ones((3, 16400), np.float32), np.ones((1, 16400), np.float32), monkeypatch)
    device.close()


def test_lists_come_and_go_and_move_together() -> None:
    """Random lists, until no more fit, many times. What each holds is always what was written to it."""
    ledger = budget()
    device = WebGpuDevice(ledger, cap=400_000)
    random = np.random.default_rng(1)
    held: list[tuple[Any, Any, Any]] = []
    moved = 0
    for _ in range(300):
        nbytes = int(random.integers(1, 40_000))
        if held and (device.memory.free < nbytes or random.random() < 0.3):
            lease, buffer, _ = held.pop(int(random.integers(len(held))))
            device.free(buffer)
            lease.release()
            continue
        lease = device.memory.reserve("test", nbytes)
        places = [buffer.offset for _, buffer, _ in held]
        try:
            buffer = device.allocate(nbytes)
        except BudgetExceeded:
            lease.release()
            continue
        moved += places != [each.offset for _, each, _ in held]
        data = random.integers(0, 256, nbytes).astype(np.uint8)
        device.write(buffer, data)
        held.append((lease, buffer, data))
        assert device.card.held <= device.memory.limit
    assert moved
    assert len(held) > 5
    for lease, buffer, data in held:
        read = device.card.device.queue.read_buffer(buffer.slab.buffer, buffer.offset, -(-buffer.nbytes // 4) * 4)
        assert np.frombuffer(read, np.uint8)[: buffer.nbytes].tolist() == data.tolist()
        lease.release()
    held.clear()
    device.close()
    assert not ledger.used


def test_its_loss_leaves_results_equal(tmp_path: Path) -> None:
    for lost_after in (0, 1):
        (tmp_path / str(lost_after)).mkdir()
        both = both_of(tmp_path / str(lost_after), "sq8", clustered(2500, 48))
        for _ in range(lost_after):
            both.check()
        both.device.card.device.destroy()
        for _ in range(2):
            both.check()
        assert both.searcher.place.lost
        with pytest.raises(DeviceLost, match="webgpu does not answer"):
            both.device.write(both.device.allocate(16), np.zeros(16, np.uint8))
        both.close()


def test_a_gpu_that_has_the_hosts_memory_counts_there_once() -> None:
    ledger = budget()
    first = WebGpuDevice(ledger, cap="8MB")
    assert ("software GPU" in first.hardware) == first.card.software
    second = WebGpuDevice(ledger)
    assert second.memory is first.memory
    assert second.memory.limit == 8_000_000
    assert ledger.holders().get("webgpu memory", 0) == (8_000_000 if first.card.shared else 0)
    with pytest.raises(ConfigError, match=r"in use with 8\.00 MB of its memory, not 9MB"):
        WebGpuDevice(ledger, cap="9MB")
    first.close()
    second.close()
    assert not ledger.used


def test_the_growth_of_the_process_is_leased() -> None:
    """In a process of its own, which compares its anonymous memory with the leases after searches of each codec."""
    program = """
        import numpy as np
        from edge.budget import MemoryBudget
        from edge.devices.faiss_codec import FaissCodecs
        from edge.devices.testing import _lists
        from edge.devices.webgpu.device import WebGpuDevice
        from edge.ivf.device import Candidates, SearchRequest
        from edge.resident import anonymous_resident
        random = np.random.default_rng(0)
        codecs = FaissCodecs(threads=1)
        opened = [codecs.open(codecs.train(name, random.standard_normal((600, 16)).astype(np.float32), seed=0))
                  for name in ("flat", "sq8", "pq")]
        [codec.decode(codec.encode(np.ones((9, 16), np.float32))) for codec in opened]
        budget = MemoryBudget(1 << 36, baseline=0)
        before = anonymous_resident()
        device = WebGpuDevice(budget, cap="8MB")
        for codec in opened:
            scans, _ = _lists(device, codec, random)
            for queries in (np.ones((1, 16), np.float32), np.ones((4, 16), np.float32)):
                for scan in scans:
                    scan.queries = range(len(queries))
                device.search(SearchRequest(codec, queries, scans, np.arange(500), Candidates.empty(len(queries), 5)))
        print(anonymous_resident() - before, budget.used)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, capture_output=True, text=True)
    grown, leased = map(int, done.stdout.split())
    assert grown <= leased + (4 << 20)


@pytest.mark.parametrize(
    ("open_it", "message"),
    [
        (partial(open_device, "webgpu:on=no such GPU"), "no GPU whose name contains 'no such GPU'; there are "),
        (partial(open_device, "webgpu:colour=red"), "device webgpu cannot be opened with these options"),
        (partial(open_device, "webgpu:cap=1"), "does not fit the device webgpu"),
        (partial(open_device, "webgpu:cap=15"), "does not fit the device webgpu"),
    ],
)
def test_what_is_not_there_is_refused(open_it: Callable[[MemoryBudget], Any], message: str) -> None:
    ledger = budget()
    with pytest.raises((BudgetExceeded, CapabilityError, ConfigError), match=message):
        open_it(ledger)
    assert not ledger.used


def test_without_wgpu_or_a_driver_the_refusal_has_the_line_that_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    import wgpu

    monkeypatch.setattr(wgpu.gpu, "enumerate_adapters_sync", list)
    with pytest.raises(CapabilityError, match=r"no driver for Vulkan, Metal or DirectX 12; .* mesa-vulkan-drivers"):
        WebGpuDevice(budget())
    monkeypatch.setitem(sys.modules, "wgpu", None)
    with pytest.raises(CapabilityError, match=r'pip install "edge-rag\[webgpu\]"'):
        WebGpuDevice(budget())


DIM, CAP = 64, 700_000


@pytest.fixture
def write(tmp_path: Path) -> Callable[[], int]:
    """Writes tokens with a tiny random model, and returns how many."""
    pytest.importorskip("llama_cpp")
    generator = LlamaGenerator(
        RandomModel().write(tmp_path / "model.gguf"), budget=MemoryBudget(1 << 33), cache=tmp_path / "cache", threads=1
    )
    messages = [Message("user", words(8, 2))]
    return lambda: len(list(generator.stream(messages, Sampling(max_tokens=12))))


@pytest.mark.parametrize("codec", ["flat", "sq8"])
def test_lists_come_while_a_model_writes(tmp_path: Path, write: Callable[[], int], codec: str) -> None:
    both = both_of(tmp_path, codec, clustered(16000, DIM, clusters=30), cap=CAP, nlist=64)
    lists, trace, device = both.lists, both.trace, both.device
    assert sum(part.nbytes for parts in lists.snapshot.lists for part in parts) > CAP
    random = np.random.default_rng(0)
    hot = clustered(6, DIM, clusters=30, seed=7)
    fetched = hits = probed = 0
    for turn in range(12):
        # Most questions are about the same subjects; the text that is written is near its question.
        query = hot[[turn % 2]] if turn % 4 else hot[[2 + turn // 4]]
        near = query + 0.02 * random.standard_normal(query.shape).astype(np.float32)
        with both.searcher.lookahead(lists.snapshot, near, nprobe=4, depth=4) as window:
            assert write() > 0
            before = trace.snapshot()
            found = both.check(query, nprobe=12, window=window)
            fetched += window.fetched
            probed += found.hits + found.lists_read
        hits += int(trace.snapshot().get("lists on webgpu.hits", 0) - before.get("lists on webgpu.hits", 0))
        assert device.card.held <= CAP
        assert device.memory.used <= CAP
    counters = trace.snapshot()
    assert 0 < fetched <= counters["webgpu link.bytes"]
    assert hits > 12 * 2, "parts of two lists of a search and more were on the device before it"
    assert counters["webgpu link.stall_s"] >= 0
    assert hits < probed, "not all: the index is larger than the device"
    both.close()
