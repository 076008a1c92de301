"""What an engine and its passes need: memory, computed before anything is loaded; and the arrangement of passes in the
free memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edge.budget import SPREAD, import_nbytes
from edge.config import format_size
from edge.errors import BudgetExceeded
from edge.models.packed import HEAD, PackedModel
from edge.models.spec import ModelSpec
from edge.models.tables import Tables
from edge.models.tokenizer import TokenBatch, Vocabulary
from edge.runtimes.base import HiddenDtype, LayerKernel, Runtime, Workplace
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
