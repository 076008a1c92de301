"""The streams of a GPU, with a `torch` that stands in for the real one."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from edge.devices.cuda.card import CudaStream
from edge.errors import EdgeError


class OutOfMemoryError(RuntimeError):
    pass


def test_memory_that_torch_lacks_is_one_sentence() -> None:
    cuda = SimpleNamespace(Stream=lambda device: None, stream=lambda stream: nullcontext())
    torch = SimpleNamespace(cuda=cuda, inference_mode=nullcontext, OutOfMemoryError=OutOfMemoryError)
    stream = CudaStream(torch, "cuda:0")
    done: list[int] = []
    stream.run(lambda: done.append(1))
    assert done == [1]

    def greedy() -> None:
        raise OutOfMemoryError("Tried to allocate 2 GiB.\nMore lines")

    with pytest.raises(EdgeError, match=r"raise the limit: Tried to allocate 2 GiB\.$"):
        stream.run(greedy)
