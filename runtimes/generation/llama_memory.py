"""`LlamaMemory`: the layout of a GGUF model in the budget's free memory, decided before anything is allocated;
`GpuLayers`: those of its layers that lie on a GPU, under the GPU's ledger."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from edge.budget import Lease, MemoryBudget
from edge.config import format_size
from edge.errors import BudgetExceeded, CapabilityError, ConfigError
from edge.ivf.device import open_device
from edge.models.gguf_file import GGUFFile
from edge.plugins import parse_device
from edge.resident import measured_growth
from edge.runtimes.generation.llama_context import COPY_TOKENS, TILE, ContextShape, LlamaContext
from edge.runtimes.generation.llama_model import LlamaLibrary, LlamaModel

_DEFAULT_CONTEXT = 4096
_LEAST_CONTEXT = 512
_LEAST_ROOM = 1024
_BESIDE = 128
"""The batch of a context whose prompts are read in a room, for those that find no room there."""

_BATCHES = (512, 256, 128, 64, 32)

_OVERHEAD = 8 << 20
"""Bytes that llama.cpp takes in addition to its buffers: graphs, the scheduler, its threads' stacks."""

_PER_TOKEN_OF_VOCABULARY = 24
"""Bytes for each token of the vocabulary while a token is chosen: llama.cpp's candidates and our copy of the logits."""


@dataclass(frozen=True, slots=True)
class LlamaMemory:
    """The memory of a loaded model, in bytes: tensors (in pages that no lease covers if `mapped`), tables, keys and
    values, and buffers; `room`: the context in which the prompts of its sequences are read, if there is one; and what
    lies `on_gpu`, for people."""

    weights: int
    mapped: bool
    vocabulary: int
    kv_cache: int
    buffers: int
    shape: ContextShape
    room: ContextShape | None = None
    on_gpu: str = ""

    @property
    def leased(self) -> int:
        return self.vocabulary + self.kv_cache + self.buffers + (0 if self.mapped else self.weights)

    @property
    def placement(self) -> str:
        size, beside = format_size(self.weights), self.on_gpu and f"; {self.on_gpu}"
        if self.mapped:
            return f"weights: {size} mapped from the file; their pages are the kernel's, not part of the limit{beside}"
        return f"weights: {size} in memory{beside}"


def reserve_memory(
    library: LlamaLibrary,
    file: GGUFFile,
    budget: MemoryBudget,
    *,
    context: int,
    threads: int,
    sequences: int,
    beside: bool,
) -> tuple[LlamaMemory, list[Lease]]:
    """Leases the memory that a model will need: the largest context first, then the largest batch, then the weights,
    which are mapped from the file if they do not fit. Sizes come from llama.cpp itself. A `context` of 0 is halved
    until it fits; `sequences` share it, unless not `beside` and there is no memory for a room in which their prompts
    are read."""
    if context > file.trained_context:
        raise ConfigError(
            f"a context of {context:,} tokens is more than the {file.trained_context:,} that {file.path.name} was "
            f"trained for"
        )
    mappable = bool(library.api.llama_supports_mmap())
    with measured_growth() as vocabulary:
        model = LlamaModel(library, file, load="none")
    try:
        model.check_generates()
        refused: BudgetExceeded | None = None
        for tokens in _contexts(context, file.trained_context):
            most = sequences if model.reusable else 1
            for shape, room in _layouts(ContextShape(tokens, 0, threads, most), beside):
                kv_cache, buffers = _measure(model, shape)
                if room is not None:
                    more = _measure(model, room)
                    kv_cache, buffers = kv_cache + more[0], buffers + more[1] + more[0] // room.tokens * COPY_TOKENS
                memory = LlamaMemory(file.weights_nbytes, True, vocabulary.nbytes, kv_cache, buffers, shape, room)
                try:
                    return _reserve(budget, memory, mappable)
                except BudgetExceeded as error:
                    refused = error
        assert refused is not None
        raise _too_small(file, budget, memory, refused, mappable)
    finally:
        model.close()


def least_nbytes(file: GGUFFile, context: int) -> int:
    """Bytes of a model's smallest layout, with mapped weights, as its header lets expect."""
    tokens = _contexts(context, file.trained_context)[-1]
    vocabulary, merges = (_length(file.metadata.get(f"tokenizer.ggml.{name}", ())) for name in ("tokens", "merges"))
    layers, heads = file.value("block_count"), file.value("attention.head_count", 0)
    keys = file.value("attention.head_count_kv", heads)
    kv_cache = 2 * tokens * sum(file.head_widths) * (sum(keys) if isinstance(keys, tuple) else keys * layers)
    widest = max((max(tensor.shape[:1]) for tensor in file.tensors), default=0)
    most = max(heads) if isinstance(heads, tuple) else heads
    buffers = _BATCHES[-1] * 4 * (4 * widest + most * tokens) + vocabulary * (_PER_TOKEN_OF_VOCABULARY + 20)
    return int(vocabulary * 160 + merges * 240 + kv_cache + buffers + _OVERHEAD)


def _length(listed: int | Sequence[object]) -> int:
    return listed if isinstance(listed, int) else len(listed)


def _contexts(asked: int, trained: int) -> Sequence[int]:
    if asked:
        return [asked]
    tokens = [min(trained, _DEFAULT_CONTEXT)]
    while tokens[-1] // 2 >= _LEAST_CONTEXT:
        tokens.append(tokens[-1] // 2)
    return tokens


def _layouts(shape: ContextShape, beside: bool) -> Iterator[tuple[ContextShape, ContextShape | None]]:
    """A context in batches of each size, best first: with a room for prompts if sequences share it, then without: with
    prompts `beside` the others, or for one sequence."""
    sizes = [replace(shape, batch=batch) for batch in _BATCHES]
    if shape.sequences > 1:
        room = min(shape.tokens, max(shape.tokens // 2, _LEAST_ROOM))
        for each in sizes[: _BATCHES.index(TILE) + 1]:  # smaller ones have no tiles
            yield replace(each, batch=min(each.batch, _BESIDE)), replace(each, tokens=room, sequences=1)
    yield from ((each if beside else replace(each, sequences=1), None) for each in sizes)


def _measure(model: LlamaModel, shape: ContextShape) -> tuple[int, int]:
    context = LlamaContext(model, shape)
    context.close()
    kv_cache = context.said.nbytes("kv_cache", "memory_recurrent")
    # llama.cpp converts each thread's share of a batch for the products, with rows at most as wide as the weights.
    widest = max(tensor.shape[0] for tensor in model.file.tensors)
    converted = shape.batch * widest * 4
    buffers = context.said.nbytes("compute") + context.said.nbytes("output") + converted
    return kv_cache, buffers + model.vocabulary * _PER_TOKEN_OF_VOCABULARY + _OVERHEAD


def _reserve(budget: MemoryBudget, memory: LlamaMemory, mappable: bool) -> tuple[LlamaMemory, list[Lease]]:
    leases: list[Lease] = []
    try:
        leases.append(budget.reserve("generator: vocabulary", memory.vocabulary))
        leases.append(budget.reserve("generator: KV cache", memory.kv_cache))
        leases.append(budget.reserve("generator: buffers", memory.buffers))
        try:
            leases.append(budget.reserve("generator: weights", memory.weights))
        except BudgetExceeded:
            if not mappable:
                raise
        else:
            memory = replace(memory, mapped=False)
    except BudgetExceeded:
        for lease in leases:
            lease.release()
        raise
    return memory, leases


def _too_small(
    file: GGUFFile, budget: MemoryBudget, memory: LlamaMemory, refused: BudgetExceeded, mappable: bool
) -> BudgetExceeded:
    asked = memory.leased + (0 if mappable else memory.weights)
    needed = budget.used + asked
    held = ", ".join(f"{name} {format_size(size)}" for name, size in budget.holders().items())
    return BudgetExceeded(
        f"{file.path.name} needs {format_size(asked, up=True)} with a context of {memory.shape.tokens:,} tokens "
        f"(KV cache {format_size(memory.kv_cache)}, vocabulary {format_size(memory.vocabulary)}, buffers "
        f"{format_size(memory.buffers)}, weights "
        f"{'mapped from the file' if mappable else format_size(memory.weights)}) but "
        f"{format_size(max(0, refused.free))} of the {format_size(budget.limit)} memory limit is free (held: {held}); "
        f"a limit of {format_size(needed, up=True)} is the smallest that works",
        owner=file.path.name,
        asked=asked,
        free=refused.free,
        needed=needed,
    )


AUTO = "auto"
_DEVICE = "cuda"
"""The device whose GPU llama.cpp can use as well."""


@dataclass(slots=True)
class GpuLayers:
    """What is asked: `auto` takes as many layers as fit into the free memory of the device, and none without one."""

    asked: str
    device: str
    count: int = 0
    _opened: Any = None
    _lease: Lease | None = field(default=None, repr=False)

    def reserve(self, api: Any, file: GGUFFile, budget: MemoryBudget, beside: int) -> None:
        """Chooses the layers and leases their bytes from the ledger of the device: their part of the weights and of
        `beside`, the bytes of keys, values and buffers. The host's leases stay, since they cover the loading.

        Raises:
            ConfigError: a number is asked for, but there is no such device, or the model has fewer layers.
            CapabilityError: a number is asked for, and this llama.cpp was built without a GPU.
            BudgetExceeded: the layers do not fit into the memory of the device.
        """
        wanted = 0 if self.asked == AUTO else int(self.asked)
        if self.asked != AUTO and not wanted:
            return
        can = bool(api.llama_supports_gpu_offload())
        here = parse_device(self.device)[0] == _DEVICE
        if self.asked == AUTO and not (can and here):
            return
        if not can:
            raise CapabilityError(
                f"{wanted} layers of {file.path.name} cannot lie on a GPU, because this llama.cpp was built without "
                f"one; install llama-cpp-python for your GPU, or set gpu_layers to {AUTO}"
            )
        if not here:
            raise ConfigError(f"layers of {file.path.name} on a GPU need its memory limit: --device {_DEVICE}")
        layers = int(file.value("block_count")) + 1  # llama.cpp counts the output as one
        if wanted > layers:
            raise ConfigError(f"{file.path.name} has {layers} layers with its output, fewer than {wanted}")
        self._opened = open_device(self.device, budget)
        each = -(-(file.weights_nbytes + beside) // layers)
        ledger = self._opened.memory
        self.count = wanted or min(layers, ledger.free // each)
        self._lease = ledger.reserve(f"{self.count} layers of {file.path.name}", self.count * each)

    @property
    def placement(self) -> str:
        """What lies there, for people; empty if nothing does."""
        return (
            f"{self.count} layers on the GPU, {format_size(self._lease.nbytes)}" if self._lease and self.count else ""
        )

    def close(self) -> None:
        if self._lease is not None:
            self._lease.release()
            self._lease = None
        if self._opened is not None:
            self._opened.close()
            self._opened = None
