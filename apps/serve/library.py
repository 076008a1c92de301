"""What is served: collections by name, their assistants, the user's memory, each opened when it is asked for."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from edge.apps.assistant.assistant import Assistant
from edge.apps.collection.collection import Collection
from edge.apps.collection.registry import Registry, locate
from edge.apps.collection.together import Together
from edge.apps.memory.console import DEFAULT_USER
from edge.apps.memory.memory import Memory
from edge.apps.serve.assistants import Assistants, Turns
from edge.apps.serve.lent import LentEmbedder, LentReranker, ModelPool
from edge.apps.store.folder import COLLECTION, MEMORY
from edge.errors import CollectionMissing, InputError
from edge.models.registry import DEFAULT_EMBEDDER, DEFAULT_RERANKER, installed, installed_generators
from edge.runtimes.generation.extractive import ExtractiveGenerator

DEFAULT = "default"
"""The name of the collection that is used where none is named."""

OWN_LLM = "llm"
"""The name of what writes answers on this server."""


class _Store(Protocol):
    def close(self) -> None: ...


Store = TypeVar("Store", bound=_Store)


class Held(Generic[Store]):
    """An open store, and which file it was opened from: another one may be put in its place."""

    def __init__(self, store: Store, database: Path) -> None:
        self.store = store
        self._database = database
        self._identity = self._present()

    @property
    def is_replaced(self) -> bool:
        """Whether another store, or none, is where this one was opened. The system gives no other file the number of
        one that is open."""
        return self._present() != self._identity

    def _present(self) -> tuple[int, int] | None:
        try:
            found = self._database.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino


class Library:
    """Thread-safe. A request can only reach what has a name here: paths that a request brings open nothing."""

    def __init__(
        self, pool: ModelPool, collections: Sequence[str] = (), *, memory: Path | None = None, llm: str = "",
        longest_s: float = 300.0,
    ) -> None:  # fmt: skip
        """Opens nothing yet.

        Args:
            collections: names and directories of those that are served; if there are none, the usual one and all that
                have a name (`edge collections`).
            memory: directory of the memory; the usual one if not given.
            llm: what writes answers, where a request does not choose; see `Assistant`.
            longest_s: a request works for at most so long.
        """
        self.pool = pool
        self._chosen = [(name, locate(name)) for name in collections]
        self._usual = locate(None)
        self.memory_path = memory
        self._llm = llm or pool.config.llm
        self._longest_s = longest_s
        self._turns = Turns()
        self._collections: dict[Path, Held[Collection]] = {}
        self._assistants = Assistants()
        self._memories: dict[str | None, Held[Memory]] = {}

    def names(self) -> Mapping[str, Path]:
        """The directories of the collections by their names; the first is used where a request names none."""
        if self._chosen:
            found = dict(self._chosen)
            return {DEFAULT: self._chosen[0][1], **found} if len(found) == 1 else found
        return {DEFAULT: self._usual, **Registry().names()}

    def collection(self, name: str = "") -> Collection:
        """The collection of a name, opened for reading.

        Raises:
            CollectionMissing: no collection has it.
            StorageError: there is none in its directory.
            BudgetExceeded: it does not fit.
        """
        return self._opened(self._path(name))

    def collection_in(self, path: Path) -> Collection:
        """The collection in a directory, which must be one of those that are served. Raises as `collection` does."""
        if path not in self.names().values():
            raise InputError(f"the collection in {path} is not served")
        return self._opened(path)

    def _opened(self, path: Path) -> Collection:
        with self._turns.turn(path):
            held = self._collections.get(path)
            if held is not None and held.is_replaced:
                self._close_later(self._collections.pop(path).store)
                held = None
            if held is None:
                held = self._collections[path] = Held(self._open(path), path / COLLECTION)
            return held.store

    def _open(self, path: Path) -> Collection:
        pool = self.pool
        with Collection(path, config=pool.config, budget=pool.budget, read_only=True) as described:
            embedder = described.embedder_name
        return Collection(
            path, config=pool.config, budget=pool.budget, trace=pool.trace, read_only=True,
            embedder=self.embedder(embedder), reranker=self.reranker(),
        )  # fmt: skip

    def together(self, names: Sequence[str]) -> Together:
        """Collections to be searched as one; they stay the library's to close. Raises as `collection` does."""
        chosen = dict.fromkeys(names or [""])
        return Together({name: self.collection(name) for name in chosen})

    def generators(self) -> list[str]:
        """The names of what may write answers: `extractive`, the server's own, the known generators that were pulled.

        A path or an address is no name: what the owner has not configured is not opened for a request.
        """
        return [ExtractiveGenerator.name, OWN_LLM, *self.pulled_generators()]

    def pulled_generators(self) -> list[str]:
        """The names of the known generators that were pulled."""
        return [name for name, _ in installed_generators(self.pool.config.models_dir or None)]

    def assistant(self, name: str = "", llm: str = "", pipeline: str = "plain") -> AbstractContextManager[Assistant]:
        """What answers questions from a collection, open inside the block.

        Args:
            llm: one of `generators`, or empty for the server's own.

        Raises:
            InputError: there is no such generator or pipeline.
            ModelError, CapabilityError: the generator cannot be used.
            Others as `collection`.
        """
        if llm and llm not in self.generators():
            raise InputError(f"no generator is called {llm[:80]!a}; the names are {', '.join(self.generators())}")
        chosen = self._llm if llm in ("", OWN_LLM) else llm
        return self._assistants.using(self.collection(name), chosen, pipeline)

    def assistant_in(self, path: Path, pipeline: str) -> AbstractContextManager[Assistant]:
        """As `assistant`, for the collection in a directory, which must be one of those that are served."""
        return self._assistants.using(self.collection_in(path), self._llm, pipeline)

    def memory(self, user: str | None = None) -> Memory:
        """The memory; with `user`, what belongs to that user alone, for clients that name nobody. Raises as `Memory`
        does."""
        with self._turns.turn(Memory):
            held = self._memories.get(user)
            if held is not None and held.is_replaced:
                self._close_later(self._memories.pop(user).store)
                held = None
            if held is None:
                opened = self._open_memory(user)
                held = self._memories[user] = Held(opened, opened.path / MEMORY)
            return held.store

    def own_memory(self) -> Memory:
        """The memory of the default user alone. Raises as `Memory` does."""
        return self.memory(DEFAULT_USER)

    def _open_memory(self, user: str | None = None) -> Memory:
        pool = self.pool
        return Memory(
            self.memory_path, config=pool.config, budget=pool.budget, trace=pool.trace,
            embedder=self.embedder(), reranker=self.reranker(), user_id=user,
        )  # fmt: skip

    def reranker(self, name: str = "") -> LentReranker:
        """The reranker of a name, or the configured one."""
        return self.pool.reranker(name or self.pool.config.reranker or DEFAULT_RERANKER)

    def embedder(self, name: str = "") -> LentEmbedder:
        """The embedder of a name, or the configured one."""
        return self.pool.embedder(name or self.pool.config.embedder or DEFAULT_EMBEDDER)

    def close(self) -> None:
        """Closes everything."""
        with ExitStack() as closing:
            closing.callback(self.pool.close)
            for collection in self._collections.values():
                closing.callback(collection.store.close)
            for memory in self._memories.values():
                closing.callback(memory.store.close)
            closing.callback(self._assistants.close)
        self._collections.clear()
        self._memories.clear()

    def _close_later(self, store: _Store) -> None:
        """Closes what requests may still be using when all of them have ended."""
        timer = threading.Timer(self._longest_s, store.close)
        timer.daemon = True
        timer.start()

    def _path(self, name: str) -> Path:
        names = self.names()
        if not name:
            return next(iter(names.values()))
        if name not in names:
            raise CollectionMissing(f"no collection is called {name[:80]!a}; the names are {', '.join(names)}")
        return names[name]


def served_reranker(library: Library, model: str) -> LentReranker:
    """The reranker for a request. Tools send the names of services (`rerank-v3.5`), which mean the server's own."""
    return library.reranker(model if model in installed_names(library) else "")


def served_embedder(library: Library, model: str) -> LentEmbedder:
    """The embedder for a request, likewise."""
    return library.embedder(model if model in installed_names(library) else "")


def installed_names(library: Library) -> list[str]:
    """The names of the models that are installed. A path is no name: a request cannot open one."""
    return [name for name, _ in installed(library.pool.config.models_dir or None)]
