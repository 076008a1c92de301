"""`Workplace`: the memory in which a runtime's layers work, either the host's or that of a device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy.typing as npt

from edge.budget import MemoryBudget
from edge.link import Lane
from edge.models.packed import PackedModel
from edge.models.tokens import TokenBatch
from edge.runtimes.input import Feed, InputEmbedding
from edge.streaming.hidden_states import (
    Chunk,
    Groups,
    HiddenStates,
    NumpyStates,
    OffloadedStates,
    ResidentStates,
    StatesShape,
)
from edge.streaming.memory_plan import MemoryPlan
from edge.streaming.window import HostWay, Way


@dataclass(frozen=True, slots=True)
class Pass:
    """A pass over a batch.

    Attributes:
        groups: the request that each sequence belongs to [n].
        dtype: numpy's name of the type of the hidden states.
        scratch: folder for states that do not fit in memory.
    """

    batch: TokenBatch
    memory_plan: MemoryPlan
    groups: Groups
    model: PackedModel
    dtype: str
    embedding: InputEmbedding
    scratch: Path

    @property
    def shape(self) -> StatesShape:
        """The size of the hidden states."""
        return StatesShape(self.batch.lengths, self.model.spec.layer.hidden, self.dtype, self.groups)

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return int(self.batch.lengths.max())

    @property
    def longest_chunk(self) -> int:
        """Upper bound on the tokens of a chunk."""
        return max(self.longest, self.memory_plan.chunk_tokens)


class Workplace(Protocol):
    """The memory for weights, intermediates and hidden states of a pass.

    Attributes:
        memory: the budget of that memory.
        on_host: whether it is the memory of this process.
        lane: the lane that transfers weights, for its counters.
    """

    memory: MemoryBudget
    on_host: bool
    lane: Lane

    def way(self, model: PackedModel) -> Way:
        """The way by which a model's layers are read into a window's buffers."""

    def tensors(self, model: PackedModel, layer: int, buffer: Any) -> dict[str, Any]:
        """Views of a layer's tensors in a window's buffer."""

    def states(self, run: Pass) -> HiddenStates:
        """The storage for a pass's hidden states between layers. Raises the errors of `HiddenStates`."""

    def embed(self, feed: Feed, states: Any) -> Callable[[Chunk], Any]:
        """A function that returns layer 0's input of a chunk, in the form that `states.store` takes.

        Args:
            states: the result of `states` for this pass.
        """

    def beside(self, model: PackedModel, chunk_tokens: int, longest: int) -> int:
        """Bytes that a pass takes here beside weights, states and the buffers of the layers: part of its workspace."""

    def prefix(self, states: npt.NDArray[Any]) -> Any:
        """Layer 0's input of a shared prefix, [tokens, hidden], in the form that `LayerKernel.run_prefix` takes."""

    def close(self) -> None:
        """Frees the memory of this place."""


class HostPlace:
    """The memory of this process."""

    on_host = True

    def __init__(self, memory: MemoryBudget, lane: Lane) -> None:
        self.memory = memory
        self.lane = lane

    def way(self, model: PackedModel) -> Way:
        """Layers are read from the disk into buffers of this process."""
        return HostWay(self.lane)

    def tensors(self, model: PackedModel, layer: int, buffer: Any) -> dict[str, Any]:
        """Views of the tensors. Nothing is copied."""
        return model.tensors(model.layer_blocks[layer], buffer)

    def states(self, run: Pass) -> NumpyStates:
        """The states are in memory, or in a scratch file."""
        if run.memory_plan.resident:
            return ResidentStates(run.shape, self.memory)
        return OffloadedStates(run.shape, self.memory, self.lane, run.scratch, run.longest_chunk)

    def embed(self, feed: Feed, states: NumpyStates) -> Callable[[Chunk], npt.NDArray[Any]]:
        """The host computes layer 0's input in the memory of the states."""

        def embed(chunk: Chunk) -> npt.NDArray[Any]:
            into = states.room(chunk)
            feed.chunk(chunk, into)
            return into

        return embed

    def beside(self, model: PackedModel, chunk_tokens: int, longest: int) -> int:
        """Nothing."""
        return 0

    def prefix(self, states: npt.NDArray[Any]) -> Any:
        """Returns the states unchanged."""
        return states

    def close(self) -> None:
        """Does nothing, because the place owns nothing."""
