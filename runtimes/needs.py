"""What an engine and its passes need: memory, computed before anything is loaded; chunks that saturate the cores,
measured once per kernel; and their arrangement in the free memory."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import platformdirs

from edge.budget import SPREAD, MemoryBudget, import_nbytes
from edge.config import format_size
from edge.errors import BudgetExceeded
from edge.files.sealed import recall, remember
from edge.models.packed import HEAD, PackedModel
from edge.models.spec import ModelSpec
from edge.models.tables import Tables
from edge.models.tokenizer import TokenBatch, Vocabulary
from edge.resident import trim_heap
from edge.runtimes.base import HiddenDtype, LayerKernel, Runtime, Workplace, physical_cores
from edge.runtimes.input import InputEmbedding
from edge.streaming.forwarding import SLACK, MemoryPlan, PassSizes, least, plan_memory
from edge.streaming.window import SLIDING, SlidingWindow

HEADROOM = 16 << 20
"""Bytes reserved for Python's own objects, fragmentation of the heap, and the growth of a tokenizer in use."""

LEAST_ROWS = 512
"""Rows of the smallest row cache. A request with more different tokens reads the other rows without the cache."""

LOOKUP_PER_TOKEN = 10
"""Temporary bytes per token while a request's rows are looked up: the sorted ids, and the places where they change."""

_PER_TOKEN = 5 + LOOKUP_PER_TOKEN
"""Bytes per token of a request: its id, its type, and the lookup of its row."""

_LONGEST_EXPANSION = 18
"""Largest number of characters that normalization makes of one character. Each may become a token."""

_FRAME_TOKENS = 8


@dataclass(frozen=True, slots=True)
class EngineNeeds:
    """Upper bounds on an engine's memory, in bytes: held while open, with the smallest caches; while the tokenizer
    loads; and for a pass over one longest sequence. `libraries` stay."""

    libraries: tuple[str, ...]
    held: int
    tokenizer: int
    working: int

    @property
    def own(self) -> int:
        """Bytes that the engine needs to open and to work, without libraries. They must be free or releasable."""
        return self.held + max(self.tokenizer, self.working)

    @property
    def nbytes(self) -> int:
        """Bytes that the engine needs to open and to work, with libraries."""
        return import_nbytes(self.libraries) + self.own


def engine_needs(model: PackedModel, runtime: Runtime, *, threads: int, max_tokens: int) -> EngineNeeds:
    """The needs of an engine for sequences of up to `max_tokens`."""
    spec = model.spec
    tokenizer = Tables(model.tokenizer_path, spec).loading_nbytes
    rows = InputEmbedding.memory_needed(model, LEAST_ROWS, max_tokens)
    workspace = runtime.planned(spec.layer, threads=threads, hidden_dtype=hidden_dtype(spec))
    return EngineNeeds(
        libraries=("tokenizers", *runtime.libraries),
        held=runtime.compiled_nbytes + HEADROOM + model.file.nbytes(HEAD) + rows + SLACK,
        tokenizer=tokenizer,
        working=runtime.working_nbytes(least_pass(model, workspace, max_tokens)),
    )


def least_pass(model: PackedModel, workspace: Callable[[int, int, int], int], max_tokens: int) -> PassSizes:
    """The sizes of a pass over one longest sequence, with the longest prefix."""
    shares = model.spec.layer.causal and model.spec.head.scores
    prefix = max_tokens if shares else 0
    return pass_sizes(
        model,
        lambda chunk, longest: workspace(chunk, longest, prefix),
        tokens=max_tokens,
        longest=max_tokens,
        saturating=max_tokens,
    )


def pass_sizes(
    model: PackedModel, workspace: Callable[[int, int], int], *, tokens: int, longest: int, saturating: int
) -> PassSizes:
    """The sizes of a pass (see `edge.streaming.forwarding.PassSizes`)."""
    return PassSizes(
        tokens=tokens,
        longest=longest,
        width=model.spec.layer.hidden,
        dtype=hidden_dtype(model.spec),
        workspace=workspace,
        layers=model.spec.layers,
        layer_nbytes=model.file.nbytes(model.layer_blocks[0]),
        saturating_tokens=saturating,
    )


def request_nbytes(texts: Sequence[str], max_tokens: int, hidden: int, layers: int, query: str = "") -> int:
    """Upper bound on the bytes that a request holds beside one pass's workspace, before tokenizing."""
    scored = min(len(texts), SCORED_TOGETHER) * SCORING_ARRAYS + len(texts)
    return tokens_nbytes(texts, max_tokens, query) + scored * hidden * 4 + len(texts) * 8 * (4 + 2 * layers)


def tokens_nbytes(texts: Sequence[str], max_tokens: int, query: str = "") -> int:
    """The part of `request_nbytes` that the tokens take."""
    beside = _most_tokens(query) + _FRAME_TOKENS
    return _PER_TOKEN * sum(min(max_tokens, beside + _most_tokens(text)) for text in texts)


def _most_tokens(text: str) -> int:
    return len(text) * (1 if text.isascii() else _LONGEST_EXPANSION)


SCORED_TOGETHER = 1024
"""Number of candidates that are scored in one product. Its temporary arrays are as wide as the model's vectors."""

SCORING_ARRAYS = 4
"""Number of temporary arrays of that width that exist at the same time."""


def hidden_dtype(spec: ModelSpec) -> HiddenDtype:
    """The dtype of hidden states between layers: half precision where a layer norm bounds them."""
    return "float16" if spec.layer.precision != "fp32" and not spec.layer.norm_first else "float32"


def too_small(model: PackedModel, limit: int, needed: int) -> BudgetExceeded:
    """The error for a limit in which no plan fits. It names the smallest limit that works."""
    needed += SPREAD
    layers = format_size(min(SLIDING, model.spec.layers) * model.file.nbytes(model.layer_blocks[0]))
    return BudgetExceeded(
        f"{model.name} cannot work within {format_size(limit)}: with two of its layers ({layers}), one text and what "
        f"interpreter and libraries hold, the smallest memory limit that works is {format_size(needed, up=True)}",
        owner=model.name,
        asked=needed,
        free=limit,
        needed=needed,
    )


@dataclass(slots=True)
class Room:
    """Arranges passes in the free memory of a workplace. `offload` None keeps states on disk only if they must be."""

    model: PackedModel
    place: Workplace
    kernel: LayerKernel
    vocabulary: Vocabulary
    window: SlidingWindow
    offload: bool | None
    saturating: int

    def plan_memory(self, batches: Sequence[TokenBatch]) -> MemoryPlan:
        """The layout of one pass over the sequences of some batches."""
        request = self._request(batches)
        resident = None if self.offload is None else not self.offload
        chosen = plan_memory(request, self._available(), resident=resident)
        # Without the tokenizer a larger chunk may fit. To load it again later costs less than a slow pass now.
        if (chosen is None or not chosen.saturated) and self.place.on_host and self.vocabulary.drop():
            return self.plan_memory(batches)
        if chosen is None:
            self.place.memory.make_room(least(request) - self.window.buffers * self.window.block_nbytes)
            chosen = plan_memory(request, self._available(), resident=resident)
        if chosen is None:
            available = self._available()
            needed = self.place.memory.limit - available + least(request)
            limit = "memory limit" if self.place.on_host else "limit of device memory"
            whole = format_size(self.place.memory.limit)
            raise BudgetExceeded(
                f"a sequence of {request.longest} tokens needs {format_size(least(request))} but "
                f"{format_size(max(0, available))} of the {whole} {limit} is left for it; "
                f"the smallest {limit} that works is {format_size(needed, up=True)}",
                owner=self.model.name,
                asked=least(request),
                free=available,
                needed=needed,
            )
        return chosen

    def quicker_together(self, batches: Sequence[TokenBatch]) -> bool:
        """Whether one pass over all batches is quicker than a separate one for the last: layers are read from disk, or
        the others do not saturate the cores; all states must fit."""
        others = sum(int(batch.lengths.sum()) for batch in batches[:-1])
        if self.holds_all_layers and others >= self.saturating:
            return False
        chosen = plan_memory(self._request(batches), self._available(), resident=True)
        return chosen is not None and chosen.saturated

    @property
    def holds_all_layers(self) -> bool:
        """Whether every layer is in memory, or would be if a pass began now."""
        missing = len(self.window.order) - self.window.buffers
        return self.window.can_hold_all and missing * self.window.block_nbytes <= self.place.memory.free

    def _available(self) -> int:
        return self.place.memory.free + self.window.buffers * self.window.block_nbytes

    def _request(self, batches: Sequence[TokenBatch]) -> PassSizes:
        prefix = max(len(batch.prefix) for batch in batches)

        def workspace(chunk: int, longest: int) -> int:
            return self.kernel.workspace(chunk, longest, prefix) + self.place.beside(self.model, chunk, longest)

        return pass_sizes(
            self.model,
            workspace,
            tokens=sum(int(batch.lengths.sum()) for batch in batches),
            longest=max(int(batch.lengths.max()) for batch in batches),
            saturating=self.saturating,
        )


_SIZES = (128, 256, 512, 1024, 2048)
_ENOUGH = 0.97
"""A chunk size saturates the cores if it reaches this share of the best measured throughput."""

_SEQUENCE = 100
"""Tokens per sequence in the measurement; a chunk has as many whole ones as fit."""

_ROUNDS = 5
"""Number of runs of each size. The sizes take turns, so that other load on the machine does not slow a single size."""

_STEADY = 1.25
"""A measurement is disturbed if the slowest run of the chosen size takes more than this multiple of the fastest."""

_WORKING = 0.8
"""A measurement is disturbed if the threads worked for less than this share of its time."""

_TRIES = 5
"""A disturbed measurement is used in this process only; after this number of them the largest result is stored."""

_METHOD = 3
"""The number of this measurement's method. Results of other methods are ignored."""

_disturbed: dict[str, int] = {}
"""The results of this process's disturbed measurements, by the key of the stored ones."""


def saturating_tokens(kernel: LayerKernel, runtime: str, threads: int, budget: MemoryBudget, spared: int = 0) -> int:
    """The smallest chunk size, in tokens, with 97 % of the best throughput. Only sizes that leave `spared` bytes are
    measured; the smallest without a measurement if none does."""
    room = budget.free - spared
    sizes = [size for size in _SIZES if _nbytes(kernel, size) <= room]
    if not sizes:
        return _SIZES[0]
    subject = (_METHOD, runtime, threads, os.cpu_count(), kernel.spec, kernel.hidden_dtype, sizes)
    key = hashlib.sha256(repr(subject).encode()).hexdigest()[:16]
    path = Path(platformdirs.user_cache_dir("edge-rag", appauthor=False)) / "saturation.json"
    if key in _disturbed:
        return _disturbed[key]
    known = recall(path, "the measured chunk sizes")
    if isinstance(known.get(key), int) and known[key] in _SIZES:
        return int(known[key])
    try:
        with budget.reserve("measurement", _nbytes(kernel, sizes[-1])):
            seconds, working = _measure(kernel, sizes, threads or physical_cores())
            trim_heap()
    except BudgetExceeded:  # another thread has taken the free memory
        return _SIZES[0]
    chosen, spread = choose(seconds)
    found = known.pop(f"disturbed {key}", None)
    if spread > _STEADY or working < _WORKING:
        tries: list[int] = [*(size for size in (found if isinstance(found, list) else ()) if size in _SIZES), chosen]
        chosen = max(tries)
        if len(tries) < _TRIES:
            _disturbed[key] = chosen
            remember(path, {**known, f"disturbed {key}": tries})
            return chosen
    remember(path, {**known, key: chosen})
    return chosen


def choose(seconds: Mapping[int, Sequence[float]]) -> tuple[int, float]:
    """The smallest size with 97 % of the best throughput in its fastest run, and its slowest run's ratio."""
    rates = {size: size // _SEQUENCE / min(runs) for size, runs in seconds.items()}
    best = max(rates.values())
    size = min(size for size, rate in rates.items() if rate >= _ENOUGH * best)
    return size, max(seconds[size]) / min(seconds[size])


def _nbytes(kernel: LayerKernel, tokens: int) -> int:
    """Bytes for the measurement of a size: states, a layer's random weights, and the numbers they are made from."""
    states = tokens * kernel.spec.hidden * (4 + np.dtype(kernel.hidden_dtype).itemsize)
    return kernel.workspace(tokens, _SEQUENCE) + states + 3 * kernel.spec.nbytes


def _measure(kernel: LayerKernel, sizes: list[int], threads: int) -> tuple[dict[int, list[float]], float]:
    """The times of the runs of each size, and the share of the time in which the threads worked in the largest runs."""
    generator = np.random.default_rng(0)
    weights: dict[str, npt.NDArray[np.generic]] = {}
    for tensor in kernel.spec.tensors():
        if tensor.dtype == "int8":
            weights[tensor.name] = generator.integers(-127, 128, tensor.shape, dtype=np.int8)
        else:
            weights[tensor.name] = (generator.standard_normal(tensor.shape, np.float32) * 0.02).astype(tensor.dtype)
    bound = kernel.bind(weights)  # as in a pass, where a layer is bound once for all chunks
    seconds: dict[int, list[float]] = {size: [] for size in sizes}
    worked = 0.0
    for turn in range(_ROUNDS + 1):
        for size in sizes:
            lengths = np.full(size // _SEQUENCE, _SEQUENCE, np.int32)
            shape = int(lengths.sum()), kernel.spec.hidden
            states = generator.standard_normal(shape, np.float32).astype(kernel.hidden_dtype)
            started, before = time.perf_counter(), time.process_time()
            kernel.run(states, lengths, bound)
            if turn > 0:  # the first round warms up
                seconds[size].append(time.perf_counter() - started)
                worked += (time.process_time() - before) * (size == sizes[-1])
    return seconds, worked / sum(seconds[sizes[-1]]) / threads
