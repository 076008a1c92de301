"""The memory that an engine and its passes need, computed from the model's description before anything is loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edge.budget import SPREAD, import_nbytes
from edge.config import format_size
from edge.errors import BudgetExceeded
from edge.models.layout import HEAD
from edge.models.packed import PackedModel
from edge.models.spec import ModelSpec
from edge.models.tokenizer import PairTokenizer
from edge.runtimes.base import HiddenDtype, Runtime
from edge.runtimes.input import InputEmbedding
from edge.streaming.memory_plan import SLACK, Request
from edge.streaming.window import SLIDING

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
