"""`ServedLibrary`: collections by name, their assistants and the user's memory, each opened when it is asked for;
`ServedModels`: the models that they share. Different things are opened at once, each by one thread at a time."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from edge.apps.assistant.assistant import Assistant
from edge.apps.assistant.generator import open_llm, picks_sentences, retrieval_nbytes
from edge.apps.collection.collection import Collection, Together
from edge.apps.collection.registry import DEFAULT, Registry, is_project, locate
from edge.apps.memory.memory import Memory
from edge.apps.pool import Held, ModelPool, patiently
from edge.apps.store.folder import COLLECTION, MEMORY
from edge.budget import MemoryBudget
from edge.config import Config
from edge.errors import BudgetExceeded, CollectionMissing, InputError
from edge.models.registry import DEFAULT_EMBEDDER, DEFAULT_RERANKER, installed, installed_generators
from edge.runtimes.embedder import Embedder
from edge.runtimes.engine import Tuning
from edge.runtimes.generation.base import Generator
from edge.runtimes.generation.extractive import ExtractiveGenerator
from edge.runtimes.generation.llama_cpp import LlamaGenerator
from edge.runtimes.reranker import Ranking, Reranker
from edge.runtimes.scoring import LayerReport, Watch
from edge.trace import Trace

if TYPE_CHECKING:
    from edge.apps.cluster.cluster import Cluster
    from edge.apps.collection.report import CollectionStatus, IndexedFile
    from edge.apps.serve.server import ServerOptions
    from edge.apps.store.database import Database

OWN_LLM = "llm"
"""The name of this server's own generator."""


_MOST_DRAWN = 300


class Served(Protocol):
    """What requests ask of one collection, whole or in shards."""

    @property
    def database(self) -> Database: ...
    def status(self) -> CollectionStatus: ...
    def files(self) -> list[IndexedFile]: ...
    def descriptions(self) -> Mapping[str, str]: ...


class Picture:
    """What a reranking saw after each layer whose scores it looked at."""

    def __init__(self, model: str, candidates: int, watch: Watch | None = None) -> None:
        self.model = model
        self.candidates = candidates
        self._watch = watch
        self._layers: list[dict[str, Any]] = []

    def see(self, report: LayerReport) -> None:
        """Takes a report. A pass that begins anew begins the picture anew."""
        if self._layers and report.layer <= self._layers[-1]["layer"]:
            self._layers = []
        decision = report.decision
        self._layers.append({
            "layer": report.layer,
            "active": len(report.ids),
            "scores": {str(i): round(s, 5) for i, s in zip(report.ids.tolist(), report.scores.tolist(), strict=True)
                       if i < _MOST_DRAWN},
            "dropped": [i for i in decision.dropped.tolist() if i < _MOST_DRAWN],
            "selected": [i for i in decision.selected.tolist() if i < _MOST_DRAWN],
        })  # fmt: skip
        if self._watch is not None:
            self._watch(report)

    def to_json(self) -> dict[str, Any]:
        return {"model": self.model, "candidates": self.candidates, "layers": list(self._layers)}


class ServedModels(ModelPool):
    def __init__(self, budget: MemoryBudget, config: Config, trace: Trace, tuning: Tuning | None = None) -> None:
        super().__init__(budget)
        self.config = config
        self.trace = trace
        self.tuning = tuning
        self._beside = 0
        self.picture: Picture | None = None

    def reranker(self, name: str) -> Held[Reranker]:
        return self.held("reranker", name, lambda: _DrawnReranker(name, self))

    def embedder(self, name: str) -> Held[Embedder]:
        return self.held("embedder", name, lambda: Embedder(name, **self.settings))

    @contextmanager
    def generator(self, llm: str, beside: int) -> Iterator[Generator]:
        """The language model of a name, path or address, open inside and shared by all requests. If it has left less
        than the bytes that searches need `beside` it, it is opened again when its requests have ended."""
        self._beside = max(self._beside, beside)
        held: Held[Generator] = self.held(
            "generator", llm, kept=True,
            opening=lambda: open_llm(
                llm, self.budget, self.config, beside=self._beside, kv_cache=True, serving=True, trace=self.trace
            ),
        )  # fmt: skip
        while True:
            with held.lent() as generator:
                if self._leaves(generator, beside):
                    yield generator
                    return
            held.close()

    def answering(self) -> list[dict[str, Any]]:
        return [model.picture() for held in self.models() if isinstance(model := held.opened, LlamaGenerator)]

    def _leaves(self, generator: Generator, beside: int) -> bool:
        if isinstance(generator, LlamaGenerator) and generator.beside < beside:
            try:
                self.budget.reserve("retrieval", beside).release()
            except BudgetExceeded:
                return False
            generator.beside = beside
        return True

    @property
    def settings(self) -> dict[str, Any]:
        return {"budget": self.budget, "config": self.config, "trace": self.trace, "tuning": self.tuning}


class _DrawnReranker(Reranker):
    """A reranker whose last ranking the server can draw."""

    def __init__(self, name: str, pool: ServedModels) -> None:
        super().__init__(name, **pool.settings)
        self._name = name
        self._drawn_in = pool

    def explain(
        self, query: str, docs: Sequence[str], *args: Any, watch: Watch | None = None, **kwargs: Any
    ) -> Ranking:
        picture = Picture(self._name, len(docs), watch)
        ranking = super().explain(query, docs, *args, watch=picture.see, **kwargs)
        self._drawn_in.picture = picture
        return ranking


MOST_ASSISTANTS = 8
"""Open assistants. Of unused ones, the one whose last use is longest ago is closed first."""


@dataclass(eq=False, slots=True)
class _OpenAssistant:
    """An assistant that is open or being opened; its generator is the pool's."""

    opening: threading.Lock = field(default_factory=threading.Lock)
    assistant: Assistant | None = None
    users: int = 0


_AssistantKey = tuple[tuple[tuple[str, Collection], ...], str, str]
"""Collections by their names, generator and pipeline."""


class Assistants:
    """Thread-safe. While one is opened, only the requests for this one wait."""

    def __init__(self, pool: ServedModels) -> None:
        self._pool = pool
        self._lock = threading.Lock()  # of the entries; nothing is opened or closed while it is held
        self._entries: dict[_AssistantKey, _OpenAssistant] = {}

    @contextmanager
    def using(self, collections: Together, llm: str, pipeline: str) -> Iterator[Assistant]:
        with ExitStack() as stack:
            lent: Generator | None = None
            if not picks_sentences(llm):
                lent = stack.enter_context(self._pool.generator(llm, retrieval_nbytes(collections.first, serving=True)))
            several = collections.collections if len(collections.collections) > 1 else {"": collections.first}
            yield stack.enter_context(self._entered((tuple(several.items()), llm, pipeline), lent))

    @contextmanager
    def _entered(self, key: _AssistantKey, lent: Generator | None) -> Iterator[Assistant]:
        with self._lock:
            entry = self._entries[key] = self._entries.pop(key) if key in self._entries else _OpenAssistant()
            entry.users += 1
        try:
            with patiently(entry.opening):
                if entry.assistant is not None and lent is not None and entry.assistant.generator is not lent:
                    entry.assistant.close()  # the pool has opened its generator anew, so nobody uses it
                    entry.assistant = None
                if entry.assistant is None:
                    chosen = Together(dict(key[0])) if len(key[0]) > 1 else key[0][0][1]
                    entry.assistant = Assistant(chosen, llm=lent or ExtractiveGenerator.name, pipeline=key[2])
                assistant = entry.assistant
            yield assistant
        finally:
            with self._lock:
                entry.users -= 1
            self._close_unused()

    def close(self, of: Collection | Cluster | None = None) -> None:
        with self._lock, ExitStack() as closing:
            for key in [key for key in self._entries if of is None or of in dict(key[0]).values()]:
                assistant = self._entries.pop(key).assistant
                if assistant is not None:
                    closing.callback(assistant.close)

    def _close_unused(self) -> None:
        with self._lock:
            unused = [key for key, entry in self._entries.items() if not entry.users]
            more = max(0, len(self._entries) - MOST_ASSISTANTS)
            closed = [self._entries.pop(key).assistant for key in unused[:more]]
        for assistant in closed:
            if assistant is not None:
                assistant.close()


Store = TypeVar("Store", Collection, Memory, "Cluster")


Identity = tuple[int, int] | None
"""The number of a file and of its disk, which no other file gets while it is open; None if there is no file."""


def identity_of(path: Path) -> Identity:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


class ServedLibrary:
    """A request can only reach stores that have a name here: paths that it brings open nothing. Thread-safe."""

    def __init__(self, pool: ServedModels, options: ServerOptions) -> None:
        self.pool = pool
        self._options = options
        self._chosen = [(name, locate(name)) for name in options.collections]
        self._usual = locate(None)
        self.memory_path = options.memory
        self._llm = options.llm or pool.config.llm
        self._places = options.places
        self._turns: defaultdict[Hashable, threading.Lock] = defaultdict(threading.Lock)
        self._looking = threading.Lock()  # two threads that find no lock of a path must not make two
        self._stores: dict[tuple[Hashable, str | None], tuple[Any, Path, Identity]] = {}
        """By kind and name: the store, the file of its database, and which file that was when it was opened."""
        self._assistants = Assistants(pool)

    def names(self) -> Mapping[str, Path]:
        """The directories of the collections by name; the first is used where a request names none."""
        if self._chosen:
            found = dict(self._chosen)
            return {DEFAULT: self._chosen[0][1], **found} if len(found) == 1 else found
        return {DEFAULT: self._usual, **Registry().names()}

    def described(self) -> list[dict[str, Any]]:
        return [{"name": name, "path": str(path), "exists": self.holds(path)} for name, path in self.names().items()]

    def holds(self, path: Path) -> bool:
        """Whether there is a collection in a directory, or one in shards where that is served."""
        if self._places is None:
            return Collection.exists(path)
        from edge.apps.cluster.catalogue import Catalogue

        return Catalogue.exists(path)

    def collection(self, name: str = "") -> Served:
        return self._opened(self._path(name)) if self._places is None else self._spread(name)

    def _spread(self, name: str) -> Cluster:
        from edge.apps.cluster.catalogue import FILE
        from edge.apps.cluster.cluster import Cluster

        path, places, pool = self._path(name), self._places, self.pool
        assert places is not None

        def opening() -> tuple[Cluster, Path]:
            with Cluster(path, places, config=pool.config, budget=pool.budget) as described:
                embedder = described.models.named_embedder()
            return Cluster(
                path, places, config=pool.config, budget=pool.budget, trace=pool.trace,
                embedder=self.embedder(str(embedder)), reranker=self.reranker(),
            ), path / FILE  # fmt: skip

        return self._current(path, "", opening)

    def _opened(self, path: Path) -> Collection:
        return self._current(path, "", lambda: (self._open(path), path / COLLECTION))

    def _current(self, kind: Hashable, name: str | None, opening: Callable[[], tuple[Store, Path]]) -> Store:
        """An open store, opened if it is not or if another one was put in its place."""
        with self._looking:
            turn = self._turns[kind]
        with patiently(turn):
            if (kind, name) in self._stores:
                store, database, identity = self._stores[kind, name]
                if identity_of(database) == identity:
                    return cast("Store", store)
                del self._stores[kind, name]  # another store, or none, is in its place
                self._close_later(store)
            opened, database = opening()
            self._stores[kind, name] = opened, database, identity_of(database)
            return opened

    def _open(self, path: Path) -> Collection:
        pool = self.pool
        with Collection(path, config=pool.config, budget=pool.budget, read_only=True) as described:
            embedder = described.embedder_name
        return Collection(
            path, config=pool.config, budget=pool.budget, trace=pool.trace, read_only=True,
            embedder=self.embedder(embedder), reranker=self.reranker(),
        )  # fmt: skip

    @contextmanager
    def writing(self, name: str = "") -> Iterator[Collection]:
        """A collection that can be changed; it is made if there is none yet."""
        pool, path = self.pool, self._path(name)
        embedder = self._opened(path).embedder_name if Collection.exists(path) else ""
        with Collection(
            path, config=pool.config, budget=pool.budget, trace=pool.trace, embedder=self.embedder(embedder),
        ) as opened:  # fmt: skip
            yield opened

    def pictures(self) -> list[dict[str, Any]]:
        stores = [store for store, _, _ in list(self._stores.values()) if isinstance(store, Collection)]
        return [{"collection": one.path.name, **found} for one in stores if (found := one.picture()) is not None]

    def together(self, names: Sequence[str], *, partial: bool = False) -> Together:
        """Collections to be searched as one. With `partial` the shards of one that answer are enough."""
        chosen = dict.fromkeys(names or [""])
        if self._places is not None:
            name = next(iter(chosen))
            return self._spread(name).view(name, partial=partial)
        if partial:
            raise InputError("`partial` needs a collection in shards; the server was started without --cluster")
        return Together({name: self._opened(self._path(name)) for name in chosen})

    def together_in(self, places: Iterable[tuple[str, str]]) -> Together:
        """As `together`, for pairs of a name and a directory, which must be served or a project's unless all requests
        come from the owner."""
        chosen: dict[Path, str] = {}
        for name, directory in places:
            chosen.setdefault(Path(directory), name)
        if self._places is not None:
            path = next(iter(chosen))
            raise CollectionMissing(f"the collection in {path} is not served to commands; `--cluster` reaches shards")
        for path in chosen:
            self.check_served(path)
        return Together({name: self._opened(path) for path, name in chosen.items()})

    def check_served(self, path: Path) -> None:
        if not (self._options.private or is_project(path) or path in self.names().values()):
            raise InputError(f"the collection in {path} is not served")

    @property
    def writes(self) -> bool:
        return not picks_sentences(self._llm)

    def generators(self) -> list[str]:
        """The names of the generators. A path or an address is none: a request opens nothing that the owner has not
        configured."""
        return [ExtractiveGenerator.name, OWN_LLM, *self.pulled_generators()]

    def pulled_generators(self) -> list[str]:
        return [name for name, _ in installed_generators(self.pool.config.models_dir or None)]

    def assistant(
        self, names: Sequence[str] = (), llm: str = "", pipeline: str = "plain", *, collections: Together | None = None
    ) -> AbstractContextManager[Assistant]:
        """An assistant of the collections of these names, or of those that `together_in` gives."""
        if llm and llm not in self.generators():
            raise InputError(f"no generator is called {llm[:80]!a}; the names are {', '.join(self.generators())}")
        chosen = self._llm if llm in ("", OWN_LLM) else llm
        return self._assistants.using(collections or self.together(names), chosen, pipeline)

    def memory(self, user: str | None = None) -> Memory:
        """The memory; with `user`, that of this user alone, for clients that name nobody."""
        return self._current(Memory, user, lambda: self._open_memory(user))

    def _open_memory(self, user: str | None = None) -> tuple[Memory, Path]:
        pool = self.pool
        memory = Memory(
            self.memory_path, config=pool.config, budget=pool.budget, trace=pool.trace,
            embedder=self.embedder(), reranker=self.reranker(), user_id=user,
        )  # fmt: skip
        return memory, memory.path / MEMORY

    def reranker(self, name: str = "") -> Held[Reranker]:
        return self.pool.reranker(name or self.pool.config.reranker or DEFAULT_RERANKER)

    def served_reranker(self, model: str) -> Held[Reranker]:
        """The reranker for a request. Names of services that tools send (`rerank-v3.5`) mean the server's own."""
        return self.reranker(model if model in self.installed_names() else "")

    def served_embedder(self, model: str) -> Held[Embedder]:
        return self.embedder(model if model in self.installed_names() else "")

    def installed_names(self) -> list[str]:
        """The names of installed models. A path is none: a request cannot open one."""
        return [name for name, _ in installed(self.pool.config.models_dir or None)]

    def embedder(self, name: str = "") -> Held[Embedder]:
        return self.pool.embedder(name or self.pool.config.embedder or DEFAULT_EMBEDDER)

    def close(self) -> None:
        with ExitStack() as closing:
            closing.callback(self.pool.close)
            for store, _, _ in self._stores.values():
                closing.callback(store.close)
            closing.callback(self._assistants.close)
        self._stores.clear()

    def _close_later(self, store: Collection | Memory | Cluster) -> None:
        """Closes a store, and its assistants, when all requests that may use it have ended."""

        def close() -> None:
            if not isinstance(store, Memory):
                self._assistants.close(store)
            store.close()

        timer = threading.Timer(self._options.limits.request_s, close)
        timer.daemon = True
        timer.start()

    def _path(self, name: str) -> Path:
        names = self.names()
        if not name:
            return next(iter(names.values()))
        if name not in names:
            raise CollectionMissing(f"no collection is called {name[:80]!a}; the names are {', '.join(names)}")
        return names[name]
