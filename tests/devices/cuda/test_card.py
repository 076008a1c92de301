"""The streams of a GPU, with a `torch` that stands in for the real one."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from edge.budget import MemoryBudget
from edge.devices.cuda.card import Card, CudaStream
from edge.errors import BudgetExceeded, EdgeError


class OutOfMemoryError(RuntimeError):
    pass


def test_products_of_float32_are_not_shortened() -> None:
    torch = pytest.importorskip("torch")
    torch.set_float32_matmul_precision("high")
    Card("cpu", "", None).close()
    assert torch.get_float32_matmul_precision() == "highest"


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


def test_a_tensor_that_torch_has_no_room_for_is_over_the_limit() -> None:
    """So that a list which does not fit stays with the host."""

    def empty(shape: tuple[int, ...], **options: object) -> None:
        raise OutOfMemoryError("Tried to allocate 2 GiB.\nMore lines")

    card = Card.__new__(Card)
    card.torch = SimpleNamespace(empty=empty, uint8=None, OutOfMemoryError=OutOfMemoryError)
    card.device, card.memory = None, MemoryBudget(1000, part=True)
    with pytest.raises(BudgetExceeded, match=r"raise the limit: Tried to allocate 2 GiB\.$") as caught:
        card.allocate(5, 20)
    assert (caught.value.asked, caught.value.needed) == (100, 1100)
