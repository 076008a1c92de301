"""What an engine of a model needs, computed from the model's description before anything is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edge.arrangement import SLACK, Request, least
from edge.libraries import import_nbytes
from edge.models.layout import HEAD
from edge.models.packed import PackedModel
from edge.models.spec import ModelSpec
from edge.models.tokenizer import PairTokenizer
from edge.runtimes.base import HiddenDtype, Runtime
from edge.runtimes.input import InputEmbedding

HEADROOM = 16 << 20
"""Bytes kept for Python's own objects, the heap's fragmentation, and what a tokenizer grows by while it is used."""

LEAST_ROWS = 512
"""The smallest row cache; a request with more different tokens still works, reading past the cache."""

LOOKUP_PER_TOKEN = 10
"""Bytes per token that looking up a request's rows takes for a moment: its ids, sorted, and where they change."""

_PER_TOKEN = 5 + LOOKUP_PER_TOKEN
"""Bytes per token of a request: its id and its type, and what looking its row up takes. Joining the ids of single texts
takes less than that."""

_LONGEST_EXPANSION = 18
"""Characters that normalization makes of one, at most; each may be a token of its own."""

_FRAME_TOKENS = 8


@dataclass(frozen=True, slots=True)
class EngineNeeds:
    """Bytes of an engine, at most.

    Attributes:
        libraries: modules that stay in the process when the engine is closed.
        held: what it holds as long as it is open, with the smallest caches.
        tokenizer: the tables of its tokenizer while they are loaded.
        working: for a pass over one longest sequence; tokenizer and pass take turns.
    """

    libraries: tuple[str, ...]
    held: int
    tokenizer: int
    working: int

    @property
    def importing(self) -> int:
        """By which importing its libraries lets the process grow."""
        return import_nbytes(self.libraries)

    @property
    def own(self) -> int:
        """What must be free, or held by what gives way, for it to be opened and to work."""
        return self.held + max(self.tokenizer, self.working)

    @property
    def nbytes(self) -> int:
        """The same with its libraries."""
        return self.importing + self.own


def engine_needs(model: PackedModel, runtime: Runtime, *, threads: int, max_tokens: int) -> EngineNeeds:
    """The needs of an engine for sequences of up to `max_tokens`."""
    spec = model.spec
    dtype = hidden_dtype(spec)
    tokenizer = PairTokenizer(model.tokenizer_path, spec).loading_nbytes
    rows = InputEmbedding.memory_needed(model, LEAST_ROWS, max_tokens)
    prefix = longest_prefix(spec, max_tokens)

    workspace = runtime.planned(spec.layer, threads=threads, hidden_dtype=dtype)
    one = Request(
        tokens=max_tokens,
        longest=max_tokens,
        width=spec.layer.hidden,
        dtype=dtype,
        workspace=lambda chunk, longest: workspace(chunk, longest, prefix),
        layers=spec.layers,
        layer_nbytes=model.file.nbytes(model.layer_blocks[0]),
        saturating_tokens=max_tokens,
    )
    return EngineNeeds(
        libraries=("tokenizers", *runtime.libraries),
        held=runtime.compiled_nbytes + HEADROOM + model.file.nbytes(HEAD) + rows + SLACK,
        tokenizer=tokenizer,
        working=least(one),
    )


def request_nbytes(texts: Sequence[str], max_tokens: int, hidden: int, layers: int, query: str = "") -> int:
    """Bytes that a request over `texts` holds besides one pass's workspace, at most, before they are tokenized: tokens,
    and for each text its vector, what it is scored in, and its scores after each layer.

    Args:
        max_tokens: longest sequence.
        query: stands before each text.
    """
    beside = _most_tokens(query) + _FRAME_TOKENS
    tokens = sum(min(max_tokens, beside + _most_tokens(text)) for text in texts)
    scored = min(len(texts), SCORED_TOGETHER) * SCORING_ARRAYS + len(texts)
    return tokens * _PER_TOKEN + scored * hidden * 4 + len(texts) * 8 * (4 + 2 * layers)


def _most_tokens(text: str) -> int:
    return len(text) * (1 if text.isascii() else _LONGEST_EXPANSION)


SCORED_TOGETHER = 1024
"""Candidates that are scored in one product: its temporary arrays are as wide as the model's vectors."""

SCORING_ARRAYS = 4
"""Arrays of that width that are there at once then."""


def longest_prefix(spec: ModelSpec, max_tokens: int) -> int:
    """Tokens of the longest prefix that the sequences of a request may share."""
    return max_tokens if spec.layer.causal and spec.head.scores else 0


def hidden_dtype(spec: ModelSpec) -> HiddenDtype:
    """How hidden states are held between layers. Behind a layer norm they are bounded, and half precision costs less
    than int8 weights do; the residual stream of a pre-norm decoder outgrows its range."""
    return "float16" if spec.layer.precision != "fp32" and not spec.layer.norm_first else "float32"
