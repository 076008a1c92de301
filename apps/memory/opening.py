"""`OpenMemory`: opens and closes a memory, and binds it to a scope."""

from __future__ import annotations

import os
from collections.abc import Mapping
from copy import copy
from pathlib import Path
from typing import Any, TypeVar

from edge.apps.memory.actions import ActionCache
from edge.apps.memory.arguments import check_path, default_path
from edge.apps.memory.filters import Condition, compile_filters, names_scope
from edge.apps.memory.models import TextEmbedder, TextReranker
from edge.apps.memory.moments import Clock, local_now
from edge.apps.memory.scope import SCOPE_FIELDS, Scope
from edge.apps.memory.searching import DEPTH, Searcher
from edge.apps.memory.store import MemoryStore
from edge.apps.memory.writing import Writer
from edge.apps.pool import Held
from edge.apps.store.health import Health
from edge.apps.store.planning import opened_budget
from edge.apps.store.rebuilding import Progress
from edge.budget import MemoryBudget
from edge.config import Config, parse_size
from edge.errors import InputError
from edge.ivf.base import MaintenanceReport
from edge.public_calls import checked_arguments
from edge.resident import Closing
from edge.runtimes.generation.base import Generator
from edge.trace import Trace

NO_SCOPE = "name a scope: user_id, agent_id or run_id, in the call, in its filters, or in Memory(...)"


Opened = TypeVar("Opened", bound="OpenMemory")


@checked_arguments
class OpenMemory(Closing):
    """An open memory with its parts: store, models and scope. `Memory` adds the verbs."""

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        user_id: str | int | None = None,
        agent_id: str | int | None = None,
        run_id: str | int | None = None,
        memory: str | int | None = None,
        embedder: str | Path | TextEmbedder | Held[Any] | None = None,
        reranker: str | Path | TextReranker | Held[Any] | None = None,
        generator: Generator | None = None,
        clock: Clock = local_now,
        config: Config | None = None,
        budget: MemoryBudget | None = None,
        trace: Trace | None = None,
    ) -> None:
        """Opens the memory in the directory `path`, or creates one there. Models are opened on first use.

        Args:
            path: by default the platform's folder for the user's data.
            user_id, agent_id, run_id: the scope that the object is bound to; none of them leaves it unbound.
            memory: limit of the whole process, such as `300MB`; by default the configuration's.
            embedder, reranker: names or paths, or open models, which the caller closes. By default, an existing
                memory uses the embedder that made its vectors. The embedder cannot change once there are memories.
            generator: extracts facts for `add(..., infer=True)`; the caller closes it.
            clock: returns the present moment. Its day decides which memories have expired.
            budget: a budget shared with other parts of the program, instead of `memory`.

        Raises:
            InputError: an id or the path is not valid.
            StorageError: the memory cannot be opened, or a newer version wrote it.
            BudgetExceeded: the limit is too small. The message names the smallest limit that works.
        """
        self.bound = Scope.of({"user_id": user_id, "agent_id": agent_id, "run_id": run_id})
        self.path = check_path(path).expanduser().absolute() if path is not None else default_path()
        config = config or Config.load()
        self.trace = trace or Trace()
        limit = config.memory if memory is None else parse_size(memory)
        self.budget = budget or opened_budget(
            "the memory", limit, config, embedder=embedder, reranker=reranker, candidates=DEPTH, writes=True
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
        """The cache of earlier trajectories, which an agent can repeat without asking a model."""
        return self._actions

    def within(self: Opened, scope: Scope) -> Opened:
        """This memory for one scope only, as if it had been opened for it. It shares everything, and is not closed."""
        narrowed = copy(self)
        narrowed.bound = scope.within(self.bound)
        narrowed._actions = ActionCache(self.store, narrowed.bound, self._clock)
        return narrowed

    def health(self, *, thorough: bool = False) -> Health:
        """The known damage and unfinished work of the memory, in all scopes. It does not read all stored data.

        Args:
            thorough: also count the vectors.
        """
        return self.store.health(thorough=thorough)

    def check_room(self) -> None:
        """Checks that adding and searching fit the limit, before they are asked for.

        Raises:
            BudgetExceeded: they do not. The message names the smallest limit that works.
        """
        self.store.models.check_room("the memory", rerank=True, candidates=DEPTH, writes=True)

    def maintain(self, *, full: bool = False) -> MaintenanceReport | None:
        """Runs the maintenance of the vector index now instead of in the background; None if nothing was ever
        stored."""
        return self.store.upkeep.maintain(full=full)

    def rebuild(self, *, progress: Progress | None = None) -> int:
        """Embeds the stored texts of all memories and actions of all scopes again; for damaged vectors. An interrupted
        rebuild goes on with the next call, or in the background after the next writes.

        Args:
            progress: called with the number of texts done, and of all texts.

        Returns:
            The number of texts embedded.

        Raises:
            ModelError, BudgetExceeded, StorageError: the vectors made before the error are kept.
        """
        index = self.store.index
        if index is None:
            return 0
        self.store.models.describe()  # checks that the right embedder is there, before any vector is dropped
        self.store.rebuilding.begin(index)
        made = self.store.rebuilding.finish(index, progress)
        self.maintain()
        return made

    def close(self) -> None:
        """Closes models and files. Closing twice is harmless."""
        self._actions.close()
        self._searcher.close()
        self.store.close()

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
