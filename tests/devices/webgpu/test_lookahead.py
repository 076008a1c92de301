"""An index larger than the device: lists come over its lane while a language model writes, hot lists stay there, the
host scans the others, and what is found is the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from making.random_gguf import RandomModel, words
from naive.lists import clustered, write_lists

from edge.budget import MemoryBudget
from edge.devices.cpu import CpuDevice
from edge.devices.faiss_codec import FaissCodecs
from edge.devices.webgpu.device import WebGpuDevice
from edge.ivf.search import IndexSearcher
from edge.runtimes.generation.base import Message, Sampling
from edge.runtimes.generation.llama_cpp import LlamaGenerator
from edge.trace import Trace

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
    codecs = FaissCodecs(threads=1)
    vectors = clustered(16000, DIM, clusters=30)
    lists = write_lists(
        tmp_path, vectors, codec=codecs.open(codecs.train(codec, vectors[:900], seed=0)), nlist=64, deleted=0.05
    )
    nbytes = sum(part.nbytes for parts in lists.snapshot.lists for part in parts)
    assert nbytes > CAP
    budget, trace = MemoryBudget(1 << 36, baseline=0), Trace()
    host, device = CpuDevice(budget), WebGpuDevice(budget, cap=CAP, always=True, trace=trace)
    alone, both = IndexSearcher(CpuDevice(budget)), IndexSearcher(host, places=[device], trace=trace)
    random = np.random.default_rng(0)
    hot = clustered(6, DIM, clusters=30, seed=7)
    fetched = hits = probed = 0
    for turn in range(12):
        # Most questions are about the same subjects; the text that is written is near its question.
        query = hot[[turn % 2]] if turn % 4 else hot[[2 + turn // 4]]
        near = query + 0.02 * random.standard_normal(query.shape).astype(np.float32)
        with both.lookahead(lists.snapshot, near, nprobe=4, depth=4) as window:
            assert write() > 0
            before = trace.snapshot()
            found = both.search(lists.snapshot, query, 10, nprobe=12, window=window)
            fetched += window.fetched
            probed += found.hits + found.lists_read
        expected = alone.search(lists.snapshot, query, 10, nprobe=12)
        assert found.ids.tolist() == expected.ids.tolist()
        assert found.scores.tobytes() == expected.scores.tobytes()
        hits += int(trace.snapshot().get("lists on webgpu.hits", 0) - before.get("lists on webgpu.hits", 0))
        assert device.card.held <= CAP
        assert device.memory.used <= CAP
    counters = trace.snapshot()
    assert 0 < fetched <= counters["webgpu link.bytes"]
    assert hits > 12 * 2, "parts of two lists of a search and more were on the device before it"
    assert counters["webgpu link.stall_s"] >= 0
    assert hits < probed, "not all: the index is larger than the device"
    for each in (alone, both, device, host):
        each.close()
    lists.close()
