"""`Gpu`: one GPU in this process, as WebGPU shows it: a card, a part of the processor, or a program on the processor.
Its users share its memory limit and its queue."""

from __future__ import annotations

import importlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import platformdirs

from edge.budget import Compiling, Lease, MemoryBudget
from edge.config import format_size, parse_size
from edge.errors import BudgetExceeded, CapabilityError, ConfigError, DeviceLost, StorageError
from edge.files.named_file import make_folder

LARGEST_BUFFER = 128 << 20
"""Bytes of a buffer, at most: what every implementation of WebGPU lets a shader read."""

UPLOAD_NBYTES = 1 << 20
"""Bytes that are sent at a time. The library copies them to memory that the GPU reads."""

_SHARED_CAP = 64 << 20
_CAP = 1 << 30
"""The limits where none is given: of a GPU that shares the host's memory, and of another. WebGPU does not tell them."""

_KINDS = {
    "DiscreteGPU": "a separate GPU",
    "IntegratedGPU": "a GPU that shares the host's memory",
    "CPU": "a software GPU",
}
"""The kinds of adapters, the best first, and their names for people."""

_READ = "READ_NOSYNC"
"""Maps a buffer after the commands that fill it, without wgpu's second, empty list of commands."""

_BACKENDS = ("Vulkan", "Metal", "D3D12")

_open: dict[str, Gpu] = {}
_opening = threading.RLock()


class Gpu:
    """A GPU, whose memory may be the host's (`shared`), or the processor (`software`). `lock` is held while commands
    are recorded; `held` are bytes of all buffers."""

    def __init__(self, on: str, cap: int | str) -> None:
        self.wgpu = wgpu = _library()
        adapter = _adapter(wgpu, on)
        info = adapter.info
        kind = info["adapter_type"]
        self.shared, self.software = kind != "DiscreteGPU", kind == "CPU"
        self.hardware = f"{info['device']} ({_KINDS.get(kind, 'a GPU of an unknown kind')}, {info['backend_type']})"
        self.device = adapter.request_device_sync()
        self.memory = MemoryBudget(parse_size(cap) if cap else _SHARED_CAP if self.shared else _CAP, part=True)
        self.lock = threading.RLock()
        self.held = 0
        self.users = 0
        self.makes_room: Callable[[], None] = lambda: None
        # Waiting for the queue as such is broken in wgpu 0.32.
        self._fence = (self.buffer(16), 0), (self.landing(16), 0)
        self._fencing = threading.Lock()
        self._modules: dict[Path, Any] = {}
        self._pipelines: dict[tuple[Any, ...], Any] = {}

    def buffer(self, nbytes: int) -> Any:
        """A buffer that shaders read and write. The caller holds a lease of `memory` for it, and calls `destroy`."""
        nbytes = max(16, -(-nbytes // 16) * 16)
        with self.lock:
            if self.held + nbytes > self.memory.limit:
                self.makes_room()
            free = self.memory.limit - self.held
            if nbytes > min(free, LARGEST_BUFFER):
                raise BudgetExceeded(
                    f"a buffer of {format_size(nbytes)} does not fit the device webgpu, "
                    f"which has {format_size(free)} left",
                    owner="webgpu", asked=nbytes, free=free, needed=self.held + nbytes,
                )  # fmt: skip
            usage = self.wgpu.BufferUsage
            with self.answering():
                made = self.device.create_buffer(
                    size=nbytes, usage=usage.STORAGE | usage.UNIFORM | usage.COPY_DST | usage.COPY_SRC
                )
            self.held += nbytes
            return made

    def destroy(self, buffer: Any) -> None:
        """Frees a buffer of `buffer`, once. Commands that were submitted before still read it."""
        with self.lock:
            self.held -= buffer.size
            buffer.destroy()

    def landing(self, nbytes: int) -> Any:
        """A buffer in memory that the host reads. The caller holds a lease of the host's ledger for it."""
        usage = self.wgpu.BufferUsage
        with self.answering():
            return self.device.create_buffer(size=nbytes, usage=usage.MAP_READ | usage.COPY_DST)

    def write(self, buffer: Any, offset: int, data: npt.NDArray[Any]) -> None:
        """Copies an array to an offset (a multiple of 4), filled up with zeros."""
        flat = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        if len(flat) % 4:
            flat = np.concatenate((flat, np.zeros(-len(flat) % 4, np.uint8)))
        with self.lock, self.answering():
            for start in range(0, len(flat), UPLOAD_NBYTES):
                self.device.queue.write_buffer(buffer, offset + start, flat[start : start + UPLOAD_NBYTES])
                if start:
                    self.synchronize()  # so that the library's copies do not add up

    def synchronize(self) -> None:
        with self._fencing, self.answering():
            encoder = self.device.create_command_encoder()
            encoder.copy_buffer_to_buffer(*self._fence[0], *self._fence[1], 4)
            self.device.queue.submit([encoder.finish()])
            self._fence[1][0].map_sync(_READ, 0, 4)
            self._fence[1][0].unmap()

    def read(self, landing: Any, nbytes: int) -> npt.NDArray[np.uint8]:
        """Waits for the commands that fill a buffer of `landing`, and returns its first bytes."""
        with self.answering():
            landing.map_sync(_READ, 0, nbytes)
            found = np.frombuffer(landing.read_mapped(0, nbytes, copy=True), np.uint8)
            landing.unmap()
        return found

    def pipeline(self, shader: Path, entry: str, **constants: float) -> Any:
        """A compiled entry point of a shader in WGSL, with the values of its `override` constants."""
        key = shader, entry, *sorted(constants.items())
        with self.lock:
            if key not in self._pipelines:
                with self.answering():
                    if shader not in self._modules:
                        text = shader.read_text(encoding="utf-8")
                        self._modules[shader] = self.device.create_shader_module(code=text)
                    stage = {"module": self._modules[shader], "entry_point": entry, "constants": constants}
                    self._pipelines[key] = self.device.create_compute_pipeline(layout="auto", compute=stage)
            return self._pipelines[key]

    def bind(self, pipeline: Any, buffers: dict[int, Any]) -> Any:
        """Gives a pipeline its buffers by binding: a buffer, or one with offset (a multiple of 256) and bytes."""
        entries = []
        for number, given in buffers.items():
            buffer, offset, size = given if isinstance(given, tuple) else (given, 0, given.size)
            entries.append({"binding": number, "resource": {"buffer": buffer, "offset": offset, "size": size}})
        with self.answering():
            return self.device.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries)

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Turns the library's error of a lost GPU into ours."""
        try:
            yield
        except self.wgpu.GPUError as error:
            text = str(error)
            if "lost" not in text.lower():
                raise
            raise DeviceLost(f"the device webgpu does not answer: {text.splitlines()[-1].strip()}") from error
        except RuntimeError as error:  # a buffer of a lost GPU cannot be mapped
            raise DeviceLost(f"the device webgpu does not answer: {error}") from error

    def close(self) -> None:
        self._pipelines.clear()
        self._modules.clear()
        self.device.destroy()


class SharedGpu:
    """One user's hold on a card, with what the library and the driver take in this process."""

    def __init__(self, host: MemoryBudget, on: str, cap: int | str) -> None:
        """The host's ledger covers the process's growth, and the card's limit if it has the host's memory."""
        self.host = host
        self._leases: list[Lease] = []
        self.compiling = Compiling(host, "webgpu kernels")
        with _opening, host.charge("webgpu driver") as lease:
            self._leases.append(lease)
            card = _open.get(on)
            if card is None:
                card = _open[on] = Gpu(on, cap)
            elif cap and parse_size(cap) != card.memory.limit:
                limit = format_size(card.memory.limit)
                raise ConfigError(f"device webgpu is in use with {limit} of its memory, not {cap}")
            card.users += 1
        self.card = card
        try:
            if card.shared and card.users == 1:
                self._leases.append(host.reserve("webgpu memory", card.memory.limit))
            # What is sent is copied once by the library; the copies of two threads may exist at once.
            self._leases.append(host.reserve("webgpu uploads", 2 * UPLOAD_NBYTES))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        with _opening:
            self.card.users -= 1
            if not self.card.users:
                for on in [on for on, card in _open.items() if card is self.card]:
                    del _open[on]
                self.card.close()
        self.compiling.close()
        for lease in self._leases:
            lease.release()


def _library() -> Any:
    try:
        wgpu = importlib.import_module("wgpu")
    except ImportError as error:
        raise CapabilityError('device webgpu needs wgpu: pip install "edge-rag[webgpu]"') from error
    extras = importlib.import_module("wgpu.backends.wgpu_native.extras")
    # A layer of Mesa would ask a display which GPU it uses, and complain where there is none.
    os.environ.setdefault("NODEVICE_SELECT", "1")
    # Mesa would look the user up in the system's directory, and keep compiled kernels in a folder of its own.
    cache = platformdirs.user_cache_path("edge-rag", appauthor=False)
    with suppress(StorageError):  # then Mesa keeps none, and says so
        make_folder(cache)
    os.environ.setdefault("MESA_SHADER_CACHE_DIR", str(cache))
    with suppress(RuntimeError):  # it is set up already
        extras.set_instance_extras(backends=["Vulkan", "Metal", "DX12"])  # OpenGL would open a display
    return wgpu


def _adapter(wgpu: Any, on: str) -> Any:
    found: Sequence[Any] = [
        adapter for adapter in wgpu.gpu.enumerate_adapters_sync() if adapter.info["backend_type"] in _BACKENDS
    ]
    if not found:
        raise CapabilityError(
            "device webgpu finds no driver for Vulkan, Metal or DirectX 12; "
            "a software driver is in the package mesa-vulkan-drivers of Debian and Ubuntu"
        )
    named = [adapter for adapter in found if on.lower() in adapter.info["device"].lower()]
    if not named:
        names = ", ".join(adapter.info["device"] for adapter in found)
        raise CapabilityError(f"device webgpu finds no GPU whose name contains {on!r}; there are {names}")
    order = list(_KINDS)
    return min(named, key=lambda adapter: order.index(kind) if (kind := adapter.info["adapter_type"]) in order else 9)


_ALIGNMENT = 16
_SHARE = 4
"""A slab takes at most such a part of the device's memory."""


class Slab:
    """A buffer of the GPU, and the lists in it by their places."""

    def __init__(self, buffer: Any) -> None:
        self.buffer = buffer
        self.lists: list[ListBuffer] = []

    def gap(self, nbytes: int) -> tuple[int, int] | None:
        ends = [0, *(each.end for each in self.lists)]
        starts = [*(each.offset for each in self.lists), self.buffer.size]
        for number, (end, start) in enumerate(zip(ends, starts, strict=True)):
            if start - end >= nbytes:
                return number, end
        return None


class ListBuffer:
    """Bytes of a slab from `offset` on, which changes when the slab is put in order."""

    __slots__ = ("freed", "nbytes", "offset", "slab")

    def __init__(self, slab: Slab, offset: int, nbytes: int) -> None:
        self.slab = slab
        self.offset = offset
        self.nbytes = nbytes
        self.freed = False

    @property
    def end(self) -> int:
        """The byte behind the last one, at which another list may begin."""
        return self.offset + -(-self.nbytes // _ALIGNMENT) * _ALIGNMENT


class Slabs:
    """The lists of one card. Its methods are called with the card's lock, except for `free`."""

    def __init__(self, card: Gpu, scratch: Callable[[], Any]) -> None:
        """Takes what makes a buffer through which lists are moved, since a buffer cannot be copied to itself."""
        self._card = card
        self._scratch = scratch
        self._slabs: list[Slab] = []
        self._freed: deque[ListBuffer] = deque()

    def allocate(self, nbytes: int, *, kept: int = 0, move: bool = True) -> ListBuffer:
        """Room for a list, while slabs leave `kept` bytes to others. `move`: other lists may change their places."""
        self._sweep()
        for slab in self._slabs:
            if (found := slab.gap(nbytes)) is not None:
                return self._place(slab, *found, nbytes)
        free = self._card.memory.limit - self._card.held - kept
        size = min(LARGEST_BUFFER, free, max(nbytes + _ALIGNMENT, self._card.memory.limit // _SHARE))
        if size >= nbytes:
            slab = Slab(self._card.buffer(size // _ALIGNMENT * _ALIGNMENT))
            self._slabs.append(slab)
            if (found := slab.gap(nbytes)) is not None:
                return self._place(slab, *found, nbytes)
        for slab in self._slabs if move else ():
            if slab.buffer.size - sum(each.end - each.offset for each in slab.lists) >= nbytes:
                self._put_in_order(slab)
                if (found := slab.gap(nbytes)) is not None:
                    return self._place(slab, *found, nbytes)
        raise BudgetExceeded(
            f"no slab of the device webgpu has room for a list of {nbytes:,} bytes",
            owner="lists", asked=nbytes, free=self._card.memory.free, needed=self._card.memory.limit + nbytes,
        )  # fmt: skip

    def free(self, buffer: ListBuffer) -> None:
        """Frees a list. May be called at any point of any thread, by the garbage collector."""
        self._freed.append(buffer)

    def shrink(self) -> None:
        """Gives back the slabs without lists."""
        self._sweep()
        for slab in [slab for slab in self._slabs if not slab.lists]:
            self._slabs.remove(slab)
            self._card.destroy(slab.buffer)

    def close(self) -> None:
        for slab in self._slabs:
            self._card.destroy(slab.buffer)
        self._slabs.clear()

    def _sweep(self) -> None:
        slabs = set()
        while self._freed:
            buffer = self._freed.popleft()
            buffer.freed = True
            slabs.add(buffer.slab)
        for slab in slabs:
            slab.lists = [each for each in slab.lists if not each.freed]

    @staticmethod
    def _place(slab: Slab, number: int, offset: int, nbytes: int) -> ListBuffer:
        placed = ListBuffer(slab, offset, nbytes)
        slab.lists.insert(number, placed)
        return placed

    def _put_in_order(self, slab: Slab) -> None:
        card, scratch = self._card, self._scratch()
        with card.answering():
            encoder = card.device.create_command_encoder()
            at = 0
            for each in slab.lists:
                size = each.end - each.offset
                if at != each.offset:
                    for low, high in pairwise([*range(0, size, scratch.size), size]):
                        encoder.copy_buffer_to_buffer(slab.buffer, each.offset + low, scratch, 0, high - low)
                        encoder.copy_buffer_to_buffer(scratch, 0, slab.buffer, at + low, high - low)
                each.offset = at
                at += size
            card.device.queue.submit([encoder.finish()])
