"""`OpenMemory`: what a memory is opened from, whose it is, and how it is closed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from edge.apps.memory.actions import ActionCache
from edge.apps.memory.arguments import check_path
from edge.apps.memory.filters import Condition, compile_filters, names_scope
from edge.apps.memory.models import TextEmbedder, TextReranker
from edge.apps.memory.moments import Clock, local_now
from edge.apps.memory.scope import SCOPE_FIELDS, Scope
from edge.apps.memory.searching import DEPTH, Searcher
from edge.apps.memory.store import MemoryStore, default_path
from edge.apps.memory.writing import Writer
from edge.apps.planning import opened_budget
from edge.apps.store.health import Health
from edge.apps.store.rebuilding import Progress
from edge.budget import MemoryBudget
from edge.config import Config, parse_size
from edge.errors import InputError
from edge.ivf.base import MaintenanceReport
from edge.public_calls import checked_arguments
from edge.runtimes.generation.base import Generator
from edge.trace import Trace

NO_SCOPE = "name a scope: user_id, agent_id or run_id, in the call, in its filters, or in Memory(...)"


Opened = TypeVar("Opened", bound="OpenMemory")


@checked_arguments
class OpenMemory:
    """The parts of an open memory; `Memory` adds the verbs."""

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        user_id: str | int | None = None,
        agent_id: str | int | None = None,
        run_id: str | int | None = None,
        memory: str | int | None = None,
        embedder: str | Path | TextEmbedder | None = None,
        reranker: str | Path | TextReranker | None = None,
        generator: Generator | None = None,
        clock: Clock = local_now,
        config: Config | None = None,
        budget: MemoryBudget | None = None,
        trace: Trace | None = None,
    ) -> None:
        """Opens the memory in the directory `path`, or makes one there; models are opened when first needed.

        Args:
            path: the platform's place for the user's data if not given.
            memory: limit of the whole process, such as `300MB`; the configuration's if not given.
            embedder, reranker: names or paths, or open models that stay the caller's to close. The embedder is the
                memory's own if not given; it cannot change once there are memories.
            generator: extracts facts for `add(..., infer=True)`; stays the caller's to close.
            clock: returns the present moment; the day it says it is decides what has expired.
            budget: a ledger shared with other parts of the program, instead of `memory`.

        Raises:
            InputError: an id or the path can be none.
            StorageError: it cannot be opened, or a newer version wrote it.
            BudgetExceeded: the limit is too small; the error names the smallest that works.
        """
        self.bound = Scope.of({"user_id": user_id, "agent_id": agent_id, "run_id": run_id})
        self.path = check_path(path).expanduser().absolute() if path is not None else default_path()
        config = config or Config.load()
        self.trace = trace or Trace()
        limit = config.memory if memory is None else parse_size(memory)
        self.budget = budget or opened_budget(
            "the memory", limit, config, embedder=embedder, reranker=reranker, candidates=DEPTH
        )
        self._clock = clock
        self._generator = generator
        self.store = MemoryStore(
            self.path, budget=self.budget, config=config, trace=self.trace, embedder=embedder, reranker=reranker
        )
        self._searcher = Searcher(self.store, clock)
        self._writer = Writer(self.store, clock)
        self._actions = ActionCache(self.store, self.bound, clock)

    @property
    def actions(self) -> ActionCache:
        """What was done before, to be done again without asking a model."""
        return self._actions

    def health(self, *, thorough: bool = False) -> Health:
        """What is unfinished or damaged, of all scopes, as far as it is known without reading everything.

        Args:
            thorough: also counts the vectors.
        """
        return self.store.health(thorough=thorough)

    def maintain(self, *, full: bool = False) -> MaintenanceReport | None:
        """Puts the vector index in order now, which otherwise happens in the background; None if nothing was ever
        stored."""
        return self.store.upkeep.maintain(full=full)

    def rebuild(self, *, progress: Progress | None = None) -> int:
        """Embeds everything again, memories and actions of all scopes, from the texts that are stored: what to do where
        vectors are damaged. Interrupted, it goes on when it is called again, or in the background of the next writes.

        Args:
            progress: called with how many are done and how many there are.

        Returns:
            How many were embedded.

        Raises:
            ModelError, BudgetExceeded, StorageError: what is done stays.
        """
        index = self.store.index
        if index is None:
            return 0
        self.store.models.describe()  # before anything is forgotten: the embedder is there, and the right one
        self.store.rebuilding.begin(index)
        made = self.store.rebuilding.finish(index, progress)
        self.maintain()
        return made

    def close(self) -> None:
        """Closes models and files. Closing twice is harmless."""
        self._actions.close()
        self._searcher.close()
        self.store.close()

    def __enter__(self: Opened) -> Opened:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _scope(self, user_id: object, agent_id: object, run_id: object) -> Scope:
        return Scope.of(dict(zip(SCOPE_FIELDS, (user_id, agent_id, run_id), strict=True))).within(self.bound)

    def _whose(
        self, user_id: object, agent_id: object, run_id: object, filters: Mapping[str, Any] | None
    ) -> tuple[Scope, Condition]:
        scope = self._scope(user_id, agent_id, run_id)
        condition = compile_filters(filters or {})
        if not scope and not names_scope(filters or {}):
            raise InputError(NO_SCOPE)
        return scope, condition
