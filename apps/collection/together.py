"""`Together`: searches several collections as one, under one budget and with one reranker."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from edge.apps.collection.collection import Collection
from edge.apps.collection.excerpts import MOST_BYTES, Excerpt, NotIndexed, read_excerpts
from edge.apps.collection.hits import Hit
from edge.apps.collection.registry import locate
from edge.apps.collection.searching import Seen, searched
from edge.apps.planning import opened_budget
from edge.apps.requests import POOL, SearchOptions, search_options
from edge.apps.store.health import Health
from edge.budget import MemoryBudget
from edge.config import Config
from edge.resident import Closing
from edge.trace import Trace


class Together(Closing):
    """Collections by name. A context manager; the first collection's reranker ranks all candidates.

    A hit's `collection` names its collection; its `id` and `file` are numbers within that collection.
    """

    def __init__(self, collections: Mapping[str, Collection]) -> None:
        """Takes open collections that share one budget; `close` closes them."""
        self._collections = dict(collections)

    @classmethod
    def opened(
        cls, chosen: Sequence[str], config: Config, trace: Trace | None = None, *, candidates: int = POOL
    ) -> Together:
        """Opens collections for reading, by names or directories; if none is given, the default collection.

        Args:
            candidates: passages that a search will rank, so that a refusal can name a sufficient limit.

        Raises:
            StorageError: a collection does not exist.
            BudgetExceeded: the collections do not fit the memory limit.
        """
        budget = opened_budget(
            "the collection", config.memory, config, candidates=candidates, databases=max(1, len(set(chosen)))
        )
        found: dict[str, Collection] = {}
        places: dict[Path, str] = {}
        with ExitStack() as stack:
            for name in chosen or [""]:
                path = locate(name or None)
                if path in places:
                    continue
                places[path] = name
                found[name] = stack.enter_context(
                    Collection(path, config=config, budget=budget, trace=trace, read_only=True)
                )
            stack.pop_all()
        return cls(found)

    @property
    def collections(self) -> Mapping[str, Collection]:
        """The collections by the names they were chosen by; the default collection has an empty name."""
        return self._collections

    def health(self) -> Health:
        """Unfinished work and known damage. If there are several collections, each text begins with a name."""
        if len(self._collections) == 1:
            return self._first.health()
        return Health(
            tuple(
                replace(trouble, text=f"{name or collection.path}: {trouble.text}")
                for name, collection in self._collections.items()
                for trouble in collection.health()
            )
        )

    @property
    def budget(self) -> MemoryBudget:
        """The budget that all collections share."""
        return self._first.budget

    def search(
        self,
        query: str,
        top_k: int | None = None,
        *,
        options: SearchOptions | None = None,
        seen: Seen | None = None,
        **named: Any,
    ) -> list[Hit]:
        """Searches like `Collection.search`, over all collections. Their candidates compete for the pool by their fused
        scores, and are reranked together.

        Args:
            seen: receives the results of each stage as soon as they exist. It does not change the results.
        """
        return searched(self._collections, query, search_options(top_k, options, named), seen)

    def check_room(self) -> None:
        """Checks that a usual search fits the limit, before the first one.

        Raises:
            BudgetExceeded: it does not. The message names the smallest limit that works.
        """
        self._first.check_room("searching")

    def read(self, targets: Sequence[str], *, lines: int | None = None, max_bytes: int = MOST_BYTES) -> list[Excerpt]:
        """Reads targets (see `read_excerpts`), each from the first collection that has it.

        Raises:
            InputError: no collection has a target, or a target matches several files.
        """
        found: list[Excerpt] = []
        for target in targets:
            left = max_bytes - sum(len(excerpt.text.encode()) for excerpt in found)
            if found and left <= 0:
                break
            found += self._read(target, lines, left)
        return found

    def _read(self, target: str, lines: int | None, max_bytes: int) -> list[Excerpt]:
        *others, last = self._collections.values()
        for collection in others:
            with contextlib.suppress(NotIndexed):
                return read_excerpts(collection, [target], lines=lines, max_bytes=max_bytes)
        return read_excerpts(last, [target], lines=lines, max_bytes=max_bytes)

    def close(self) -> None:
        """Closes all collections."""
        for collection in self._collections.values():
            collection.close()

    @property
    def _first(self) -> Collection:
        return next(iter(self._collections.values()))
