"""An engine: one packed model, opened under a memory budget, that forwards batches of token sequences.

It owns what a model needs besides its hidden states: the compiled layer, the weight window, the row cache, the
vocabulary. Rerankers and embedders are thin layers on top that say what is read from the hidden states.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

import numpy as np

from edge.arrangement import SLACK, Arrangement, Request, arrange, least
from edge.budget import MemoryBudget
from edge.chunking import HiddenStates, OffloadedStates, ResidentStates
from edge.config import format_size
from edge.errors import BudgetExceeded, InputError
from edge.forwarding import Observer, forward
from edge.lanes import Lane
from edge.models.layout import HEAD
from edge.models.packed import PackedModel
from edge.models.tokens import TokenBatch
from edge.plan import SPREAD, Plan, Stage
from edge.resident import ResidentWatch, trim_heap
from edge.runtimes.base import HiddenDtype, runtime_for
from edge.runtimes.input import Feed, InputEmbedding
from edge.runtimes.needs import (
    HEADROOM,
    LEAST_ROWS,
    LOOKUP_PER_TOKEN,
    engine_needs,
    hidden_dtype,
    longest_prefix,
    request_nbytes,
)
from edge.runtimes.saturation import saturating_tokens
from edge.runtimes.stats import RunStats
from edge.runtimes.vocabulary import Vocabulary
from edge.trace import Trace
from edge.window import SLIDING, SlidingWindow

MOST_TOKENS = 512
"""Tokens of the longest sequence, where the caller does not say."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """Overrides of what an engine would choose by itself: for ablations, benchmarks and tests.

    Attributes:
        row_share: share of the vocabulary whose rows are cached (GRATING, section 4.4).
        chunk_tokens: tokens of a chunk; None takes what saturates the cores and fits.
        buffers: at most so many layers in memory; None for as many as fit.
        offload: hidden states on disk; None only when they do not fit.
        share_prefix: compute a decoder's common prefix once (else once per candidate).
    """

    row_share: float = 0.10
    chunk_tokens: int | None = None
    buffers: int | None = None
    offload: bool | None = None
    share_prefix: bool = True


class Engine:
    """Forwards token sequences through a packed model within a budget. Thread-safe: one pass at a time.

    Attributes:
        needs: what it needs at most, known before anything was loaded.
        working: bytes that must be free, or held by what gives way, for a pass over one longest sequence.
    """

    def __init__(
        self,
        model: PackedModel,
        budget: MemoryBudget,
        *,
        runtime: str = "auto",
        threads: int = 0,
        max_tokens: int | None = None,
        scratch: Path,
        trace: Trace | None = None,
        tuning: Tuning | None = None,
    ) -> None:
        """Loads everything but the layers, and takes the smallest memory the model works with.

        Args:
            model: stays open as long as the engine; closed by `close`.
            max_tokens: longest sequence; None takes the model's own limit, at most 512.
            scratch: directory for offloaded hidden states.

        Raises:
            BudgetExceeded: the model cannot work in this budget; the error names the smallest limit that would do.
            CapabilityError: the runtime is missing or cannot run this architecture.
            CorruptBlock: a block does not match its checksum.
        """
        self.model = model
        self.budget = budget
        self.trace = trace or Trace()
        self.tuning = tuning or Tuning()
        self.max_tokens = min(max_tokens or MOST_TOKENS, model.spec.max_tokens)
        self.stats: RunStats | None = None
        self._scratch = scratch
        self._lock = threading.RLock()
        self._closed = False
        self._dtype: HiddenDtype = hidden_dtype(model.spec)
        self._saturating = self.max_tokens

        chosen = runtime_for(runtime, model.spec.layer)
        self.needs = engine_needs(model, chosen, threads=threads, max_tokens=self.max_tokens)
        with budget.loading(), ExitStack() as held:
            self._check_fits()
            budget.hold_libraries(self.needs.libraries)
            with budget.charge(f"{chosen.name} runtime", chosen.compiled_nbytes) as compiled:
                self.kernel = chosen.layer_kernel(model.spec.layer, threads=threads, hidden_dtype=self._dtype)
            held.enter_context(compiled)
            held.enter_context(budget.reserve("headroom", HEADROOM))
            held.enter_context(budget.reserve("head", model.file.nbytes(HEAD)))
            self.vocabulary = Vocabulary(model, budget, max_tokens=self.max_tokens)
            held.callback(self.vocabulary.close)
            self.vocabulary.give_way()
            self.lane = held.enter_context(Lane.shared(trace=self.trace))
            rows = held.enter_context(Lane("rows", link=self.lane.link, trace=self.trace))
            self.working = max(self.vocabulary.nbytes, least(self._sizes_of_one()))
            self.embedding = InputEmbedding(model, self._row_capacity(), budget, rows)
            held.callback(self.embedding.close)
            spared = self.working - self.vocabulary.nbytes
            self._saturating = self.tuning.chunk_tokens or saturating_tokens(
                self.kernel, chosen.name, threads, budget, spared
            )
            self.head = model.load(HEAD)
            self.window = SlidingWindow(model.file, model.layer_blocks, self.lane, budget, widest=self.tuning.buffers)
            held.callback(self.window.close)
            self._held = held.pop_all()
        # Nobody is left to close an engine that was forgotten, and the link's thread would wait for ever.
        for lane in (self.lane, rows):
            weakref.finalize(self, lane.close)

    def begin(self) -> None:
        """Says that a request is coming: the first layers are read while its texts are tokenized.

        Raises:
            InputError: the engine has been closed.
        """
        with self._lock:
            self._check_open()
            self.window.prefetch()

    def check_request(self, texts: Sequence[str], query: str = "") -> None:
        """Asks others to give way to a request, before any work is done for it.

        Raises:
            BudgetExceeded: it may not fit even then; the error names the smallest limit that works.
        """
        spec = self.model.spec
        request = request_nbytes(texts, self.max_tokens, spec.layer.hidden, spec.layers, query)
        with self._lock, self.budget.locked():
            self._check_open()
            # Tokenizer and layers are among those that give way; the pass needs one of them at a time.
            needed = self.working + request
            if needed > self.budget.make_room(needed):
                Plan(f"a request of {len(texts):,} texts", (Stage(self.model.name, own=needed),)).check(self.budget)

    def tokenize_pairs(self, query: str, docs: Sequence[str]) -> TokenBatch:
        """Token sequences of (query, document) pairs; documents are cut to `max_tokens`.

        Raises:
            InputError: the query is empty, a text is not valid Unicode, or the engine has been closed.
            BudgetExceeded: there is no memory for the tokenizer at present.
        """
        with self._lock:
            self._check_open()
            batch = self.vocabulary.pairs(query, docs)
        if self.tuning.share_prefix or len(batch.prefix) == 0:
            return batch
        spread = [np.concatenate((batch.prefix, part)) for part in np.split(batch.tokens, batch.starts[1:-1])]
        return replace(
            batch,
            prefix=batch.prefix[:0],
            tokens=np.concatenate(spread),
            lengths=(batch.lengths + len(batch.prefix)).astype(np.int32),
        )

    def tokenize_texts(self, texts: Sequence[str], *, query: bool = False) -> TokenBatch:
        """Token sequences of single texts, cut to `max_tokens`.

        Raises:
            InputError: a text is not valid Unicode, or the engine has been closed.
        """
        with self._lock:
            self._check_open()
            return self.vocabulary.texts(texts, query=query)

    def run(self, batch: TokenBatch, observer: Observer) -> RunStats:
        """Forwards a batch; `observer` sees the hidden states and decides who goes on.

        Raises:
            InputError: the engine has been closed.
            BudgetExceeded: the batch does not fit; the error names the limit that would do.
            CorruptBlock, StorageError: weights cannot be read, or states cannot be offloaded.
        """
        held = batch.nbytes + LOOKUP_PER_TOKEN * len(batch.tokens)
        with self._lock, self.budget.reserve("tokens", held), ResidentWatch() as watch:
            self._check_open()
            started = time.perf_counter()
            before = self.trace.snapshot()
            self.embedding.prepare(batch)
            request = self._request(batch)
            arrangement = self._arrange(request)
            with self.budget.reserve("workspace", arrangement.workspace):
                states = self._states(batch, arrangement)
                try:
                    self.window.start()
                    self.window.widen()
                    feed = Feed(self.embedding, batch, self._dtype)
                    forward(
                        window=self.window,
                        tensors=lambda layer, block: self.model.tensors(self.model.layer_blocks[layer], block),
                        kernel=self.kernel,
                        states=states,
                        embed=feed.chunk,
                        observer=observer,
                        chunk_tokens=arrangement.chunk_tokens,
                        prefix=feed.prefix(),
                        on_layer=self._check,
                        trace=self.trace,
                    )
                finally:
                    self.window.finish()
                    states.close()
            trim_heap()
            seconds = time.perf_counter() - started
        self.stats = RunStats.of(
            batch,
            arrangement,
            self.window,
            seconds=seconds,
            before=before,
            after=self.trace.snapshot(),
            peak_resident=watch.high_water,
            limit=self.budget.limit,
        )
        return self.stats

    def close(self) -> None:
        """Gives all memory back and closes the model."""
        with self._lock:
            self._closed = True
            self._held.close()
            self.model.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise InputError(f"the model {self.model.name} has been closed")

    def holds_all_layers(self) -> bool:
        """Whether every layer is in memory, or would be if a pass began now."""
        missing = len(self.window.order) - self.window.buffers
        return missing * self.window.block_nbytes <= self.budget.free

    def _check_fits(self) -> None:
        """Asks others to give way before anything is loaded.

        Raises:
            BudgetExceeded: not even the least fits.
        """
        budget, needs = self.budget, self.needs
        budget.make_room(needs.nbytes)
        if needs.nbytes > budget.free:
            raise too_small(self.model, budget.limit, budget.used + needs.nbytes)

    def _row_capacity(self) -> int:
        """Rows to cache: the wanted share of the vocabulary, or what is left when everything else has its least."""
        model = self.model
        floor = InputEmbedding.memory_needed(model, LEAST_ROWS, self.max_tokens)
        wanted = max(LEAST_ROWS, int(model.embedding.rows * self.tuning.row_share))
        # The tokenizer is there already, and gives way to the pass.
        spare = self.budget.free - floor - SLACK - (self.working - self.vocabulary.nbytes)
        return min(wanted, LEAST_ROWS + max(0, spare) // (model.embedding.row_nbytes + 16))

    def _sizes_of_one(self) -> Request:
        """The request of one longest sequence."""
        prefix = longest_prefix(self.model.spec, self.max_tokens)
        return self._sizes(tokens=self.max_tokens, longest=self.max_tokens, prefix=prefix)

    def _request(self, batch: TokenBatch) -> Request:
        return self._sizes(tokens=int(batch.lengths.sum()), longest=int(batch.lengths.max()), prefix=len(batch.prefix))

    def _sizes(self, *, tokens: int, longest: int, prefix: int) -> Request:
        spec = self.model.spec
        return Request(
            tokens=tokens,
            longest=longest,
            width=spec.layer.hidden,
            dtype=self._dtype,
            workspace=lambda chunk, most: self.kernel.workspace(chunk, most, prefix),
            layers=spec.layers,
            layer_nbytes=self.model.file.nbytes(self.model.layer_blocks[0]),
            saturating_tokens=self._saturating,
        )

    def _arrange(self, request: Request) -> Arrangement:
        available = self._available()
        resident = None if self.tuning.offload is None else not self.tuning.offload
        chosen = arrange(request, available, resident=resident)
        # Loading the tokenizer again next time costs less than starving the cores now.
        if (chosen is None or not chosen.saturated) and self.vocabulary.drop():
            return self._arrange(request)
        if chosen is None:
            self.budget.make_room(least(request) - self.window.buffers * self.window.block_nbytes)
            available = self._available()
            chosen = arrange(request, available, resident=resident)
        if chosen is None:
            held = self.budget.limit - available
            needed = held + least(request)
            raise BudgetExceeded(
                f"a sequence of {request.longest} tokens needs {format_size(least(request))} but "
                f"{format_size(max(0, available))} of the {format_size(self.budget.limit)} limit is left for it; "
                f"the smallest memory limit that works is {format_size(needed, up=True)}",
                owner=self.model.name,
                asked=least(request),
                free=available,
                needed=needed,
            )
        return chosen

    def _available(self) -> int:
        """Bytes for weights, workspace and states."""
        return self.budget.free + self.window.buffers * self.window.block_nbytes

    def _states(self, batch: TokenBatch, arrangement: Arrangement) -> HiddenStates:
        width = self.model.spec.layer.hidden
        if arrangement.resident:
            return ResidentStates(batch.lengths, width, self._dtype, self.budget)
        tokens = max(int(batch.lengths.max()), arrangement.chunk_tokens)
        return OffloadedStates(batch.lengths, width, self._dtype, self.budget, self.lane, self._scratch, tokens)

    def _check(self) -> None:
        self.trace.level("memory", resident=self.budget.relieve(), leased=self.budget.used)


def too_small(model: PackedModel, limit: int, needed: int) -> BudgetExceeded:
    """The refusal of a limit that no arrangement fits; names the smallest that works."""
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
