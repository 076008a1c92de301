"""`Room`: arranges the passes of one model in the free memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edge.config import format_size
from edge.errors import BudgetExceeded
from edge.models.packed import PackedModel
from edge.models.tokens import TokenBatch
from edge.runtimes.base import LayerKernel
from edge.runtimes.needs import pass_sizes
from edge.runtimes.vocabulary import Vocabulary
from edge.runtimes.workplace import Workplace
from edge.streaming.memory_plan import MemoryPlan, Request, least, plan_memory
from edge.streaming.window import SlidingWindow


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
