"""`Tuning`: settings that override an engine's own choices."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tuning:
    """Overrides of an engine's own choices, for ablations, benchmarks and tests.

    Attributes:
        row_share: share of the vocabulary's rows that the row cache holds (GRATING, section 4.4).
        chunk_tokens: tokens of a chunk; None takes the smallest size that saturates the cores, or less if memory is
            short.
        buffers: largest number of layers in memory; None means as many as fit.
        offload: whether hidden states are kept on disk; None means only if they do not fit in memory.
        share_prefix: compute a decoder's common prefix once, not once per candidate.
        share: requests of several threads may share a pass.
    """

    row_share: float = 0.10
    chunk_tokens: int | None = None
    buffers: int | None = None
    offload: bool | None = None
    share_prefix: bool = True
    share: bool = True
