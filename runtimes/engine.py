"""An engine: one packed model, opened under a memory budget, that runs batches of token sequences. Rerankers and
embedders are thin layers on top."""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from edge.budget import MemoryBudget, OperationPlan, OperationStage
from edge.config import Config, parse_size
from edge.errors import BudgetExceeded, InputError
from edge.link import Lane
from edge.models.packed import HEAD, Kind, PackedModel
from edge.models.registry import resolve
from edge.models.tokenizer import TokenBatch, Vocabulary
from edge.resident import Closing, ResidentWatch, anonymous_resident, trim_heap
from edge.runtimes.base import HiddenDtype, Pass, chosen_runtime, runtime_for
from edge.runtimes.input import Feed, InputEmbedding
from edge.runtimes.needs import (
    HEADROOM,
    LEAST_ROWS,
    LOOKUP_PER_TOKEN,
    Room,
    engine_needs,
    hidden_dtype,
    least_pass,
    tokens_nbytes,
    too_small,
)
from edge.runtimes.passes import Job, JoinedJobs, RunStats
from edge.scheduling.waiting_line import BATCH, Taken, WaitingLine
from edge.streaming.forwarding import SLACK, MemoryPlan, forward
from edge.streaming.window import SlidingWindow
from edge.trace import Trace


@dataclass(frozen=True, slots=True)
class Tuning:
    """Overrides of an engine's own choices, for benchmarks and tests: the row cache's share of the vocabulary, tokens
    of a chunk, layers in memory, states on disk, and requests that share a pass."""

    row_share: float = 0.10
    chunk_tokens: int | None = None
    buffers: int | None = None
    offload: bool | None = None
    share: bool = True


_CHARS_PER_TOKEN = 4

_LITTLE = 0.02
"""The share of the spare memory that all token rows may take: reading and checking 5,000 of them anew for each chunk
takes 13 ms of processor time."""

_LONG = 2
"""A pass of more than so many times the tokens of the largest small request lets small requests go first."""

MOST_TOKENS = 512
"""Default limit for the tokens of a sequence."""


class Engine(Closing):
    """Runs token sequences through a packed model within a budget. Thread-safe: there is one pass at a time, which
    simultaneous requests share. `needs` are upper bounds; `working` bytes must be free or in caches."""

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
        """Loads everything but the layers, and leases the smallest memory that works. `close` closes the model.
        `max_tokens` of None: the model's limit, at most 512."""
        self.model = model
        self.budget = budget
        self.trace = trace or Trace()
        self.tuning = tuning or Tuning()
        self.max_tokens = min(max_tokens or MOST_TOKENS, model.spec.max_tokens)
        self.stats: RunStats | None = None
        self._scratch = scratch
        self._lock = threading.RLock()
        self._line: WaitingLine[Job] = WaitingLine(self._work)
        self._closed = False
        self._began = self._aside_s = 0.0
        """When the present pass began, and the seconds of it that passes within it took."""
        self._dtype: HiddenDtype = hidden_dtype(model.spec)

        chosen = runtime_for(runtime, model.spec.layer)
        self.needs = engine_needs(model, chosen, threads=threads, max_tokens=self.max_tokens)
        with budget.loading(), ExitStack() as held:
            self._check_fits()
            budget.hold_libraries(self.needs.libraries)
            self.lane = held.enter_context(Lane.shared(trace=self.trace))
            self.place = chosen.workplace(budget, self.lane, self.trace)
            held.callback(self.place.close)
            with budget.charge(f"{chosen.name} runtime", chosen.compiled_nbytes) as compiled:
                self.kernel = chosen.layer_kernel(model.spec.layer, threads=threads, hidden_dtype=self._dtype)
            held.enter_context(compiled)
            held.enter_context(budget.reserve("headroom", HEADROOM))
            held.enter_context(budget.reserve("head", model.file.nbytes(HEAD)))
            self.vocabulary = Vocabulary(model, budget, max_tokens=self.max_tokens)
            held.callback(self.vocabulary.close)
            self.vocabulary.give_way()
            rows = held.enter_context(Lane("rows", link=self.lane.link, trace=self.trace))
            one = least_pass(model, self.kernel.workspace, self.max_tokens)
            self.working = max(self.vocabulary.nbytes, chosen.working_nbytes(one))
            self.embedding = InputEmbedding(model, self._row_capacity(), budget, rows)
            held.callback(self.embedding.close)
            saturating = self.tuning.chunk_tokens or self.kernel.saturating_tokens
            self.head = model.load(HEAD)
            self.window = SlidingWindow(
                model.file, model.layer_blocks, self.place.way(model), self.place.memory, widest=self.tuning.buffers
            )
            held.callback(self.window.close)
            self.room = Room(
                model, self.place, self.kernel, self.vocabulary, self.window, self.tuning.offload, saturating
            )
            self._held = held.pop_all()
        # An engine may be dropped without `close`. The threads of its lanes would then wait for ever.
        for lane in (self.lane, rows):
            weakref.finalize(self, lane.close)

    def run(self, job: Job) -> RunStats:
        """Runs a job, whose observer decides which sequences continue; its errors are raised.

        The next pass takes the most urgent job first, and others as long as sharing is quicker. The hidden states of a
        job are bit for bit those of a pass of its own. It may begin in another thread. Raises `Withdrawn` or
        `DeadlinePassed` if the request was cancelled."""
        self._line.run(job)
        return job.result

    def _work(self, taken: Taken[Job]) -> None:
        with self._lock:
            jobs = self._gathered(taken)
            if not jobs:
                return
            try:
                self._pass(jobs, taken)
            except Exception as error:
                if len(jobs) > 1 and isinstance(error, BudgetExceeded):
                    for job in jobs[1:]:
                        if job.error is None and job.stats is None:
                            self._put_back(job, taken)
                    self._begin(jobs[0])
                    self._pass(jobs[:1], taken)
                    return
                raise

    def _gathered(self, taken: Taken[Job]) -> list[Job]:
        """The first job in the queue and the next ones that are quicker with it; none if it cannot be prepared."""
        jobs: list[Job] = []
        fits: Callable[[Job], bool] | None = None
        while (job := taken.next(fits)) is not None:
            try:
                batches = [each.batch for each in jobs if each.batch is not None]
                batch = self._begin(job)
                if jobs and not self.room.quicker_together([*batches, batch]):
                    self._put_back(job, taken)
                    break
            except Exception as error:
                if jobs and isinstance(error, BudgetExceeded):  # it will fit after the other jobs have ended
                    self._put_back(job, taken)
                    break
                job.error = error
                if not jobs:
                    break
                taken.done(job)
                continue
            jobs.append(job)
            if not self.tuning.share:
                break
            if not self._is_long(len(batch.tokens)):
                fits = partial(self._goes_first, BATCH, _LONG * self._small)
        return jobs

    def _begin(self, job: Job) -> TokenBatch:
        if self._closed:
            raise InputError(f"the model {self.model.name} has been closed")
        texts = job.begin()
        if not isinstance(texts, TokenBatch) and job.query is not None:
            self._check_room(texts, job.query)
        self.window.prefetch()
        if isinstance(texts, TokenBatch):
            job.batch = texts
        elif job.query is None:
            job.batch = self.vocabulary.texts(texts, query=job.queries)
        else:
            job.batch = self.vocabulary.pairs(job.query, texts)
        return job.batch

    def _check_room(self, texts: Sequence[str], query: str) -> None:
        # Tokenizer and layers can be released as well, because the pass needs only one of them at a time. What each
        # text needs besides its tokens is leased by then.
        needed = self.working + tokens_nbytes(texts, self.max_tokens, query)
        if needed > self.budget.make_room(needed):
            stage = OperationStage(self.model.name, own=needed)
            OperationPlan(f"a request of {len(texts):,} texts", (stage,)).check(self.budget)

    def _aside(self, running: Sequence[Job], taken: Taken[Job]) -> None:
        """Runs small requests between two chunks of the `running` ones, which lose at most half of the time."""
        started = time.perf_counter()
        if not self._line.waiting or 2 * self._aside_s > started - self._began:
            return
        jobs: list[Job] = []
        least = min((job.urgency.priority for job in running if job.stats is None), default=BATCH)
        left = self._small
        try:
            while job := taken.next(partial(self._goes_first, least, left)):
                left -= self._tokens(job)
                jobs.append(job)
                try:
                    self._begin(job)
                except Exception as error:
                    if isinstance(error, BudgetExceeded):
                        raise
                    job.error = jobs.pop().error = error
                    taken.done(job)
            if jobs:
                self._pass(jobs, taken, aside=True)
        except Exception as error:
            for job in jobs:
                if job.stats is None and isinstance(error, BudgetExceeded):
                    self._put_back(job, taken)
                elif job.stats is None:
                    job.error = job.error or error
            if isinstance(error, BudgetExceeded):
                self._aside_s = math.inf  # for this pass
        finally:
            for job in jobs:
                if job.stats is not None or job.error is not None:
                    taken.done(job)
            self.window.prefetch()
            self._aside_s += time.perf_counter() - started

    def _goes_first(self, priority: int, tokens: int, job: Job) -> bool:
        """Whether a job is as urgent as `priority` and as small as `tokens`."""
        return job.urgency.priority <= priority and self._tokens(job) <= tokens

    def _tokens(self, job: Job) -> int:
        """About how many tokens a request has, before it is tokenized."""
        if isinstance(job.texts, TokenBatch):
            return int(job.texts.lengths.sum())
        query = len(job.query or "")
        return sum(min(self.max_tokens, (query + len(text)) // _CHARS_PER_TOKEN + 1) for text in job.texts)

    def _put_back(self, job: Job, taken: Taken[Job]) -> None:
        job.undo()
        job.batch = None
        taken.put_back(job)

    def _pass(self, jobs: Sequence[Job], taken: Taken[Job], *, aside: bool = False) -> None:
        """Runs prepared jobs in one pass. The first job is the caller's; `aside` within another pass, none is."""
        started = time.perf_counter()
        before = self.trace.snapshot()

        def end(job: Job, watch: ResidentWatch, memory_plan: MemoryPlan) -> None:
            if job.error is None and job.batch is not None:
                self.stats = job.stats = RunStats.of(
                    job.batch,
                    memory_plan,
                    self.window,
                    self.trace.since(before),
                    seconds=time.perf_counter() - started,
                    layers_run=job.layers,
                    evaluations=job.evaluations,
                    requests=len(jobs),
                    peak_resident=watch.high_water,
                    limit=self.budget.limit,
                )

        def ended(job: Job) -> None:
            if job is not jobs[0] or aside:
                end(job, watch, memory_plan)
            if job is not jobs[0] and not aside:
                taken.done(job)

        joined = JoinedJobs(jobs, ended)
        batch = joined.batch
        # On a device the layers of a pass are queued, not done.
        is_long = self.tuning.share and self.place.on_host and self._is_long(len(batch.tokens))
        held = batch.nbytes + LOOKUP_PER_TOKEN * len(batch.tokens)
        if len(jobs) > 1:  # the joined copy of the batches, and the states of all prefixes
            held += batch.nbytes + len(batch.prefix) * self.model.spec.layer.hidden * 4
        with self.budget.reserve("tokens", held), ResidentWatch() as watch:
            self.embedding.prepare(batch, rows=not self.place.holds_rows)
            memory_plan = self.room.plan_memory(joined.batches)
            with self.place.memory.reserve("workspace", memory_plan.workspace):
                states = self.place.states(
                    Pass(batch, memory_plan, joined.groups, self.model, self._dtype, self.embedding, self._scratch)
                )
                try:
                    if not aside:
                        self.window.start()
                        self.window.widen()
                        self._began, self._aside_s = time.perf_counter(), 0.0
                    feed = Feed(self.embedding, batch, self._dtype)
                    forward(
                        window=self.window,
                        tensors=lambda layer, block: self.place.tensors(self.model, layer, block),
                        kernel=self.kernel,
                        states=states,
                        embed=self.place.embed(feed, states),
                        observer=joined,
                        chunk_tokens=memory_plan.chunk_tokens,
                        prefixes=[self.place.prefix(feed.prefix(ids)) for ids in joined.prefixes],
                        on_layer=self._check,
                        wanted=joined.wanted,
                        between=partial(self._aside, jobs, taken) if is_long and not aside else None,
                        trace=self.trace,
                    )
                finally:
                    if not aside:
                        self.window.finish()
                    states.close()
            if not aside:
                trim_heap()
        if not aside:
            end(jobs[0], watch, memory_plan)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._held.close()
            self.model.close()

    def _is_long(self, tokens: int) -> bool:
        """Whether a pass over so many tokens lets small requests go first."""
        return tokens > _LONG * self._small

    @property
    def _small(self) -> int:
        """The most tokens that may run beside a long pass at once."""
        return max(self.room.saturating, self.max_tokens)

    def _check_fits(self) -> None:
        budget, needs = self.budget, self.needs
        budget.make_room(needs.nbytes)
        if needs.nbytes > budget.free:
            raise too_small(self.model, budget.limit, budget.used + needs.nbytes)

    def _row_capacity(self) -> int:
        """Number of rows to cache: few where the place holds them, the whole vocabulary where that is little, or the
        configured share of it, or as many as fit beside everything else."""
        model = self.model
        if self.place.holds_rows:
            return LEAST_ROWS
        floor = InputEmbedding.memory_needed(model, LEAST_ROWS, self.max_tokens)
        # The tokenizer is already in memory, and can be released for the pass.
        spare = self.budget.free - floor - SLACK - (self.working - self.vocabulary.nbytes)
        whole = model.embedding.rows * model.embedding.row_nbytes
        little = whole <= _LITTLE * spare and self.tuning.row_share
        wanted = max(LEAST_ROWS, int(model.embedding.rows * (1 if little else self.tuning.row_share)))
        return min(wanted, LEAST_ROWS + max(0, spare) // (model.embedding.row_nbytes + 16))

    def _check(self) -> None:
        self.trace.level("memory", resident=self.budget.relieve(), leased=self.budget.used)


@contextmanager
def opened_model(chosen: str | Path | PackedModel, kind: Kind, config: Config) -> Iterator[PackedModel]:
    """The model by name or path, or the open one. One that was opened here is closed if the body fails."""
    if isinstance(chosen, PackedModel):
        yield chosen
        return
    model = resolve(chosen, kind=kind, directory=config.models_dir or None)
    try:
        yield model
    except BaseException:
        model.close()
        raise


def open_engine(
    model: PackedModel,
    config: Config,
    *,
    memory: str | int | None,
    budget: MemoryBudget | None,
    max_tokens: int | None,
    trace: Trace | None,
    tuning: Tuning | None,
) -> Engine:
    """Opens an engine in `budget`, or in a new one with the limit `memory` or the configuration's."""
    if max_tokens is not None and (not isinstance(max_tokens, int | np.integer) or max_tokens < 1):
        raise InputError(f"the longest sequence is a whole number of at least 1 token, not {max_tokens!r}")
    if budget is None:
        limit = config.memory if memory is None else parse_size(memory)
        tokens = min(max_tokens or MOST_TOKENS, model.spec.max_tokens)
        needs = engine_needs(
            model, runtime_for(chosen_runtime(config), model.spec.layer), threads=config.threads, max_tokens=tokens
        )
        held = anonymous_resident()
        if held + needs.nbytes > limit:
            raise too_small(model, limit, held + needs.nbytes)
        budget = MemoryBudget(limit)
    return Engine(
        model,
        budget,
        runtime=chosen_runtime(config),
        threads=config.threads,
        max_tokens=max_tokens,
        scratch=config.scratch_path,
        trace=trace,
        tuning=tuning,
    )
