"""Lists on the device `cuda`: scanned in small blocks, sent and searched by streams that are late, refused clearly."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from naive.lists import NaiveCodec, gridded, trained, write_lists
from naive.searching import Rig
from naive.simulated_streams import POLICIES, SimulatedStreams
from naive.waiting import until

from edge.blocks import BlockFile, BlockId
from edge.budget import MemoryBudget
from edge.devices.cpu import CpuDevice
from edge.devices.cuda import device
from edge.devices.cuda.card import Card, CudaStream
from edge.devices.cuda.device import CudaDevice
from edge.devices.testing import check_device, check_search
from edge.errors import BudgetExceeded, CorruptBlock, EdgeError
from edge.ivf.device import Candidates, ListScan, SearchRequest, open_device
from edge.ivf.reading import DeviceTier, Reader
from edge.link import Lane

torch = pytest.importorskip("torch")

FLAT = trained("flat", np.zeros((1, 4), np.float32))


@pytest.mark.parametrize("codec", ["flat", "sq8", "pq"])
def test_lists_are_searched_in_parts_where_memory_is_short(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_WORKING_NBYTES", 1)
    check_search(partial(CudaDevice, on="cpu"), codec)


@pytest.mark.parametrize("eager", POLICIES, ids=lambda eager: "+".join(sorted(eager)) or "none")
def test_the_contract_holds_on_late_streams(eager: frozenset[str]) -> None:
    check_device(lambda budget: CudaDevice(budget, on="cpu", streams=SimulatedStreams(torch, eager).open))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # memory that was never written is any numbers
@pytest.mark.parametrize("dropped", [("inward", "compute"), ("compute", "inward")])
def test_a_forgotten_wait_is_a_wrong_result(dropped: tuple[str, str]) -> None:
    """A buffer that is searched, filled anew and searched again, without waiting for anything in between."""
    first, second = np.ones((3, 4), np.float32), np.full((3, 4), 5, np.float32)
    query = np.ones((1, 4), np.float32)

    def best(eager: frozenset[str], waits: frozenset[Any]) -> list[float]:
        streams = SimulatedStreams(torch, eager, waits)
        device = CudaDevice(MemoryBudget(1 << 36, baseline=0), on="cpu", streams=streams.open)
        buffer = device.allocate(first.nbytes)
        found = []
        staging = device.staging(4096)
        for vectors in (first, second):
            after = device.card.compute.record()
            buffer.filled = staging.upload(FLAT.encode(vectors), buffer.tensor, after)
            device.card.compute.wait(buffer.filled)
            into = device.card.allocate(first.nbytes)
            device.card.compute.run(partial(into.copy_, buffer.tensor))
            found.append(into)
        device.card.synchronize()
        seen = Candidates.empty(1, 1)
        scores = []
        for tensor in found:
            buffer.tensor = tensor
            request = SearchRequest(FLAT, query, [ListScan(buffer, 0, 3, None, [0])], np.arange(3), seen)
            scores.append(float(device.search(request).scores[0, 0]))
            seen = Candidates.empty(1, 1)
        staging.close()
        device.close()
        return scores

    assert all(best(eager, frozenset()) == [4.0, 20.0] for eager in POLICIES)
    assert any(best(eager, frozenset([dropped])) != [4.0, 20.0] for eager in POLICIES)


def test_a_search_keeps_its_memory_when_lists_fill_the_device() -> None:
    """One setting opens the place of lists and that of layers."""
    device: Any = open_device("cuda:on=cpu,compute=float32,cap=1000000", MemoryBudget(1 << 36, baseline=0))
    device.allocate(100)
    with device.memory.reserve("lists", device.memory.free):
        vectors = np.arange(4000, dtype=np.float32).reshape(1000, 4)
        buffer = device.allocate(vectors.nbytes)
        device.write(buffer, FLAT.encode(vectors))
        seen = Candidates.empty(1, 3)
        request = SearchRequest(
            FLAT, np.ones((1, 4), np.float32), [ListScan(buffer, 0, 1000, None, [0])], np.arange(1000), seen
        )
        assert sorted(device.search(request).labels[0].tolist()) == [997, 998, 999]
    device.close()


class Held:
    """Lists on a device whose link stands still until they all wait for it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("edge.budget.anonymous_resident", lambda: 0)  # the ledger is smaller than this process
        self.lists = write_lists(folder, gridded(3000, 16), codec=NaiveCodec("sq8", 16), nlist=40)
        self.budget = MemoryBudget(1 << 30, baseline=0)
        self.host = DeviceTier(CpuDevice(self.budget, link=Lane()))
        self.device = CudaDevice(self.budget, on="cpu")
        self.tier = DeviceTier(self.device, behind=self.host)
        self.parts = [part for own in self.lists.snapshot.lists for part in own]
        self.copies: list[int] = []
        joined = self.device.write_joined

        def counted(nbytes: int, fill: Any) -> None:
            self.copies.append(nbytes)
            joined(nbytes, fill)

        monkeypatch.setattr(self.device, "write_joined", counted)
        self._go_on = threading.Event()
        self.device.link.submit("gate", lambda: self._go_on.wait(60), 0)
        self.reader = Reader(self.tier, self.parts, range(len(self.parts)), stream=False)

    def there(self, number: int) -> bool:
        """Whether a part arrived as it is in the file."""
        part, handle, block = self.parts[number], self.reader._handles[number], np.empty(1 << 20, np.uint8)
        self._go_on.set()
        ids, codes, checksums = self.tier.unpack(part, handle.wait())
        part.source.read(part.codes, block.data)
        expected = part.split(block)
        same = codes.tensor[: expected[1].size].numpy().tolist() == expected[1].reshape(-1).tolist()
        return same and ids.tolist() == expected[0].tolist() and checksums.tolist() == expected[2].tolist()

    def close(self) -> None:
        self.reader.close()
        for closed in (self.tier, self.host, self.device, self.host.device.link, self.host.device, self.lists):
            closed.close()
        assert self.budget.used == 0


@pytest.mark.parametrize("bounded", [False, True])
def test_lists_that_wait_cross_the_link_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bounded: bool
) -> None:
    """A copy takes half of those that wait, and has a largest size."""
    held = Held(tmp_path, monkeypatch)
    if bounded:
        held.device.most = 3 * max(part.nbytes for part in held.parts)
    assert all(held.there(number) for number in range(len(held.parts)))
    assert len(held.parts) == 80
    assert max(held.copies) <= held.device.most
    assert 8 < len(held.copies) < 40 if bounded else len(held.copies) == 8
    held.close()


@pytest.mark.parametrize("eager", POLICIES, ids=lambda eager: "+".join(sorted(eager)) or "none")
def test_lists_that_crossed_together_are_searched_on_late_streams(eager: frozenset[str]) -> None:
    device = CudaDevice(MemoryBudget(1 << 36, baseline=0), on="cpu", streams=SimulatedStreams(torch, eager).open)
    buffers = [device.allocate(48), device.allocate(32)]
    for value in (1.0, 5.0, 2.0):

        def fill(block: Any, value: float = value) -> list[Any]:
            block[:128].view(np.float32)[:] = [value] * 12 + [np.nan] * 12 + [value + 1] * 8
            return [(buffers[0], block[:48].reshape(3, 16)), (buffers[1], block[96:128].reshape(2, 16))]

        device.write_joined(128, fill)
        lists = [ListScan(buffers[0], 0, 3, None, [0]), ListScan(buffers[1], 3, 2, None, [0])]
        request = SearchRequest(FLAT, np.ones((1, 4), np.float32), lists, np.arange(5), Candidates.empty(1, 5))
        assert sorted(device.search(request).scores[0].tolist()) == [4 * value] * 3 + [4 * value + 4] * 2
    device.close()


def test_a_list_that_is_given_up_meanwhile_does_not_spoil_the_copy_of_others() -> None:
    device = CudaDevice(MemoryBudget(1 << 36, baseline=0), on="cpu")
    kept, gone = device.allocate(8), device.allocate(8)

    def fill(block: Any) -> list[Any]:
        block[:16] = 7
        device.free(gone)
        return [(gone, block[:8]), (kept, block[8:16])]

    device.write_joined(16, fill)
    assert kept.tensor.tolist() == [7] * 8
    device.write_joined(8, lambda block: [(gone, block[:8])])
    device.close()


def test_a_list_that_cannot_be_read_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(tmp_path, monkeypatch)
    broken, read = held.parts[5], BlockFile.read

    def damaged(file: BlockFile, block: BlockId, into: memoryview) -> None:
        if (file, block) == (broken.source, broken.codes):
            raise CorruptBlock("it is damaged")
        read(file, block, into)

    with monkeypatch.context() as patch:
        patch.setattr(BlockFile, "read", damaged)
        assert all(held.there(number) for number in range(len(held.parts)) if number != 5)
        with pytest.raises(CorruptBlock, match="it is damaged"):
            held.there(5)
    held.close()


def test_searches_of_many_requests_are_one_on_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that come while the device searches wait, and are searched together with the results of each alone."""
    monkeypatch.setattr("edge.budget.anonymous_resident", lambda: 0)  # the ledger is smaller than this process
    rig = Rig(tmp_path, gridded(1200, 16), fast=1 << 20, nlist=12)
    device, queries = rig.searcher.place.device, gridded(9, 16, seed=3)  # type: ignore[union-attr]
    parts = {part.key: part.nbytes for own in rig.lists.snapshot.lists for part in own}
    while list(rig.searcher.place.residency.absent(parts)):  # type: ignore[union-attr]
        rig.search(queries, 5, 12)  # the host scans some of the lists that are not there yet
    go_on, sizes, search = threading.Event(), [], device.search

    def slowly(request: SearchRequest) -> Candidates:
        sizes.append(len(request.queries))
        assert go_on.wait(60)
        return search(request)

    device.search = slowly  # type: ignore[method-assign]
    with ThreadPoolExecutor(9) as pool:
        asked = [pool.submit(rig.search, queries[:1], 5, 3)]
        until(lambda: sizes == [1])
        asked.append(pool.submit(rig.search, queries[1:2], 5, 3))
        until(lambda: len(sizes) == 2)
        asked += [pool.submit(rig.search, queries[n : n + 1], 5, 3) for n in range(2, 9)]
        until(lambda: len(rig.searcher._line) == 8)
        go_on.set()
        for number, one in enumerate(asked):
            rig.check(queries[number : number + 1], one.result(), 5, 3)
    assert sizes == [1, 1, 7]
    rig.close()


if torch.cuda.is_available():  # not skipped elsewhere, because CI takes a skipped test for a failure

    @pytest.mark.parametrize("cap", ["300MB", "1GB"])
    def test_the_contract_holds_on_a_card(cap: str) -> None:
        """Each device has streams of its own, and cuBLAS a workspace for each of them."""
        for _ in range(6):
            check_device(partial(CudaDevice, cap=cap))
        assert torch.cuda.memory_reserved() == 0


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
