"""The memory that an engine and its passes need, and how passes are arranged in the free memory.

The needs are computed from the description of the model before anything is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edge.budget import SPREAD, import_nbytes
from edge.config import format_size
from edge.errors import BudgetExceeded
from edge.models.packed import HEAD, PackedModel
from edge.models.spec import ModelSpec
from edge.models.tokenizer import PairTokenizer, TokenBatch, Vocabulary
from edge.runtimes.base import HiddenDtype, LayerKernel, Runtime, Workplace
from edge.runtimes.input import InputEmbedding
from edge.streaming.memory_plan import SLACK, MemoryPlan, Request, least, plan_memory
from edge.streaming.window import SLIDING, SlidingWindow

HEADROOM = 16 << 20
"""Bytes reserved for Python's own objects, fragmentation of the heap, and the growth of a tokenizer in use."""

LEAST_ROWS = 512
"""Rows of the smallest row cache. A request with more different tokens reads the other rows without the cache."""

LOOKUP_PER_TOKEN = 10
"""Temporary bytes per token while a request's rows are looked up: the sorted ids, and the places where they change."""

_PER_TOKEN = 5 + LOOKUP_PER_TOKEN
"""Bytes per token of a request: its id, its type, and the lookup of its row. To join the ids of single texts takes
less memory than the lookup."""

_LONGEST_EXPANSION = 18
"""Largest number of characters that normalization makes of one character. Each may become a token."""

_FRAME_TOKENS = 8


@dataclass(frozen=True, slots=True)
class EngineNeeds:
    """Upper bounds on an engine's memory, in bytes.

    Attributes:
        libraries: modules that stay in the process when the engine is closed.
        held: memory while the engine is open, with the smallest caches.
        tokenizer: memory while the tables of the tokenizer are loaded.
        working: memory for a pass over one longest sequence. Tokenizer and pass are not in memory at the same time.
    """

    libraries: tuple[str, ...]
    held: int
    tokenizer: int
    working: int

    @property
    def importing(self) -> int:
        """Bytes by which the process grows when the libraries are imported."""
        return import_nbytes(self.libraries)

    @property
    def own(self) -> int:
        """Bytes that the engine needs to open and to work, without libraries. They must be free or releasable."""
        return self.held + max(self.tokenizer, self.working)

    @property
    def nbytes(self) -> int:
        """Bytes that the engine needs to open and to work, with libraries."""
        return self.importing + self.own


def engine_needs(model: PackedModel, runtime: Runtime, *, threads: int, max_tokens: int) -> EngineNeeds:
    """The needs of an engine for sequences of up to `max_tokens`."""
    spec = model.spec
    tokenizer = PairTokenizer(model.tokenizer_path, spec).loading_nbytes
    rows = InputEmbedding.memory_needed(model, LEAST_ROWS, max_tokens)
    workspace = runtime.planned(spec.layer, threads=threads, hidden_dtype=hidden_dtype(spec))
    return EngineNeeds(
        libraries=("tokenizers", *runtime.libraries),
        held=runtime.compiled_nbytes + HEADROOM + model.file.nbytes(HEAD) + rows + SLACK,
        tokenizer=tokenizer,
        working=runtime.working_nbytes(least_pass(model, workspace, max_tokens)),
    )


def least_pass(model: PackedModel, workspace: Callable[[int, int, int], int], max_tokens: int) -> Request:
    """The sizes of a pass over one longest sequence, with the longest prefix.

    Args:
        workspace: as `LayerKernel.workspace`.
    """
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
) -> Request:
    """The sizes of a pass (see `edge.streaming.memory_plan.Request`)."""
    return Request(
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
    """Upper bound on the bytes that a request over `texts` holds, without one pass's workspace. It is computed before
    the texts are tokenized, and covers the tokens, and for each text its vector, the arrays for scoring, and the scores
    after each layer.

    Args:
        max_tokens: longest sequence.
        query: text before each of `texts`.
    """
    beside = _most_tokens(query) + _FRAME_TOKENS
    tokens = sum(min(max_tokens, beside + _most_tokens(text)) for text in texts)
    scored = min(len(texts), SCORED_TOGETHER) * SCORING_ARRAYS + len(texts)
    return tokens * _PER_TOKEN + scored * hidden * 4 + len(texts) * 8 * (4 + 2 * layers)


def _most_tokens(text: str) -> int:
    return len(text) * (1 if text.isascii() else _LONGEST_EXPANSION)


SCORED_TOGETHER = 1024
"""Number of candidates that are scored in one product. Its temporary arrays are as wide as the model's vectors."""

SCORING_ARRAYS = 4
"""Number of temporary arrays of that width that exist at the same time."""


def hidden_dtype(spec: ModelSpec) -> HiddenDtype:
    """The dtype of hidden states between layers. After a layer norm the states are bounded, and half precision costs
    less accuracy than int8 weights do. The residual stream of a pre-norm decoder exceeds half precision's range."""
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
    """Arranges passes in the free memory.

    Attributes:
        place: the workplace, which has the memory.
        offload: whether hidden states are kept on disk; None means only if they do not fit in memory.
        saturating: number of tokens in a chunk that saturates the cores.
    """

    model: PackedModel
    place: Workplace
    kernel: LayerKernel
    vocabulary: Vocabulary
    window: SlidingWindow
    offload: bool | None
    saturating: int

    def plan_memory(self, batches: Sequence[TokenBatch]) -> MemoryPlan:
        """The layout of one pass over the sequences of some batches.

        Raises:
            BudgetExceeded: no layout fits; the error names the smallest limit that works.
        """
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
        """Whether one pass over all batches takes less time than a separate pass for the last batch. This is so if
        layers must be read from disk, or if the other batches do not saturate the cores. All hidden states must fit in
        memory."""
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
        """Bytes that are available for weights, workspace and states."""
        return self.place.memory.free + self.window.buffers * self.window.block_nbytes

    def _request(self, batches: Sequence[TokenBatch]) -> Request:
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
