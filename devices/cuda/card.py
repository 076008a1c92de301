"""`Card`: one GPU in this process, whose users share its memory limit and its streams; torch's CPU device can stand in.
`UploadBuffers` are host memory that the GPU reads by itself."""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import platformdirs

from edge.budget import MemoryBudget
from edge.cache.cached_block import Bytes, page_buffer
from edge.config import format_size, parse_size
from edge.errors import BudgetExceeded, CapabilityError, ConfigError, EdgeError
from edge.ivf.device import Event, Stream

_LIBRARIES_NBYTES = 64 << 20
"""Device memory that no lease of ours covers: the workspace of cuBLAS, and what the allocator rounds up."""

_WORKSPACE, _PLENTY = ":4096:2:16:8", 1 << 30
"""The workspace of cuBLAS below such a limit, 8 MiB. On Hopper it would take 32 for each stream."""

_STAND_IN_NBYTES = 64 << 20
"""The limit of torch's CPU device where none is given."""

_SHARE = 0.9
"""The share of a GPU's free memory that is taken where no limit is given."""

_open: dict[str, Card] = {}
_opening = threading.RLock()


Streams = Callable[[str], Stream]
"""Opens a stream of a device by its name."""


@dataclass(frozen=True, slots=True)
class _CudaEvent:
    event: Any

    @property
    def done(self) -> bool:
        return bool(self.event.query())

    def wait(self) -> None:
        self.event.synchronize()


class CudaStream:
    def __init__(self, torch: Any, device: Any) -> None:
        self._torch = torch
        self._stream = torch.cuda.Stream(device)

    def run(self, work: Callable[[], object]) -> None:
        try:
            with self._torch.cuda.stream(self._stream), self._torch.inference_mode():
                work()
        except self._torch.OutOfMemoryError as error:
            raise EdgeError(_lacking(error)) from error

    def record(self) -> Event:
        # A thread that waits for the event sleeps and leaves the core to others.
        event = self._torch.cuda.Event(blocking=True)
        event.record(self._stream)
        return _CudaEvent(event)

    def wait(self, event: Event) -> None:
        assert isinstance(event, _CudaEvent)
        self._stream.wait_event(event.event)

    def synchronize(self) -> None:
        self._stream.synchronize()


class _Past:
    done = True

    def wait(self) -> None:
        """It is past."""


class _DirectStream:
    """Does its work in the calling thread, for torch's CPU device, which has no streams."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def run(self, work: Callable[[], object]) -> None:
        with self._torch.inference_mode():
            work()

    def record(self) -> Event:
        return _Past()

    def wait(self, event: Event) -> None:
        event.wait()

    def synchronize(self) -> None:
        """Nothing is left to do."""


class Card:
    """A GPU, or torch's CPU device (`on_gpu` is False). `memory` is the ledger of all that torch may hold there.
    Kernels and the transfers in and out have a stream each."""

    def __init__(self, on: str, cap: int | str, streams: Streams | None) -> None:
        self.torch = torch = _torch()
        torch.set_float32_matmul_precision("highest")  # bounds of scores hold for float32 alone, which images change
        self.on_gpu = on != "cpu"
        if self.on_gpu and not torch.cuda.is_available():
            raise CapabilityError(
                f"device cuda needs a GPU and a torch that was built for it; torch {torch.__version__} finds none"
            )
        try:
            self._prepare_allocator()
            self.device = torch.device(on)
            if self.on_gpu and self.device.index is None:
                self.device = torch.device("cuda", torch.cuda.current_device())
            free, total = torch.cuda.mem_get_info(self.device) if self.on_gpu else (_STAND_IN_NBYTES, 0)
            self.name = torch.cuda.get_device_name(self.device) if self.on_gpu else "torch's CPU device"
        except RuntimeError as error:
            raise CapabilityError(f"device cuda cannot use {on!r}: {str(error).splitlines()[0]}") from error
        limit = parse_size(cap) if cap else int(free * (_SHARE if self.on_gpu else 1))
        if self.on_gpu and limit > total:
            raise ConfigError(f"{self.name} has {format_size(total)} of memory, less than {format_size(limit)}")
        self.memory = MemoryBudget(limit, part=True)
        if self.on_gpu:
            os.environ.setdefault("TRITON_CACHE_DIR", str(platformdirs.user_cache_path("edge-rag") / "triton"))
            if limit < _PLENTY:
                os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", _WORKSPACE)
            torch.cuda.set_per_process_memory_fraction(limit / total, self.device)
            self.memory.reserve("torch", min(_LIBRARIES_NBYTES, limit // 4))
        self.compute, self.inward, self.outward = map(streams or self._stream, ("compute", "inward", "outward"))
        self.users = 0

    def allocate(self, *shape: int, dtype: Any = None) -> Any:
        """A tensor on the device; bytes if no type is given. The caller holds a lease of `memory` for it."""
        try:
            return self.torch.empty(shape, dtype=dtype or self.torch.uint8, device=self.device)
        except self.torch.OutOfMemoryError as error:
            nbytes = math.prod(shape) * (dtype.itemsize if dtype else 1)
            raise BudgetExceeded(
                _lacking(error), owner="torch", asked=nbytes, free=0, needed=self.memory.limit + nbytes
            ) from error

    def synchronize(self) -> None:
        for stream in (self.inward, self.compute, self.outward):
            stream.synchronize()

    def peak(self) -> int:
        return int(self.torch.cuda.max_memory_reserved(self.device)) if self.on_gpu else self.memory.used

    def close(self) -> None:
        self.synchronize()
        if self.on_gpu:
            self.torch._C._cuda_clearCublasWorkspaces()  # each stream has one
            self.torch.cuda.empty_cache()

    @property
    def has_triton(self) -> bool:
        """Whether our own kernels run here: not on GPUs before Ampere, for which Triton multiplies no bytes. On the
        processor its interpreter runs them, if TRITON_INTERPRET is 1."""
        if self.on_gpu:
            usable = bool(self.torch.cuda.get_device_capability(self.device) >= (8, 0))
        else:
            usable = os.environ.get("TRITON_INTERPRET") == "1"
        return usable and importlib.util.find_spec("triton") is not None

    def _stream(self, name: str) -> Stream:
        return CudaStream(self.torch, self.device) if self.on_gpu else _DirectStream(self.torch)

    def _prepare_allocator(self) -> None:
        """Lets segments grow in place: blocks of many sizes come and go, and a fixed segment is seldom all free."""
        chosen = os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or os.environ.get("PYTORCH_ALLOC_CONF")
        if self.on_gpu and not chosen and not self.torch.cuda.is_initialized():
            new = getattr(self.torch._C, "_accelerator_setAllocatorSettings", None)  # from torch 2.9 on
            (new or self.torch.cuda.memory._set_allocator_settings)("expandable_segments:True")


def open_card(on: str, cap: int | str, streams: Streams | None) -> Card:
    """The card of that name, such as `cuda:1`, or `cpu`; the first call opens it. An empty `cap` takes another user's
    limit, or most of the free memory. With `streams` it is a card of one's own."""
    if streams is not None:
        return Card(on, cap, streams)
    with _opening:
        card = _open.get(on)
        if card is None:
            card = _open[on] = Card(on, cap, None)
        elif cap and parse_size(cap) != card.memory.limit:
            raise ConfigError(f"device cuda is in use with {format_size(card.memory.limit)} of its memory, not {cap}")
        card.users += 1
        return card


def close_card(card: Card) -> None:
    """Says that one user is done; the last one closes it."""
    with _opening:
        card.users -= 1
        if card.users > 0:
            return
        for on in [on for on, other in _open.items() if other is card]:
            del _open[on]
    card.close()


def _torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise CapabilityError('device cuda needs torch: pip install "edge-rag[cuda]"') from error


_OWN_PAGES = 64 << 10
"""A smaller buffer would share its pages with others, which would be locked with it."""

_BUFFERS = 2


class Pinned:
    """A page-locked buffer: its bytes for numpy (`array`) and for torch (`tensor`)."""

    def __init__(self, card: Card, nbytes: int) -> None:
        """The caller holds a lease of the host's ledger for it."""
        self.array: Bytes = page_buffer(max(_OWN_PAGES, nbytes))
        self.tensor = card.torch.from_numpy(self.array)
        self._card: Card | None = card
        if card.on_gpu:
            # torch's own pinned memory comes in powers of two and stays with its allocator.
            _check(card, card.torch.cuda.cudart().cudaHostRegister(self.array.ctypes.data, self.array.nbytes, 0))

    def close(self) -> None:
        card, self._card = self._card, None
        if card is not None and card.on_gpu:
            _check(card, card.torch.cuda.cudart().cudaHostUnregister(self.array.ctypes.data))


class UploadBuffers:
    """A ring of page-locked buffers to the device. A thread holds `lock` from `next` to `send`."""

    def __init__(self, card: Card, budget: MemoryBudget, nbytes: int) -> None:
        self.nbytes = max(_OWN_PAGES, nbytes)
        self._card = card
        self._lease = budget.reserve("pinned staging", _BUFFERS * self.nbytes)
        self._buffers = [Pinned(card, nbytes) for _ in range(_BUFFERS)]
        self._sent: list[Event | None] = [None] * _BUFFERS
        self._turn = 0
        self.lock = threading.RLock()

    def next(self) -> tuple[int, Pinned]:
        """The number of the next buffer and the buffer, once the device has read its content."""
        number = self._turn
        self._turn = (number + 1) % len(self._buffers)
        sent, self._sent[number] = self._sent[number], None
        if sent is not None:
            sent.wait()
        return number, self._buffers[number]

    def send(self, number: int, nbytes: int, into: Any, after: Event | None = None) -> Event:
        """Copies first bytes of a buffer into a tensor, writable after an event; returns the event of arrival."""
        inward = self._card.inward
        if after is not None:
            inward.wait(after)
        source = self._buffers[number].tensor[:nbytes]
        inward.run(lambda: into[:nbytes].copy_(source, non_blocking=True))
        event = self._sent[number] = inward.record()
        return event

    def upload(self, data: Bytes, into: Any, after: Event | None = None) -> Event:
        """Copies bytes of the caller, which it may change at once, to the device, in pieces; see `send`."""
        flat = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        event = None
        with self.lock:
            for start in range(0, flat.size, self.nbytes):
                number, buffer = self.next()
                piece = flat[start : start + self.nbytes]
                buffer.array[: piece.size] = piece
                event = self.send(number, piece.size, into[start:], after)
        return event or self._card.inward.record()

    def close(self) -> None:
        with self.lock:
            for sent in self._sent:
                if sent is not None:
                    sent.wait()
            for buffer in self._buffers:
                buffer.close()
            self._buffers = []
            self._lease.release()


def _lacking(error: Exception) -> str:
    reason = str(error).splitlines()[0]
    return f"torch needs more device memory than the ledger knows of; raise the limit: {reason}"


def _check(card: Card, status: Any) -> None:
    if int(status) != 0:
        raise MemoryError(f"the system does not lock pages for {card.name} (CUDA error {int(status)})")
